"""How fast each engine runs now, against how fast the same kinds of steps ran before.

A machine that others use, a clock that is throttled, a neighbour on the bus: they slow all steps alike, plain and
speculative, and they come and go. Arms that ran in different minutes must not be compared by the clock on the wall. So
every engine has a factor s common to all its steps, and what is learned of costs is seconds / s.

The logarithm u of the factor is taken for an Ornstein-Uhlenbeck process, u(t + d) | u(t) ~ N(f u, S^2 (1 - f^2)) with
f = exp(-d / T); what an interval's steps took, over what steps of the same keys took before, measures it: a Kalman
filter (Kalman 1960, A new approach to linear filtering and prediction problems). How much a machine wanders, and how
fast, nobody knows: one filter for each (S, T) of WANDERS is weighed by how well it foretells the intervals (Magill
1965, Optimal adaptive estimation of sampled stochastic processes), and every filter gets a fixed share of the weight at
each interval, so that it is soon there when a machine changes (Herbster and Warmuth 1998, Tracking the best expert).
On a machine that does not wander S = 0 is left, where nothing is divided and nothing lost.

In a pool of MANY engines or more, factors are told against the median one's. Else a liar, whose steps pull down what
steps of a kind usually take, would make all others look slow, and these would pull it down further.

What is not known of u when steps run is an error that all steps of that interval share: with v its variance and n the
steps of a key in an interval, a key's mean has the relative variance sum n^2 v / (sum n)^2 on top of its noise.
"""

from math import exp
from statistics import median

import numpy as np

from controller.learner.discount import Array

WANDERS = ((0.0, np.inf), (0.03, 60.0), (0.1, 60.0), (0.3, 60.0), (0.3, 6.0))  # S, and T in seconds
_TRUST = np.array([0.8, 0.05, 0.05, 0.05, 0.05])  # weights at first
_SHARE = 0.02  # of the weight goes back to these at each interval
_SD = np.array([sd for sd, _ in WANDERS])
_RATE = np.array([1.0 / length for _, length in WANDERS])
_UNLIKE = 0.3  # sd of u between the engines of a pool
_FREEDOM = 4.0  # of Student's t, by which filters are judged: pauses happen
_MISFIT = 0.02  # relative: what a key's steps differ by for reasons of their own
_OUTLIER = 3.0  # standard deviations beyond which a measurement counts less
_ABSURD = 1.0  # what is so far from u = 0 is no speed: an engine that lies, or a clock that is wrong
MANY = 3
_LEAST = 4.0  # steps of a key before it can be compared with
_SLANT = 0.5  # relative sd of what a slope says that steps of another size should take


class _Filter:
    """One engine's factor: mean and variance of u by each filter, and the filters' weights.

    newcomer: other engines of the pool ran before, and this one may be another machine. u = 0 is what is usual in the
    long run: whether the first interval is, nobody knows.
    """

    __slots__ = ("mean", "time", "u", "variance", "weight")

    def __init__(self, newcomer: bool = False) -> None:
        self.time: float | None = None
        self.u = 0.0  # the filters' mean at the last interval
        self.mean: Array = np.zeros(len(_SD))
        self.variance: Array = np.maximum(_SD, _UNLIKE if newcomer else 0.0) ** 2
        self.weight: Array = _TRUST.copy()

    def advance(self, time: float) -> None:
        """Let the time pass up to `time`; an earlier date changes nothing."""
        if self.time is not None and time > self.time:
            kept = np.exp(-(time - self.time) * _RATE)
            self.mean = self.mean * kept
            self.variance = self.variance * kept**2 + _SD**2 * (1.0 - kept**2)
        self.time = time if self.time is None else max(self.time, time)

    def measure(self, value: float, variance: float) -> None:
        """Take in one measurement of u with its variance."""
        surprise = value - self.mean
        total = self.variance + variance
        squared = surprise**2 / total
        likelihood = (1.0 + squared / _FREEDOM) ** (-(_FREEDOM + 1.0) / 2.0) / np.sqrt(total)
        weight = self.weight * likelihood
        self.weight = (1.0 - _SHARE) * weight / weight.sum() + _SHARE * _TRUST
        # What is not foretold at all is a pause or a key that has changed: its variance is taken for larger.
        total = total * np.maximum(1.0, squared / _OUTLIER**2)
        gain = self.variance / total
        self.mean = self.mean + gain * surprise
        self.variance = self.variance * (1.0 - gain)


