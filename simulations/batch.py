"""The rows that decode together, and all that stays the same while they do: looked up once, used every step."""

import numpy as np
from numpy.typing import NDArray

from simulations.clairvoyant import Clairvoyant
from simulations.luck import Array, Keys, uniforms
from simulations.policy import Ints
from simulations.requests import STEPS, Arrivals
from simulations.timeline import Phase

NUMBER, KEY, DOMAIN, CONTEXT, KIND, DRAFT, LEFT, AGE, KV, PROMPT, READ = range(11)
Rows = NDArray[
    np.int64
]  # [11, n], a column a request; READ: 1 + tokens its draft has read, 0 where that is all of them

_DEPTH = np.uint64(64)  # counters of one step of one draft of a request: more than any K
_AHEAD = 32  # row-steps whose luck is drawn at once


def nobody() -> Rows:
    """No rows."""
    return np.zeros((READ + 1, 0), dtype=np.int64)


def joined(arrivals: Arrivals) -> Rows:
    """Rows of new requests, without a draft yet."""
    rows = np.zeros((READ + 1, len(arrivals.number)), dtype=np.int64)
    rows[NUMBER], rows[KEY], rows[DOMAIN] = arrivals.number, arrivals.key.view(np.int64), arrivals.domain
    rows[CONTEXT], rows[KIND], rows[LEFT] = arrivals.context, arrivals.kind, arrivals.length
    rows[DRAFT], rows[KV], rows[PROMPT] = -1, arrivals.prompt, arrivals.prompt
    return rows


def luck_of(rows: Rows, draft: Ints, drafts: int, steps: int, positions: int) -> Array:
    """Uniforms of the rows' next steps on the draft of each, by position: [n, steps, positions]."""
    keys: Keys = rows[KEY].view(np.uint64)
    ages = rows[AGE][:, None] + np.arange(steps)
    counters = STEPS + (ages * drafts + draft[:, None]).astype(np.uint64) * _DEPTH
    return uniforms(keys[:, None, None], counters[:, :, None] + np.arange(positions, dtype=np.uint64))


class Batch:
    """Rows [n] with their drafts in one phase. D domains, P positions.

    `acceptance` [n, P] and `tokens` [n, P + 1]: of each row's draft for its own kind of request. `counts` [D]: rows by
    domain. `ideal` [D]: expected tokens of the clairvoyant's choice on these rows, in `ideal_seconds`.
    """

    def __init__(self, rows: Rows, phase: Phase, index: int, clairvoyant: Clairvoyant) -> None:
        self.rows = rows
        self.draft = rows[DRAFT].astype(np.intp)
        self.domain: Ints = rows[DOMAIN].astype(np.intp)
        kind = rows[KIND]
        self._drafts, self._positions = phase.acceptance.shape[1], phase.acceptance.shape[3]
        self.acceptance: Array = phase.acceptance[self.domain, self.draft, kind]
        self.tokens: Array = phase.tokens[self.domain, self.draft, kind]
        self.counts = np.bincount(self.domain, minlength=len(phase.reach))
        best = clairvoyant.best(index, self.counts)
        self.ideal_seconds = best.seconds
        chosen = phase.tokens[self.domain, best.draft[self.domain], kind, best.k[self.domain]]
        self.ideal = self.by_domain(chosen)
        self.plain = phase.plain(len(self.draft))
        self._at = np.arange(len(self.draft))
        self._block = max(1, _AHEAD // len(self.draft))
        self._used = self._block
        self._luck: Array = np.zeros(0)

    def by_domain(self, values: Array) -> Array:
        """Sums of values [n] by domain [D]."""
        return np.asarray(np.bincount(self.domain, values, minlength=len(self.counts)), dtype=np.float64)

    def accepted(self, k: Ints, top: int) -> Ints:
        """Accepted tokens of each row in its present step, k [n] <= top tokens having been drafted."""
        kept = self._next_luck()[:, :top] < self.acceptance[:, :top]
        return np.asarray(np.minimum(np.logical_and.accumulate(kept, axis=1).sum(axis=1), k), dtype=np.intp)

    def _next_luck(self) -> Array:
        """Uniforms [n, P] of the present step; call it once a step."""
        if self._used == self._block:
            self._luck = luck_of(self.rows, self.draft, self._drafts, self._block, self._positions)
            self._used = 0
        self._used += 1
        return self._luck[:, self._used - 1]

    def earned(self, k: Ints) -> Array:
        """Expected tokens by domain [D]."""
        return self.by_domain(self.tokens[self._at, k])
