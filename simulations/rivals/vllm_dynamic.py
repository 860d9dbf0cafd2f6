"""vLLM's dynamic speculative decoding: a table from batch size to K, made before serving.

Source: vllm-project/vllm, `vllm/v1/spec_decode/dynamic/utils.py` (how the table is read: ranges include both ends, gaps
and everything above take the last K) and `docs/features/speculative_decoding/dynamic_speculative_decoding.md` (the
table itself, first example), at 14b450ca and 015a47e1; merged by pull request #32374, whose author gives no
default because the table depends on hardware and traffic. It is looked up by the number of scheduled requests. Tools
around it fill it from a sweep: the K with the most goodput (accepted length / latency) at each batch size.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simulations.policy import Ints, Maker, Outcome, PoolFacts, View
from simulations.rivals.one_draft import OneDraft

Table = Sequence[tuple[int, int, int]]

DOCUMENTED: Table = ((1, 64, 3), (65, 128, 1), (129, 512, 0))


def measured_table(
    batches: Sequence[int], ks: Sequence[int], goodput: NDArray[np.float64]
) -> list[tuple[int, int, int]]:
    """Table from an offline sweep: at each batch size the K with the most goodput, the smallest K among equals.

    `batches` ascending; `goodput` [batches, ks], tokens/s. A range reaches to the next measured batch size, the first
    one starts at 1. Raises ValueError where the shapes do not fit.

    >>> measured_table([1, 8, 64], [0, 2, 4], np.array([[10, 15, 20.0], [80, 90, 85], [600, 500, 300]]))
    [(1, 7, 4), (8, 63, 2), (64, 64, 0)]
    """
    if goodput.shape != (len(batches), len(ks)) or not len(batches):
        raise ValueError(f"goodput has shape {goodput.shape}, expected ({len(batches)}, {len(ks)}) and not empty")
    starts = [1, *batches[1:]]
    ends = [*(b - 1 for b in batches[1:]), batches[-1]]
    table: list[tuple[int, int, int]] = []
    for lo, hi, best in zip(starts, ends, goodput.argmax(axis=1), strict=True):
        k = ks[int(best)]
        if table and table[-1][2] == k:
            table[-1] = (table[-1][0], hi, k)
        else:
            table.append((lo, hi, k))
    return table


def lookup(table: Table, max_batch: int) -> Ints:
    """K by batch size, [max_batch + 1]; index 0 is unused and 0. Raises ValueError on a table vLLM would refuse.

    >>> lookup([(1, 2, 3), (4, 5, 1)], 7).tolist()
    [0, 3, 3, 3, 1, 1, 1, 1]
    """
    if not table or table[0][0] != 1:
        raise ValueError(f"the first range must start at batch size 1, got {list(table)!r}")
    dense = np.zeros(max_batch + 1, dtype=np.intp)
    previous = 0
    for lo, hi, k in table:
        if lo <= previous or hi < lo or k < 0:
            raise ValueError(f"ranges must ascend without overlap and K must be at least 0, got {(lo, hi, k)!r}")
        dense[lo:] = k
        previous = hi
    return dense


class VllmDynamic(OneDraft):
    """K from the table, by the number of rows."""

    def __init__(self, pool: PoolFacts, draft: int | None, table: Table, name: str | None = None) -> None:
        super().__init__("vllm-dynamic", pool, draft)
        self.name = name or self.name
        self.k = lookup(table, max(pool.max_batch, 1))

    def length(self, view: View, drafting: int) -> int:
        """The table's K for this batch size."""
        return int(self.k[min(len(view.domain), len(self.k) - 1)])

    def observe(self, outcome: Outcome) -> None:
        """Nothing is learned: the table was made before serving."""


def vllm_dynamic(draft: int | None = None, table: Table = DOCUMENTED, name: str | None = None) -> Maker:
    """One configured draft and a table; the documented one, or one measured offline (`measured_table`)."""

    def make(pool: PoolFacts, rng: np.random.Generator) -> VllmDynamic:
        return VllmDynamic(pool, draft, table, name)

    return make
