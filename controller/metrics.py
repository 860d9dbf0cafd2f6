"""Prometheus metrics, read from the pools' views at scrape time: nothing is counted twice or kept in two places.

Labels are bounded: pools, domains and drafts have caps, and only the best-known curves are exported.
"""

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.supervisor import Supervisor
from controller.view import PoolView

CURVES_OF_A_POOL = 32
POSITIONS_OF_A_CURVE = 8


def registry(supervisor: Supervisor) -> CollectorRegistry:
    """A registry of this process's metrics and of all its pools'."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    registry.register(PoolCollector(supervisor))
    return registry


class PoolCollector(Collector):
    """The pools of one supervisor as metric families."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def describe(self) -> list[Metric]:
        """Nothing ahead of time: families are made at every scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """One sample per pool and label set."""
        role = GaugeMetricFamily("akc_pool_leading", "1 where this replica leads the pool", labels=["pool"])
        problem = GaugeMetricFamily(
            "akc_pool_problem", "1 where something is wrong; the API says what", labels=["pool"]
        )
        for name, loop in self._supervisor.pools.items():
            role.add_metric([name], float(loop.role == "leading"))
            problem.add_metric([name], float(loop.complaint is not None))
        views = [loop.view for loop in self._supervisor.pools.values() if loop.view is not None]
        yield role
        yield problem
        yield from _frames(views)
        yield from _evidence(views)
        yield from _policies(views)
        yield from _traffic(views)
        yield _acceptance(views)


def _frames(views: list[PoolView]) -> Iterator[Metric]:
    frames = CounterMetricFamily("akc_frames", "Frames read, by what became of them", labels=["pool", "outcome"])
    missed = CounterMetricFamily("akc_frames_missed", "Frames that never arrived", labels=["pool"])
    dead = CounterMetricFamily("akc_dead_letters", "Frames refused and kept with a reason", labels=["pool"])
    lag = GaugeMetricFamily("akc_frame_lag_seconds", "From a frame's arrival in Redis to its use", labels=["pool"])
    engines = GaugeMetricFamily("akc_engines", "Engines that are alive", labels=["pool"])
    running = GaugeMetricFamily("akc_requests_running", "Requests being decoded", labels=["pool"])
    for view in views:
        for outcome in ("learned", "ignored", "deferred", "rejected"):
            frames.add_metric([view.pool, outcome], getattr(view.frames, outcome))
        missed.add_metric([view.pool], view.frames.missed)
        dead.add_metric([view.pool], view.frames.rejected)
        lag.add_metric([view.pool], view.frames.lag_seconds)
        live = [engine for engine in view.engines if engine.ended is None]
        engines.add_metric([view.pool], len(live))
        running.add_metric([view.pool], sum(engine.running for engine in live))
    yield from (frames, missed, dead, lag, engines, running)


def _evidence(views: list[PoolView]) -> Iterator[Metric]:
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
    for view in views:
        merged.add_metric([view.pool], view.evidence.merged)
        dropped.add_metric([view.pool], view.evidence.dropped)
        for kind, count in sorted(view.evidence.rejected.items()):
            rejected.add_metric([view.pool, kind], count)
        rebased.add_metric([view.pool], view.evidence.rebased)
    yield from (merged, dropped, rejected, rebased)


def _policies(views: list[PoolView]) -> Iterator[Metric]:
    decisions = CounterMetricFamily("akc_decisions", "Policies decided", labels=["pool"])
    switches = CounterMetricFamily("akc_switches", "Changes of a cell's most probable arm", labels=["pool"])
    epoch = GaugeMetricFamily("akc_policy_epoch", "Epoch of the policy in force", labels=["pool"])
    number = GaugeMetricFamily("akc_policy_number", "Number of the policy within its epoch", labels=["pool"])
    age = GaugeMetricFamily("akc_checkpoint_age_seconds", "Time since the last commit", labels=["pool"])
    for view in views:
        decisions.add_metric([view.pool], view.decisions)
        switches.add_metric([view.pool], view.switches)
        age.add_metric([view.pool], max(0.0, time.time() - view.time))
        if view.version is not None:
            epoch.add_metric([view.pool], view.version[0])
            number.add_metric([view.pool], view.version[1])
    yield from (decisions, switches, epoch, number, age)


def _traffic(views: list[PoolView]) -> Iterator[Metric]:
    goodput = GaugeMetricFamily(
        "akc_goodput_tokens_per_second", "Tokens per second of steps, recently", labels=["pool"]
    )
    names = ["pool", "bound"]
    speedup = GaugeMetricFamily("akc_speedup_ratio", "Over plain decoding, with a 90% interval", labels=names)
    for view in views:
        if view.traffic.tokens_per_busy_second is not None:
            goodput.add_metric([view.pool], view.traffic.tokens_per_busy_second)
        if view.traffic.speedup is not None:
            for bound in ("low", "value", "high"):
                speedup.add_metric([view.pool, bound], getattr(view.traffic.speedup, bound))
    yield from (goodput, speedup)


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
