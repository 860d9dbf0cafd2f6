"""Counts that fade at two speeds: what happened lately counts in full, older evidence as a bounded memory.

Every row of counts is kept twice, under a fast and a slow exponential forgetting, F <= S. What the fast one has let
go, S - F, is the slow-moving memory; it enters worth at most `memory` observations:

    blended = F + min(1, memory / n(S - F)) * (S - F)

So under traffic the present rules, and after a quiet night the memory is still there: it shrinks in *weight*, never in
what it says. Decay works on differences dated at the middle of their interval: a row stores sum(x * exp(r * (t - t0))),
which makes adding O(1) for any date and reading one multiplication.
"""

from collections.abc import Sequence
from math import isfinite, log

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Index = NDArray[np.intp]

FAST, SLOW = 0, 1
_REBASE = 40.0  # exponent beyond which the reference time moves up (e^40 is far from overflow and keeps precision)


def blend(fast: Array, slow: Array, old: Array, memory: float) -> Array:
    """F + min(1, memory / old) * (S - F), elementwise; `old` counts the observations in S - F, and broadcasts.

    >>> blend(np.array([10.0]), np.array([110.0]), np.array([100.0]), 50.0)
    array([60.])
    """
    keep = np.minimum(1.0, memory / np.maximum(old, 1e-9))
    return np.asarray(fast + keep * np.maximum(slow - fast, 0.0), dtype=np.float64)


class FadingRows:
    """A growing table of count rows [rows, width], each fading at the two speeds.

    >>> table = FadingRows(1, fast_half_life=10.0, slow_half_life=1000.0)
    >>> row = table.new_row()
    >>> table.add([row], np.array([[8.0]]), time=0.0)
    >>> fast, slow = table.read(now=10.0)
    >>> fast.round(2).tolist(), slow.round(2).tolist()
    ([[4.0]], [[7.94]])
    """

    def __init__(self, width: int, fast_half_life: float, slow_half_life: float) -> None:
        self.width = width
        self.rows = 0
        self.free: list[int] = []
        self.rates = np.array([log(2) / fast_half_life, log(2) / slow_half_life])
        self.data: Array = np.zeros((8, 2, width))
        self.origin: float | None = None  # reference time of `data`
        self.latest = -np.inf  # newest date seen: reading never un-fades

    def new_row(self) -> int:
        """Index of a fresh row of zeros."""
        if self.free:
            return self.free.pop()
        if self.rows == len(self.data):
            grown = np.zeros((2 * len(self.data), 2, self.width))
            grown[: self.rows] = self.data
            self.data = grown
        self.rows += 1
        return self.rows - 1

    def fold(self, row: int, into: int) -> None:
        """Add a row to another one and free it."""
        self.data[into] += self.data[row]
        self.data[row] = 0.0
        self.free.append(row)

    def clear(self, row: int) -> None:
        """Let a row hold nothing."""
        self.data[row] = 0.0

    def replace(self, row: int, values: Array, time: float) -> None:
        """Let a row hold nothing but `values` [width], dated `time`."""
        self.data[row] = 0.0
        self.add([row], values[None, :], time)

    def add(self, rows: Sequence[int], values: Array, time: float) -> None:
        """Add values [n, width], dated `time` (seconds), to rows [n]; rows may repeat."""
        if not isfinite(time):
            raise ValueError(f"evidence is dated {time}; a time is a finite number of seconds")
        if self.origin is None:
            self.origin = time
        elif (time - self.origin) * self.rates[FAST] > _REBASE:
            self.data *= np.exp(-self.rates * (time - self.origin))[:, None]
            self.origin = time
        self.latest = max(self.latest, time)
        weights = np.exp(self.rates * (time - self.origin))
        change = values[:, None, :] * weights[:, None]
        if len(set(rows)) == len(rows):
            self.data[rows] += change
        else:
            np.add.at(self.data, np.asarray(rows), change)

    def read(self, now: float) -> tuple[Array, Array]:
        """(fast, slow), each [rows, width], as of `now` or the newest date seen, whichever is later."""
        if self.origin is None:
            empty = np.zeros((self.rows, self.width))
            return empty, empty.copy()
        factor = np.exp(-self.rates * (max(now, self.latest) - self.origin))
        return self.data[: self.rows, FAST] * factor[FAST], self.data[: self.rows, SLOW] * factor[SLOW]

    def slow(self, rows: Sequence[int], now: float) -> Array:
        """The slow counts of some rows [n, width]: cheaper than reading all."""
        if self.origin is None:
            return np.zeros((len(rows), self.width))
        factor = np.exp(-self.rates[SLOW] * (max(now, self.latest) - self.origin))
        return np.asarray(self.data[rows, SLOW] * factor, dtype=np.float64)
