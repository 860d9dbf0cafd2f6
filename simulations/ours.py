"""Our own policy: the very learner, chooser, breaker and counters that serve, driven by simulated steps.

Each engine has what `engine.link.Link` gives a real one, without Redis and threads. The learner takes the differences
of the engines' cells, as the controller's ledger does, and decides as often as the live controller would.
"""

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from controller.cells import CellT, Key, key, subtract
from controller.learner import Decision, Delta, Learner, LearnerConfig, PoolSpec
from controller.learner.policy import arm_name
from engine.link.breaker import Breaker
from engine.link.chooser import Chooser
from engine.link.counters import Counters
from engine.link.messages import (
    NO_DRAFT,
    OTHER,
    DraftInfo,
    EngineDescription,
    Policy,
    Regime,
    StaticChoice,
    load_bucket,
    prefill_bucket,
)
from engine.link.pace import pace
from engine.link.ticket import Ticket
from simulations.policy import Choice, Outcome, PoolFacts, View
from simulations.reported import step_outcome
from simulations.timeline import context_of

EPOCH = 1e9  # the learner's clock at the first step, seconds
_LASTS = 3600.0  # seconds that a policy stays valid: simulated controllers do not fall silent


@dataclass(frozen=True, slots=True)
class Pace:
    """When to decide: every `first` steps of the engines at first, ever less often up to every `every`, later when
    `growth` more have come, at most `most`.

    20 steps are half a second at 25 ms each, 4 a tenth: live engines and controllers, too, start at a tenth of their
    intervals (`pace`). What 1% more evidence can change is not worth a decision.

    >>> [Pace().steps(n) for n in (0, 80, 1000, 5000, 100_000)]
    [4, 10, 20, 50, 80]
    """

    first: int = 4
    every: int = 20
    growth: float = 0.01
    most: int = 80

    def steps(self, done: int) -> int:
        """Steps to the next decision after `done` of them."""
        usual = max(self.every, self.growth * done)
        return int(min(max(self.first, pace(done, usual)), usual, max(self.most, self.every)))


@dataclass(slots=True)
class _Engine:
    """One engine's side of the link."""

    name: str
    rng: random.Random
    breaker: Breaker | None
    chooser: Chooser = field(init=False)
    counters: Counters = field(default_factory=Counters)
    tickets: dict[int, Ticket] = field(default_factory=dict)
    cells: dict[Key, Any] = field(default_factory=dict)
    generation: int = 0
    began: float = 0.0
    now: float = 0.0
    rows: list[Ticket] = field(default_factory=list)
    planned: list[int] = field(default_factory=list)
    ordered: bool = False
    moved: bool = False  # a request has another draft since the last step

    def clock(self) -> float:
        return self.now

    def switch(self, ticket: Ticket, draft: str) -> bool:
        moved = self.counters.switch(ticket, draft)
        self.moved |= moved
        return moved


