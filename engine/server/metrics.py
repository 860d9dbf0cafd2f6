"""Prometheus metrics: a meter that adds up the engine's steps, and a collector that shows it.

The meter costs the decode loop a few additions a step; the text is made when somebody scrapes.
"""

import bisect
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.link.messages import MAX_K, OTHER
from engine.link.ticket import StepOutcome

BUCKETS = (0.005, 0.01, 0.02, 0.035, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)  # seconds of a step
K_BOUNDS = (0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
BREAKER_STATES = ("closed", "half-open", "open")
MOST_DOMAINS = 64  # domains that get a label of their own


class Meter:
    """Sums over completed steps. Written by the decode thread only; a reader may see a step half added, never lost."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.prefill = 0
        self.buckets = [0] * (len(BUCKETS) + 1)
        self.tokens: dict[tuple[str, str], int] = defaultdict(int)  # (domain, draft) -> emitted
        self._domains: set[str] = set()
        self.drafted: dict[str, int] = defaultdict(int)
        self.asked: dict[str, list[int]] = {}  # draft -> by position
        self.seen: dict[str, list[int]] = {}
        self.accepted: dict[str, list[int]] = {}
        self.rows: dict[str, list[int]] = {}  # domain -> row-steps by K

    def _labelled(self, domain: str) -> str:
        """The domain, or `other` for the newcomer after `MOST_DOMAINS`: labels come from clients and never leave."""
        if domain not in self._domains:
            if len(self._domains) >= MOST_DOMAINS:
                return OTHER
            self._domains.add(domain)
        return domain

    def count(self, step: StepOutcome) -> None:
        """Add a step."""
        self.seconds += step.seconds
        self.prefill += step.prefill
        self.buckets[bisect.bisect_left(BUCKETS, step.seconds)] += 1
        for row in step.rows:
            draft, domain = row.ticket.draft, self._labelled(row.ticket.domain)
            self.tokens[domain, draft] += row.emitted
            self.rows.setdefault(domain, [0] * (MAX_K + 1))[row.drafted] += 1
            if row.drafted:
                self.drafted[draft] += row.drafted
                reached = (row.drafted, row.seen, min(row.accepted, row.seen))
                for counts, positions in zip((self.asked, self.seen, self.accepted), reached, strict=True):
                    by_position = counts.setdefault(draft, [])
                    by_position.extend([0] * (row.drafted - len(by_position)))
                    for i in range(positions):
                        by_position[i] += 1


class EngineCollector(Collector):
    """The meter, the engine's load and the link's state as metric families.

    `load()` gives (running, waiting), `status()` the link's status, `answers` counts HTTP answers by path and status.
    """

    def __init__(
        self,
        meter: Meter,
        load: Callable[[], tuple[int, int]],
        status: Callable[[], Mapping[str, object]],
        answers: Mapping[tuple[str, int], int],
    ) -> None:
        self._meter = meter
        self._load = load
        self._status = status
        self._answers = answers

    def collect(self) -> Iterator[Metric]:
        """All families, in a fixed order."""
        meter = self._meter
        steps = HistogramMetricFamily("akc_engine_step_seconds", "Seconds between the ends of consecutive steps.")
        steps.add_metric([], _cumulative(BUCKETS, meter.buckets), meter.seconds)
        yield steps
        rows = HistogramMetricFamily(
            "akc_engine_row_k", "Row-steps by the K they were drafted with.", labels=["domain"]
        )
        for domain, by_k in sorted(meter.rows.copy().items()):
            edges = (0, *(bound + 1 for bound in K_BOUNDS))
            counts = [sum(by_k[low:high]) for low, high in pairwise(edges)]
            rows.add_metric([domain], _cumulative(K_BOUNDS, [*counts, 0]), sum(k * n for k, n in enumerate(by_k)))
        yield rows
        yield CounterMetricFamily("akc_engine_prefill_tokens", "Prompt tokens processed.", value=meter.prefill)
        tokens = CounterMetricFamily(
            "akc_engine_emitted_tokens", "Tokens emitted by decode steps.", labels=["domain", "draft"]
        )
        for (domain, draft), value in sorted(meter.tokens.copy().items()):
            tokens.add_metric([domain, draft], value)
        yield tokens
        drafted = CounterMetricFamily("akc_engine_drafted_tokens", "Draft tokens verified.", labels=["draft"])
        for draft, value in sorted(meter.drafted.copy().items()):
            drafted.add_metric([draft], value)
        yield drafted
        names = ["draft", "position"]
        asked = CounterMetricFamily(
            "akc_engine_position_drafted", "Times a position was asked of the draft.", labels=names
        )
        seen = CounterMetricFamily(
            "akc_engine_position_seen", "Times the outcome at a draft position was decided.", labels=names
        )
        accepted = CounterMetricFamily(
            "akc_engine_position_accepted", "Times the token at a draft position was kept.", labels=names
        )
        for draft in sorted(meter.seen.copy()):
            for family, counted in ((asked, meter.asked), (seen, meter.seen), (accepted, meter.accepted)):
                for position, value in enumerate(counted.get(draft, ()), 1):
                    family.add_metric([draft, str(position)], value)
        yield from (asked, seen, accepted)
        running, waiting = self._load()
        yield GaugeMetricFamily("akc_engine_running_requests", "Requests in the batch.", value=running)
        yield GaugeMetricFamily("akc_engine_waiting_requests", "Requests that wait for a slot.", value=waiting)
        answers = CounterMetricFamily(
            "akc_engine_http_answers", "Answers by path and status.", labels=["path", "status"]
        )
        for (path, code), value in sorted(dict(self._answers).items()):
            answers.add_metric([path, str(code)], value)
        yield answers
        status = self._status()
        yield from _policy(status)
        yield from _link(status)


def _cumulative(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Buckets as Prometheus has them, from counts within each bound and beyond the last.

    >>> _cumulative((1, 2), (3, 0, 4))
    [('1', 3.0), ('2', 3.0), ('+Inf', 7.0)]
    """
    return [(bound, float(total)) for bound, total in zip([*map(str, bounds), "+Inf"], accumulate(counts), strict=True)]


def _policy(status: Mapping[str, object]) -> Iterator[Metric]:
    """The policy in force; no samples without one."""
    version, age = status.get("version"), status.get("policy_age")
    epoch = GaugeMetricFamily("akc_engine_policy_epoch", "Epoch of the policy in force.", labels=[])
    number = GaugeMetricFamily("akc_engine_policy_number", "Number of the policy within it.", labels=[])
    since = GaugeMetricFamily("akc_engine_policy_age_seconds", "Since the policy in force was issued.", labels=[])
    if isinstance(version, list | tuple) and len(version) == 2:
        epoch.add_metric([], version[0])
        number.add_metric([], version[1])
        if isinstance(age, int | float):
            since.add_metric([], age)
    yield from (epoch, number, since)


def _link(status: Mapping[str, object]) -> Iterator[Metric]:
    """The breaker, and what has become of the reports."""
    breaker = GaugeMetricFamily("akc_engine_breaker", "1 for the state of the breaker.", labels=["state"])
    if "breaker" in status:
        for state in BREAKER_STATES:
            breaker.add_metric([state], float(status["breaker"] == state))
    yield breaker
    yield GaugeMetricFamily(
        "akc_engine_link_connected", "1 while Redis answers.", value=float(bool(status.get("connected", False)))
    )
    frames = CounterMetricFamily("akc_engine_link_frames", "Frames made, by what became of them.", labels=["outcome"])
    sent = status.get("frames")
    for outcome, value in sorted(sent.items()) if isinstance(sent, Mapping) else ():
        frames.add_metric([outcome], value)
    yield frames
    for name, key, text in (
        ("akc_engine_link_unreported_steps", "unreported", "Steps that no delivered frame holds yet."),
        ("akc_engine_link_pending_steps", "pending", "Steps held back while a frame is being made."),
    ):
        yield GaugeMetricFamily(name, text, value=_number(status, key))
    for name, key, text in (
        ("akc_engine_link_lost_steps", "lost", "Steps the link could not record."),
        ("akc_engine_link_trace_dropped", "trace_dropped", "Ended requests left out of the trace."),
    ):
        yield CounterMetricFamily(name, text, value=_number(status, key))


def _number(status: Mapping[str, object], key: str) -> float:
    value = status.get(key)
    return float(value) if isinstance(value, int | float) else 0.0
