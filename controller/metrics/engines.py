"""What live engines reported as metric families, any engine alike: torch, vLLM, or one that only speaks the wire.

Counters are those of an engine's present incarnation, so they start at 0 when it does. `akc_reported_` is said of
engines by the controller; an engine with a /metrics of its own says `akc_engine_`, and sums never count both.
"""

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from controller.metrics.counts import PositionFamilies, add_k
from controller.reported import STEP_BOUNDS, Sums
from controller.view import PoolView

DRAFTS_OF_AN_ENGINE = 4  # those drafted most
BREAKER_STATES = ("closed", "half-open", "open")


def engines(views: list[PoolView], now: float) -> Iterator[Metric]:
    """All families of engines. `now`: Unix seconds."""
    yield from _states(views, now)
    yield from _counts(views)


def _states(views: list[PoolView], now: float) -> Iterator[Metric]:
    names = ["pool", "engine"]
    silent = GaugeMetricFamily("akc_reported_silence_seconds", "Since the engine's newest frame came", labels=names)
    breaker = GaugeMetricFamily("akc_reported_breaker", "1 for the state of the breaker", labels=[*names, "state"])
    in_force = GaugeMetricFamily("akc_reported_policy_in_force", "1 while it follows a policy", labels=names)
    age = GaugeMetricFamily(
        "akc_reported_policy_age_seconds", "Since the policy that it follows was issued", labels=names
    )
    slowness = GaugeMetricFamily(
        "akc_reported_slowness_ratio", "How many times the usual seconds its steps take now, estimated", labels=names
    )
    running = GaugeMetricFamily("akc_reported_requests_running", "Requests being decoded", labels=names)
    waiting = GaugeMetricFamily("akc_reported_requests_waiting", "Requests that wait for a slot", labels=names)
    for view in views:
        for one in view.reported:
            labels, passed = [view.pool, one.engine], max(0.0, now - one.seen)
            silent.add_metric(labels, passed)
            for state in BREAKER_STATES:
                breaker.add_metric([*labels, state], float(one.breaker == state))
            in_force.add_metric(labels, float(one.in_force))
            if one.policy_age is not None:
                age.add_metric(labels, one.policy_age + passed)
            slowness.add_metric(labels, one.slowness)
            running.add_metric(labels, one.running)
            waiting.add_metric(labels, one.waiting)
    yield from (silent, breaker, in_force, age, slowness, running, waiting)


def _counts(views: list[PoolView]) -> Iterator[Metric]:
    names = ["pool", "engine"]
    lost = CounterMetricFamily("akc_reported_lost_steps", "Steps that it could not count", labels=names)
    missed = CounterMetricFamily("akc_reported_frames_missed", "Frames of it that never arrived", labels=names)
    seconds = HistogramMetricFamily(
        "akc_reported_step_seconds", "Seconds between the ends of consecutive steps", labels=names
    )
    k = HistogramMetricFamily("akc_reported_row_k", "Row-steps by the K they were drafted with", labels=names)
    by_position = PositionFamilies("akc_reported", [*names, "draft"])
    for view in views:
        for one in view.reported:
            labels, sums = [view.pool, one.engine], one.sums
            lost.add_metric(labels, one.lost)
            missed.add_metric(labels, one.missed)
            seconds.add_metric(labels, _buckets(sums), sums.seconds)
            add_k(k, labels, sums.rows_by_k())
            most = sorted(sums.drafts.items(), key=lambda item: (-sum(item[1].seen[:1]), item[0]))
            for draft, positions in most[:DRAFTS_OF_AN_ENGINE]:
                by_position.add([*labels, draft], positions)
    yield from (lost, missed, seconds, k)
    yield from by_position.all()


def _buckets(sums: Sums) -> list[tuple[str, float]]:
    bounds = [*(f"{bound:.6f}" for bound in STEP_BOUNDS), "+Inf"]
    return [(bound, float(count)) for bound, count in zip(bounds, accumulate(sums.steps), strict=True)]
