"""The measured gain: short windows in which all requests play one fixed choice, against windows under the policy. Pure.

Rows of one step share its seconds, so requests of one engine cannot be compared with each other; times can. A
measurement is a row of pairs of windows of equal length, one under the policy and one under the fixed choice, in an
order drawn for each pair (a switchback experiment: Bojinov, Simchi-Levi & Zhao, Management Science 69(7), 2023, "Design
and analysis of switchback experiments"). What drifts over minutes, as load and mix do, is shared by a pair's windows;
what drifts inside a pair favours either with the same probability. What a window inherits from the one before it
(requests in flight, their held drafts) is left out: the first _BURN of a window, and at least _BURN_STEPS steps.

An engine's counts belong to a window where all frames from the burn-in on say that it applied a version published in
that window. So neither the delay of a frame nor of a policy blurs the two, and a controller that restarts goes on.

With G = tokens / row-seconds, the speed at which a request is decoded, as a ratio of sums over a window:

    d_i = ln(G_policy,i / G_fixed,i) of pair i,    gain = exp(mean(d) +- t(0.95; n - 1) sd(d) / sqrt(n))

the paired t interval of level 0.9 (Student 1908, Biometrika 6(1)) on logarithms, so that a gain and its inverse are
treated alike. n is the number of pairs with enough steps in both windows.
"""

import math
import random
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from scipy import special

from controller.learner.evidence import Context
from controller.steering import Measure
from controller.view import Interval, Measured
from engine.link.messages import AccountCell, StaticChoice, Version

_BURN = 0.2  # of a window
_BURN_STEPS = 16
_GRACE = 10.0  # seconds after a pair's end at which all its frames have come
_LEAST_STEPS = 64  # row-steps of a window
_LEAST_PAIRS = 3
_TURNS = 8  # windows whose versions are remembered


class Window(NamedTuple):
    """A window: its pair, from 0 on, and whether all play the fixed choice."""

    pair: int
    fixed: bool


class Tally(msgspec.Struct):
    """Pairs so far: their number, the sum of d and of its square."""

    pairs: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, difference: float) -> None:
        """One pair more."""
        self.pairs += 1
        self.total += difference
        self.squares += difference * difference

    def gain(self) -> Interval | None:
        """The ratio with its 90% interval; None below _LEAST_PAIRS pairs.

        >>> tally = Tally()
        >>> for ratio in (1.4, 1.5, 1.6):
        ...     tally.add(math.log(ratio))
        >>> gain = tally.gain()    # geometric mean 3.36 ** (1 / 3); sd of the logs 0.0668, t(0.95; 2) = 2.920
        >>> [round(x, 3) for x in (gain.value, gain.low, gain.high)]
        [1.498, 1.338, 1.676]
        """
        n = self.pairs
        if n < _LEAST_PAIRS:
            return None
        mean = self.total / n
        variance = max(0.0, self.squares - n * mean * mean) / (n - 1)
        half = float(special.stdtrit(n - 1, 0.95)) * math.sqrt(variance / n)
        return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


class Served(msgspec.Struct):
    """What was counted in a window: row-steps, tokens, row-seconds."""

    row_steps: int = 0
    tokens: int = 0
    row_seconds: float = 0.0


class State(msgspec.Struct):
    """What a checkpoint keeps. `windows`: pair, whether fixed, and what was counted, by context and in all ("", "")."""

    measure: Measure | None = None
    choice: tuple[str, int] = ("none", 0)
    ended: float | None = None  # when it was stopped before its time
    told: bool = False
    turns: list[tuple[Version, Window | None]] = []
    windows: list[tuple[Window, list[tuple[Context, Served]]]] = []
    tallies: list[tuple[Context, Tally]] = []
    row_seconds: tuple[float, float] = (0.0, 0.0)  # of the pairs counted: under the policy, and fixed


class _Entered(NamedTuple):
    """An engine's first frame in a window, and its last one so far: engine clock, steps."""

    window: Window
    time: float
    steps: int
    last_time: float
    last_steps: int


_ALL: Context = ("", "")  # no label is empty


def window_at(measure: Measure, pool: str, now: float) -> Window | None:
    """The window that `now` (Unix seconds) falls in; None before, after and between pairs.

    >>> measure = Measure(number=1, at=100.0, minutes=1.0, windows=6)    # three pairs of 20 s, two windows of 10 s each
    >>> [window_at(measure, "p", t) for t in (99.0, 100.0, 110.0, 120.0, 160.0)]
    [None, Window(pair=0, fixed=True), Window(pair=0, fixed=False), Window(pair=1, fixed=False), None]
    """
    since = now - measure.at
    if not 0.0 <= since < 60.0 * measure.minutes:
        return None
    pair, into = divmod(since, measure.period)
    if into >= 2.0 * measure.window:
        return None
    # Of the order itself and not of a generator with a state: a restart draws the same.
    fixed_first = random.Random(f"{pool}/{measure.number}/{int(pair)}").random() < 0.5
    return Window(int(pair), (into < measure.window) == fixed_first)


