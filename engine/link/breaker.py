"""The engine's own guard: speculation that measurably loses against plain decoding is turned off, and let in again.

A pure state machine per load bucket, driven by completed steps. *Plain* steps (probes, and the steps while open) give
the seconds of a plain step; from speculative steps come the tokens and the row-seconds spent. Their ratio of sums,
tokens / (row-seconds / plain seconds), is speculation's goodput over plain decoding's. It is judged from batch means,
so that requests' and steps' correlations widen the interval, over a short and a long horizon.
"""

import math
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from engine.link.messages import BreakerState

# One-sided Student t quantiles at 0.999 by degrees of freedom (from 3 to 15).
_T = {3: 10.21, 4: 7.17, 5: 5.89, 6: 5.21, 7: 4.79, 8: 4.50, 9: 4.30, 10: 4.14, 11: 4.02, 12: 3.93, 13: 3.85, 14: 3.79}
_T_LAST = 3.73
_SEVERITY: dict[BreakerState, int] = {"closed": 0, "half-open": 1, "open": 2}


class BreakerRules(NamedTuple):
    """Numbers of the guard, in steps of one load bucket.

    `batch`: speculative steps per batch mean, about the length of a request. `window`: batch means kept on each
    horizon. `long`: batches that make one long batch. `margin`: loss that is tolerated. `probes`: plain runs needed
    before plain seconds count as known. `trial`: speculative steps that decide on re-admission. `backoff`,
    `backoff_max`: steps spent open, doubled after each failed trial.
    """

    batch: int = 64
    window: int = 32
    long: int = 8
    margin: float = 0.01
    probes: int = 3
    trial: int = 64
    backoff: int = 256
    backoff_max: int = 16384


