"""Draws the view of a pool: from what the ledger, the learner and the last decision hold to records for people."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import islice
from typing import NamedTuple

from controller import view
from controller.causes import EVERYBODY, Causes, Playing
from controller.learner.config import PoolSpec
from controller.learner.decision import Arm, Decision
from controller.learner.estimates import CurvePoint, Estimates
from controller.learner.evidence import FEEDING
from controller.learner.gate import Gate
from controller.ledger import Incarnation, Ledger
from controller.published import Published, honest, identified
from controller.recent import Cell, Recent, Sums, pool_traffic, speedups, static_speedup, traffic
from controller.reported import Reported
from controller.reported import Sums as Counted
from engine.link.messages import NO_DRAFT, AcceptanceCell, AccountCell, StaticChoice, Version

REPORTED = 64  # engines whose sums are kept in view

Arms = dict[Cell, tuple[str, int]]


class Subject(NamedTuple):
    """What a portrait is drawn from."""

    pool: str
    mode: str
    ledger: Ledger
    recent: Recent
    spec: PoolSpec | None
    decision: Decision | None
    estimates: Estimates | None
    rejected: Mapping[str, int]
    changes: int
    lag: float
    last_frame: float | None
    decisions: int
    switches: int
    records: list[view.DecisionRecord]
    measured: view.Measured | None
    gains: Mapping[tuple[str, str], view.Interval]
    causes: Causes
    published: Published | None
    lags: Mapping[str, float]  # by incarnation
    speed: Callable[[str], float]  # by engine: how many times the usual seconds its steps take
    gate: Gate | None = None


def portray(
    subject: Subject, version: Version | None, policy: bytes | None, now: float, expires: float
) -> view.PoolView:
    """The pool as of `now`, seconds."""
    ledger, counts = subject.ledger, subject.ledger.counts
    cells = subject.recent.cells()
    known = speedups(cells, subject.estimates)
    static = static_speedup(cells, subject.estimates)
    timed = subject.recent.timed()
    playing = _playing(subject)
    return view.PoolView(
        pool=subject.pool,
        time=now,
        mode=subject.mode,
        target=ledger.target,
        drafts=_drafts(subject),
        k_values=[] if subject.spec is None else list(subject.spec.ks),
        changes=subject.changes,
        version=version,
        expires=None if policy is None else expires,
        policy=policy,
        last_frame=subject.last_frame,
        frames=view.Frames(
            counts.learned, counts.ignored, counts.deferred, counts.rejected, counts.missed, lag_seconds=subject.lag
        ),
        evidence=view.Evidence(counts.merged_cells, counts.dropped_cells, counts.rebased, dict(subject.rejected)),
        traffic=pool_traffic(subject.recent, cells, known, static),
        disagreement=ledger.disagreement(),
        engines=[
            _engine(one, timed.get(one.engine), subject.lags.get(one.id), subject.speed(one.engine), now)
            for one in ledger.incarnations.values()
        ],
        domains=_domains(subject, cells, known, playing, now),
        decisions=subject.decisions,
        switches=subject.switches,
        records=subject.records,
        measured=subject.measured,
        gate=_gate(subject),
        counts=_counts(ledger),
        reported=_reported(ledger, subject.speed),
        note=None if subject.published is None else honest(playing.mode, playing.static),
    )


def _playing(subject: Subject) -> Playing:
    """Which requests follow the policy that was published."""
    if subject.published is None:
        return EVERYBODY
    policy = subject.published.policy
    return Playing(policy.mode, StaticChoice(*subject.published.static), policy.share)


def _gate(subject: Subject) -> view.Gate | None:
    gate, decision = subject.gate, subject.decision
    if gate is None or decision is None:
        return None
    rows = zip(decision.contexts, gate.reserve.tolist(), gate.closed.tolist(), strict=False)
    contexts = [view.Reserve(domain, regime, steps, closed) for (domain, regime), steps, closed in rows]
    return view.Gate(gate.budget, gate.pool_reserve, gate.pool_closed, contexts)


def _reported(ledger: Ledger, speed: Callable[[str], float]) -> list[Reported]:
    """What live engines reported, in the order they came, `REPORTED` of them; speed(engine): its slowness."""
    rows = []
    for one in islice(ledger.live(), REPORTED):
        in_force = one.applied is not None
        rows.append(
            Reported(
                engine=one.engine,
                seen=one.seen,
                breaker=one.breaker,
                running=one.running,
                waiting=one.waiting,
                steps=one.steps,
                lost=one.lost,
                missed=one.missed,
                in_force=in_force,
                policy_age=one.policy_age if in_force else None,
                slowness=speed(one.engine),
                sums=ledger.sums[one.id].copy(),
            )
        )
    return rows


def _counts(ledger: Ledger) -> dict[tuple[str, str], Counted]:
    counts: dict[tuple[str, str], Counted] = defaultdict(Counted)
    for cell in ledger.totals.values():
        counts[cell.domain, cell.regime].add(cell)
    return dict(counts)


def _drafts(subject: Subject) -> list[view.Draft]:
    gain = {} if subject.decision is None else {worth.draft: worth.gain for worth in subject.decision.worth}
    loaded = [] if subject.spec is None else subject.spec.drafts
    return [view.Draft(draft.name, draft.memory_bytes, gain.get(draft.name)) for draft in loaded]


def _engine(
    incarnation: Incarnation, timed: Counted | None, lag: float | None, slowness: float, now: float
) -> view.Engine:
    live = incarnation.ended is None
    follows = live and incarnation.applied is not None and incarnation.policy_age is not None
    timed = timed if live else None  # an engine's name goes on to its next incarnation, and so do the steps under it
    return view.Engine(
        engine=incarnation.engine,
        incarnation=incarnation.id,
        software=incarnation.describe.software,
        hardware=incarnation.describe.hardware,
        last_seen=incarnation.seen,
        running=incarnation.running,
        waiting=incarnation.waiting,
        steps=incarnation.steps,
        applied=incarnation.applied,
        breaker=incarnation.breaker,
        frames=incarnation.frames,
        missed=incarnation.missed,
        lost=incarnation.lost,
        ended=incarnation.ended,
        step_p50=None if timed is None else timed.step_quantile(0.5),
        step_p95=None if timed is None else timed.step_quantile(0.95),
        policy_age=(incarnation.policy_age or 0.0) + max(0.0, now - incarnation.seen) if follows else None,
        lag_seconds=lag if live else None,
        slowness=slowness if live else None,
    )


def _domains(
    subject: Subject, cells: dict[Cell, Sums], known: dict[Cell, view.Interval], playing: Playing, now: float
) -> list[view.Domain]:
    """Every (domain, regime) that was ever served, most served first."""
    served: dict[tuple[str, str], dict[int, Sums]] = defaultdict(dict)
    for cell in subject.ledger.totals.values():
        if isinstance(cell, AccountCell):
            loads = served[cell.domain, cell.regime]
            loads[cell.load] = loads.get(cell.load, Sums()).plus(cell)
    curves = _curves(subject)
    choices = _choices(subject, served, playing, now)
    domains = []
    for name, loads in sorted(served.items(), key=lambda item: -sum(s.row_steps for s in item[1].values())):
        recent = {cell: sums for cell, sums in cells.items() if cell[:2] == name}
        domains.append(
            view.Domain(
                domain=name[0],
                regime=name[1],
                tokens=sum(sums.tokens for sums in loads.values()),
                row_steps=sum(sums.row_steps for sums in loads.values()),
                recent=traffic(recent, known),
                main_load=max(recent, key=lambda cell: recent[cell].row_steps)[2] if recent else None,
                curves=curves.get(name, []),
                choices=choices.get(name, []),
                measured=subject.gains.get(name),
            )
        )
    return domains


def _curves(subject: Subject) -> dict[tuple[str, str], list[view.Curve]]:
    raw: dict[tuple[str, str, str], list[list[int]]] = defaultdict(lambda: [[], []])
    for cell in subject.ledger.totals.values():
        if isinstance(cell, AcceptanceCell) and cell.origin in FEEDING:
            for sums, values in zip(raw[cell.domain, cell.regime, cell.draft], (cell.seen, cell.accepted), strict=True):
                sums.extend([0] * (len(values) - len(sums)))
                sums[: len(values)] = [x + y for x, y in zip(sums, values, strict=False)]
    points: dict[tuple[str, str, str], list[CurvePoint]] = defaultdict(list)
    for point in subject.estimates.curves if subject.estimates is not None else ():
        points[point.domain, point.regime, point.draft].append(point)
    curves: dict[tuple[str, str], list[view.Curve]] = defaultdict(list)
    for (domain, regime, draft), row in points.items():
        seen, accepted = raw[domain, regime, draft]
        positions = []
        for point in row:
            i = point.position - 1
            acceptance = view.Interval(point.mean, point.low, point.high)
            survival = view.Interval(point.survival, point.survival_low, point.survival_high)
            counted = (seen[i], accepted[i]) if i < len(seen) else (0, 0)
            positions.append(view.Position(point.position, acceptance, survival, *counted))
        first = row[0]
        sd = None if math.isnan(first.spread) else first.spread
        spread = view.Spread(first.segments, sd, first.seen, first.deff)
        curves[domain, regime].append(view.Curve(draft, first.effective, spread, positions))
    return curves


def _choices(
    subject: Subject, served: dict[tuple[str, str], dict[int, Sums]], playing: Playing, now: float
) -> dict[tuple[str, str], list[view.Choice]]:
    decision, published = subject.decision, subject.published
    if decision is None or published is None:
        return {}
    arms: dict[Cell, list[Arm]] = defaultdict(list)
    for arm in decision.arms():
        arms[arm.domain, arm.regime, arm.load].append(arm)
    reasons, in_force = decision.reasons(), published.in_force(served.keys())
    choices: dict[tuple[str, str], list[view.Choice]] = defaultdict(list)
    for (domain, regime, load), row in arms.items():
        played = in_force.get((domain, regime, load))
        if played is None:
            continue
        table = [
            view.Arm(
                arm.draft,
                arm.k,
                arm.goodput_row,
                arm.goodput_batch,
                view.Interval(arm.speedup, arm.speedup_low, arm.speedup_high),
                min(1.0, played.shares.get((arm.draft, arm.k), 0.0)),
                min(1.0, arm.best),
                min(1.0, arm.played),
                identified(playing.mode, playing.static, arm.draft, arm.k),
            )
            for arm in row
        ]
        learned = table[0]  # `arms` gives the learner's most probable one first
        table.sort(key=lambda arm: -arm.probability)
        draft, k = played.top
        told = subject.causes.tell((domain, regime, load), reasons[domain, regime, load], now, playing)
        if played.held == "measurement":
            what = "no speculation" if draft == NO_DRAFT else f"{draft} at K = {k}"
            told = f"a measurement has {what} played now; would choose {told}"
        choices[domain, regime].append(
            view.Choice(
                load=load,
                draft=draft,
                k=k,
                probability=min(1.0, played.shares[draft, k]),
                speedup=next((arm.speedup for arm in table if (arm.draft, arm.k) == (draft, k)), None),
                reason=told,
                row_steps=served[domain, regime].get(load, Sums()).row_steps,
                arms=table,
                held=played.held,
                would_choose=view.Wanted(learned.draft, learned.k, learned.speedup),
                explored=played.explored,
            )
        )
    return choices
