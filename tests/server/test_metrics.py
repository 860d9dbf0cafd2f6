"""Metrics: counts worked out by hand from a few steps."""

from collections import Counter

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from engine.link import RowOutcome, StaticLink, StepOutcome, Ticket
from engine.server.metrics import BUCKETS, EngineCollector, Meter


def scraped(meter: Meter, status: dict[str, object]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    registry = CollectorRegistry()
    registry.register(EngineCollector(meter, lambda: (2, 1), lambda: status, Counter({("/health", 200): 3})))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {(s.name, frozenset(s.labels.items())): s.value for f in families for s in f.samples}


def value(samples: dict[tuple[str, frozenset[tuple[str, str]]], float], name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


def test_each_position_has_its_own_denominator() -> None:
    meter = Meter()
    ticket = StaticLink("ngram", 3).admit("code", "greedy", 1)
    # 3 drafted: first kept, second rejected. Then 3 drafted, all kept. Then 2 drafted, both kept, cut before more.
    meter.count(StepOutcome(0.05, [RowOutcome(ticket, 3, 1, 2, 2)], 4, drafted={"ngram": (3, 0)}))
    meter.count(StepOutcome(0.05, [RowOutcome(ticket, 3, 3, 3, 4)], 4, drafted={"ngram": (3, 0)}))
    meter.count(StepOutcome(9.0, [RowOutcome(ticket, 2, 2, 2, 2)], 3, prefill=7, drafted={"ngram": (2, 0)}))
    samples = scraped(meter, {})
    seen = [value(samples, "akc_engine_position_seen_total", draft="ngram", position=str(i)) for i in (1, 2, 3)]
    kept = [value(samples, "akc_engine_position_accepted_total", draft="ngram", position=str(i)) for i in (1, 2, 3)]
    assert seen == [3, 3, 1]
    assert kept == [3, 2, 1]
    assert value(samples, "akc_engine_drafted_tokens_total", draft="ngram") == 8
    assert value(samples, "akc_engine_emitted_tokens_total", domain="code", draft="ngram") == 8
    assert value(samples, "akc_engine_prefill_tokens_total") == 7


def test_step_seconds_are_a_cumulative_histogram() -> None:
    meter = Meter()
    for seconds in (0.001, 0.005, 0.006, 99.0):
        meter.count(StepOutcome(seconds, [], 0))
    samples = scraped(meter, {})
    assert value(samples, "akc_engine_step_seconds_bucket", le="0.005") == 2  # a bound belongs to its bucket
    assert value(samples, "akc_engine_step_seconds_bucket", le="0.01") == 3
    assert value(samples, "akc_engine_step_seconds_bucket", le=str(BUCKETS[-1])) == 3
    assert value(samples, "akc_engine_step_seconds_bucket", le="+Inf") == 4
    assert value(samples, "akc_engine_step_seconds_count") == 4


def test_load_answers_and_the_policy_in_force() -> None:
    meter = Meter()
    status: dict[str, object] = {"version": (170, 4), "connected": True, "lost": 2}
    assert ("akc_engine_policy_age_seconds", frozenset()) not in scraped(meter, status)
    meter.admit(Ticket("code", "greedy", "ngram", version=(170, 4)))
    samples = scraped(meter, status)
    assert value(samples, "akc_engine_running_requests") == 2
    assert value(samples, "akc_engine_waiting_requests") == 1
    assert value(samples, "akc_engine_http_answers_total", path="/health", status="200") == 3
    assert value(samples, "akc_engine_policy_epoch") == 170
    assert value(samples, "akc_engine_policy_number") == 4
    assert 0 <= value(samples, "akc_engine_policy_age_seconds") < 60
    assert value(samples, "akc_engine_link_connected") == 1
    assert value(samples, "akc_engine_link_lost_steps_total") == 2
