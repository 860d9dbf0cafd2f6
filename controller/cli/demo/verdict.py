"""From measured blocks to a verdict: goodput as a ratio of sums, compared pair by pair.

A *block* is one group of prompts decoded under one arm. Arms are run interleaved over the same groups, so that a slow
spell of the machine and an easy prompt hit all of them; the interval comes from resampling whole groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST_PAIRS = 6


@dataclass(frozen=True)
class Block:
    """One group of prompts under one arm: `tokens` emitted in `seconds`, in all or by one domain."""

    tokens: int
    seconds: float


@dataclass(frozen=True)
class Ratio:
    """A goodput ratio with its paired 95% interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if self.low == 0:
            return f"{self.value:.2f}x (too few pairs for an interval)"
        return f"{self.value:.2f}x ({self.low:.2f}-{self.high:.2f})"


def goodput(blocks: Sequence[Block]) -> float:
    """Tokens per second: the ratio of the sums, never the mean of ratios.

    >>> goodput([Block(10, 1.0), Block(10, 4.0)])
    4.0
    """
    seconds = sum(b.seconds for b in blocks)
    if not blocks or seconds <= 0:
        raise ValueError(f"goodput needs blocks with positive seconds, got {len(blocks)} blocks and {seconds} s")
    return sum(b.tokens for b in blocks) / seconds


def paired_ratio(ours: Sequence[Block], theirs: Sequence[Block], resamples: int = 4000, seed: int = 0) -> Ratio:
    """Goodput of `ours` over `theirs`, blocks at the same index being the same prompts.

    The interval is the percentile bootstrap over pairs (Efron & Tibshirani 1993, chapter 13), 95%. Few pairs make it
    too narrow, so with fewer than `LEAST_PAIRS` there is none and it is reported as (0, inf).

    >>> paired_ratio([Block(20, 1.0)] * 6, [Block(10, 1.0)] * 6)
    Ratio(value=2.0, low=2.0, high=2.0)
    """
    if len(ours) != len(theirs):
        raise ValueError(f"paired blocks differ in number: {len(ours)} and {len(theirs)}")
    value = goodput(ours) / goodput(theirs)
    if len(ours) < LEAST_PAIRS:
        return Ratio(value, 0.0, float("inf"))
    sums = np.array([[a.tokens, a.seconds, b.tokens, b.seconds] for a, b in zip(ours, theirs, strict=True)])
    rng = np.random.default_rng(seed)
    drawn = sums[rng.integers(len(sums), size=(resamples, len(sums)))].sum(axis=1)
    ratios = (drawn[:, 0] / drawn[:, 1]) / (drawn[:, 2] / drawn[:, 3])
    low, high = np.quantile(ratios, [0.025, 0.975])
    return Ratio(value, float(low), float(high))