class Ours:
    """The adaptive controller. `switches`: changes of the most probable arm of served cells, over all decisions."""

    name = "ours"

    def __init__(
        self,
        pool: PoolFacts,
        rng: np.random.Generator,
        *,
        config: LearnerConfig | None = None,
        pace: Pace | None = None,
        breaker: bool = True,
    ) -> None:
        self.pool, self.rng = pool, rng
        self.config, self.pace = config or LearnerConfig(), pace or Pace()
        self.switches = 0
        self.decision: Decision
        self._contexts: list[tuple[str, Regime]] = [*map(context_of, pool.domains), (OTHER, "greedy")]
        self._infos = [DraftInfo(d.name, d.kind, d.max_k, int(d.memory)) for d in pool.drafts]  # type: ignore[arg-type]  # kinds are the wire's
        self._index: dict[str, int] = {NO_DRAFT: -1, **{d.name: j for j, d in enumerate(pool.drafts)}}
        self._names = [*(d.name for d in pool.drafts), NO_DRAFT]  # the last one answers to index -1
        self._available = [True] * len(pool.drafts)
        self._describe = self._described()
        self.learner = Learner(self.config, PoolSpec.from_description(self._describe))
        self._tops: dict[tuple[str, str, int], tuple[str, int]] = {}
        self._served: set[tuple[str, str, int]] = set()
        self._number = self._steps = self._due = 0
        self._policy: Policy
        self._engines = [self._engine(i, breaker) for i in range(pool.engines)]
        self._decide(0.0)

    def _described(self) -> EngineDescription:
        draft, k = self.pool.static
        there = [info for info, loaded in zip(self._infos, self._available, strict=True) if loaded]
        static = (
            StaticChoice(self.pool.drafts[draft].name, k) if draft >= 0 and self._available[draft] else StaticChoice()
        )
        pool = self.pool
        return EngineDescription(
            "simulation", "target", "none", there, list(pool.ks), static, pool.max_batch, pool.switches
        )

    def _engine(self, number: int, breaker: bool) -> _Engine:
        rng = random.Random(int(self.rng.integers(1 << 62)))
        engine = _Engine(f"engine-{number}", rng, Breaker() if breaker else None)
        engine.chooser = Chooser(self._describe, clock=engine.clock, rng=rng, switch=engine.switch)
        return engine

    def _equip(self, available: list[bool]) -> None:
        """Drafts were loaded or lost: a new description, the same evidence, as the controller does it."""
        self._available = available
        self._describe = self._described()
        self.learner = Learner.load(self.learner.dump(), self.config, PoolSpec.from_description(self._describe))
        self._decide(max(engine.now for engine in self._engines))
        for engine in self._engines:
            engine.chooser = Chooser(self._describe, clock=engine.clock, rng=engine.rng, switch=engine.switch)
            engine.chooser.use(self._policy, EPOCH + engine.now)
            for ticket in engine.tickets.values():
                ticket.stamp = -1

    def choose(self, view: View) -> Choice:
        """Admit new requests, plan every row."""
        available = view.available.tolist()
        if available != self._available:
            self._equip(available)
        engine, rows = self._engines[view.engine], len(view.domain)
        engine.now = view.time
        draft = view.draft.copy()
        requests = view.request.tolist()
        if view.new.any():
            for at in np.flatnonzero(view.new).tolist():
                label, regime = self._contexts[view.domain[at]]
                ticket = engine.chooser.admit(label, regime, rows)
                ticket.domain = engine.counters.place(label, regime, ticket.draft)
                engine.tickets[requests[at]] = ticket
                draft[at] = self._index[ticket.draft]
        engine.rows = [engine.tickets[request] for request in requests]
        if engine.breaker is not None and engine.breaker.blocks(load_bucket(rows)):
            engine.planned, engine.ordered = [0] * rows, True
        else:
            engine.planned = engine.chooser.plan(engine.rows, rows)
            engine.ordered = engine.chooser.probing
        if engine.moved:
            engine.moved = False
            draft = np.array([self._index[ticket.draft] for ticket in engine.rows], dtype=np.intp)
        return Choice(draft, np.array(engine.planned, dtype=np.intp))

    def observe(self, outcome: Outcome) -> None:
        """Count the step as an engine's link does; decide when it is time."""
        engine = self._engines[outcome.view.engine]
        ks, accepted = outcome.k.tolist(), outcome.accepted.tolist()
        step = step_outcome(engine.rows, engine.planned, outcome, self._names)
        drafted = bool(step.drafted)
        engine.counters.record(step, probing=engine.ordered and not drafted)
        engine.chooser.observe(step)
        if engine.breaker is not None:
            engine.breaker.observe(
                load_bucket(len(ks)),
                prefill_bucket(outcome.prefill),
                plain=not drafted,
                rows=len(ks),
                tokens=sum(accepted) + len(ks),
                seconds=outcome.seconds,
            )
        if outcome.finished.any():
            for request in outcome.view.request[outcome.finished].tolist():
                engine.counters.finish(engine.tickets.pop(request))
        engine.now = outcome.view.time + outcome.seconds
        self._steps += 1
        if self._steps >= self._due:
            self._decide(max(engine.now for engine in self._engines))

    def _decide(self, now: float) -> None:
        for engine in self._engines:
            if engine.now > engine.began:
                self.learner.observe(self._delta(engine))
        self.decision = self.learner.decide(EPOCH + now, self.rng)
        self._count_switches()
        self._number += 1
        self._policy = Policy(
            "simulation",
            (1, self._number),
            EPOCH + now,
            EPOCH + now + _LASTS,
            self._describe.static,
            list(self.pool.ks),
            self.decision.cells,
            allowance=self.decision.allowance,
            probe=self.decision.probe,
            window=self.config.window,
        )
        for engine in self._engines:
            engine.chooser.use(self._policy, EPOCH + now)
        engines = len(self._engines)
        self._due = self._steps + engines * self.pace.steps(self._steps // engines)

    def _delta(self, engine: _Engine) -> Delta:
        """What the engine counted since the last time, dated at the middle of the interval."""
        snapshot = engine.counters.snapshot(engine.generation)
        engine.generation = snapshot.generation
        delta = Delta(engine.name, EPOCH + (engine.began + engine.now) / 2)
        engine.began = engine.now
        delta.acceptance = _changes(engine.cells, snapshot.acceptance)
        delta.moments = _changes(engine.cells, snapshot.moments)
        delta.cost = _changes(engine.cells, snapshot.cost)
        delta.account = _changes(engine.cells, snapshot.account)
        self._served.update((cell.domain, cell.regime, cell.load) for cell in delta.account)
        return delta

    def _count_switches(self) -> None:
        """As the controller counts them: changes of the most probable arm in cells that have seen traffic."""
        names, ks = tuple(draft.name for draft in self._describe.drafts), self.learner.spec.ks
        for table in self.decision.tables:
            for c, (domain, regime) in enumerate(self.decision.contexts):
                cell = (domain, regime, table.load)
                if cell in self._served:
                    arm = arm_name(int(table.top[c]), names, ks)
                    self.switches += self._tops.get(cell, arm) != arm
                    self._tops[cell] = arm


def ours(pool: PoolFacts, rng: np.random.Generator) -> Ours:
    """Our policy with its defaults."""
    return Ours(pool, rng)


def _changes(known: dict[Key, Any], cells: list[CellT]) -> list[CellT]:
    """What happened to the cells since they were `known`, which is brought up to date."""
    changes = []
    for cell in cells:
        name = key(cell)
        change = subtract(cell, known.get(name))
        known[name] = cell
        if change is not None:
            changes.append(change)
    return changes
