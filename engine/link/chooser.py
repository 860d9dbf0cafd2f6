"""Carrying out a policy: which draft a request gets, which K each row runs in the next step. No I/O, no threads.

Non-adaptive requests (origin `policy`) never move by their own luck, so that what they show is unbiased: they explore,
all rows of an engine by one uniform per window. The others start from the best arm and let their own evidence move K.
"""

import random
from collections.abc import Callable, Sequence

from engine.link.adapt import Evidence, decide
from engine.link.held import Held
from engine.link.messages import (
    NO_DRAFT,
    EngineDescription,
    Origin,
    Policy,
    ProbePlan,
    Regime,
    StaticChoice,
    Version,
    load_bucket,
)
from engine.link.table import Cell, Choice, Table
from engine.link.ticket import StepOutcome, Ticket

Switch = Callable[[Ticket, str], bool]

_ACTING = frozenset(("on", "canary", "shadow+probe"))
# From window to window u moves by the golden ratio (a Kronecker sequence, the most even one): an arm of share p gets
# its turn about every 1 / p windows, where independent draws would starve or flood the first ones.
_GOLDEN = 0.6180339887498949
# Plain probes of an engine without a policy: 8 steps after 128, 256, ... and then every 2,048, so 0.4% of the steps.
_OWN_PROBE_STEPS = 8
_OWN_PROBE_FIRST = 128
_OWN_PROBE_LAST = 2048


class _InForce:
    """A policy with its deadlines on the chooser's clock."""

    __slots__ = ("acting", "expires", "stale", "table")

    def __init__(self, table: Table, stale: float, expires: float) -> None:
        self.table = table
        self.acting = table.policy.mode in _ACTING
        self.stale = stale
        self.expires = expires


