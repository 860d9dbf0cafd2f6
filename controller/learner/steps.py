"""The evidence on cost: sums over completed steps by cost key, faded, capped per engine, their seconds divided by how
many times the usual its engine takes (`speed`).

A row holds one key's packed sums in the key's own coordinates: count, sum(seconds), sum(seconds^2), sum(x), the upper
triangle of sum(x xT), sum(x seconds), with x = (verified, prefill, kv, then per draft of the key: drafted, passes).
"""

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controller.learner.acceptance import RETIRED
from controller.learner.discount import Array, FadingRows, Index, blend
from controller.learner.speed import Speeds, against
from engine.link.messages import MAX_K, PREFILL_BUCKETS, CostCell, load_bucket, passes_bucket

SHARED = 3  # features every step has: verified, prefill, kv
MAX_ROWS = 4096  # keys a pool may use; the rest is not learned from
FLOOR = 64.0  # an engine's first so many steps of a key are never capped
_SECONDS = (1e-9, 1e6)  # shortest and longest mean of steps that is a measurement
_MOST = 1e12  # root of the mean square of tokens in a step: what is beyond is no count of tokens
_ROUNDING = 1e-7  # relative: what taking long sums off each other may cost

_forms: dict[int, struct.Struct] = {}  # by number of drafts: packing floats is 3x faster than converting lists

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
    doubt: Array  # [rows]: variance of the mean seconds, relative, by what was not known of the engines' speeds then


