"""The traffic: what request number i of an engine is like, whoever asks and whenever."""

from typing import NamedTuple

import numpy as np

from simulations.luck import GOLDEN, Array, Keys, key, mixed, uniforms
from simulations.policy import Ints
from simulations.timeline import TILTS, Phase, Timeline

_GOLDEN_RATIO = 0.6180339887498949
_BLOCK = 1024
# Counters of a request's attributes.
WRONG, OTHER_LABEL, TILT, LENGTH = (np.array([n], dtype=np.uint64) for n in range(4))
STEPS = np.uint64(64)  # counters from here on are those of its steps


class Arrivals(NamedTuple):
    """New requests, [n] each. `context`: the label as policies see it; `kind`: index of the request's own acceptance;
    `length`: tokens of its answer; `prompt`: tokens."""

    number: Ints
    key: Keys
    domain: Ints
    context: Ints
    kind: Ints
    length: Ints
    prompt: Ints


class _Block(NamedTuple):
    """The luck of a stretch of requests."""

    key: Keys
    place: Array
    wrong: Array
    kind: Ints
    length: Array
    other: Array


class Requests:
    """The requests of one engine, in order.

    Domains follow a golden-ratio sequence instead of independent draws: every stretch of requests then holds each
    domain nearly as often as its share says, which takes luck out of comparisons and nothing else.
    """

    def __init__(self, timeline: Timeline, seed: int, engine: int) -> None:
        domains = timeline.scenario.domains.values()
        self._own = key(seed, engine, 1)
        self._start = float(uniforms(self._own, np.array([1], dtype=np.uint64))[0])
        self._context = timeline.context
        self._contexts = len(timeline.contexts)
        self._wrong = timeline.scenario.mislabelled
        self._rate: Array = np.array([np.log1p(-1.0 / max(d.output, 1.0 + 1e-9)) for d in domains])
        self._prompt: Ints = np.array([d.prompt for d in domains], dtype=np.intp)
        self._next = 0
        self._begin = self._end = 0
        self._block: _Block

    def take(self, n: int, phase: Phase) -> Arrivals:
        """The next n requests, arriving in the phase."""
        if self._next + n > self._end:
            self._fill(n)
        at = slice(self._next - self._begin, self._next - self._begin + n)
        block = _Block(*(array[at] for array in self._block))  # type: ignore[arg-type]  # a slice keeps its dtype
        number = np.arange(self._next, self._next + n)
        self._next += n
        domain = np.searchsorted(phase.reach, block.place, side="right")
        tokens = 1 + np.floor(np.log1p(-block.length) / self._rate[domain]).astype(np.intp)
        labels = self._labels(domain, block.wrong, block.other)
        return Arrivals(number, block.key, domain, labels, block.kind, tokens, self._prompt[domain])

    def _labels(self, domain: Ints, wrong: Array, other: Array) -> Ints:
        """The domains' labels, some of them wrong: any other label instead, or `other` where there is none."""
        true = self._context[domain]
        if not self._wrong:
            return true
        others = self._contexts - 1
        step = 1 + np.floor(other * others).astype(np.intp)
        false = (true + step) % self._contexts if others else np.full_like(true, self._contexts)
        return np.where(wrong < self._wrong, false, true)

    def _fill(self, n: int) -> None:
        self._begin, self._end = self._next, self._next + max(n, _BLOCK)
        number = np.arange(self._begin, self._end, dtype=np.uint64)
        own = mixed(self._own + (number + np.uint64(1)) * GOLDEN)
        place = (self._start + number.astype(np.float64) * _GOLDEN_RATIO) % 1.0
        kind = np.floor(uniforms(own, TILT) * TILTS).astype(np.intp)
        self._block = _Block(own, place, uniforms(own, WRONG), kind, uniforms(own, LENGTH), uniforms(own, OTHER_LABEL))
