"""The evidence on acceptance by engine, context, draft and position: faded, capped, worth its design effect."""

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controller.learner.changes import Changes
from controller.learner.discount import Array, FadingRows, Index, blend
from controller.learner.dispersion import shrunk_design_effects, spread
from controller.learner.evidence import FEEDING, Contexts
from engine.link.messages import AcceptanceCell, MomentCell

RETIRED = ""  # the engine name that holds the evidence of those gone
FLOOR = 32.0  # an engine's first so many observations of a position are never capped
_ENGINE_COUNTS = 8.0  # an engine with fewer observations is not yet one of those that share

AcceptanceKey = tuple[str, int, str]  # engine, context, draft
MomentKey = tuple[int, str]  # context, draft


class Counts(NamedTuple):
    """Evidence of all cells [C, J, P]: what was counted lately and kept, and what of it counts as independent; and how
    much requests differ: standard deviation of their acceptance, nan where unknown, over so many segments [C, J]."""

    seen: Array
    accepted: Array
    effective_seen: Array
    effective_accepted: Array
    deff: Array
    spread: Array
    segments: Array


def engine_weights(n: Array, cell: Index, cells: int, share: float) -> Array:
    """Weights 0..1 for rows of counts n [rows, P] so that no row holds more than its share of its cell.

    `cell` [rows] says which cell a row belongs to; the E rows of a cell are its engines. A row's share is limited to
    s = max(share, 1 / E) against the *raw* counts of the others, per position (a liar who accepts everything is in the
    majority deep down, where honest engines rarely get), beyond its first FLOOR observations. One engine: no limit.

    >>> n = np.array([[1000.0], [100.0], [100.0]])
    >>> engine_weights(n, np.array([0, 0, 0]), 1, share=0.1).round(3).ravel().tolist()
    [0.1, 1.0, 1.0]
    """
    total = np.zeros((cells, n.shape[1]))
    np.add.at(total, cell, n)
    engines = np.zeros(cells)
    np.add.at(engines, cell, (n[:, 0] >= _ENGINE_COUNTS).astype(np.float64))
    s = np.maximum(share, 1.0 / np.maximum(engines, 1.0))[cell][:, None]
    others = total[cell] - n
    allowed = np.where(s >= 1.0, np.inf, np.maximum(FLOOR, s / np.maximum(1.0 - s, 1e-12) * others))
    return np.minimum(1.0, allowed / np.maximum(n, 1e-9))


def consistent(seen: Array, accepted: Array) -> NDArray[np.bool_]:
    """Which rows of counts [n, P] can come from prefixes: 0 <= accepted[i] <= seen[i], seen[i + 1] <= accepted[i].

    >>> consistent(np.array([[3.0, 2], [3, 3], [3, 0]]), np.array([[2.0, 1], [2, 1], [4, 0]])).tolist()
    [True, False, False]
    """
    fine = (accepted >= 0) & (accepted <= seen)
    fine[:, 1:] &= seen[:, 1:] <= accepted[:, :-1]
    return np.asarray(fine.all(axis=1))


