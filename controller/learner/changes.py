"""Abrupt changes of acceptance: a likelihood-ratio test of the latest blocks of steps against what came before.

Evidence of one (context, draft) is cut into blocks of about BLOCK steps. After each block, every split of the last
BLOCKS of them is tried: with n, a the counts seen and accepted by position before (0) and after (1) the split,

    G(split) = 2 sum_i [ l(a1, n1) + l(a0, n0) - l(a0 + a1, n0 + n1) ],
    l(a, n) = a log(a / n) + (n - a) log(1 - a / n)

is about chi-squared with as many degrees of freedom as there are positions with counts on both sides (Wilks 1938; the
generalised likelihood ratio of Basseville & Nikiforov 1993, section 2.4). Requests are correlated in themselves, so G
is divided by the design effect. Above the quantile of FALSE_ALARM the history up to the best split is dropped.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.special import xlogy
from scipy.stats import chi2

from controller.learner.discount import Array

BLOCK = 12.0  # first positions seen
BLOCKS = 32
LEAST = 8.0  # counts of a position on either side of a split, for it to be compared
MEMORY = 400.0  # first positions seen that are remembered from before the blocks
FALSE_ALARM = 1e-6  # a pool tests dozens of cells thousands of times

Part = tuple[str, Array]  # engine, counts seen and accepted by position [2 * P]


def log_likelihood(accepted: Array, seen: Array) -> Array:
    """Binomial log-likelihood at the best rate, up to a constant.

    >>> log_likelihood(np.array([0.0, 2.0]), np.array([4.0, 4.0])).round(4).tolist()
    [0.0, -2.7726]
    """
    missed = seen - accepted
    return np.asarray(
        xlogy(accepted, accepted) + xlogy(missed, missed) - xlogy(seen, seen), dtype=np.float64
    )  # a log(a / n) + (n - a) log((n - a) / n)


def ratio(before: Array, after: Array) -> tuple[Array, Array]:
    """G and its degrees of freedom [S] from counts seen and accepted on both sides, [S, 2, P] each.

    >>> before, after = np.array([[[40.0], [20.0]]]), np.array([[[40.0], [40.0]]])
    >>> g, freedom = ratio(before, after)
    >>> round(float(g[0]), 2), int(freedom[0])                   # 2 (0 - 27.73 + 44.99)
    (34.52, 1)
    """
    both = (before[:, 0] >= LEAST) & (after[:, 0] >= LEAST)
    whole = before + after
    g = log_likelihood(after[:, 1], after[:, 0]) + log_likelihood(before[:, 1], before[:, 0])
    g -= log_likelihood(whole[:, 1], whole[:, 0])
    return 2.0 * np.where(both, g, 0.0).sum(axis=1), both.sum(axis=1)


@dataclass(slots=True)
class _History:
    """Blocks of one (context, draft), the open one last, and the sum of what came before them [2 * P]."""

    older: Array
    blocks: deque[list[Part]] = field(default_factory=lambda: deque([[]]))
    seen: float = 0.0  # first positions in the open block
    due: bool = False  # a block has been closed since the last test


class Changes:
    """Watches every (context, draft); `positions`: length of the curves."""

    def __init__(self, positions: int) -> None:
        self.positions = positions
        self.cells: dict[tuple[int, str], _History] = {}

    def add(self, context: int, draft: str, engine: str, counts: Array) -> None:
        """Take in counts of one interval, seen and accepted by position [2 * P]."""
        cell = self.cells.get((context, draft))
        if cell is None:
            cell = self.cells[context, draft] = _History(np.zeros(2 * self.positions))
        cell.blocks[-1].append((engine, counts))
        cell.seen += float(counts[0])
        if cell.seen >= BLOCK:
            cell.seen, cell.due = 0.0, True
            cell.blocks.append([])
            if len(cell.blocks) > BLOCKS + 1:
                cell.older = cell.older + _sum(cell.blocks.popleft(), self.positions)
                cell.older *= min(1.0, MEMORY / max(cell.older[0], 1.0))

    def found(self, context: int, draft: str, design_effect: float) -> dict[str, Array] | None:
        """Counts by engine since a change, where there has been one; what came before is forgotten here.

        None while nothing has changed, and where no block was closed since the last call.

        >>> changes = Changes(1)
        >>> for accepted in [6.0] * 8 + [12.0] * 3:                   # 6 of 12 accepted for long, then all
        ...     changes.add(0, "small", "e", np.array([12.0, accepted]))
        >>> changes.found(0, "small", 1.0)
        {'e': array([36., 36.])}
        >>> changes.found(0, "small", 1.0) is None
        True
        """
        cell = self.cells.get((context, draft))
        if cell is None or not cell.due:
            return None
        cell.due = False
        closed = [*cell.blocks][:-1]
        sums = np.cumsum([cell.older, *(_sum(block, self.positions) for block in closed)], axis=0)
        before = sums[:-1].reshape(-1, 2, self.positions)
        after = (sums[-1] - sums[:-1]).reshape(-1, 2, self.positions)
        g, freedom = ratio(before, after)
        # In standard terms of how far each lies above its own threshold: splits differ in degrees of freedom.
        excess = g / max(design_effect, 1.0) - chi2.isf(FALSE_ALARM, np.maximum(freedom, 1))
        best = int(excess.argmax())
        if excess[best] <= 0 or not freedom[best]:
            return None
        kept = [*closed[best:], cell.blocks[-1]]
        self.cells[context, draft] = _History(np.zeros(2 * self.positions), deque(kept), cell.seen)
        recent: dict[str, Array] = {}
        for block in kept:
            for engine, counts in block:
                recent[engine] = recent.get(engine, 0.0) + counts
        return recent

    def state(self) -> list[tuple[int, str, list[float], list[list[tuple[str, list[float]]]], float]]:
        """Everything, as plain lists, for `restore`."""
        return [
            (c, d, h.older.tolist(), [[(e, x.tolist()) for e, x in block] for block in h.blocks], h.seen)
            for (c, d), h in self.cells.items()
        ]

    def restore(
        self, state: Sequence[tuple[int, str, list[float], list[list[tuple[str, list[float]]]], float]]
    ) -> None:
        """The opposite of `state`; histories of another number of positions are left out."""
        for c, d, older, blocks, seen in state:
            if len(older) == 2 * self.positions:
                parts = deque([[(e, np.array(x)) for e, x in block] for block in blocks])
                self.cells[c, d] = _History(np.array(older), parts, seen)


def _sum(block: Sequence[Part], positions: int) -> Array:
    total = np.zeros(2 * positions)
    for _, counts in block:
        total += counts
    return total
