"""The desk between engine and link: it knows each request's label, pin and account, which the engine need not.

The engine passes a request's domain through to its link untouched. The server hands it a *key* in that place; the desk
turns the key back into the domain, lets the link decide, and adds up what happened to each request.
"""

import itertools
import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from engine.link import LinkLike, StepOutcome, Ticket
from engine.link.messages import NO_DRAFT, Regime
from engine.server.metrics import Meter
from engine.server.schema import Facts

_log = logging.getLogger(__name__)


class Pin(NamedTuple):
    """A draft and K that a client holds its request to, for measurements."""

    draft: str
    k: int


class ClosableLink(LinkLike, Protocol):
    """What the desk needs of a link; `Link` and `StaticLink` both are one."""

    def close(self) -> None:
        """Stop."""

    def status(self) -> dict[str, object]:
        """What it knows about itself."""


class Account:
    """One request's sums. `done` is called on the decode thread once they are complete."""

    __slots__ = ("accepted", "domain", "done", "drafted", "drafts", "pin", "seconds", "source", "steps", "tokens")

    def __init__(self, domain: str, source: str, pin: Pin | None, done: Callable[[Facts], None]) -> None:
        self.domain = domain
        self.source = source
        self.pin = pin
        self.done = done
        self.steps = 0
        self.drafts: Counter[str] = Counter()  # steps by draft
        self.drafted = 0
        self.accepted = 0
        self.tokens = 0
        self.seconds = 0.0

    def facts(self, ticket: Ticket) -> Facts:
        """The account as the client sees it; its draft is that of most steps."""
        most = self.drafts.most_common(1)
        return Facts(
            domain=ticket.domain,
            source=self.source,
            draft=most[0][0] if most else ticket.draft,
            origin="pin" if self.pin is not None else ticket.origin,
            regime=ticket.regime,
            steps=self.steps,
            drafted=self.drafted,
            accepted=self.accepted,
            tokens=self.tokens,
            row_seconds=self.seconds,
        )


class Desk:
    """A link around a link. `expect` and `forget` may be called from any thread, the rest by the decode thread.

    A pinned request does not reach the link: its K is not the policy's doing, and nothing may be learned from it as if
    it were. A step that holds a pinned row is not recorded, since its seconds cannot be told apart by row.

    >>> from engine.link import StaticLink
    >>> desk = Desk(StaticLink("ngram", 4))
    >>> key = desk.expect(Account("code", "body", Pin("ngram", 2), print))
    >>> ticket = desk.admit(key, "greedy", 1)
    >>> ticket.domain, desk.plan([ticket], 1)
    ('code', [2])
    """

    def __init__(self, link: ClosableLink) -> None:
        self.link = link
        self.meter = Meter()
        self.pinned_steps = 0
        self._numbers = itertools.count(1)
        self._expected: dict[str, Account] = {}
        self._open: dict[Ticket, Account] = {}
        self._lock = threading.Lock()

    def expect(self, account: Account) -> str:
        """Announce a request; the key to submit it under."""
        key = f"{account.domain}#{next(self._numbers)}"
        with self._lock:
            self._expected[key] = account
        return key

    def forget(self, key: str) -> None:
        """The request under this key will not be admitted."""
        with self._lock:
            self._expected.pop(key, None)

    def admit(self, key: str, regime: Regime, batch: int) -> Ticket:
        """The ticket of an announced request. Raises `KeyError` for a key that was not."""
        with self._lock:
            account = self._expected.pop(key)
        ticket = self._admit(account, regime, batch)
        self._open[ticket] = account
        return ticket

    def _admit(self, account: Account, regime: Regime, batch: int) -> Ticket:
        if account.pin is None:
            try:
                return self.link.admit(account.domain, regime, batch)
            except Exception as error:
                _log.error("the link failed to admit a request, which runs without a draft", exc_info=error)
                account.pin = Pin(NO_DRAFT, 0)
        return Ticket(account.domain, regime, account.pin.draft)

    def plan(self, tickets: Sequence[Ticket], batch: int) -> list[int]:
        """K by the pins, and by the link for the rest."""
        pins = [self._open[ticket].pin for ticket in tickets]
        if not any(pins):
            return self.link.plan(tickets, batch)
        free = [ticket for ticket, pin in zip(tickets, pins, strict=True) if pin is None]
        planned = iter(self.link.plan(free, batch) if free else ())
        return [next(planned) if pin is None else pin.k for pin in pins]

    def record(self, step: StepOutcome) -> None:
        """Add the step to its requests' accounts, to the meter, and to the link's evidence."""
        pinned = False
        for row in step.rows:
            account = self._open[row.ticket]
            account.steps += 1
            account.drafts[row.ticket.draft] += 1
            account.drafted += row.drafted
            account.accepted += row.accepted
            account.tokens += row.emitted
            account.seconds += step.seconds
            pinned = pinned or account.pin is not None
        self.meter.count(step)
        if pinned:
            self.pinned_steps += 1
        else:
            self.link.record(step)

    def finish(self, ticket: Ticket) -> None:
        """Close the account."""
        account = self._open.pop(ticket)
        try:
            if account.pin is None:
                self.link.finish(ticket)
        finally:
            account.done(account.facts(ticket))

    def queue(self, waiting: int) -> None:
        """How many requests wait."""
        self.link.queue(waiting)

    def status(self) -> dict[str, object]:
        """The link's status, and how many steps were kept from it."""
        return {**self.link.status(), "pinned_steps": self.pinned_steps}
