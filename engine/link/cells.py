"""One class per kind of cell: adding to it is a few list operations, reading it gives its wire message.

Per-position counts are kept as "how many steps saw exactly n positions", so that a step costs one addition whatever
its K; the count at position i is the number of steps that saw at least i, summed when the cell is read.
"""

from collections.abc import Sequence

from engine.link.messages import (
    MAX_K,
    AcceptanceCell,
    AccountCell,
    CostCell,
    MomentCell,
    Origin,
    Regime,
    Variant,
    histogram_bucket,
)

SEGMENT_STEPS = 64  # a request's steps are clustered into segments of this many
STALL_FACTOR = 8.0
STALL_AFTER_STEPS = 16
STALLS_IN_A_ROW = 4


def at_least(exactly: Sequence[int]) -> list[int]:
    """From counts of steps with exactly n positions (index n) to counts with at least 1, 2, ...; no trailing zeros.

    >>> at_least([5, 1, 0, 2, 0])
    [3, 2, 2]
    """
    total = 0
    reached: list[int] = []
    for count in reversed(exactly[1:]):
        total += count
        if total:
            reached.append(total)
    reached.reverse()
    return reached


class Segment:
    """Up to 64 steps of one request that feed the curve: the cluster of the clustered moments."""

    __slots__ = ("accepted_at", "seen_at", "steps")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Start an empty segment."""
        self.steps = 0
        self.seen_at = [0] * (MAX_K + 1)
        self.accepted_at = [0] * (MAX_K + 1)


class AcceptanceCounts:
    """Steps by number of positions drafted, seen and accepted, for one (domain, regime, draft, origin)."""

    __slots__ = ("accepted_at", "drafted_at", "key", "seen_at", "stamp")

    def __init__(self, domain: str, regime: Regime, draft: str, origin: Origin) -> None:
        self.key: tuple[str, Regime, str, Origin] = (domain, regime, draft, origin)
        self.drafted_at = [0] * (MAX_K + 1)
        self.seen_at = [0] * (MAX_K + 1)
        self.accepted_at = [0] * (MAX_K + 1)
        self.stamp = 0

    def message(self) -> AcceptanceCell:
        """The cell as it stands."""
        seen = at_least(self.seen_at)
        accepted = at_least(self.accepted_at)
        accepted += [0] * (len(seen) - len(accepted))
        return AcceptanceCell(*self.key, seen, accepted, at_least(self.drafted_at))


class MomentCounts:
    """Second moments over segments for one (domain, regime, draft)."""

    __slots__ = ("aa", "key", "length", "s", "sa", "segments", "ss", "stamp", "sum_a", "total")

    def __init__(self, domain: str, regime: Regime, draft: str) -> None:
        self.key: tuple[str, Regime, str] = (domain, regime, draft)
        self.segments = 0
        self.length = 0
        self.s = [0] * MAX_K
        self.sum_a = [0] * MAX_K
        self.ss = [0] * MAX_K
        self.sa = [0] * MAX_K
        self.aa = [0] * MAX_K
        self.total = [0] * 5
        self.stamp = 0

    def add(self, seen_at: Sequence[int], accepted_at: Sequence[int]) -> None:
        """Add one segment, given its steps by number of positions seen and accepted (index n: exactly n)."""
        seen = at_least(seen_at)
        accepted = at_least(accepted_at)
        accepted += [0] * (len(seen) - len(accepted))
        for i, (s, a) in enumerate(zip(seen, accepted, strict=True)):
            self.s[i] += s
            self.sum_a[i] += a
            self.ss[i] += s * s
            self.sa[i] += s * a
            self.aa[i] += a * a
        s, a = sum(seen), sum(accepted)
        for i, value in enumerate((s, a, s * s, s * a, a * a)):
            self.total[i] += value
        self.segments += 1
        self.length = max(self.length, len(seen))

    def message(self) -> MomentCell:
        """The cell as it stands."""
        n = self.length
        return MomentCell(
            *self.key, self.segments, self.s[:n], self.sum_a[:n], self.ss[:n], self.sa[:n], self.aa[:n], *self.total
        )


class CostCounts:
    """Seconds of steps and the sums of a regression of seconds on x, for one cost key."""

    __slots__ = (
        "count",
        "drafts",
        "hist",
        "key",
        "other",
        "seconds",
        "seconds_sq",
        "stall_run",
        "stall_seconds",
        "stalls",
        "stamp",
        "sx",
        "sxx",
        "sxy",
    )

    def __init__(self, drafts: tuple[str, ...], batch: int, passes: int, prefill: int, *, other: bool = False) -> None:
        self.drafts = drafts
        self.key = (batch, passes, prefill)
        self.other = other
        self.count = 0
        self.seconds = 0.0
        self.seconds_sq = 0.0
        size = 3 + 2 * len(drafts)
        self.sx = [0.0] * size
        self.sxx = [0.0] * (size * (size + 1) // 2)
        self.sxy = [0.0] * size
        self.hist: dict[int, int] = {}
        self.stalls = 0
        self.stall_seconds = 0.0
        self.stall_run = 0
        self.stamp = 0

    def add(self, seconds: float, x: Sequence[int]) -> None:
        """Add one step; x = (verified, prefill, KV tokens, then per draft: tokens drafted, passes)."""
        bucket = histogram_bucket(seconds)
        self.hist[bucket] = self.hist.get(bucket, 0) + 1
        if self.count >= STALL_AFTER_STEPS and seconds * self.count > STALL_FACTOR * self.seconds:
            self.stall_run += 1
            if self.stall_run <= STALLS_IN_A_ROW:
                self.stalls += 1
                self.stall_seconds += seconds
                return
        else:
            self.stall_run = 0
        self.count += 1
        self.seconds += seconds
        self.seconds_sq += seconds * seconds
        sx, sxx, sxy = self.sx, self.sxx, self.sxy
        at = 0
        for i, value in enumerate(x):
            sx[i] += value
            sxy[i] += value * seconds
            for other in x[i:]:
                sxx[at] += value * other
                at += 1

    def message(self) -> CostCell:
        """The cell as it stands."""
        return CostCell(
            list(self.drafts),
            *self.key,
            self.count,
            self.seconds,
            self.seconds_sq,
            self.sx.copy(),
            self.sxx.copy(),
            self.sxy.copy(),
            {str(bucket): steps for bucket, steps in sorted(self.hist.items())},
            self.stalls,
            self.stall_seconds,
            self.other,
        )


class AccountCounts:
    """Tokens earned and row-seconds spent, for one (domain, regime, load bucket, variant)."""

    __slots__ = ("domain", "load", "regime", "row_seconds", "row_steps", "stamp", "tokens", "variant")

    def __init__(self, domain: str, regime: Regime, load: int, variant: Variant) -> None:
        self.domain = domain
        self.regime: Regime = regime
        self.load = load
        self.variant: Variant = variant
        self.row_steps = 0
        self.tokens = 0
        self.row_seconds = 0.0
        self.stamp = 0

    def message(self) -> AccountCell:
        """The cell as it stands."""
        return AccountCell(
            self.domain, self.regime, self.load, self.variant, self.row_steps, self.tokens, self.row_seconds
        )
