"""What a pool served lately: account cells of the last minute, summed, what plain decoding and the static choice would
have taken for the same tokens, and how long each engine's steps took."""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from controller.learner.account import Earned, achieved_speedup
from controller.learner.estimates import Estimates
from controller.learner.evidence import Delta
from controller.reported import Sums as Counted
from controller.view import Interval, PoolTraffic, Traffic
from engine.link.messages import AccountCell

WINDOW_SECONDS = 60.0

Cell = tuple[str, str, int]  # domain, regime, load


class Sums(NamedTuple):
    """Row-steps, tokens and row-seconds; `slowness`: how many of these are due to an engine slower than usual (negative
    where it was faster), as the learner takes it."""

    row_steps: int = 0
    tokens: int = 0
    row_seconds: float = 0.0
    slowness: float = 0.0

    @property
    def usual_seconds(self) -> float:
        """Row-seconds of an engine of the usual speed, to be held against prices."""
        return self.row_seconds - self.slowness

    def plus(self, cell: AccountCell, slow: float = 1.0) -> "Sums":
        """These and one cell's, of an engine that took `slow` times the usual seconds.

        >>> Sums(1, 2, 1.0).plus(AccountCell("code", "greedy", 1, "static", 1, 2, 3.0), 1.5).usual_seconds
        3.0
        """
        return Sums(
            self.row_steps + cell.row_steps,
            self.tokens + cell.tokens,
            self.row_seconds + cell.row_seconds,
            self.slowness + cell.row_seconds * (1.0 - 1.0 / slow),
        )


class _Lately(NamedTuple):
    """One difference: its date, whose it is, the steps timed in it, its account, its engine's speed."""

    time: float
    engine: str
    timed: Counted
    account: list[AccountCell]
    slow: float


class Recent:
    """Accounts by date. The window is short, so it is not saved: after a restart it fills again.

    What an engine that is new to the ledger had counted in a longer life is dated at its middle, and so left out.
    """

    def __init__(self) -> None:
        self._deltas: deque[_Lately] = deque()

    def add(self, delta: Delta, slow: float = 1.0) -> None:
        """Take in one difference of an engine that took `slow` times the usual seconds."""
        timed = Counted()
        for cell in delta.cost:
            timed.add(cell)
        self._deltas.append(_Lately(delta.time, delta.engine, timed, delta.account, slow))

    def trim(self, now: float) -> None:
        """Let go of what is older than the window."""
        self._deltas = deque(row for row in self._deltas if row.time >= now - WINDOW_SECONDS)

    def busy_seconds(self) -> float:
        """Seconds of all engines' steps."""
        return sum(row.timed.seconds for row in self._deltas)

    def timed(self) -> dict[str, Counted]:
        """Steps by their seconds, by engine's name."""
        engines: dict[str, Counted] = {}
        for row in self._deltas:
            engines.setdefault(row.engine, Counted()).add_steps(row.timed)
        return engines

    def cells(self) -> dict[Cell, Sums]:
        """Sums by domain, regime and load, over all variants: whatever was really served."""
        sums: dict[Cell, Sums] = {}
        for row in self._deltas:
            for cell in row.account:
                name = (cell.domain, cell.regime, cell.load)
                sums[name] = sums.get(name, Sums()).plus(cell, row.slow)
        return sums


def speedups(cells: dict[Cell, Sums], estimates: Estimates | None) -> dict[Cell, Interval]:
    """Speedup over plain of every cell, whatever was played in it, once any step of the pool has been timed."""
    known = _priced(cells, estimates)
    if estimates is None or not known:
        return {}
    sums_of = [(s.row_steps, s.tokens, s.usual_seconds) for s in known.values()]
    columns = (np.array(column, dtype=np.float64)[:, None] for column in zip(*sums_of, strict=True))
    prices = np.array([estimates.plain_seconds[load] for *_, load in known])
    # At a load, decoding plainly would have spent the same share on prompts.
    share = np.array([estimates.prefill[load] for *_, load in known])[:, None]
    earned = Earned(*columns)
    served: dict[int, float] = {}
    for (*_, load), sums in known.items():
        served[load] = served.get(load, 0.0) + sums.row_steps
    rows = np.array([s.row_steps / served[load] * estimates.rows[load] for (*_, load), s in known.items()])[:, None]
    deff = np.array([estimates.deff.get((domain, regime), 1.0) for domain, regime, _ in known])[:, None]
    value, low, high = achieved_speedup(earned, prices[:, :1], prices[:, 1:], share, estimates.noise, rows, deff)
    numbers = zip(value[:, 0].tolist(), low[:, 0].tolist(), high[:, 0].tolist(), strict=True)
    return {name: Interval(*row) for name, row in zip(known, numbers, strict=True)}