class Chooser:
    """Draws drafts and K by the policy in force, or the operator's static choice where there is none.

    `clock` gives monotonic seconds, `rng` the draws; `nonadaptive` overrides the policy's share of requests whose K
    never follows their own evidence. `guarded`: a breaker watches, so that the static choice is probed too where no
    policy orders probes. `switch` gives a request another draft, where the engine can do that in the middle of one;
    what answers False stays. `use` may be called from another thread; the rest belongs to the decode thread.
    """

    def __init__(
        self,
        describe: EngineDescription,
        *,
        clock: Callable[[], float],
        rng: random.Random,
        nonadaptive: float | None = None,
        guarded: bool = False,
        switch: Switch | None = None,
    ) -> None:
        self._drafts = {d.name: d.max_k for d in describe.drafts}
        self._k_values = describe.k_values
        self._own_static = describe.static
        self._clock = clock
        self._rng = rng
        self._nonadaptive = nonadaptive
        self._guarded = guarded
        self._switch = switch if describe.switches else None
        self._own_probe = ProbePlan(_OWN_PROBE_FIRST, _OWN_PROBE_STEPS)
        self._in_force: _InForce | None = None
        self._load = Held(load_bucket)
        self._seen: tuple[object, ...] = ()
        self._stamp = 0
        self._u = rng.random()
        self._window_left = 1
        self._spent = 0
        self._spent_out = False
        self._spent_version: Version | None = None
        self._exploit = False
        self._admitted = 0
        self._since_probe = 0
        self._probe_left = 0

    def use(self, policy: Policy | None, unix_now: float) -> None:
        """Take over a policy (`None`: there is none). Raises `ValueError` where it contradicts itself."""
        if policy is None:
            self._in_force = None
            return
        table = Table(policy, self._drafts, self._k_values)
        left = policy.expires - unix_now
        now = self._clock()
        # Deadlines count on the monotonic clock from here on: a step of the wall clock must not revive a policy.
        self._in_force = _InForce(table, now + left - (policy.expires - policy.issued) / 2, now + left)

    @property
    def version(self) -> Version | None:
        """Version of the policy in force, `None` when there is none or it has expired."""
        force = self._in_force
        return None if force is None or self._clock() >= force.expires else force.table.policy.version

    @property
    def narrowed(self) -> list[str]:
        """What of the policy in force this engine cannot carry out, in words."""
        force = self._in_force
        return [] if force is None else force.table.narrowed

    @property
    def age(self) -> float | None:
        """Seconds since the policy in force was issued, by the wall clocks of both sides when it was read."""
        force = self._in_force
        if force is None or self._clock() >= force.expires:
            return None
        policy = force.table.policy
        return max(0.0, self._clock() - force.expires + policy.expires - policy.issued)

    @property
    def probing(self) -> bool:
        """Whether the step planned last was ordered to run without speculation."""
        return self._probe_left > 0

    def status(self) -> dict[str, object]:
        """The policy in force and how much of it has been used."""
        force = self._in_force
        return {
            "version": self.version,
            "mode": force.table.policy.mode if force is not None and self.version is not None else "static",
            "exploit": self._exploit,
            "explored": self._spent,
            "policy_age": self.age,
            "expires_in": None if force is None else force.expires - self._clock(),
        }

    def admit(self, domain: str, regime: Regime, batch: int) -> Ticket:
        """A ticket for a new request; `batch` is the number of decode rows, this one included."""
        if regime not in ("greedy", "sampled"):
            raise ValueError(f"regime is {regime!r}; allowed are 'greedy' and 'sampled'")
        self._admitted += 1
        force = self._active()
        cell = None
        if force is not None and force.acting and self._follows(force.table.policy):
            cell = force.table.cell(domain, regime, load_bucket(max(1, batch)))
        if force is None or cell is None:
            ticket = Ticket(domain, regime, self._static(force).draft, number=self._admitted)
        else:
            policy = force.table.policy
            origin = self._origin(policy, cell)
            exploits = self._exploit or origin == "request"
            if exploits:
                choice = cell.best
            elif self._switch is not None:
                choice, _ = cell.arm(self._u)  # no more than the first windows' draft
            else:
                choice = cell.draw(self._rng.random())
            ticket = Ticket(
                domain,
                regime,
                choice.draft,
                origin,
                policy.version,
                follows=True,
                probability=1.0 if exploits else choice.p,
                number=self._admitted,
            )
            if origin == "request":
                held = (choice.draft,) if self._switch is None else tuple(cell.choices)
                ticket.evidences = {draft: Evidence() for draft in held if draft != NO_DRAFT}
                ticket.evidence = ticket.evidences.get(choice.draft)
        return ticket

    def _follows(self, policy: Policy) -> bool:
        return policy.mode == "on" or self._rng.random() < policy.share

    def _origin(self, policy: Policy, cell: Cell) -> Origin:
        if policy.mode == "shadow+probe":
            return "probe"
        share = cell.nonadaptive if self._nonadaptive is None else self._nonadaptive
        return "policy" if self._rng.random() < share else "request"

    def plan(self, tickets: Sequence[Ticket], batch: int) -> list[int]:
        """K of every decode row for the next step; call it once a step."""
        force = self._active()
        if force is not None and force.acting and tickets:
            if self._probe_now(force.table.policy.probe):
                return [0] * len(tickets)
            self._window_left -= 1
            if self._window_left <= 0:
                self._u = (self._u + _GOLDEN) % 1.0
                self._window_left = force.table.policy.window
                self._stamp += 1
        elif force is not None:
            if not force.acting:
                self._probe_left = 0  # what a policy ordered ends with it
        elif self._probe_static(tickets):
            return [0] * len(tickets)
        load = self._load(max(1, batch))
        state = (force, load, self._exploit)
        if state != self._seen:
            self._seen = state
            self._stamp += 1
        planned, explored = self._plan_rows(tickets, force, load)
        if explored and force is not None:
            if self._spent + explored > force.table.policy.allowance:
                self._exploit = self._spent_out = True
                self._seen = (force, load, True)
                self._stamp += 1
                planned, _ = self._plan_rows(tickets, force, load)
            else:
                self._spent += explored
        return planned

    def _plan_rows(self, tickets: Sequence[Ticket], force: _InForce | None, load: int) -> tuple[list[int], int]:
        stamp = self._stamp
        explored = 0
        planned: list[int] = []
        for ticket in tickets:
            if ticket.stamp != stamp:
                ticket.stamp = stamp
                self._refresh(ticket, force, load)
            explored += ticket.explores
            planned.append(ticket.k)
        return planned, explored

    def _refresh(self, ticket: Ticket, force: _InForce | None, load: int) -> None:
        """Find the ticket's choice anew: the policy, the load bucket or the window's draw has changed."""
        found = None
        if force is not None and force.acting and ticket.follows:
            found = self._arm(ticket, force.table, load)
        if found is None:
            ticket.choice = None
            ticket.variant = "static"
            ticket.explores = False
            static = self._static(force)
            if self._switch is not None and ticket.draft != static.draft:
                self._switch(ticket, static.draft)
            ticket.base = self._static_k(ticket.draft, static.k)
            ticket.k = ticket.base
            return
        cell, choice, ticket.base = found
        ticket.choice = choice
        ticket.variant = "adaptive"
        own = None if ticket.evidence is None else ticket.evidence.own_k
        ticket.k = ticket.base if own is None else own
        # A draft drawn for a window is exploration whatever K the request's own luck gives it; one held is not.
        drawn = own is None or self._switch is not None
        ticket.explores = (drawn and ticket.draft != cell.best.draft) or (
            own is None and ticket.base != cell.best.best_k
        )

    def _arm(self, ticket: Ticket, table: Table, load: int) -> tuple[Cell, Choice, int] | None:
        """Cell, draft and K of a request by the policy; its draft is switched where the engine can."""
        if self._switch is not None:
            cell = table.cell(ticket.domain, ticket.regime, load)
            if cell is None:
                return None
            choice, k = (cell.best, cell.best.best_k) if self._exploits(ticket) else cell.arm(self._u)
            if choice.draft == ticket.draft or self._switch(ticket, choice.draft):
                return cell, choice, k
            ticket.stamp = -1  # refused for now: ask again at the next step, so that the rows come together
        found = table.choice(ticket.domain, ticket.regime, load, ticket.draft)
        if found is None:
            return None
        cell, choice = found
        return cell, choice, choice.best_k if self._exploits(ticket) else choice.at(self._u)

    def _exploits(self, ticket: Ticket) -> bool:
        """Whether the request keeps to the best arm: what an adaptive one shows does not feed the domain's curve, so
        that its exploring would cost as much as anybody's and teach nothing."""
        return self._exploit or ticket.origin == "request"

    def observe(self, step: StepOutcome) -> None:
        """Let the rows' own evidence move their K, where that is allowed."""
        for ticket, _, accepted, seen, _, _ in step.rows:
            evidence = ticket.evidence
            # A row at K = 0 shows nothing, yet time passes: its old evidence fades, and it may come back.
            if evidence is not None and evidence.observe(seen, accepted) and ticket.choice is not None:
                before = evidence.own_k
                evidence.own_k = decide(ticket.choice, evidence)
                evidence.forget()
                if evidence.own_k != before:
                    ticket.k = ticket.base if evidence.own_k is None else evidence.own_k
                    ticket.stamp = -1

    def _active(self) -> _InForce | None:
        """The policy in force, with the allowance of its version opened."""
        force = self._in_force
        if force is None:
            return None
        now = self._clock()
        if now >= force.expires:
            return None
        policy = force.table.policy
        if policy.version != self._spent_version:
            self._spent_version = policy.version
            self._spent = 0
            self._spent_out = policy.allowance == 0
        self._exploit = now >= force.stale or self._spent_out
        return force

    def _probe_static(self, tickets: Sequence[Ticket]) -> bool:
        """The same without a policy: a static K that loses must be found out even where no controller is."""
        if not self._guarded or not self._own_static.k or not tickets:
            self._probe_left = 0
            return False
        began = self._probe_left == 0
        probing = self._probe_now(self._own_probe)
        if probing and began:
            self._own_probe = ProbePlan(min(2 * self._own_probe.every, _OWN_PROBE_LAST), _OWN_PROBE_STEPS)
        return probing

    def _probe_now(self, probe: ProbePlan) -> bool:
        """Whether the next step is one of a plain probe."""
        if self._probe_left:
            self._probe_left -= 1
            if self._probe_left:
                return True
        if not probe.every or not probe.steps:
            return False
        self._since_probe += 1
        if self._since_probe <= probe.every:
            return False
        self._since_probe = 0
        self._probe_left = probe.steps
        return True

    def _static(self, force: _InForce | None) -> StaticChoice:
        if force is not None and force.table.policy.static.draft in (NO_DRAFT, *self._drafts):
            return force.table.policy.static
        return self._own_static

    def _static_k(self, draft: str, k: int) -> int:
        return min(k, self._drafts.get(draft, 0))