class Switchback:
    """The pool's newest measurement: tells what a policy is to play, and takes in what engines counted."""

    def __init__(self, pool: str, state: State | None = None) -> None:
        self.pool = pool
        self.state = state or State()
        self._windows: dict[Window, dict[Context, Served]] = {w: dict(rows) for w, rows in self.state.windows}
        self._tallies: dict[Context, Tally] = dict(self.state.tallies)
        self._engines: dict[str, _Entered] = {}  # by incarnation; not saved: after a restart a burn-in comes first

    def obey(self, measure: Measure | None, static: StaticChoice, now: float) -> None:
        """Begin a new measurement, go on with the one that runs, or stop it (None)."""
        known = self.state.measure
        if measure is None:
            self.stop(now)
        elif known is None or known.number != measure.number:
            choice = ("none", 0) if measure.against == "none" else (static.draft, static.k)
            self.state = State(measure, choice)
            self._windows, self._tallies, self._engines = {}, {}, {}

    def stop(self, now: float) -> None:
        """End what runs; pairs that are complete count."""
        if self.running(now):
            self.state.ended = now

    def running(self, now: float) -> bool:
        """Whether windows are being played."""
        measure = self.state.measure
        return measure is not None and self.state.ended is None and now < measure.until

    def turn(self, version: Version, now: float) -> StaticChoice | None:
        """What every request is to play under the policy published now with this version; None: what was decided."""
        window = None
        if self.state.measure is not None and self.running(now):
            window = window_at(self.state.measure, self.pool, now)
        turns = self.state.turns
        if turns[-1][1] != window if turns else window is not None:
            self.state.turns = [*turns, (version, window)][-_TURNS:]
        return StaticChoice(*self.state.choice) if window is not None and window.fixed else None

    def take(
        self, incarnation: str, applied: Version | None, time: float, steps: int, account: Iterable[AccountCell]
    ) -> None:
        """One frame of an engine: the version applied, its clock and steps, and what it counted since the last one."""
        measure, window = self.state.measure, self._published(applied)
        if measure is None or window is None:
            self._engines.pop(incarnation, None)
            return
        entered = self._engines.get(incarnation)
        if entered is None or entered.window != window:
            self._engines[incarnation] = _Entered(window, time, steps, time, steps)
            return
        self._engines[incarnation] = entered._replace(last_time=time, last_steps=steps)
        inherited = entered.last_time - entered.time < _BURN * measure.window
        if inherited or entered.last_steps - entered.steps < _BURN_STEPS:
            return
        served = self._windows.setdefault(window, {})
        for cell in account:
            for context in ((cell.domain, cell.regime), _ALL):
                sums = served.setdefault(context, Served())
                sums.row_steps += cell.row_steps
                sums.tokens += cell.tokens
                sums.row_seconds += cell.row_seconds

    def _published(self, applied: Version | None) -> Window | None:
        """The window that a version was published in."""
        turns = self.state.turns
        at = 0 if applied is None else bisect_right([version for version, _ in turns], tuple(applied))
        return turns[at - 1][1] if at else None

    def settle(self, heard: float, live: Iterable[str]) -> str | None:
        """Count the pairs whose frames have all come; once, the sentence that tells what came out.

        heard: arrival of the newest frame, Unix seconds; live: the incarnations that may still report.
        """
        measure = self.state.measure
        if measure is None or self.state.told:
            return None
        alive = set(live)
        self._engines = {name: entered for name, entered in self._engines.items() if name in alive}
        until = measure.until if self.state.ended is None else self.state.ended
        for pair in sorted({window.pair for window in self._windows}):
            end = measure.at + pair * measure.period + 2.0 * measure.window
            if end + _GRACE < heard:
                policy, fixed = (self._windows.pop(Window(pair, which), {}) for which in (False, True))
                if end <= until + 1e-6:
                    self._count(policy, fixed)
        if heard <= until + _GRACE:
            return None
        self.state.told = True
        self._windows.clear()
        return self._sentence(measure)

    def _count(self, policy: dict[Context, Served], fixed: dict[Context, Served]) -> None:
        for context in policy.keys() & fixed.keys():
            one, other = policy[context], fixed[context]
            if min(one.row_steps, other.row_steps) < _LEAST_STEPS or min(one.tokens, other.tokens) <= 0:
                continue
            difference = math.log(one.tokens / one.row_seconds) - math.log(other.tokens / other.row_seconds)
            self._tallies.setdefault(context, Tally()).add(difference)
            if context == _ALL:
                seconds = self.state.row_seconds
                self.state.row_seconds = (seconds[0] + one.row_seconds, seconds[1] + other.row_seconds)

    def _sentence(self, measure: Measure) -> str:
        tally = self._tallies.get(_ALL, Tally())
        gain = tally.gain()
        over = f"over {tally.pairs} of {measure.pairs} pairs of windows of {measure.window:.0f} s"
        if gain is None:
            return f"measured nothing {over}: {_LEAST_PAIRS} with {_LEAST_STEPS} row-steps in both are needed"
        draft, k = self.state.choice
        fixed = "no speculation" if draft == "none" else f"{draft} at K = {k}"
        return f"measured gain: {gain.value:.3f}x {fixed} ({gain.low:.3f} to {gain.high:.3f}), {over}"

    def gains(self) -> dict[Context, Interval]:
        """The measured gain of every (domain, regime) that has one."""
        found = {context: tally.gain() for context, tally in self._tallies.items() if context != _ALL}
        return {context: gain for context, gain in found.items() if gain is not None}

    def measured(self, now: float) -> Measured | None:
        """The newest measurement for people; None: there was none."""
        measure = self.state.measure
        if measure is None:
            return None
        tally = self._tallies.get(_ALL, Tally())
        gain = tally.gain()
        return Measured(
            ratio=None if gain is None else gain.value,
            low=None if gain is None else gain.low,
            high=None if gain is None else gain.high,
            pairs=tally.pairs,
            planned=measure.pairs,
            window_seconds=measure.window,
            share=measure.share,
            against=self.state.choice,
            since=measure.at,
            until=measure.until if self.state.ended is None else self.state.ended,
            running=self.running(now),
            policy_row_seconds=self.state.row_seconds[0],
            fixed_row_seconds=self.state.row_seconds[1],
        )

    def saved(self) -> State:
        """For the checkpoint."""
        self.state.windows = [(window, list(rows.items())) for window, rows in self._windows.items()]
        self.state.tallies = list(self._tallies.items())
        return self.state
