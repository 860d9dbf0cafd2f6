"""A virtual engine: the simulated world's rows, luck and prices behind the link that a real engine has.

The world is `simulations.world.Engine` as it is; only the policy is another: `engine.link.Link`, which reports to a
running controller and obeys it. After the scenario's last step its load starts over, and its events do not come again.
"""

import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from engine.link import DraftInfo, EngineDescription, Link, StaticChoice, StepOutcome, Ticket
from engine.link.messages import NO_DRAFT as NO_DRAFT_NAME
from engine.link.messages import OTHER
from simulations.batch import DOMAIN, nobody
from simulations.clairvoyant import Best
from simulations.luck import Array
from simulations.policy import NO_DRAFT, Bools, Choice, Ints, Outcome, View
from simulations.reported import step_outcome
from simulations.timeline import Timeline, context_of
from simulations.world import Engine

Connect = Callable[[EngineDescription], Link]
VIRTUAL = "virtual"


class Played(NamedTuple):
    """One completed step of n rows, D domains.

    `domain`, `draft` (NO_DRAFT where K is 0), `k`, `accepted` [n]: of each row; the domain is the true one, whatever
    the label. `seconds`: of the step, as reported. `rows`, `earned`, `due` [D]: as in `simulations.log.Log`. `expected`
    seconds of the decode step, `plain` those of a plain one. `best`: what the clairvoyant would have played.
    """

    domain: Ints
    draft: Ints
    k: Ints
    accepted: Ints
    seconds: float
    rows: Ints
    earned: Array
    due: Array
    expected: float
    plain: float
    best: Best


class _Begun(NamedTuple):
    """A step under way: the link that planned it, what it will report, who ends with it."""

    report: StepOutcome
    finished: list[Ticket]
    played: Played


def describe(timeline: Timeline, available: Bools) -> EngineDescription:
    """What a virtual engine with these drafts loaded says of itself; nobody is to take it for a real one."""
    facts = timeline.facts
    drafts = [DraftInfo(d.name, d.kind, d.max_k, int(d.memory)) for d in facts.drafts]  # type: ignore[arg-type]  # kinds are the wire's
    at, k = facts.static
    static = StaticChoice(drafts[at].name, k) if at != NO_DRAFT and available[at] else StaticChoice()
    return EngineDescription(
        software="adaptive-k virtual engine (akc simulate --live)",
        target=f"{VIRTUAL} {timeline.scenario.name}",
        hardware=f"{VIRTUAL}: a simulated cost law, no model",
        drafts=[draft for draft, loaded in zip(drafts, available.tolist(), strict=True) if loaded],
        k_values=list(facts.ks),
        static=static,
        max_batch=facts.max_batch,
        switches=facts.switches,
    )


class VirtualEngine:
    """One engine of the scenario, step by step: `begin` plans a step and says how long it takes, `complete` reports it.

    `connect` makes its link, anew when a draft appears or disappears: a real engine is restarted for that too. Then the
    old link says goodbye, running requests are lost, and the same traffic goes on with the next ones.
    """

    def __init__(self, world: Engine, connect: Connect) -> None:
        self.world = world
        self._connect = connect
        timeline = world.timeline
        self._contexts = [*map(context_of, timeline.contexts), (OTHER, "greedy")]
        self._names = [*timeline.drafts, NO_DRAFT_NAME]  # the last one answers to NO_DRAFT, -1
        self._index = {name: at for at, name in enumerate(timeline.drafts)}
        self._tickets: dict[int, Ticket] = {}
        self._available = world.phase.available
        self.link = connect(describe(timeline, self._available))
        self._leaving: list[threading.Thread] = []
        self._begun: _Begun | None = None

    def begin(self) -> float:
        """Plan the next step; its seconds by the scenario's law, noise and prompts included."""
        view = self._view()
        requests, n = view.request.tolist(), len(view.domain)
        for at in np.flatnonzero(view.new).tolist():
            label, regime = self._contexts[view.domain[at]]
            self._tickets[requests[at]] = self.link.admit(label, regime, n)
        tickets = [self._tickets[request] for request in requests]
        planned = self.link.plan(tickets, n)
        draft = np.array([self._index.get(ticket.draft, NO_DRAFT) for ticket in tickets], dtype=np.intp)
        domain = self.world.running[DOMAIN].astype(np.intp)
        outcome = self.world.settle(view, Choice(draft, np.array(planned, dtype=np.intp)))
        finished = [self._tickets.pop(request) for request in view.request[outcome.finished].tolist()]
        self.link.queue(self.world.waiting.shape[1])
        self._begun = _Begun(
            step_outcome(tickets, planned, outcome, self._names), finished, self._played(view.step, domain, outcome)
        )
        if self.world.step == self.world.timeline.scenario.steps:
            self.world.step = 0  # the phase, and with it every event so far, stays
        return outcome.seconds

    def complete(self) -> Played:
        """Report the step that was begun."""
        if self._begun is None:
            raise RuntimeError("no step has begun; call begin first")
        begun, self._begun = self._begun, None
        self.link.record(begun.report)
        for ticket in begun.finished:
            self.link.finish(ticket)
        return begun.played

    def close(self, timeout: float = 3.0) -> None:
        """Send the last frame and stop; a step that was begun is dropped, as by an engine that is stopped."""
        self.link.close(timeout)
        for thread in self._leaving:
            thread.join(timeout)

    def _view(self) -> View:
        view = self.world.view()
        if np.array_equal(view.available, self._available):
            return view
        self._available = view.available
        for ticket in self._tickets.values():
            self.link.finish(ticket)
        self._tickets.clear()
        # Other engines are not kept waiting by this one's farewell.
        self._leaving.append(threading.Thread(target=self.link.close, name="virtual-engine-leaving", daemon=True))
        self._leaving[-1].start()
        self.link = self._connect(describe(self.world.timeline, self._available))
        self.world.running, self.world.waiting, self.world.batch = nobody(), nobody(), None
        return self.world.view()

    def _played(self, step: int, domain: Ints, outcome: Outcome) -> Played:
        log = self.world.log
        rows = log.rows[step].astype(np.intp)
        return Played(
            domain,
            np.where(outcome.k > 0, outcome.draft, NO_DRAFT),
            outcome.k,
            outcome.accepted,
            outcome.seconds,
            rows,
            log.earned[step].copy(),
            log.due[step].copy(),
            float(log.expected[step]),
            float(log.plain[step]),
            self.world.clairvoyant.best(self.world.index, rows),
        )
