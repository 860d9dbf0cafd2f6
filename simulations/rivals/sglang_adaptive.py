"""SGLang's adaptive speculative decoding: a moving average of accepted drafts walks a short list of K values.

Source: sgl-project/sglang, `python/sglang/srt/speculative/adaptive_spec_params.py` at 015c8726 (`AdaptiveStepSlot`,
`DEFAULT_ADAPTIVE_CONFIG`) and `adaptive_step_router.py` at a12239f6 (the slot is the one with the largest key that is
at most the batch size). Each slot keeps its own average; only the slot of the present batch size moves. Defaults:
weight 0.2, a decision every 5 steps after 10 of warm-up, no ceiling. Off in SGLang unless asked for.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from simulations.policy import Maker, Outcome, PoolFacts, View
from simulations.rivals.one_draft import OneDraft, snapped


class SlotConfig(NamedTuple):
    """`steps`: values of K, ascending. `down`, `up`: what is added to the thresholds for falling and rising."""

    steps: tuple[int, ...]
    down: float = 0.0
    up: float = 0.0


SLOTS: Mapping[int, SlotConfig] = {
    1: SlotConfig((1, 3, 5, 7), down=-0.25),
    8: SlotConfig((0, 1, 3)),
    32: SlotConfig((0, 1)),
    64: SlotConfig((0,)),
}
WEIGHT = 0.2
INTERVAL = 5
WARM_UP = 10
INITIAL = 3  # what SGLang picks for most architectures when no number of steps is given


class Slot:
    """The walk of one batch-size slot. `k`: tokens to draft now. `average`: moving average of accepted drafts a row.

    Starts at `initial` if listed, else in the middle of the list, with the average at K - 1.
    """

    def __init__(self, steps: Sequence[int], initial: int, down: float = 0.0, up: float = 0.0) -> None:
        self.steps = sorted(set(steps))
        self.down, self.up = down, up
        self.k = initial if initial in self.steps else self.steps[len(self.steps) // 2]
        self.average = float(self.k - 1)
        self.batches = 0

    def update(self, accepted: float) -> None:
        """Take in one step whose rows kept `accepted` drafts on average (ignored while K = 0)."""
        if self.k:
            self.average += WEIGHT * (accepted - self.average)
        self.batches += 1
        late = self.batches - WARM_UP
        if late > 0 and late % INTERVAL == 0:
            self._decide()

    def _decide(self) -> None:
        at = self.steps.index(self.k)
        if self.k == 0:  # nothing was drafted, so nothing is known: try the next value
            at = min(at + 1, len(self.steps) - 1)
            if self.steps[at] and self.average < 0:
                self.average = float(self.steps[at] - 1)
            self.k = self.steps[at]
            return
        start = at
        while at and self.average <= self._fall(self.steps[at - 1]):
            at -= 1
        if at == start:
            while at < len(self.steps) - 1 and self.average > self.steps[at] - 0.5 + self.up:
                at += 1
        self.k = self.steps[at]

    def _fall(self, lower: int) -> float:
        return (lower - 0.5 if lower else 0.5) + self.down


class SglangAdaptive(OneDraft):
    """Every engine has its own slots."""

    def __init__(self, pool: PoolFacts, draft: int | None, slots: Mapping[int, SlotConfig]) -> None:
        super().__init__("sglang-adaptive", pool, draft)
        self.initial = int(snapped(self.rungs, pool.static[1] if pool.static[1] else INITIAL))
        self.config = sorted(slots.items())
        self.keys = np.array([key for key, _ in self.config])
        self.slots: dict[int, list[Slot]] = {}

    def slot(self, engine: int, rows: int) -> Slot:
        """The slot of a batch of `rows` on an engine."""
        if engine not in self.slots:
            self.slots[engine] = [
                Slot([int(snapped(self.rungs, k)) for k in c.steps], self.initial, c.down, c.up) for _, c in self.config
            ]
        return self.slots[engine][max(int(np.searchsorted(self.keys, rows, side="right")) - 1, 0)]

    def length(self, view: View, drafting: int) -> int:
        """The slot's K."""
        return self.slot(view.engine, len(view.domain)).k

    def observe(self, outcome: Outcome) -> None:
        """Accepted drafts of the rows that drafted; a step at K = 0 only counts."""
        rows = len(outcome.k)
        slot = self.slot(outcome.view.engine, rows)
        drafted = outcome.k > 0
        if drafted.any():
            slot.update(float(outcome.accepted[drafted].mean()))
        elif rows and slot.k == 0:
            slot.update(0.0)


def sglang_adaptive(draft: int | None = None, slots: Mapping[int, SlotConfig] = SLOTS) -> Maker:
    """One configured draft; slots by the smallest batch size they serve."""

    def make(pool: PoolFacts, rng: np.random.Generator) -> SglangAdaptive:
        return SglangAdaptive(pool, draft, slots)

    return make
