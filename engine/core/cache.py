"""Keys and values of running requests: one preallocated tensor a layer, one slot a request, no holes between slots."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_ALIGNMENT = 64


@dataclass(slots=True, eq=False)
class CacheRow:
    """A request's place in a cache. `length`: positions that hold valid keys and values; lowering it is a rollback."""

    slot: int
    length: int = 0


class KVCache:
    """`layers[i]` has shape [slots, 2 x kv_heads, max_len, head_dim]: a slot's key heads, then its value heads.

    Running requests always occupy slots 0..n-1, so that attention reads them as one view: when one leaves, the last
    slot's content moves into the hole. Memory is touched only as positions are written.

    >>> cache = KVCache(1, 2, 1, 4, 8, torch.float32, torch.device("cpu"))
    >>> first, second = cache.acquire(), cache.acquire()
    >>> cache.release(first)
    >>> second.slot, cache.free
    (0, 1)
    """

    def __init__(
        self,
        layers: int,
        slots: int,
        kv_heads: int,
        head_dim: int,
        max_len: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.slots = slots
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        self.max_len = max_len
        self.device = device
        shape = (slots, 2 * kv_heads, max_len, head_dim)
        # Zeros, not garbage: attention multiplies masked positions by 0, and 0 x NaN is NaN.
        self.layers = [_zeros(shape, dtype, device) for _ in range(layers)]
        self._rows: list[CacheRow] = []

    @property
    def free(self) -> int:
        """Slots without a request."""
        return self.slots - len(self._rows)

    @property
    def tokens(self) -> int:
        """Valid positions of all requests."""
        return sum(row.length for row in self._rows)

    @property
    def memory_bytes(self) -> int:
        """Bytes reserved."""
        return sum(layer.numel() * layer.element_size() for layer in self.layers)

    def acquire(self) -> CacheRow:
        """An empty row. Raises `RuntimeError` when no slot is free."""
        if not self.free:
            raise RuntimeError(f"all {self.slots} cache slots are taken")
        row = CacheRow(len(self._rows))
        self._rows.append(row)
        return row

    def release(self, row: CacheRow) -> None:
        """Give the slot back; the request in the last slot moves there. Raises `ValueError` for a row not held."""
        if row.slot >= len(self._rows) or self._rows[row.slot] is not row:
            raise ValueError(f"the row at slot {row.slot} is not held by this cache")
        last = self._rows.pop()
        if last is row:
            return
        for layer in self.layers:
            layer[row.slot, :, : last.length].copy_(layer[last.slot, :, : last.length])
        self._rows[row.slot] = last
        last.slot = row.slot


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # numpy maps zero pages lazily; torch.zeros would touch (and so occupy) all of a cache that may never fill.
    size = int(np.prod(shape)) * dtype.itemsize
    raw = torch.from_numpy(np.zeros(size + _ALIGNMENT, np.uint8))
    offset = -raw.data_ptr() % _ALIGNMENT
    return raw[offset : offset + size].view(dtype).view(shape)