class Speeds:
    """The factor of every engine of a pool.

    >>> speeds = Speeds()
    >>> for second in range(60):                       # steps of one kind take 20% longer than ever before
    ...     factor, doubt = speeds.update("engine", float(second), np.array([np.log(1.2)]), np.array([0.001]))
    >>> round(factor, 2), round(doubt**0.5, 2), speeds.factor("another")
    (1.19, 0.03, 1.0)
    """

    def __init__(self) -> None:
        self._filters: dict[str, _Filter] = {}

    def update(self, engine: str, time: float, values: Array, variances: Array) -> tuple[float, float]:
        """The factor after an interval dated `time` (s) and the variance of its logarithm, from log ratios of the
        interval's seconds to those of steps of the same kinds before [n] and their variances [n]; without any it fades.
        """
        found = self._filters.get(engine)
        if found is None:
            found = self._filters[engine] = _Filter(newcomer=bool(self._filters))
        found.advance(time)
        fair = np.abs(values) < _ABSURD
        values, variances = values[fair], variances[fair]
        if len(values):
            precision = 1.0 / variances
            total = float(precision.sum())
            found.measure(float(precision @ values) / total, 1.0 / total + _MISFIT**2)
        found.u = float(found.weight @ found.mean)
        doubt = float(found.weight @ (found.variance + (found.mean - found.u) ** 2))
        return self.factor(engine), doubt

    def factor(self, engine: str) -> float:
        """How many times the usual seconds the engine's steps take, 1 for one that is not known."""
        found = self._filters.get(engine)
        if found is None:
            return 1.0
        middle = median(f.u for f in self._filters.values()) if len(self._filters) >= MANY else 0.0
        return exp(found.u - middle)

    def retire(self, engine: str) -> None:
        """Forget an engine."""
        self._filters.pop(engine, None)

    def state(self) -> dict[str, tuple[float | None, list[float], list[float], list[float]]]:
        """For a checkpoint: by engine time, means, variances, weights."""
        return {
            name: (f.time, f.mean.tolist(), f.variance.tolist(), f.weight.tolist()) for name, f in self._filters.items()
        }

    def restore(self, state: dict[str, tuple[float | None, list[float], list[float], list[float]]]) -> None:
        """Go on from a checkpoint; one made with other filters is left aside."""
        for name, (time, *numbers) in state.items():
            if all(len(one) == len(WANDERS) for one in numbers):
                kept = self._filters[name] = _Filter()
                kept.time = time
                kept.mean, kept.variance, kept.weight = (np.array(one) for one in numbers)
                kept.u = float(kept.weight @ kept.mean)


def against(now: Array, before: Array, slopes: Array, noise: float) -> tuple[Array, Array]:
    """Log ratios of mean seconds [n] and their variances [n], of rows that can be compared.

    now, before: packed sums of the same keys, [keys, width] (see `steps`); slopes [keys, 2]: seconds that a verified
    token and a resident KV token more are worth; noise: of one step, relative.
    """
    known = before[:, 0] >= _LEAST
    now, before, slopes = now[known], before[known], slopes[known]
    n, m = now[:, 0], before[:, 0]
    shifts = now[:, [3, 5]] / n[:, None] - before[:, [3, 5]] / m[:, None]
    usual = before[:, 1] / m
    # Loads within a bucket differ, but what a slope says beyond half or twice is no statement about this key.
    due = np.clip(usual + (slopes * shifts).sum(axis=1), 0.5 * usual, 2.0 * usual)
    slanted = _SLANT * (due - usual) / due
    return np.log(now[:, 1] / n / due), noise**2 * (1.0 / n + 1.0 / m) + _MISFIT**2 + slanted**2
