"""One pool over time, from the event stream, through cuts; and the three ways to show it: live, plainly, as JSON."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live

from controller.api.domains import DomainSummary
from controller.api.pools import PoolSummary
from controller.api.steer import OrdersView
from controller.cli.asking import print_json
from controller.cli.screen import pool_table
from controller.client import Client, ControllerError
from controller.view import Engine

AGAIN_SECONDS = 1.0  # between tries to reach a controller that has gone
_AWAY = (0, 502, 503, 504)  # of the controller, or of a proxy before it


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A pool at one moment: summary, domains, live engines. `taken`: Unix seconds, by this machine's clock."""

    taken: float
    summary: PoolSummary
    domains: list[DomainSummary]
    engines: list[Engine]

    def as_json(self) -> dict[str, Any]:
        """As one object: the summary, with `domains` and `live_engines` in it."""
        domains, engines = [asdict(one) for one in self.domains], [asdict(one) for one in self.engines]
        return {**asdict(self.summary), "domains": domains, "live_engines": engines}


def snapshot(client: Client, pool: str) -> Snapshot:
    """The pool as it is now. Raises `ControllerError`."""
    summary = client.pool(pool)
    known = summary.time is not None  # else another replica leads it, or nothing has been read yet
    domains = client.domains(pool) if known else []
    engines = [engine for engine in client.engines(pool) if engine.ended is None] if known else []
    return Snapshot(time.time(), summary, domains, engines)


def ordered(client: Client, pool: str) -> OrdersView | None:
    """What operators have ordered; None where Redis, which has it, does not answer the controller."""
    try:
        return client.orders(pool)
    except ControllerError as error:
        if error.status not in _AWAY:
            raise
        return None


def follow(
    client: Client, pool: str, sleep: Callable[[float], None] = time.sleep
) -> Iterator[Snapshot | ControllerError]:
    """The pool after each of its decisions, for ever; while the controller is away, why. Where it has no figures of the
    pool (it stands by, or has read no frame yet) that comes first: its stream is silent until there are some. Raises
    `ControllerError` where it has never answered, or refuses."""
    last: str | None = None
    answered = False
    while True:
        try:
            summary = client.pool(pool)
            if summary.time is None:
                answered = True
                yield Snapshot(time.time(), summary, [], [])
            for notice in client.events(pool, last):
                last = notice.id
                if notice.kind == "state":
                    yield snapshot(client, pool)
            lost = ControllerError(0, "The controller has ended", "")
        except ControllerError as error:
            if (last is None and not answered) or error.status not in _AWAY:
                raise
            lost = error
        yield lost
        sleep(AGAIN_SECONDS)


class Screen:
    """What `akc watch` shows, drawn anew at every refresh: ages go on while nothing arrives."""

    def __init__(self) -> None:
        self.last: Snapshot | None = None
        self.lost: str | None = None

    def take(self, seen: Snapshot | ControllerError) -> None:
        """A new state, or why there is none."""
        if isinstance(seen, Snapshot):
            self.last, self.lost = seen, None
        else:
            self.lost = str(seen)

    def __rich__(self) -> RenderableType:
        """The table, or what it waits for."""
        return "waiting for the first decision ..." if self.last is None else pool_table(
            self.last, time.time(), self.lost
        )  # fmt: skip


def show_live(seen: Iterator[Snapshot | ControllerError]) -> None:
    """Draw over the same lines until Ctrl-C; once, where output is no terminal."""
    console = Console()
    if not console.is_terminal:
        show_once(seen, 1)
        return
    screen = Screen()
    with Live(screen, console=console, refresh_per_second=2):
        for one in seen:
            screen.take(one)


def show_once(seen: Iterator[Snapshot | ControllerError], updates: int) -> None:
    """Print so many updates below each other."""
    console, screen = Console(), Screen()
    for one in islice(seen, updates):
        screen.take(one)
        console.print(screen)


def show_json(seen: Iterator[Snapshot | ControllerError], updates: int) -> None:
    """A line of JSON per update, so many of them, or for ever (0); `problem` says why there is nothing new."""
    for one in islice(seen, updates or None):
        print_json(one.as_json() if isinstance(one, Snapshot) else {"problem": str(one)}, line=True)
