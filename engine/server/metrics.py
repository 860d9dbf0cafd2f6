"""Prometheus metrics: a meter that adds up the engine's steps, and a collector that shows it.

The meter costs the decode loop a few additions a step; the text is made when somebody scrapes.
"""

import bisect
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.link.messages import OTHER, Version
from engine.link.ticket import StepOutcome, Ticket

BUCKETS = (0.005, 0.01, 0.02, 0.035, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)  # seconds of a step


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
        self.seen: dict[str, list[int]] = {}  # draft -> by position
        self.accepted: dict[str, list[int]] = {}
        self.version: Version | None = None
        self.version_since = 0.0

    def _labelled(self, domain: str) -> str:
        """The domain, or `other` for the newcomer after `MOST_DOMAINS`: labels come from clients and never leave."""
        if domain not in self._domains:
            if len(self._domains) >= MOST_DOMAINS:
                return OTHER
            self._domains.add(domain)
        return domain

    def admit(self, ticket: Ticket) -> None:
        """Note when requests begin to come under a newer policy."""
        if ticket.version != self.version:
            self.version, self.version_since = ticket.version, time.monotonic()

    def count(self, step: StepOutcome) -> None:
        """Add a step."""
        self.seconds += step.seconds
        self.prefill += step.prefill
        self.buckets[bisect.bisect_left(BUCKETS, step.seconds)] += 1
        for row in step.rows:
            draft = row.ticket.draft
            self.tokens[self._labelled(row.ticket.domain), draft] += row.emitted
            if row.drafted:
                self.drafted[draft] += row.drafted
                seen, accepted = self.seen.setdefault(draft, []), self.accepted.setdefault(draft, [])
                missing = row.seen - len(seen)
                if missing > 0:
                    seen.extend([0] * missing)
                    accepted.extend([0] * missing)
                for i in range(row.seen):
                    seen[i] += 1
                for i in range(min(row.accepted, row.seen)):
                    accepted[i] += 1


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
        cumulative, total = [], 0
        for bound, count in zip([*map(str, BUCKETS), "+Inf"], meter.buckets, strict=True):
            total += count
            cumulative.append((bound, float(total)))
        steps.add_metric([], cumulative, meter.seconds)
        yield steps
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
        seen = CounterMetricFamily(
            "akc_engine_position_seen", "Times the outcome at a draft position was decided.", labels=names
        )
        accepted = CounterMetricFamily(
            "akc_engine_position_accepted", "Times the token at a draft position was kept.", labels=names
        )
        for draft in sorted(meter.seen.copy()):
            for family, values in ((seen, meter.seen[draft]), (accepted, meter.accepted[draft])):
                for position, value in enumerate(values, 1):
                    family.add_metric([draft, str(position)], value)
        yield seen
        yield accepted
        running, waiting = self._load()
        yield GaugeMetricFamily("akc_engine_running_requests", "Requests in the batch.", value=running)
        yield GaugeMetricFamily("akc_engine_waiting_requests", "Requests that wait for a slot.", value=waiting)
        answers = CounterMetricFamily(
            "akc_engine_http_answers", "Answers by path and status.", labels=["path", "status"]
        )
        for (path, status), value in sorted(dict(self._answers).items()):
            answers.add_metric([path, str(status)], value)
        yield answers
        yield from self._policy()

    def _policy(self) -> Iterator[Metric]:
        status = self._status()
        version = status.get("version")
        if isinstance(version, list | tuple) and len(version) == 2:
            yield GaugeMetricFamily("akc_engine_policy_epoch", "Epoch of the policy in force.", value=version[0])
            yield GaugeMetricFamily("akc_engine_policy_number", "Number of the policy within it.", value=version[1])
            if self._meter.version is not None:
                help_text = "Seconds since a request was first admitted under the newest policy version."
                age = time.monotonic() - self._meter.version_since
                yield GaugeMetricFamily("akc_engine_policy_age_seconds", help_text, value=age)
        yield GaugeMetricFamily(
            "akc_engine_link_connected", "1 while Redis answers.", value=float(bool(status.get("connected", False)))
        )
        lost = status.get("lost")
        value = float(lost) if isinstance(lost, int | float) else 0.0
        yield CounterMetricFamily("akc_engine_link_lost_steps", "Steps the link could not record.", value=value)
