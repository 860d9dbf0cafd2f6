"""What happens to a pool, as a numbered stream of events that a listener can take up again where it was cut off."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Literal, NamedTuple

Kind = Literal["state", "decision", "order"]
KEPT = 512
NEVER = (-1, -1)
_LONGEST = 40  # characters of an id: what is longer is none of ours, and int() has its limits


class Event(NamedTuple):
    """One event. `id`: epoch and number, which only grow; `data`: JSON, empty for a state: who is told, looks."""

    id: str
    kind: Kind
    data: bytes


class Feed:
    """The last events of a pool. One writer; listeners wait without holding it up."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=KEPT)
        self._number = 0
        self._epoch = 0
        self._changed = asyncio.Event()

    def begin(self, epoch: int) -> None:
        """A leader's time begins; ids of earlier ones stay smaller."""
        self._epoch, self._number = epoch, 0

    def put(self, kind: Kind, data: bytes) -> None:
        """Append an event. A new state takes the place of one that is the newest: the last is all that counts."""
        self._number += 1
        if kind == "state" and self._events and self._events[-1].kind == "state":
            self._events.pop()
        self._events.append(Event(f"{self._epoch}.{self._number}", kind, data))
        self._changed.set()
        self._changed = asyncio.Event()

    async def after(self, last: str | None, over: Callable[[], bool]) -> AsyncIterator[Event]:
        """Events after the one with id `last`; from the newest state on where none is given or it is long gone.

        Ends when `over` (asked every second or so) says that the process is to end.
        """
        ids = [_order(event.id) for event in self._events]
        seen = _order(last)
        if not ids or not ids[0] <= seen <= ids[-1]:
            states = [event for event in self._events if event.kind == "state"]
            for event in states[-1:]:
                yield event
            seen = _order(states[-1].id) if states else NEVER
        while True:
            changed = self._changed
            for event in list(self._events):
                if _order(event.id) > seen:
                    yield event
                    seen = _order(event.id)
            if over():
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), 1.0)


def _order(id_: str | None) -> tuple[int, int]:
    epoch, _, number = (id_ or "").partition(".")
    ours = epoch.isdecimal() and number.isdecimal() and len(id_ or "") <= _LONGEST
    return (int(epoch), int(number)) if ours else NEVER
