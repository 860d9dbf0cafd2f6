"""Abrupt changes of acceptance: tests of the latest blocks of steps against what came before.

Evidence of one draft is cut into blocks of about BLOCK steps, for every context apart and for all contexts together.
After each block, and each SOME steps inside one, every split of the last BLOCKS of them is tried, with n, a the counts
seen and accepted by stratum (position, or context and position) before (0) and after (1) the split:

* any change in a context: G = 2 sum_i [ l(a1, n1) + l(a0, n0) - l(a0 + a1, n0 + n1) ] with
  l(a, n) = a log(a / n) + (n - a) log(1 - a / n), about chi-squared with a degree of freedom for every position that
  has counts on both sides (Wilks 1938; the generalised likelihood ratio of Basseville & Nikiforov 1993, section 2.4);
* a shift of all strata the same way: z = sum (a1 - e) / sqrt(sum v), e = n1 m / N, v = n0 n1 m (N - m) / (N^2 (N - 1)),
  m accepted of N in both (Cochran 1954; Mantel & Haenszel 1959). It sees what few steps of a draft that is hardly
  played show in several contexts, and a change of the mix of contexts does not deceive it.

An engine is a stratum of its own: one that is unlike the others, or lies, is no change when its turn comes. Where
several engines show both sides, the others must show the change whichever engine is left out, or it is that engine that
has changed and not the draft.

Requests are correlated in themselves, so G and z^2 are divided by the design effect. Beyond the quantile of FALSE_ALARM
the history up to the best split is dropped, in every context that takes part in the change.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from scipy.special import xlogy
from scipy.stats import chi2

from controller.learner.discount import Array

BLOCK = 12.0  # first positions seen
SOME = 4.0  # first positions that are worth a test
BLOCKS = 32
LEAST = 8.0  # counts of a position on either side of a split, for it to be compared by G
MEMORY = 400.0  # first positions seen that are remembered from before the blocks
FALSE_ALARM = 1e-6  # a pool tests dozens of cells thousands of times
ALL = -1  # the context that stands for all of them
_SEEN_BY_OTHERS = 3.0  # z of all engines but any one
_TAKES_PART = 1.0  # z of a context from which it takes part in a change seen over all contexts

Name = TypeVar("Name", bound=Hashable)
Part = tuple[str, int, Array]  # engine, context, counts seen and accepted by position [2 * P]
Stratum = tuple[str, int]  # engine, context
Saved = tuple[int, str, list[tuple[str, int, list[float]]], list[list[tuple[str, int, list[float]]]], float]


def log_likelihood(accepted: Array, seen: Array) -> Array:
    """Binomial log-likelihood at the best rate, up to a constant: a log(a / n) + (n - a) log((n - a) / n).

    >>> log_likelihood(np.array([0.0, 2.0]), np.array([4.0, 4.0])).round(4).tolist()
    [0.0, -2.7726]
    """
    missed = seen - accepted
    return np.asarray(xlogy(accepted, accepted) + xlogy(missed, missed) - xlogy(seen, seen), dtype=np.float64)


def ratio(before: Array, after: Array) -> tuple[Array, Array]:
    """G and its degrees of freedom [S] from counts seen and accepted on both sides, [S, 2, strata] each.

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


def shift(before: Array, after: Array) -> Array:
    """z [S] of a shift of all strata the same way, positive for a rise; counts as for `ratio`.

    >>> before, after = np.array([[[40.0], [20.0]]]), np.array([[[40.0], [40.0]]])
    >>> float(shift(before, after)[0].round(3))                  # (40 - 30) / sqrt(40 * 40 * 60 * 20 / (6400 * 79))
    5.132
    """
    total, m = before[:, 0] + after[:, 0], before[:, 1] + after[:, 1]
    both = (before[:, 0] > 0) & (after[:, 0] > 0)
    expected = after[:, 0] * m / np.maximum(total, 1.0)
    variance = before[:, 0] * after[:, 0] * m * (total - m) / np.maximum(total**2 * (total - 1.0), 1.0)
    excess = np.where(both, after[:, 1] - expected, 0.0).sum(axis=1)
    return np.asarray(excess / np.sqrt(np.maximum(np.where(both, variance, 0.0).sum(axis=1), 1e-9)), dtype=np.float64)


