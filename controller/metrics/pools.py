"""The pools of one replica as metric families: frames, evidence, decisions, traffic, posteriors."""

import time
from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.history import Sample, sample
from controller.metrics.counts import CURVES_OF_A_POOL, counted
from controller.metrics.engines import engines
from controller.supervisor import Supervisor
from controller.view import PoolView

POSITIONS_OF_A_CURVE = 8


class Seen(NamedTuple):
    """One pool at scrape time. `moment`: what the charts keep of the view."""

    view: PoolView
    moment: Sample
    now: float


class PoolCollector(Collector):
    """The pools of one supervisor as metric families."""

    def __init__(self, supervisor: Supervisor, release: str) -> None:
        self._supervisor = supervisor
        self._release = release

    def describe(self) -> list[Metric]:
        """Nothing ahead of time: families are made at every scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """One sample per pool and label set."""
        yield InfoMetricFamily("akc_controller", "This replica", value={"version": self._release})
        role = GaugeMetricFamily("akc_pool_leading", "1 where this replica leads the pool", labels=["pool"])
        problem = GaugeMetricFamily(
            "akc_pool_problem", "1 where something is wrong; the API says what", labels=["pool"]
        )
        seen, now = [], time.time()
        for name, loop in list(self._supervisor.pools.items()):
            role.add_metric([name], float(loop.role == "leading"))
            problem.add_metric([name], float(loop.complaint is not None))
            view = loop.view
            if view is not None:
                seen.append(Seen(view, sample(view), now))
        yield from (role, problem)
        for families in (_frames, _evidence, _policies, _gates, _traffic, _choices):
            yield from families(seen)
        views = [one.view for one in seen]
        yield _acceptance(views)
        yield from counted(views)
        yield from engines(views, now)


def _frames(pools: list[Seen]) -> Iterator[Metric]:
    frames = CounterMetricFamily("akc_frames", "Frames read, by what became of them", labels=["pool", "outcome"])
    missed = CounterMetricFamily("akc_frames_missed", "Frames that never arrived", labels=["pool"])
    dead = CounterMetricFamily("akc_dead_letters", "Frames refused and kept with a reason", labels=["pool"])
    lag = GaugeMetricFamily("akc_frame_lag_seconds", "From a frame's arrival in Redis to its use", labels=["pool"])
    last = GaugeMetricFamily(
        "akc_last_frame_timestamp_seconds", "Arrival of the newest frame used, Unix time", labels=["pool"]
    )
    alive = GaugeMetricFamily("akc_engines", "Engines that are alive", labels=["pool"])
    unlike = GaugeMetricFamily("akc_engines_unlike", "1 where engines of the pool are unlike", labels=["pool"])
    running = GaugeMetricFamily("akc_requests_running", "Requests being decoded", labels=["pool"])
    waiting = GaugeMetricFamily("akc_requests_waiting", "Requests that wait in the engines", labels=["pool"])
    for view, moment, _ in pools:
        for outcome in ("learned", "ignored", "deferred", "rejected"):
            frames.add_metric([view.pool, outcome], getattr(view.frames, outcome))
        missed.add_metric([view.pool], view.frames.missed)
        dead.add_metric([view.pool], view.frames.rejected)
        lag.add_metric([view.pool], view.frames.lag_seconds)
        if view.last_frame is not None:
            last.add_metric([view.pool], view.last_frame)
        alive.add_metric([view.pool], sum(engine.ended is None for engine in view.engines))
        unlike.add_metric([view.pool], float(view.disagreement is not None))
        running.add_metric([view.pool], moment.running)
        waiting.add_metric([view.pool], moment.waiting)
    yield from (frames, missed, dead, lag, last, alive, unlike, running, waiting)


def _evidence(pools: list[Seen]) -> Iterator[Metric]:
    merged = CounterMetricFamily(
        "akc_cells_merged", "Changes of cells counted under domain other, beyond the cap on domains", labels=["pool"]
    )
    dropped = CounterMetricFamily(
        "akc_cells_dropped", "Changes of cells left out, beyond the cap on drafts", labels=["pool"]
    )
    rejected = CounterMetricFamily(
        "akc_cells_rejected", "Changes of cells that contradict themselves, by kind", labels=["pool", "kind"]
    )
    rebased = CounterMetricFamily(
        "akc_incarnations_rebased", "Back after their cells had been let go, counted from then on", labels=["pool"]
    )
    for view, *_ in pools:
        merged.add_metric([view.pool], view.evidence.merged)
        dropped.add_metric([view.pool], view.evidence.dropped)
        for kind, count in sorted(view.evidence.rejected.items()):
            rejected.add_metric([view.pool, kind], count)
        rebased.add_metric([view.pool], view.evidence.rebased)
    yield from (merged, dropped, rejected, rebased)


def _policies(pools: list[Seen]) -> Iterator[Metric]:
    mode = GaugeMetricFamily("akc_pool_mode", "1 for the mode in force", labels=["pool", "mode"])
    decisions = CounterMetricFamily("akc_decisions", "Policies decided", labels=["pool"])
    switches = CounterMetricFamily("akc_switches", "Changes of a cell's most probable arm", labels=["pool"])
    changes = CounterMetricFamily("akc_acceptance_changes", "Abrupt changes of acceptance found", labels=["pool"])
    epoch = GaugeMetricFamily("akc_policy_epoch", "Epoch of the policy in force", labels=["pool"])
    number = GaugeMetricFamily("akc_policy_number", "Number of the policy within its epoch", labels=["pool"])
    age = GaugeMetricFamily("akc_checkpoint_age_seconds", "Time since the last commit", labels=["pool"])
    expiry = GaugeMetricFamily(
        "akc_policy_expiry_timestamp_seconds", "When the policy in force runs out, Unix time", labels=["pool"]
    )
    for view, _, now in pools:
        mode.add_metric([view.pool, view.mode], 1.0)
        decisions.add_metric([view.pool], view.decisions)
        switches.add_metric([view.pool], view.switches)
        changes.add_metric([view.pool], view.changes)
        age.add_metric([view.pool], max(0.0, now - view.time))
        if view.version is not None:
            epoch.add_metric([view.pool], view.version[0])
            number.add_metric([view.pool], view.version[1])
        if view.expires is not None:
            expiry.add_metric([view.pool], view.expires)
    yield from (mode, decisions, switches, changes, epoch, number, age, expiry)


def _gates(pools: list[Seen]) -> Iterator[Metric]:
    names = ["pool", "domain", "regime"]
    budget = GaugeMetricFamily("akc_gate_budget_steps", "Most that exploring may lose, in steps", labels=["pool"])
    pool = GaugeMetricFamily("akc_gate_pool_reserve_steps", "What of it the pool has left", labels=["pool"])
    reserve = GaugeMetricFamily("akc_gate_reserve_steps", "What of it a domain has left", labels=names)
    shut = GaugeMetricFamily("akc_gate_closed", "1 where only arms whose gain is sure are played", labels=names)
    for view, *_ in pools:
        if view.gate is None:
            continue
        budget.add_metric([view.pool], view.gate.budget)
        pool.add_metric([view.pool], view.gate.steps)
        for row in view.gate.contexts:
            reserve.add_metric([view.pool, row.domain, row.regime], row.steps)
            shut.add_metric([view.pool, row.domain, row.regime], float(row.closed or view.gate.closed))
    yield from (budget, pool, reserve, shut)


def _traffic(pools: list[Seen]) -> Iterator[Metric]:
    goodput = GaugeMetricFamily(
        "akc_goodput_tokens_per_second", "Tokens per second of steps, recently", labels=["pool"]
    )
    rows = GaugeMetricFamily("akc_decode_rows", "Decode rows of a step, mean over time, recently", labels=["pool"])
    speedup = GaugeMetricFamily(
        "akc_speedup_ratio", "Over plain decoding, with a 90% interval", labels=["pool", "bound"]
    )
    static = GaugeMetricFamily(
        "akc_static_speedup_ratio", "Of the static choice over plain decoding, estimated", labels=["pool"]
    )
    measured = GaugeMetricFamily(
        "akc_measured_gain_ratio",
        "Of the newest measurement: the policy over a fixed choice, with a 90% interval",
        labels=["pool", "bound", "draft", "k"],
    )
    for view, moment, _ in pools:
        for family, value in ((goodput, moment.goodput), (rows, moment.rows), (static, moment.static)):
            if value is not None:
                family.add_metric([view.pool], value)
        if view.traffic.speedup is not None:
            for bound in ("low", "value", "high"):
                speedup.add_metric([view.pool, bound], getattr(view.traffic.speedup, bound))
        gain = view.measured
        if gain is not None:
            draft, k = gain.against
            for bound, ratio in (("low", gain.low), ("value", gain.ratio), ("high", gain.high)):
                if ratio is not None:
                    measured.add_metric([view.pool, bound, draft, str(k)], ratio)
    yield from (goodput, rows, speedup, static, measured)


def _choices(pools: list[Seen]) -> Iterator[Metric]:
    k = GaugeMetricFamily(
        "akc_choice_k",
        "K of the arm in force at the load that most of the domain is served at, recently",
        labels=["pool", "domain", "regime", "draft"],
    )
    for view, moment, _ in pools:
        for played in moment.domains:
            k.add_metric([view.pool, played.domain, played.regime, played.draft], played.k)
    yield k


def _acceptance(views: list[PoolView]) -> Metric:
    mean = GaugeMetricFamily(
        "akc_acceptance_mean",
        "Posterior mean of acceptance at a position",
        labels=["pool", "domain", "regime", "draft", "position"],
    )
    for view in views:
        curves = [(domain, curve) for domain in view.domains for curve in domain.curves]
        curves.sort(key=lambda pair: -pair[1].effective_n)
        for domain, curve in curves[:CURVES_OF_A_POOL]:
            for position in curve.positions[:POSITIONS_OF_A_CURVE]:
                labels = [view.pool, domain.domain, domain.regime, curve.draft, str(position.position)]
                mean.add_metric(labels, position.acceptance.value)
    return mean
