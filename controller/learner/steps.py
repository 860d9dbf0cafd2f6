"""The evidence on cost: sums over completed steps by cost key, faded, capped per engine.

A row holds one key's packed sums in the key's own coordinates: count, sum(seconds), sum(seconds^2), sum(x), the upper
triangle of sum(x xT), sum(x seconds), with x = (verified, prefill, kv, then per draft of the key: drafted, passes).
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from controller.learner.acceptance import RETIRED
from controller.learner.discount import Array, FadingRows, Index, blend
from engine.link.messages import CostCell

SHARED = 3  # features every step has: verified, prefill, kv
MAX_ROWS = 1024  # keys a pool may use; the rest is not learned from
FLOOR = 64.0  # an engine's first so many steps of a key are never capped

CostKey = tuple[tuple[str, ...], int, int, int]  # drafts that ran, load bucket, passes, prefill bucket


def packed_width(drafts: int) -> int:
    """Numbers in a row of a key with so many drafts.

    >>> packed_width(0), packed_width(1)
    (15, 28)
    """
    d = SHARED + 2 * drafts
    return 3 + 2 * d + d * (d + 1) // 2


class Sums(NamedTuple):
    """Sums of rows with one number of drafts d: [rows], [rows, d'], [rows, d', d'] with d' = 3 + 2 d."""

    keys: list[CostKey]
    n: Array
    seconds: Array
    seconds_sq: Array
    x: Array
    xx: Array
    xy: Array


def unpack(keys: list[CostKey], packed: Array) -> Sums:
    """Packed rows as arrays; the triangle becomes a full symmetric matrix."""
    d = SHARED + 2 * len(keys[0][0])
    upper = np.triu_indices(d)
    xx = np.zeros((len(packed), d, d))
    triangle = packed[:, 3 + d : 3 + d + len(upper[0])]
    xx[:, upper[0], upper[1]] = triangle
    xx[:, upper[1], upper[0]] = triangle
    return Sums(keys, packed[:, 0], packed[:, 1], packed[:, 2], packed[:, 3 : 3 + d], xx, packed[:, -d:])


class StepEvidence:
    """Cost cells of all engines of a pool."""

    def __init__(self, fast_half_life: float, slow_half_life: float, share: float) -> None:
        self.half_lives = (fast_half_life, slow_half_life)
        self.share = share
        self.rows: dict[CostKey, tuple[int, int]] = {}  # key -> (drafts in it, row in that table)
        self.tables: dict[int, FadingRows] = {}
        self.engine_rows: dict[tuple[str, CostKey], int] = {}
        self.engine_counts = FadingRows(1, fast_half_life, slow_half_life)  # raw steps by engine and key
        self.version = 0  # moves with every observation

    def observe(self, engine: str, time: float, cells: Iterable[CostCell]) -> int:
        """Add cells (the overflow cell has no key and is skipped); returns how many were malformed and left out."""
        keys: list[CostKey] = []
        by_width: dict[int, tuple[list[int], list[float], list[int]]] = {}
        bad = 0
        for cell in cells:
            if cell.other or not cell.count:
                continue
            drafts = tuple(cell.drafts)
            width = len(drafts)
            d = SHARED + 2 * width
            if len(cell.sx) != d or len(cell.sxy) != d or len(cell.sxx) != d * (d + 1) // 2 or cell.seconds <= 0:
                bad += 1
                continue
            key = (drafts, cell.batch, cell.passes, cell.prefill)
            place = self.rows.get(key)
            if place is None:
                if len(self.rows) >= MAX_ROWS:
                    bad += 1
                    continue
                table = self.tables.setdefault(width, FadingRows(packed_width(width), *self.half_lives))
                place = self.rows[key] = (width, table.new_row())
            index, flat, which = by_width.setdefault(width, ([], [], []))
            index.append(place[1])
            which.append(len(keys))
            flat += (cell.count, cell.seconds, cell.seconds_sq)
            flat += cell.sx
            flat += cell.sxx
            flat += cell.sxy
            keys.append(key)
        if not keys:
            return bad
        self.version += 1
        batches = {
            w: np.array(flat, dtype=np.float64).reshape(-1, packed_width(w)) for w, (_, flat, _) in by_width.items()
        }
        count = np.empty(len(keys))
        for w, values in batches.items():
            count[by_width[w][2]] = values[:, 0]
        weights = self._weights(engine, keys, count, time)
        for w, values in batches.items():
            index, _, which = by_width[w]
            finite = np.isfinite(values).all(axis=1, keepdims=True)
            bad += len(values) - int(finite.sum())
            scaled = np.where(finite, values, 0.0) * weights[which][:, None]
            self.tables[w].add(np.array(index, dtype=np.intp), scaled, time)
        return bad

    def _weights(self, engine: str, keys: list[CostKey], count: Array, time: float) -> Array:
        """Weights 0..1 that thin an engine's steps once it holds more than its share of a key; alone, never.

        Thinning happens on arrival: sums of squares per engine would multiply the memory by the engines.
        """
        own = np.empty(len(keys), dtype=np.intp)
        for i, key in enumerate(keys):
            row = self.engine_rows.get((engine, key))
            if row is None:
                row = self.engine_rows[engine, key] = self.engine_counts.new_row()
            own[i] = row
        self.engine_counts.add(own, count[:, None], time)
        engines = {name for name, _ in self.engine_rows}
        if len(engines) == 1:
            return np.ones(len(keys))
        weights = np.ones(len(keys))
        peers = [[self.engine_rows[name, key] for name in engines if (name, key) in self.engine_rows] for key in keys]
        flat = self.engine_counts.slow(np.array([row for rows in peers for row in rows], dtype=np.intp), time)[:, 0]
        held = self.engine_counts.slow(own, time)[:, 0]
        at = 0
        for i, rows in enumerate(peers):
            sharing = len(rows)
            total = float(flat[at : at + sharing].sum())
            at += sharing
            s = max(self.share, 1.0 / sharing)
            if s < 1.0:
                weights[i] = min(1.0, max(FLOOR, s / (1.0 - s) * (total - held[i])) / held[i])
        return weights

    def retire(self, engine: str) -> None:
        """Forget which share was this engine's; its steps stay."""
        for name, key in [pair for pair in self.engine_rows if pair[0] == engine]:
            row, heir = self.engine_rows.pop((name, key)), self.engine_rows.get((RETIRED, key))
            if heir is None:
                self.engine_rows[RETIRED, key] = row
            else:
                self.engine_counts.fold(row, heir)

    def gather(self, now: float, memory: float) -> list[Sums]:
        """Blended sums as of `now`, one entry per number of drafts; rows without steps left out."""
        gathered = []
        for width, table in sorted(self.tables.items()):
            fast, slow = table.read(now)
            kept = blend(fast, slow, slow[:, :1] - fast[:, :1], memory)
            by_row: dict[int, CostKey] = {row: key for key, (w, row) in self.rows.items() if w == width}
            live: Index = np.flatnonzero(kept[:, 0] > 1e-6)
            if len(live):
                gathered.append(unpack([by_row[row] for row in live.tolist()], kept[live]))
        return gathered