@dataclass(slots=True)
class _History:
    """Blocks of one draft in one context or in all, the open one last, and by context the sum of what came before."""

    older: dict[Stratum, Array] = field(default_factory=dict)
    blocks: deque[list[Part]] = field(default_factory=lambda: deque([[]]))
    seen: float = 0.0  # first positions in the open block
    due: bool = False  # a block has been closed since the last test, or the open one has grown by SOME
    tested: float = 0.0  # first positions of the open block at the last test

    def add(self, part: Part) -> None:
        """Take in one part; close the open block when it is full."""
        self.blocks[-1].append(part)
        self.seen += float(part[2][0])
        self.due |= self.seen >= self.tested + SOME
        if self.seen < BLOCK:
            return
        self.seen, self.tested, self.due = 0.0, 0.0, True
        self.blocks.append([])
        if len(self.blocks) > BLOCKS + 1:
            for engine, context, counts in self.blocks.popleft():
                self.older[engine, context] = self.older.get((engine, context), 0.0) + counts
            for stratum, counts in self.older.items():
                self.older[stratum] = counts * min(1.0, MEMORY / max(float(counts[0]), 1.0))

    def splits(self, positions: int) -> tuple[list[Stratum], Array, Array]:
        """Strata seen in the blocks, and counts before and after every split [S, strata, 2, P].

        The open block counts as one where it holds SOME: a draft that is hardly played fills none for long.
        """
        self.tested = self.seen
        closed = [*self.blocks][: None if self.seen >= SOME else -1]
        strata = sorted({(e, c) for block in closed for e, c, _ in block})
        at = {stratum: i for i, stratum in enumerate(strata)}
        sums = np.zeros((len(closed) + 1, len(strata), 2 * positions))
        for stratum in strata:
            sums[0, at[stratum]] = self.older.get(stratum, 0.0)
        for number, block in enumerate(closed, start=1):
            for engine, context, counts in block:
                sums[number, at[engine, context]] += counts
        upto = np.cumsum(sums, axis=0).reshape(len(sums), len(strata), 2, positions)
        return strata, upto[:-1], upto[-1] - upto[:-1]

    def cut(self, split: int) -> "_History":
        """The history since a split."""
        return _History({}, deque([*self.blocks][split:]), self.seen)


class Changes:
    """Watches every draft in every context; `positions`: length of the curves."""

    def __init__(self, positions: int) -> None:
        self.positions = positions
        self.histories: dict[tuple[int, str], _History] = {}
        self._waiting: list[tuple[Sequence[tuple[str, int, str]], Array]] = []

    def add(self, keys: Sequence[tuple[str, int, str]], counts: Array) -> None:
        """Take in counts of one interval, seen and accepted by position [cells, 2 * P], of cells (engine, context,
        draft). Sorting them into blocks waits for the next test: it is no work for every frame."""
        self._waiting.append((keys, counts))

    def _settle(self) -> None:
        """Sort what has come since the last test into blocks, by parts of a block where frames hold less."""
        parts: dict[tuple[str, int, str], Array] = {}
        for keys, counts in self._waiting:
            for key, row in zip(keys, counts, strict=True):
                known = parts.get(key)
                if known is None:
                    parts[key] = known = row.copy()  # a view would keep the frame's whole buffer
                else:
                    known += row
                if known[0] >= BLOCK:
                    self._sort(key, parts.pop(key))
        self._waiting.clear()
        for key, row in parts.items():
            self._sort(key, row)

    def _sort(self, key: tuple[str, int, str], counts: Array) -> None:
        engine, context, draft = key
        for where in ((context, draft), (ALL, draft)):
            history = self.histories.get(where)
            if history is None:
                history = self.histories[where] = _History()
            history.add((engine, context, counts))

    def found(self, design_effect: Mapping[tuple[int, str], float]) -> dict[tuple[int, str], dict[str, Array]]:
        """By (context, draft) that has changed the counts by engine since; what came before is forgotten here.

        Only histories that have grown since the last call (see `_History.due`) are tested.

        >>> changes = Changes(1)
        >>> for accepted in [6.0] * 8 + [12.0] * 3:                   # 6 of 12 accepted for long, then all
        ...     changes.add([("e", 0, "small")], np.array([[12.0, accepted]]))
        >>> changes.found({})
        {(0, 'small'): {'e': array([36., 36.])}}
        >>> changes.found({})
        {}
        """
        self._settle()
        changed: dict[tuple[int, str], dict[str, Array]] = {}
        for (context, draft), history in sorted(self.histories.items(), reverse=True):  # ALL comes last
            if not history.due:
                continue
            history.due = False
            strata, before, after = history.splits(self.positions)
            if not strata:  # restored, or cut, with nothing but an open block
                continue
            # The effect of the steps that count: contexts of a pooled history differ little in it.
            effect = max([1.0, *(design_effect.get((c, draft), 1.0) for _, c in strata)])
            split = self._split(before, after, effect, any_change=context != ALL)
            if split is None or not _without_any(strata, before[split], after[split]):
                continue
            self.histories[context, draft] = history.cut(split)
            own = _grouped([c for _, c in strata], before[split], after[split])
            way = np.sign(sum(own.values()))
            for c in [c for c, z in own.items() if context != ALL or z * way >= _TAKES_PART]:
                if (c, draft) not in changed:
                    changed[c, draft] = _by_engine(history, split, c)
                    self.histories[c, draft] = self._alone(history, split, c)
        return changed

    def _split(self, before: Array, after: Array, effect: float, *, any_change: bool) -> int | None:
        """The split at which the evidence of a change is strongest, if it is strong enough."""
        flat = [_flat(side) for side in (before, after)]
        excess = shift(*flat) ** 2 / effect - chi2.isf(FALSE_ALARM, 1)
        # Few counts on one side make z^2 less normal than its quantile assumes.
        enough = np.minimum(*(side[:, :, 0, 0].sum(axis=1) for side in (before, after))) >= LEAST
        excess = np.where(enough, excess, -np.inf)
        if any_change:
            g, freedom = ratio(*flat)
            other = np.where(freedom > 0, g / effect - chi2.isf(FALSE_ALARM, np.maximum(freedom, 1)), -np.inf)
            excess = np.maximum(excess, other)
        best = int(excess.argmax())
        return best if excess[best] > 0 else None

    @staticmethod
    def _alone(history: _History, split: int, context: int) -> _History:
        """One context's history since a split of one that may hold several."""
        blocks = [[part for part in block if part[1] == context] for block in [*history.blocks][split:]]
        return _History({}, deque(blocks), float(sum(part[2][0] for part in blocks[-1])))

    def forget(self, context: int, draft: str) -> None:
        """Drop the history of a cell, and what it brought to that of its draft in all contexts."""
        self._settle()
        self.histories.pop((context, draft), None)
        whole = self.histories.get((ALL, draft))
        if whole is not None:
            older = {key: counts for key, counts in whole.older.items() if key[1] != context}
            blocks = [[part for part in block if part[1] != context] for block in whole.blocks]
            self.histories[ALL, draft] = _History(older, deque(blocks), float(sum(part[2][0] for part in blocks[-1])))

    def state(self) -> list[Saved]:
        """Everything, as plain lists, for `restore`."""
        self._settle()
        return [
            (
                context,
                draft,
                [(e, c, counts.tolist()) for (e, c), counts in h.older.items()],
                [[(e, c, counts.tolist()) for e, c, counts in block] for block in h.blocks],
                h.seen,
            )
            for (context, draft), h in self.histories.items()
        ]

    def restore(self, state: Sequence[Saved]) -> None:
        """The opposite of `state`; counts of another number of positions are left out."""

        def fits(values: Sequence[float]) -> bool:
            return len(values) == 2 * self.positions

        for context, draft, older, blocks, seen in state:
            self.histories[context, draft] = _History(
                {(e, c): np.array(counts) for e, c, counts in older if fits(counts)},
                deque([[(e, c, np.array(counts)) for e, c, counts in block if fits(counts)] for block in blocks]),
                seen,
                due=True,  # whether the dumped one had still to be tested is not saved: test it, at worst once more
            )


