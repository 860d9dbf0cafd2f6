"""Where the tokens of one ragged forward pass stand: positions, cache rows to write, and views attention reads.

A pass takes the new tokens of several cache rows, flattened: row after row, slots ascending. Linear layers see only
the flat list. Attention works on *runs*: neighbouring slots read as one padded batch, as long as the padding costs
less than another call. Built once a pass, used by every layer.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.core.cache import KVCache

# Cost of a run in units of one cached position read for one row: rows x length x (1 + 0.11 (queries - 1)), plus a
# constant per call. Fitted on two AVX2 cores (call 25 us, position 0.19 us); on a GPU a launch outweighs the padding.
_CALL_COST = {"cpu": 150.0, "cuda": 50_000.0}
_QUERY_COST = 0.11


class Segment(NamedTuple):
    """New tokens of one row: `size` tokens at positions start..start+size-1 of the row in cache slot `slot`."""

    slot: int
    start: int
    size: int


class Run(NamedTuple):
    """Rows of slots [first, last) attended in one call.

    tokens `begin`..`end` of the flat list, padded to `queries` per row; `length` cached positions are read. `mask`:
    additive, [rows, 1, group x queries, length], or None where every row reads all of them. `pad` ([rows x queries]
    indices into the run's tokens) and `unpad` ([tokens] indices into the padded ones) are None where rows are equal.
    """

    first: int
    last: int
    begin: int
    end: int
    queries: int
    length: int
    mask: Tensor | None
    pad: Tensor | None
    unpad: Tensor | None


class Layout:
    """Indices for one pass over `segments`. `group`: query heads per key head.

    Raises `ValueError` for slots out of order, empty segments and positions past the cache.
    """

    def __init__(self, segments: Sequence[Segment], cache: KVCache, group: int, dtype: torch.dtype) -> None:
        _check(segments, cache)
        self.segments = segments
        counts = np.array([s.size for s in segments])
        self.tokens = int(counts.sum())
        starts = np.array([s.start for s in segments])
        slots = np.array([s.slot for s in segments])
        # offsets[i]: index of the first token of segment i in the flat list.
        self.offsets: list[int] = (np.cumsum(counts) - counts).tolist()
        positions = np.repeat(starts - self.offsets, counts) + np.arange(self.tokens)
        heads = 2 * cache.kv_heads
        base = np.repeat(slots, counts) * (heads * cache.max_len) + positions
        write = base[:, None] + np.arange(heads) * cache.max_len
        self.positions = torch.from_numpy(positions).to(cache.device)
        # Row of layer.view(-1, head_dim) for every (token, key or value head).
        self.write = torch.from_numpy(write.reshape(-1)).to(cache.device)
        self.runs = [self._run(segments[a:b], a, cache, group, dtype) for a, b in _split(segments, cache.device.type)]

    def _run(self, rows: Sequence[Segment], at: int, cache: KVCache, group: int, dtype: torch.dtype) -> Run:
        counts = np.array([r.size for r in rows])
        starts = np.array([r.start for r in rows])
        queries, length = int(counts.max()), int((starts + counts).max())
        begin = self.offsets[at]
        end = begin + int(counts.sum())
        within = np.minimum(np.arange(queries), counts[:, None] - 1)
        mask = pad = unpad = None
        if queries > 1 or int((starts + counts).min()) < length:
            sees = np.arange(length) <= (starts[:, None] + within)[:, :, None]
            bias = np.where(sees, np.float32(0), np.float32("-inf"))
            # All queries of the group's first head, then all of its second, as attention stacks them.
            stacked = torch.from_numpy(np.tile(bias, (1, group, 1)))[:, None]
            mask = stacked.to(cache.device, dtype)
        if int(counts.min()) < queries:
            first = np.array(self.offsets[at : at + len(rows)]) - begin
            pad = torch.from_numpy((first[:, None] + within).reshape(-1)).to(cache.device)
            real = np.arange(queries) < counts[:, None]
            unpad = torch.from_numpy(np.flatnonzero(real)).to(cache.device)
        return Run(rows[0].slot, rows[-1].slot + 1, begin, end, queries, length, mask, pad, unpad)


def _check(segments: Sequence[Segment], cache: KVCache) -> None:
    before = -1
    for segment in segments:
        slot, start, size = segment
        if slot <= before or slot >= cache.slots:
            raise ValueError(f"{segment} follows slot {before}; slots must ascend and stay below {cache.slots}")
        if size < 1 or start < 0 or start + size > cache.max_len:
            raise ValueError(f"{segment} does not fit; needed is size >= 1 within 0..{cache.max_len}")
        before = slot


def _split(segments: Sequence[Segment], device: str) -> list[tuple[int, int]]:
    """Ranges of segments to attend together, found greedily from left to right."""
    call = _CALL_COST.get(device, _CALL_COST["cpu"])
    ranges: list[tuple[int, int]] = []
    begin, queries, length, cost = 0, 0, 0, 0.0
    for i, (slot, start, size) in enumerate(segments):
        alone = (start + size) * (1 + _QUERY_COST * (size - 1)) + call
        wide, long = max(queries, size), max(length, start + size)
        joined = (i - begin + 1) * long * (1 + _QUERY_COST * (wide - 1)) + call
        if i > begin and (segments[i - 1].slot + 1 != slot or joined > cost + alone):
            ranges.append((begin, i))
            begin, queries, length, cost = i, size, start + size, alone
        else:
            queries, length, cost = wide, long, joined
    ranges.append((begin, len(segments)))
    return ranges