def unpack(keys: list[CostKey], packed: Array) -> Sums:
    """Packed rows as arrays; the triangle becomes a full symmetric matrix."""
    d = SHARED + 2 * len(keys[0][0])
    square = _square(d)
    xx = packed[:, 3 + d : 3 + d + d * (d + 1) // 2].take(square, axis=1)
    return Sums(
        keys, packed[:, 0], packed[:, 1], packed[:, 2], packed[:, 3 : 3 + d], xx, packed[:, -d:], np.zeros(len(packed))
    )


@lru_cache(maxsize=16)
def _square(d: int) -> Index:
    """Where each entry of a symmetric matrix [d, d] stands in its upper triangle, row by row.

    >>> _square(3).tolist()
    [[0, 1, 2], [1, 3, 4], [2, 4, 5]]
    """
    square = np.zeros((d, d), dtype=np.intp)
    square[np.triu_indices(d)] = np.arange(d * (d + 1) // 2)
    return np.asarray(np.maximum(square, square.T), dtype=np.intp)


def possible(sums: Sums) -> NDArray[np.bool_]:
    """Which rows are sums that steps can have, [rows]; any number may be in them.

    Sums of products of z = (1, seconds, x) make a matrix without negative eigenvalues, whatever the steps were. Sums
    that contradict each other do not, and would make the cost model a Gaussian without a precision.

    >>> steps = [10.0, 0.2, 0.004, 10, 0, 0, 10, 0, 0, 0, 0, 0, 0.2, 0, 0]    # 10 of 20 ms that verified 1 token each
    >>> squares = [*steps[:6], 9, *steps[7:]]    # no ten numbers of sum 10 have squares of sum 9
    >>> possible(unpack([((), 1, 0, 0)] * 2, np.array([steps, squares]))).tolist()
    [True, False]
    """
    d = 2 + sums.x.shape[1]
    z = np.empty((len(sums.n), d, d))
    z[:, 0, 0], z[:, 1, 1], z[:, 2:, 2:] = sums.n, sums.seconds_sq, sums.xx
    z[:, 0, 1] = z[:, 1, 0] = sums.seconds
    z[:, 0, 2:] = z[:, 2:, 0] = sums.x
    z[:, 1, 2:] = z[:, 2:, 1] = sums.xy
    fair = np.isfinite(z).all(axis=(1, 2)) & (z >= 0.0).all(axis=(1, 2)) & (sums.n > 0)
    z[~fair] = 1.0
    n, square = z[:, 0, 0], np.diagonal(z, axis1=1, axis2=2)
    usual = z[:, 0, 1] / n
    fair &= (usual >= _SECONDS[0]) & (usual <= _SECONDS[1]) & (square[:, 2:] <= _MOST**2 * n[:, None]).all(axis=1)
    z[~fair] = 1.0
    # A feature that never occurred has a row of zeros; scaled, the others have ones on the diagonal.
    scale = np.sqrt(np.where(square > 0, square, 1.0))
    z /= scale[:, :, None] * scale[:, None, :]
    z[:, np.arange(d), np.arange(d)] += _ROUNDING
    try:
        np.linalg.cholesky(z)  # of all of them, at a fifth of the price of their eigenvalues
    except np.linalg.LinAlgError:
        fair &= np.linalg.eigvalsh(z)[:, 0] >= 0.0
    return np.asarray(fair, dtype=np.bool_)


def _of_buckets(key: CostKey) -> bool:
    """Whether its numbers are bounds of buckets: others would be kinds of steps without end."""
    _, batch, passes, prefill = key
    return batch == load_bucket(batch) and passes == passes_bucket(passes) <= MAX_K and prefill in PREFILL_BUCKETS


def _scale(drafts: int, slow: float) -> Array:
    """What a row of packed sums is multiplied by, that its seconds become those of an engine of the usual speed.

    >>> _scale(0, 2.0).tolist()
    [1.0, 0.5, 0.25, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5]
    """
    scale = np.ones(packed_width(drafts))
    scale[1], scale[2] = 1.0 / slow, 1.0 / slow**2
    scale[-(SHARED + 2 * drafts) :] = 1.0 / slow
    return scale


class _Batch:
    """Cells of one width on their way into its table."""

    __slots__ = ("form", "keys", "own", "packed", "rows")

    def __init__(self, width: int) -> None:
        self.form = _forms.get(width) or _forms.setdefault(width, struct.Struct(f"={packed_width(width)}d"))
        self.keys: list[CostKey] = []
        self.rows: list[int] = []
        self.own: list[int] = []  # rows of the engine's own counts
        self.packed: list[bytes] = []


class StepEvidence:
    """Cost cells of all engines of a pool."""

    def __init__(self, fast_half_life: float, slow_half_life: float, share: float) -> None:
        self.half_lives = (fast_half_life, slow_half_life)
        self.share = share
        self.rows: dict[CostKey, tuple[int, int]] = {}  # key -> (drafts in it, row in that table)
        self.tables: dict[int, FadingRows] = {}
        self.doubts: dict[int, FadingRows] = {}  # rows as in `tables`: sum over intervals of steps^2 * variance
        self.engine_rows: dict[str, dict[CostKey, int]] = {}
        self.engine_counts = FadingRows(1, fast_half_life, slow_half_life)  # raw steps by engine and key
        self.version = 0  # moves with every observation
        self.speeds = Speeds()
        self.noise = 0.1  # relative sd of a step's seconds, of the last fit
        # By load: seconds that a verified and a resident KV token more cost, of the last fit.
        self.slopes: dict[int, tuple[float, float]] = {}

    def observe(self, engine: str, time: float, cells: Iterable[CostCell]) -> int:
        """Add cells (the overflow cell has no key and is skipped); returns how many were malformed and left out."""
        held = self.engine_rows.setdefault(engine, {})
        batches: dict[int, _Batch] = {}
        bad = 0
        for cell in cells:
            if cell.other or not cell.count:
                continue
            drafts = tuple(cell.drafts)
            batch = batches.get(len(drafts))
            if batch is None:
                batch = batches[len(drafts)] = _Batch(len(drafts))
            key = (drafts, cell.batch, cell.passes, cell.prefill)
            row = self.rows[key][1] if key in self.rows else self._row(key) if _of_buckets(key) else None
            if row is None or cell.seconds <= 0:
                bad += 1
                continue
            try:
                packed = batch.form.pack(cell.count, cell.seconds, cell.seconds_sq, *cell.sx, *cell.sxx, *cell.sxy)
            except struct.error:  # lists of the wrong length
                bad += 1
                continue
            own = held.get(key)
            if own is None:
                own = held[key] = self.engine_counts.new_row()
            batch.keys.append(key)
            batch.rows.append(row)
            batch.own.append(own)
            batch.packed.append(packed)
        taken: list[tuple[int, _Batch, Array]] = []
        for width, batch in batches.items():
            if not batch.keys:
                continue
            values = np.frombuffer(b"".join(batch.packed)).reshape(len(batch.keys), -1)
            fair = possible(unpack(batch.keys, values))
            if not fair.all():
                bad += len(values) - int(fair.sum())
                values = np.where(fair[:, None], values, 0.0)
            taken.append((width, batch, values))
        slow, doubt = self._pace(engine, time, taken)
        for width, batch, values in taken:
            self.engine_counts.add(batch.own, values[:, :1], time)
            scale = _scale(width, slow)
            if len(self.engine_rows) > 1:
                scale = scale * self._weights(batch, time)[:, None]
            scaled = values * scale
            self.tables[width].add(batch.rows, scaled, time)
            self.doubts[width].add(batch.rows, scaled[:, :1] ** 2 * doubt, time)
            self.version += 1
        return bad

    def _pace(self, engine: str, time: float, taken: list[tuple[int, _Batch, Array]]) -> tuple[float, float]:
        """How many times the usual seconds the engine takes now and how sure that is (see `Speeds`), by steps without
        prompts: those differ too much."""
        values, variances = [], []
        for width, batch, now in taken:
            some = [i for i, key in enumerate(batch.keys) if not key[3] and now[i, 0] > 0]
            if some:
                before = self.tables[width].slow([batch.rows[i] for i in some], time)
                slopes = np.array([self.slopes.get(batch.keys[i][1], (0.0, 0.0)) for i in some])
                ratio, variance = against(now[some], before, slopes, self.noise)
                values.append(ratio)
                variances.append(variance)
        none = np.zeros(0)
        return self.speeds.update(engine, time, np.concatenate([none, *values]), np.concatenate([none, *variances]))

    def _row(self, key: CostKey) -> int | None:
        """Row of the key in the table of its width, a new one if need be; None when the pool has keys enough."""
        place = self.rows.get(key)
        if place is None:
            if len(self.rows) >= MAX_ROWS:
                return None
            width = len(key[0])
            table = self.tables.setdefault(width, FadingRows(packed_width(width), *self.half_lives))
            self.doubts.setdefault(width, FadingRows(1, *self.half_lives)).new_row()
            place = self.rows[key] = (width, table.new_row())
        return place[1]

    def _weights(self, batch: "_Batch", time: float) -> Array:
        """Weights 0..1 that thin an engine's steps once it holds more than its share of a key; alone, never.

        Thinning happens on arrival: sums of squares per engine would multiply the memory by the engines.
        """
        weights = np.ones(len(batch.keys))
        peers = [[rows[key] for rows in self.engine_rows.values() if key in rows] for key in batch.keys]
        flat = self.engine_counts.slow([row for rows in peers for row in rows], time)[:, 0]
        held = self.engine_counts.slow(batch.own, time)[:, 0]
        at = 0
        for i, rows in enumerate(peers):
            sharing = len(rows)
            total = float(flat[at : at + sharing].sum())
            at += sharing
            s = max(self.share, 1.0 / sharing)
            if s < 1.0 and held[i] > 0:
                weights[i] = min(1.0, max(FLOOR, s / (1.0 - s) * (total - held[i])) / held[i])
        return weights

    def retire(self, engine: str) -> None:
        """Forget which share was this engine's; its steps stay."""
        self.speeds.retire(engine)
        heirs = self.engine_rows.setdefault(RETIRED, {})
        for key, row in self.engine_rows.pop(engine, {}).items():
            if key in heirs:
                self.engine_counts.fold(row, heirs[key])
            else:
                heirs[key] = row

    def forget(self, draft: str) -> None:
        """Drop the steps in which a draft ran."""
        for key, (width, row) in self.rows.items():
            if draft in key[0]:
                self.tables[width].clear(row)
                self.doubts[width].clear(row)
                for own in self.engine_rows.values():
                    if key in own:
                        self.engine_counts.clear(own[key])
        self.version += 1

    def gather(self, now: float, memory: float) -> list[Sums]:
        """Blended sums as of `now`, one entry per number of drafts; rows without steps left out."""
        gathered = []
        for width, table in sorted(self.tables.items()):
            fast, slow = table.read(now)
            kept = blend(fast, slow, slow[:, :1] - fast[:, :1], memory)
            by_row: dict[int, CostKey] = {row: key for key, (w, row) in self.rows.items() if w == width}
            live: Index = np.flatnonzero(kept[:, 0] > 1e-6)
            if len(live):
                doubt = self.doubts[width].read(now)[1][live, 0] / np.maximum(slow[live, 0], 1e-9) ** 2
                gathered.append(unpack([by_row[row] for row in live.tolist()], kept[live])._replace(doubt=doubt))
        return gathered
