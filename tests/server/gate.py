"""What tests of a running server share: a long request, a gate between two steps, and a wait for a condition."""

import socket
import threading
import time
from collections.abc import Callable, Sequence

from engine.link import StaticLink, Ticket

LONG = {"prompt": "def f", "max_tokens": 240, "temperature": 0, "ignore_eos": True}


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Look again every few milliseconds; the condition lives in another thread or process."""
    pause = threading.Event()
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        pause.wait(0.005)


def free_port() -> int:
    """A port of loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Gate(StaticLink):
    """A link whose `plan` waits while the gate is shut: it stops the engine between two steps."""

    def __init__(self) -> None:
        super().__init__("ngram", 2)
        self.open = threading.Event()
        self.open.set()
        self.reached = threading.Event()

    def plan(self, tickets: Sequence[Ticket], batch: int) -> list[int]:
        if not self.open.is_set():
            self.reached.set()
        assert self.open.wait(30)
        return super().plan(tickets, batch)