def _flat(side: Array) -> Array:
    """Counts [S, strata, 2, P] as [S, 2, strata * P]: every position of every stratum is a stratum of the tests."""
    return np.moveaxis(side, 2, 1).reshape(len(side), 2, -1)


def _z(before: Array, after: Array) -> float:
    """z of one split, from counts [strata, 2, P]."""
    return float(shift(_flat(before[None]), _flat(after[None]))[0])


def _grouped(names: Sequence[Name], before: Array, after: Array) -> dict[Name, float]:
    """z of every group of strata; names [strata], counts [strata, 2, P]."""
    found: dict[Name, float] = {}
    for name in dict.fromkeys(names):
        mine = [i for i, other in enumerate(names) if other == name]
        found[name] = _z(before[mine], after[mine])
    return found


def _without_any(strata: Sequence[Stratum], before: Array, after: Array) -> bool:
    """Whether the change is seen whichever engine is left out, where several engines show both sides."""
    engines = [e for e, _ in strata]
    shown = {e for e, b, a in zip(engines, before, after, strict=True) if min(b[0, 0], a[0, 0]) >= 1.0}
    if len(set(engines)) < 2:
        return True
    if len(shown) < 2:
        return False  # nobody else can tell yet

    def z(left_out: str | None) -> float:
        rest = [i for i, engine in enumerate(engines) if engine != left_out]
        return _z(before[rest], after[rest])

    way = np.sign(z(None))
    return all(z(engine) * way >= _SEEN_BY_OTHERS for engine in shown)


def _by_engine(history: _History, split: int, context: int) -> dict[str, Array]:
    recent: dict[str, Array] = {}
    parts: Iterable[Part] = (part for block in [*history.blocks][split:] for part in block if part[1] == context)
    for engine, _, counts in parts:
        recent[engine] = recent.get(engine, 0.0) + counts
    return recent
