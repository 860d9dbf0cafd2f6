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
    asked = [value(samples, "akc_engine_position_drafted_total", draft="ngram", position=str(i)) for i in (1, 2, 3)]
    kept = [value(samples, "akc_engine_position_accepted_total", draft="ngram", position=str(i)) for i in (1, 2, 3)]
    assert asked == [3, 3, 2]  # two of K = 3, one of K = 2; the third position was decided once
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


def test_rows_are_counted_by_domain_and_k() -> None:
    meter = Meter()
    code, chat = Ticket("code", "greedy", "ngram"), Ticket("chat", "greedy", "none")
    rows = [RowOutcome(code, 7, 0, 1, 1), RowOutcome(code, 2, 0, 1, 1), RowOutcome(chat, 0, 0, 0, 1)]
    meter.count(StepOutcome(0.05, rows, 12, drafted={"ngram": (9, 7)}))
    samples = scraped(meter, {})
    below = [value(samples, "akc_engine_row_k_bucket", domain="code", le=le) for le in ("1", "2", "6", "8", "+Inf")]
    assert below == [0, 1, 1, 2, 2]
    assert value(samples, "akc_engine_row_k_sum", domain="code") == 9
    assert value(samples, "akc_engine_row_k_bucket", domain="chat", le="0") == 1


def test_load_answers_and_the_policy_in_force() -> None:
    meter = Meter()
    status: dict[str, object] = {"version": None, "policy_age": None, "connected": True, "lost": 2}
    assert ("akc_engine_policy_age_seconds", frozenset()) not in scraped(meter, status)
    status |= {"version": (170, 4), "policy_age": 7.5}
    samples = scraped(meter, status)
    assert value(samples, "akc_engine_running_requests") == 2
    assert value(samples, "akc_engine_waiting_requests") == 1
    assert value(samples, "akc_engine_http_answers_total", path="/health", status="200") == 3
    assert value(samples, "akc_engine_policy_epoch") == 170
    assert value(samples, "akc_engine_policy_number") == 4
    assert value(samples, "akc_engine_policy_age_seconds") == 7.5
    assert value(samples, "akc_engine_link_connected") == 1
    assert value(samples, "akc_engine_link_lost_steps_total") == 2


def test_the_breaker_and_what_became_of_the_reports() -> None:
    status: dict[str, object] = {
        "breaker": "half-open", "frames": {"delivered": 8, "failed": 3}, "unreported": 40, "pending": 1,
        "trace_dropped": 5,
    }  # fmt: skip
    samples = scraped(Meter(), status)
    states = [value(samples, "akc_engine_breaker", state=state) for state in ("closed", "half-open", "open")]
    assert states == [0, 1, 0]
    assert value(samples, "akc_engine_link_frames_total", outcome="delivered") == 8
    assert value(samples, "akc_engine_link_frames_total", outcome="failed") == 3
    assert value(samples, "akc_engine_link_unreported_steps") == 40
    assert value(samples, "akc_engine_link_pending_steps") == 1
    assert value(samples, "akc_engine_link_trace_dropped_total") == 5