class AcceptanceEvidence:
    """Acceptance and moment cells of all engines of a pool."""

    def __init__(self, positions: int, fast_half_life: float, slow_half_life: float) -> None:
        self.positions = positions
        self._form = struct.Struct(f"={2 * positions}d")  # packing floats is faster than converting lists
        self.rows: dict[AcceptanceKey, int] = {}
        self.counts = FadingRows(2 * positions, fast_half_life, slow_half_life)  # seen, then accepted, by position
        self.changes = Changes(positions)
        self.moment_rows: dict[MomentKey, int] = {}
        self.moments = FadingRows(6 + 5 * positions, fast_half_life, slow_half_life)  # m, 5 totals, 5 lists

    def observe(
        self, engine: str, time: float, cells: Iterable[AcceptanceCell], contexts: Contexts, drafts: Collection[str]
    ) -> int:
        """Add cells that feed the curve (origins policy and probe) of known drafts; returns how many were left out as
        inconsistent: 0 <= accepted[i] <= seen[i] and seen[i + 1] <= accepted[i] must hold, or an engine lies."""
        size, bad = self.positions, 0
        packed: list[bytes] = []
        keys: list[AcceptanceKey] = []
        for cell in cells:
            if cell.origin not in FEEDING or cell.draft not in drafts:
                continue
            seen, accepted = cell.seen, cell.accepted
            if len(seen) != len(accepted):
                bad += 1
                continue
            if len(seen) != size:
                pad = [0] * (size - len(seen))
                seen, accepted = [*seen[:size], *pad], [*accepted[:size], *pad]
            packed.append(self._form.pack(*seen, *accepted))
            keys.append((engine, contexts.index(cell.domain, cell.regime), cell.draft))
        if not keys:
            return bad
        values = np.frombuffer(b"".join(packed)).reshape(len(keys), 2, size)
        good = consistent(values[:, 0], values[:, 1])
        if not good.all():
            bad += int((~good).sum())
            values = values[good]
            keys = [key for key, fine in zip(keys, good.tolist(), strict=True) if fine]
        rows = [self.rows[key] if key in self.rows else self._new_row(key) for key in keys]
        flat = values.reshape(len(rows), 2 * size)
        self.counts.add(rows, flat, time)
        self.changes.add(keys, flat)
        return bad

    def adapt(self, time: float, design_effect: Mapping[tuple[int, str], float]) -> list[tuple[int, str]]:
        """Drop the history of cells (context, draft) whose acceptance has changed abruptly; which these were."""
        changed = self.changes.found(design_effect)
        for (engine, context, draft), row in self.rows.items():
            if (context, draft) in changed:
                recent = changed[context, draft].get(engine, np.zeros(2 * self.positions))
                self.counts.replace(row, recent, time)
        return list(changed)

    def forget(self, cells: Collection[tuple[int, str]]) -> None:
        """Drop all that is known of cells (context, draft)."""
        for (_, context, draft), row in self.rows.items():
            if (context, draft) in cells:
                self.counts.clear(row)
        for key, row in self.moment_rows.items():
            if key in cells:
                self.moments.clear(row)
        for context, draft in cells:
            self.changes.forget(context, draft)

    def _new_row(self, key: AcceptanceKey) -> int:
        self.rows[key] = row = self.counts.new_row()
        return row

    def retire(self, engine: str) -> None:
        """Fold an engine's evidence into that of the retired, who count as one: names must not grow for ever."""
        for key in [key for key in self.rows if key[0] == engine]:
            heir = (RETIRED, *key[1:])
            if heir in self.rows:
                self.counts.fold(self.rows[key], self.rows[heir])
                del self.rows[key]
            else:
                self.rows[heir] = self.rows.pop(key)

    def observe_moments(self, time: float, cells: Iterable[MomentCell], contexts: Contexts) -> int:
        """Add clustered moments; returns how many were inconsistent and left out."""
        size, bad = self.positions, 0
        index: list[int] = []
        flat: list[int] = []
        for cell in cells:
            lists = (cell.s, cell.a, cell.ss, cell.sa, cell.aa)
            numbers = (cell.segments, cell.total_s, cell.total_a, cell.total_ss, cell.total_sa, cell.total_aa)
            negative = min(numbers) < 0 or any(min(values, default=0) < 0 for values in lists)
            if negative or len({len(values) for values in lists}) != 1:
                bad += 1
                continue
            key = (contexts.index(cell.domain, cell.regime), cell.draft)
            row = self.moment_rows.get(key)
            if row is None:
                row = self.moment_rows[key] = self.moments.new_row()
            index.append(row)
            flat += numbers
            for one in lists:
                flat += one[:size] + [0] * (size - len(one))
        if index:
            values = np.array(flat, dtype=np.float64).reshape(len(index), -1)
            self.moments.add(index, values, time)
        return bad

    def gather(self, now: float, contexts: int, drafts: Sequence[str], share: float, memory: float) -> Counts:
        """Counts of every (context, draft) of the pool as of `now`, [contexts, drafts, positions]."""
        size, shape = self.positions, (contexts, len(drafts), self.positions)
        column = {name: j for j, name in enumerate(drafts)}
        chosen = [(row, c * len(drafts) + column[d]) for (_, c, d), row in self.rows.items() if d in column]
        fast, slow = self.counts.read(now)
        pick = np.array([row for row, _ in chosen], dtype=np.intp)
        cell = np.array([c for _, c in chosen], dtype=np.intp)
        cells = contexts * len(drafts)
        n = slow[pick, :size]
        weight = np.tile(engine_weights(n, cell, cells, share), 2) if len(pick) else np.zeros((0, 2 * size))
        sums = np.zeros((2, cells, 2, size))
        for rate, values in enumerate((fast, slow)):
            np.add.at(sums[rate], cell, (values[pick] * weight).reshape(-1, 2, size))
        old = sums[1, :, :1] - sums[0, :, :1]
        kept = blend(sums[0], sums[1], old, memory)
        seen, accepted = kept[:, 0].reshape(shape), np.minimum(kept[:, 1], kept[:, 0]).reshape(shape)
        segments, totals, moments = self._moments(now, shape, column)
        deff = shrunk_design_effects(moments, totals, segments)
        between = spread(segments[..., None], *np.moveaxis(moments, 2, 0))
        return Counts(seen, accepted, seen / deff, accepted / deff, deff, between, segments)

    def _moments(self, now: float, shape: tuple[int, int, int], column: dict[str, int]) -> tuple[Array, Array, Array]:
        """Segments [C, J], moments in total [C, J, 5] and by position [C, J, 5, P]."""
        contexts, drafts, size = shape
        grid = np.zeros((contexts, drafts, self.moments.width))
        _, slow = self.moments.read(now)
        for (c, draft), row in self.moment_rows.items():
            if draft in column:
                grid[c, column[draft]] = slow[row]
        return grid[..., 0], grid[..., 1:6], grid[..., 6:].reshape(contexts, drafts, 5, size)