def _priced(cells: dict[Cell, Sums], estimates: Estimates | None) -> dict[Cell, Sums]:
    """The cells that ran at a load which the pool has prices for."""
    if estimates is None or not estimates.costs:
        return {}
    return {name: s for name, s in cells.items() if name[2] in estimates.plain_seconds and s.row_seconds > 0}


def static_speedup(cells: dict[Cell, Sums], estimates: Estimates | None) -> float | None:
    """Speedup over plain of the operators' static choice, had every row played it, for the tokens that were served.

    A row of a domain that yields E tokens a step at that choice needs 1 / E steps a token, each at the price of a step
    of the load in which all rows play it; plainly it needs one plain step a token. Prompts took what they took:

        (sum tokens plain + prompts) / (sum tokens / E static + prompts)

    a ratio of sums over domains and loads, 1 where the static choice is none. None: not all of it is known.
    """
    known = _priced(cells, estimates)
    if estimates is None or not known or len(known) < sum(s.row_seconds > 0 for s in cells.values()):
        return None
    plain = static = 0.0
    for (domain, regime, load), sums in known.items():
        tokens = estimates.static_tokens.get((domain, regime))
        if tokens is None:
            return None
        prompts = estimates.prefill[load] * sums.usual_seconds
        plain += sums.tokens * estimates.plain_seconds[load][0] + prompts
        static += sums.tokens / tokens * estimates.static_seconds[load] + prompts
    return plain / static if static > 0 else None


def together(cells: Iterable[tuple[Sums, Interval | None]]) -> Interval | None:
    """Speedup of several cells: plain seconds over real ones. None unless all are known and there is one.

    Their plain prices come from one model, so errors are taken to go together and the bounds are summed as they are.

    >>> together([(Sums(1, 1, 3.0), Interval(1.0, 0.9, 1.1)), (Sums(1, 1, 1.0), Interval(2.0, 1.5, 2.5))])
    Interval(value=1.25, low=1.05, high=1.45)
    """
    seconds, bounds = 0.0, [0.0, 0.0, 0.0]
    for sums, speedup in cells:
        if speedup is None:
            return None
        seconds += sums.usual_seconds
        for i, bound in enumerate((speedup.value, speedup.low, speedup.high)):
            bounds[i] += bound * sums.usual_seconds
    return Interval(*(round(bound / seconds, 9) for bound in bounds)) if seconds else None


def traffic(cells: dict[Cell, Sums], known: dict[Cell, Interval]) -> Traffic:
    """The cells as one."""
    row_steps, tokens = sum(s.row_steps for s in cells.values()), sum(s.tokens for s in cells.values())
    row_seconds = sum(s.row_seconds for s in cells.values())
    return Traffic(
        window_seconds=WINDOW_SECONDS,
        tokens=tokens,
        row_steps=row_steps,
        row_seconds=row_seconds,
        tokens_per_second=tokens / row_seconds if row_seconds else None,
        # A step emits one token more than it accepts, but for those that a stop or a limit cut short.
        accepted_per_step=max(0.0, tokens / row_steps - 1) if row_steps else None,
        speedup=together((sums, known.get(name)) for name, sums in cells.items()),
    )


def pool_traffic(
    recent: Recent, cells: dict[Cell, Sums], known: dict[Cell, Interval], static: float | None
) -> PoolTraffic:
    """All cells as one, with what only the pool has. `static`: see `static_speedup`."""
    whole, busy = traffic(cells, known), recent.busy_seconds()
    return PoolTraffic(
        whole.window_seconds,
        whole.tokens,
        whole.row_steps,
        whole.row_seconds,
        whole.tokens_per_second,
        whole.accepted_per_step,
        whole.speedup,
        busy_seconds=busy,
        tokens_per_busy_second=whole.tokens / busy if busy else None,
        mean_rows=whole.row_seconds / busy if busy else None,
        static=static,
    )
