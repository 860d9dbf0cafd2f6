"""Running sums of what engines reported, in the shapes that metrics want: by draft and position, by K, by step seconds.

A sum takes in differences of cells as the ledger finds them, so that one engine's is exactly what its present
incarnation has counted, and starts anew when it does: as a Prometheus counter should.
"""

import bisect
from itertools import zip_longest
from typing import NamedTuple

from controller.cells import Cell
from engine.link.messages import (
    HISTOGRAM_PER_OCTAVE,
    MAX_K,
    AcceptanceCell,
    AccountCell,
    CostCell,
    histogram_seconds,
)

# Bounds of step seconds, half octaves from 1 ms to 4.2 s: edges of the wire's buckets, so that none is split.
_FIRST, _LAST = 10 * HISTOGRAM_PER_OCTAVE, 22 * HISTOGRAM_PER_OCTAVE
_EDGES = range(_FIRST, _LAST + 1, HISTOGRAM_PER_OCTAVE // 2)
STEP_BOUNDS = tuple(histogram_seconds(edge) for edge in _EDGES)


class Positions:
    """One draft's counts by position, position 1 at index 0."""

    __slots__ = ("accepted", "drafted", "seen")

    def __init__(self) -> None:
        self.drafted: list[int] = []
        self.seen: list[int] = []
        self.accepted: list[int] = []

    def add(self, cell: AcceptanceCell) -> None:
        """Add a cell or a difference of two."""
        self.drafted = _sum(self.drafted, cell.drafted)
        self.seen = _sum(self.seen, cell.seen)
        self.accepted = _sum(self.accepted, cell.accepted)


class Sums:
    """Sums of cells. `steps`: by bound of `STEP_BOUNDS`, one more for what is slower; `seconds`: of all of them.

    >>> sums = Sums()
    >>> sums.add(AccountCell("code", "greedy", 1, "adaptive", row_steps=10, tokens=15, row_seconds=0.5))
    >>> sums.add(AcceptanceCell("code", "greedy", "ngram", "policy", seen=[6, 3], accepted=[3, 2], drafted=[6, 4]))
    >>> sums.rows_by_k()[:4]                                # of ten rows six drafted, four of them two tokens
    [4, 2, 4, 0]
    """

    def __init__(self) -> None:
        self.rows = 0
        self.tokens = 0
        self.row_seconds = 0.0
        self.drafts: dict[str, Positions] = {}
        self.steps = [0] * (len(STEP_BOUNDS) + 1)
        self.seconds = 0.0

    def add(self, cell: Cell) -> None:
        """Add a cell or a difference of two; moments are not summed."""
        match cell:
            case AccountCell():
                self.rows += cell.row_steps
                self.tokens += cell.tokens
                self.row_seconds += cell.row_seconds
            case AcceptanceCell():
                self.drafts.setdefault(cell.draft, Positions()).add(cell)
            case CostCell():
                self.seconds += cell.seconds + cell.stall_seconds
                for bucket, count in cell.hist.items():
                    self.steps[_bound(int(bucket))] += count

    def add_steps(self, other: "Sums") -> None:
        """Add the steps of another sum, and their seconds."""
        self.steps = [x + y for x, y in zip(self.steps, other.steps, strict=True)]
        self.seconds += other.seconds

    def rows_by_k(self) -> list[int] | None:
        """Row-steps by the K that was asked for, K = 0 to `MAX_K`; None where an engine does not tell what it drafted.

        Rows at K = i are those that drafted position i and not i + 1; at K = 0, those that drafted none.
        """
        drafted: list[int] = []
        for positions in self.drafts.values():
            if positions.seen and (not positions.drafted or positions.drafted[0] < positions.seen[0]):
                return None
            drafted = _sum(drafted, positions.drafted)
        reached = [max(self.rows, drafted[0] if drafted else 0), *drafted]
        reached += [0] * (MAX_K + 2 - len(reached))
        return [reached[k] - reached[k + 1] for k in range(MAX_K + 1)]

    def step_quantile(self, q: float) -> float | None:
        """Seconds that a share `q` of the steps took at most; None before any step, or beyond the last bound.

        Interpolated on a logarithmic scale within a half octave, so good to some 20%.

        >>> sums = Sums()
        >>> sums.steps[10] = 100                                # all of them between bounds 9 and 10, a factor of 1.41
        >>> round(sums.step_quantile(0.5) / STEP_BOUNDS[9], 3)    # half way: the fourth root of two
        1.189
        """
        total, before = sum(self.steps), 0
        for at, (bound, count) in enumerate(zip(STEP_BOUNDS, self.steps, strict=False)):
            if count and before + count >= q * total:
                low = STEP_BOUNDS[at - 1] if at else bound / 2**0.5
                return float(low * (bound / low) ** ((q * total - before) / count))
            before += count
        return None

    def copy(self) -> "Sums":
        """One that later additions do not change."""
        twin = Sums()
        twin.rows, twin.tokens, twin.row_seconds = self.rows, self.tokens, self.row_seconds
        twin.steps, twin.seconds = self.steps.copy(), self.seconds
        for draft, positions in self.drafts.items():
            # Lists are replaced and never changed in place, so they may be shared.
            mine = twin.drafts[draft] = Positions()
            mine.drafted, mine.seen, mine.accepted = positions.drafted, positions.seen, positions.accepted
        return twin


class Reported(NamedTuple):
    """One live engine's sums, and what only its newest frame tells. `seen`: arrival of that, Unix seconds;
    `policy_age`: seconds since the policy in force there was issued, as of then; `slowness`: how many times the usual
    seconds its steps take now, as the controller estimates it."""

    engine: str
    seen: float
    breaker: str
    running: int
    waiting: int
    steps: int
    lost: int
    missed: int
    in_force: bool
    policy_age: float | None
    slowness: float
    sums: Sums


def _sum(left: list[int], right: list[int]) -> list[int]:
    return [x + y for x, y in zip_longest(left, right, fillvalue=0)]


def _bound(bucket: int) -> int:
    """Index of the first bound that a bucket of the wire, [edge of it, edge of the next one), lies under.

    >>> STEP_BOUNDS[_bound(87)] == histogram_seconds(88), STEP_BOUNDS[_bound(88)] == histogram_seconds(92)
    (True, True)
    >>> _bound(255) == len(STEP_BOUNDS)
    True
    """
    return bisect.bisect_left(_EDGES, bucket + 1)