def ratio_interval(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Ratio of sums r = sum a / sum e over successive batches (a, e), and its standard error.

    Linearised ratio estimator: with d = a - r e, se = sqrt(sum d^2 / (n (n - 1))) / mean(e); a positive lag-1
    correlation c of the d (requests outlive a batch) widens it by sqrt((1 + c) / (1 - c)), as for a first-order
    autoregression. Needs two batches and a positive sum of e.

    >>> ratio_interval([(1.0, 1.0), (3.0, 2.0)])
    (1.3333333333333333, 0.22222222222222224)
    """
    n = len(pairs)
    total = sum(e for _, e in pairs)
    ratio = sum(a for a, _ in pairs) / total
    d = [a - ratio * e for a, e in pairs]
    spread = sum(x * x for x in d)
    if not spread:
        return ratio, 0.0
    lag = min(max(sum(x * y for x, y in pairwise(d)) / spread, 0.0), 0.8)
    return ratio, math.sqrt(spread / (n * (n - 1)) * (1 + lag) / (1 - lag)) / (total / n)


class _Plain:
    """Seconds of a plain step at one load and prefill bucket, from runs of plain steps."""

    FLOOR = 0.03  # relative error of one run that a handful of runs cannot rule out
    RUN = 16

    def __init__(self) -> None:
        self.runs: deque[tuple[float, float]] = deque(maxlen=16)
        self.open = (0.0, 0.0)

    def add(self, seconds: float) -> None:
        self.open = (self.open[0] + seconds, self.open[1] + 1)
        if self.open[1] >= self.RUN:
            self.end_run()

    def end_run(self) -> None:
        if self.open[1]:
            self.runs.append(self.open)
            self.open = (0.0, 0.0)

    def price(self, needed: int) -> tuple[float, float] | None:
        """Seconds per plain step and their relative standard error, when enough runs are there."""
        if len(self.runs) < needed:
            return None
        seconds, error = ratio_interval(self.runs)
        return seconds, max(error / seconds, self.FLOOR / math.sqrt(len(self.runs))) if seconds else 0.0


class _Circuit:
    """The guard at one load bucket."""

    def __init__(self, rules: BreakerRules) -> None:
        self.rules = rules
        self.state: BreakerState = "closed"
        self.trips = 0
        self.backoff = rules.backoff
        self.left = 0
        self.good_steps = 0
        self.in_run = False
        self.plain: dict[int, _Plain] = {}
        self.prices: dict[int, tuple[float, float] | None] = {}
        self.ratio: float | None = None
        self.clear()

    def clear(self) -> None:
        self.steps = 0
        self.tokens = self.expected = self.error = 0.0
        self.short: deque[tuple[float, float, float]] = deque(maxlen=self.rules.window)
        self.long: deque[tuple[float, float, float]] = deque(maxlen=self.rules.window)
        self.gathering: list[tuple[float, float, float]] = []

    def observe_plain(self, prefill: int, seconds: float) -> None:
        self.plain.setdefault(prefill, _Plain()).add(seconds)
        self.in_run = True
        if self.state == "open":
            self.left -= 1
            if self.left <= 0:
                self.state = "half-open"
                self.end_plain_run()
                self.clear()

    def end_plain_run(self) -> None:
        if not self.in_run:
            return
        self.in_run = False
        for bucket, plain in self.plain.items():
            plain.end_run()
            self.prices[bucket] = plain.price(self.rules.probes)

    def observe_speculative(self, prefill: int, rows: int, tokens: int, seconds: float) -> None:
        price = self.prices.get(prefill)
        if self.state == "open" or price is None or not price[0]:
            return
        expected = rows * seconds / price[0]
        self.tokens += tokens
        self.expected += expected
        self.error += expected * price[1]
        self.steps += 1
        if self.state == "half-open":
            if self.steps >= self.rules.trial:
                self.decide_trial()
        elif self.steps >= self.rules.batch:
            self.end_batch()

    def decide_trial(self) -> None:
        self.ratio = self.tokens / self.expected if self.expected else 1.0
        if self.ratio >= 1.0 - self.rules.margin:
            self.state = "closed"
            self.good_steps = 0
            self.clear()
        else:
            self.open(min(self.rules.backoff_max, 2 * self.backoff))

    def end_batch(self) -> None:
        batch = (self.tokens, self.expected, self.error)
        self.good_steps += self.steps
        self.steps = 0
        self.tokens = self.expected = self.error = 0.0
        self.short.append(batch)
        self.gathering.append(batch)
        if len(self.gathering) >= self.rules.long:
            tokens, expected, errors = zip(*self.gathering, strict=True)
            self.long.append((sum(tokens), sum(expected), sum(errors)))
            self.gathering.clear()
        if self.good_steps >= self.backoff:
            self.backoff = self.rules.backoff
        if self.loses(self.short) or self.loses(self.long):
            self.trips += 1
            self.open(self.backoff)

    def open(self, steps: int) -> None:
        self.state = "open"
        self.backoff = self.left = steps
        self.clear()

    def loses(self, batches: Sequence[tuple[float, float, float]]) -> bool:
        if len(batches) < 4:
            return False
        total = sum(e for _, e, _ in batches)
        if total <= 0:
            return False
        ratio, error = ratio_interval([(a, e) for a, e, _ in batches])
        plain_error = ratio * sum(x for _, _, x in batches) / total
        self.ratio = ratio
        bound = ratio + _T.get(len(batches) - 1, _T_LAST) * math.hypot(error, plain_error)
        return bound < 1.0 - self.rules.margin


class Breaker:
    """One guard per load bucket; `state` is the worst of them.

    Where plain seconds are known, a loss whose upper bound lies below the margin on the short horizon is cut after at
    most `batch * window` speculative steps at that load; a smaller one when the long horizon shows it.

    >>> guard = Breaker(BreakerRules(batch=2, window=4, backoff=2, trial=2))
    >>> for _ in range(3):                                   # three plain runs of one step of 10 ms
    ...     guard.observe(1, 0, plain=True, rows=1, tokens=1, seconds=0.010)
    ...     guard.observe(1, 0, plain=False, rows=1, tokens=2, seconds=0.020)
    >>> for _ in range(9):                                   # 20 ms for one token: half of plain goodput
    ...     guard.observe(1, 0, plain=False, rows=1, tokens=1, seconds=0.020)
    >>> guard.state, guard.blocks(1), guard.blocks(4)
    ('open', True, False)
    """

    def __init__(self, rules: BreakerRules | None = None) -> None:
        self._rules = rules or BreakerRules()
        self._circuits: dict[int, _Circuit] = {}

    @property
    def state(self) -> BreakerState:
        """`open` while speculation is off at some load, `half-open` while it is on trial there, else `closed`."""
        states = [c.state for c in list(self._circuits.values())]
        return max(states, key=_SEVERITY.__getitem__, default="closed")

    def blocks(self, load: int) -> bool:
        """Whether steps at this load bucket have to run without speculation."""
        circuit = self._circuits.get(load)
        return circuit is not None and circuit.state == "open"

    def observe(self, load: int, prefill: int, *, plain: bool, rows: int, tokens: int, seconds: float) -> None:
        """Take in a completed step of `rows` decode rows at a load bucket and a prefill bucket."""
        if not rows:
            return
        circuit = self._circuits.get(load)
        if circuit is None:
            circuit = self._circuits[load] = _Circuit(self._rules)
        if plain:
            circuit.observe_plain(prefill, seconds)
        else:
            circuit.end_plain_run()
            circuit.observe_speculative(prefill, rows, tokens, seconds)

    def status(self) -> dict[str, object]:
        """State, trips, last measured ratio to plain and steps left, by load bucket."""
        return {
            str(load): {"state": c.state, "trips": c.trips, "ratio": c.ratio, "steps_left": c.left}
            for load, c in sorted(self._circuits.copy().items())
        }
