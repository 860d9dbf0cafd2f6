"""A decision's work on several cores, and without the interpreter's collector in between.

Loads are decided independently of each other, and numpy lets go of the interpreter while it loops over an array, so
threads do; results do not depend on how many there are.
"""

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")

_MOST = 8  # threads: the parts under the interpreter's lock leave nothing for more
_WORTH = 200_000  # numbers an item is to work through, some ten milliseconds, before threads pay


def workers() -> int:
    """Threads for a decision: the cores this process may use, or as many as OMP_NUM_THREADS says."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    if told.isdecimal() and int(told):
        return min(int(told), _MOST)
    ours = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(ours, _MOST)


def mapped(work: Callable[[T], U], items: Sequence[T], numbers: int) -> list[U]:
    """`work` of every item, in their order; on threads where an item works through `numbers` enough to pay for them.

    >>> mapped(lambda n: n * n, [3, 1, 2], 1_000_000)
    [9, 1, 4]
    """
    threads = min(workers(), len(items))
    if threads < 2 or numbers < _WORTH:
        return [work(item) for item in items]
    with ThreadPoolExecutor(threads, thread_name_prefix="akc-decide") as pool:
        return list(pool.map(work, items))


@contextmanager
def uncollected() -> Iterator[None]:
    """No collection of cycles inside: a decision makes tens of thousands of tuples and none, and looking for some while
    it does cost a seventh of its time."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()
