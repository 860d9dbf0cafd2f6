"""What a pool served lately: account cells of the last minute, summed, and what plain decoding would have taken."""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from controller.learner.account import Earned, achieved_speedup
from controller.learner.estimates import Estimates
from controller.learner.evidence import Delta
from controller.view import Interval, PoolTraffic, Traffic
from engine.link.messages import AccountCell

WINDOW_SECONDS = 60.0

Cell = tuple[str, str, int]  # domain, regime, load


class Sums(NamedTuple):
    """Row-steps, tokens and row-seconds."""

    row_steps: int = 0
    tokens: int = 0
    row_seconds: float = 0.0

    def plus(self, cell: AccountCell) -> "Sums":
        """These and one cell's."""
        return Sums(self.row_steps + cell.row_steps, self.tokens + cell.tokens, self.row_seconds + cell.row_seconds)


class Recent:
    """Accounts by date. The window is short, so it is not saved: after a restart it fills again.

    What an engine that is new to the ledger had counted in a longer life is dated at its middle, and so left out.
    """

    def __init__(self) -> None:
        self._deltas: deque[tuple[float, float, list[AccountCell]]] = deque()

    def add(self, delta: Delta) -> None:
        """Take in one difference."""
        busy = sum(cell.seconds + cell.stall_seconds for cell in delta.cost)
        self._deltas.append((delta.time, busy, delta.account))

    def trim(self, now: float) -> None:
        """Let go of what is older than the window."""
        self._deltas = deque(row for row in self._deltas if row[0] >= now - WINDOW_SECONDS)

    def busy_seconds(self) -> float:
        """Seconds of all engines' steps."""
        return sum(busy for _, busy, _ in self._deltas)

    def cells(self) -> dict[Cell, Sums]:
        """Sums by domain, regime and load, over all variants: whatever was really served."""
        sums: dict[Cell, Sums] = {}
        for _, _, cells in self._deltas:
            for cell in cells:
                name = (cell.domain, cell.regime, cell.load)
                sums[name] = sums.get(name, Sums()).plus(cell)
        return sums


def speedups(cells: dict[Cell, Sums], estimates: Estimates | None) -> dict[Cell, Interval]:
    """Speedup over plain of every cell at a load whose plain price is known."""
    if estimates is None:
        return {}
    # At a load, decoding plainly would have spent the same share on prompts; the learner's rows tell which.
    prefill: dict[int, float] = {}
    for row in estimates.achieved:
        plain = estimates.plain_seconds[row.load][0]
        prefill[row.load] = row.speedup - row.tokens * plain / row.row_seconds
    known = {name: sums for name, sums in cells.items() if name[2] in prefill and sums.row_seconds > 0}
    if not known:
        return {}
    columns = (np.array(column, dtype=np.float64)[:, None] for column in zip(*known.values(), strict=True))
    prices = np.array([estimates.plain_seconds[load] for *_, load in known])
    share = np.array([prefill[load] for *_, load in known])[:, None]
    earned = Earned(*columns)
    value, low, high = achieved_speedup(earned, prices[:, :1], prices[:, 1:], share, estimates.noise)
    numbers = zip(value[:, 0].tolist(), low[:, 0].tolist(), high[:, 0].tolist(), strict=True)
    return {name: Interval(*row) for name, row in zip(known, numbers, strict=True)}


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
        seconds += sums.row_seconds
        for i, bound in enumerate((speedup.value, speedup.low, speedup.high)):
            bounds[i] += bound * sums.row_seconds
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


def pool_traffic(recent: Recent, cells: dict[Cell, Sums], known: dict[Cell, Interval]) -> PoolTraffic:
    """All cells as one, with what only the pool has."""
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
    )
