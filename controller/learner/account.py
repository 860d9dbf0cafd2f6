"""What was earned and spent by context and load: the pool's present mix, and the speedup over plain really achieved."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from controller.learner.discount import Array, FadingRows, blend
from controller.learner.evidence import Contexts
from engine.link.messages import AccountCell, load_bucket

_MIX_PRIOR = 64.0  # row-steps of the pool's overall mix that a load's own mix is shrunk to
_Z90 = 1.6449

AccountKey = tuple[int, int, str]  # context, load bucket, variant


class Earned(NamedTuple):
    """Row-steps, tokens and row-seconds, [contexts, loads] each."""

    row_steps: Array
    tokens: Array
    row_seconds: Array


def rows_of(row_steps: Array, rows: Array) -> Array:
    """Rows of each context in a step that holds it, from row-steps [contexts, loads] and the mean rows of a step
    [loads]: its share of them, and one at least.

    >>> rows_of(np.array([[600.0], [6.0]]), np.array([10.1])).round(2).tolist()
    [[10.0], [1.0]]
    """
    total = np.maximum(row_steps.sum(axis=0), 1e-9)
    return np.asarray(np.maximum(row_steps / total * rows, 1.0), dtype=np.float64)


class Account:
    """Account cells of all engines of a pool."""

    def __init__(self, loads: tuple[int, ...], fast_half_life: float, slow_half_life: float) -> None:
        self.loads = loads
        self.rows: dict[AccountKey, int] = {}
        self.sums = FadingRows(3, fast_half_life, slow_half_life)
        self.pending: dict[tuple[int, int], float] = {}  # adaptive row-steps by (context, load) since last taken

    def observe(self, time: float, cells: Iterable[AccountCell], contexts: Contexts, slow: float = 1.0) -> int:
        """Add cells of an engine that takes `slow` times the usual seconds; returns how many were inconsistent
        (row-steps without seconds, or a negative sum)."""
        index: list[int] = []
        values: list[tuple[float, float, float]] = []
        bad = 0
        for cell in cells:
            if min(cell.row_steps, cell.tokens, cell.row_seconds) < 0 or (cell.row_steps > 0) != (cell.row_seconds > 0):
                bad += 1
                continue
            key = (contexts.index(cell.domain, cell.regime), self._bucket(cell.load), cell.variant)
            row = self.rows.get(key)
            if row is None:
                row = self.rows[key] = self.sums.new_row()
            index.append(row)
            values.append((cell.row_steps, cell.tokens, cell.row_seconds / slow))
            if cell.variant == "adaptive":
                self.pending[key[:2]] = self.pending.get(key[:2], 0.0) + cell.row_steps
        if index:
            self.sums.add(index, np.array(values, dtype=np.float64), time)
        return bad

    def _bucket(self, load: int) -> int:
        return min(load_bucket(max(load, 1)), self.loads[-1])

    def take_pending(self, contexts: int) -> Array:
        """Adaptive row-steps [contexts, loads] since the last call, and forget them."""
        taken = np.zeros((contexts, len(self.loads)))
        for (context, load), steps in self.pending.items():
            taken[context, self.loads.index(load)] += steps
        self.pending.clear()
        return taken

    def earned(self, now: float, contexts: int, variants: tuple[str, ...] = ("static", "adaptive", "probe")) -> Earned:
        """Sums as of `now`: the fast ones, with the slow memory worth at most 500 row-steps."""
        grid = np.zeros((3, contexts, len(self.loads)))
        fast, slow = self.sums.read(now)
        kept = blend(fast, slow, slow[:, :1] - fast[:, :1], 500.0)
        for (context, load, variant), row in self.rows.items():
            if variant in variants:
                grid[:, context, self.loads.index(load)] += kept[row]
        return Earned(*grid)

    def mix(self, now: float, contexts: int) -> Array:
        """Share of rows by context at each load [loads, contexts], each shrunk to the pool's; 0 if no row ran."""
        row_steps = self.earned(now, contexts).row_steps
        overall = row_steps.sum(axis=1)
        total = overall.sum()
        if total <= 0:
            return np.zeros((len(self.loads), contexts))
        prior = _MIX_PRIOR * overall / total
        mixed = (row_steps + prior[:, None]).T
        return np.asarray(mixed / mixed.sum(axis=1, keepdims=True), dtype=np.float64)


def achieved_speedup(
    earned: Earned,
    plain: Array,
    plain_sd: Array,
    prefill: Array,
    noise: float,
    rows: float | Array = 1.0,
    deff: float | Array = 1.0,
) -> tuple[Array, Array, Array]:
    """Speedup over plain decoding really achieved, with its 90% interval, [contexts, loads]; NaN where nothing ran.

    plain, plain_sd: seconds of a plain decode step and its sd [loads]; prefill: share of a step's seconds spent on
    prompts [loads] (plain decoding would have spent them, too); noise: relative sd of a step; rows: of a context in a
    step that holds it [loads] or [contexts, loads], 1 or more; deff: design effect of its tokens [contexts, 1].

        speedup = tokens * plain / row_seconds + prefill

    Tokens of a step are taken as geometric given their mean t (variance t^2 - t, more than a curve cut at K has), and
    row-steps as worth 1 / deff independent ones, since those of one request are alike. Rows of one step share its
    seconds: the noise of row_steps / rows steps is what averages out.
    """
    ran = earned.row_steps > 0
    steps = np.where(ran, earned.row_steps, 1.0)
    per_step = np.where(ran, earned.tokens / steps, 1.0)
    speedup = per_step * plain * steps / np.where(ran, earned.row_seconds, 1.0)
    luck = np.maximum(per_step - 1.0, 0.0) / np.maximum(per_step, 1e-9) / steps * deff
    timed = np.maximum(steps / np.maximum(rows, 1.0), 1.0)
    relative = np.sqrt(luck + noise**2 / timed + (plain_sd / plain) ** 2)
    middle = np.where(ran, speedup + prefill, np.nan)
    half = _Z90 * relative * speedup
    return middle, middle - half, middle + half
