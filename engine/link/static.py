"""The link that decides nothing: a fixed draft and K, for sweeps, tests, plain decoding and engines on their own."""

from collections.abc import Callable, Mapping, Sequence

from engine.link.messages import MAX_K, NO_DRAFT, Regime, StaticChoice
from engine.link.ticket import StepOutcome, Ticket


class StaticLink:
    """The `Link` interface without Redis: one (draft, K) for all, a table by domain, or a function of ticket and batch.

    `table` maps a domain to its (draft, K); other domains get (`draft`, `k`). `choose(ticket, batch)` replaces the K of
    every row of every step (the draft stays). K of a request without a draft is always 0.

    >>> link = StaticLink("ngram", 4, table={"chat": ("none", 0)})
    >>> tickets = [link.admit("code", "greedy", 1), link.admit("chat", "greedy", 2)]
    >>> [t.draft for t in tickets], link.plan(tickets, 2)
    (['ngram', 'none'], [4, 0])
    >>> StaticLink("ngram", 40)
    Traceback (most recent call last):
    ValueError: K is 40 for draft 'ngram'; allowed are 0 to 32
    """

    def __init__(
        self,
        draft: str = NO_DRAFT,
        k: int = 0,
        *,
        table: Mapping[str, tuple[str, int]] | None = None,
        choose: Callable[[Ticket, int], int] | None = None,
    ) -> None:
        self._default = (draft, k)
        self._table = dict(table or {})
        self._choose = choose
        for name, value in (self._default, *self._table.values()):
            if not 0 <= value <= MAX_K:
                raise ValueError(f"K is {value} for draft {name!r}; allowed are 0 to {MAX_K}")
        self._admitted = 0
        self._open = 0
        self._steps = 0

    @property
    def static(self) -> StaticChoice:
        """The choice for domains that the table does not name."""
        return StaticChoice(*self._default)

    def admit(self, domain: str, regime: Regime, batch: int) -> Ticket:
        """A ticket with the domain's draft. `batch` (decode rows, this one included) does not matter here."""
        draft, k = self._table.get(domain, self._default)
        self._admitted += 1
        self._open += 1
        ticket = Ticket(domain, regime, draft, number=self._admitted)
        ticket.base = 0 if draft == NO_DRAFT else k
        return ticket

    def plan(self, tickets: Sequence[Ticket], batch: int) -> list[int]:
        """K for every decode row of the next step, before the engine's own clamps."""
        if self._choose is None:
            return [t.base for t in tickets]
        return [0 if t.draft == NO_DRAFT else self._choose(t, batch) for t in tickets]

    def record(self, step: StepOutcome) -> None:
        """Count the step."""
        self._steps += 1

    def finish(self, ticket: Ticket) -> None:
        """The request has ended."""
        self._open -= 1

    def queue(self, waiting: int) -> None:
        """Requests that wait for admission; nobody asks here."""

    def close(self) -> None:
        """Nothing to stop."""

    def status(self) -> dict[str, object]:
        """What `Link.status` would say of a link without Redis."""
        return {"mode": "static", "static": self._default, "steps": self._steps, "running": self._open, "lost": 0}
