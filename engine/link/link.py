"""The engine's side of the loop: admit, plan, record, finish. Whatever goes wrong in here, decoding goes on."""

import logging
import random
import time
import uuid
from collections.abc import Sequence

import msgspec

from engine.link.breaker import Breaker
from engine.link.chooser import Chooser
from engine.link.counters import Counters, ImpossibleStepError
from engine.link.follower import Follower, Judge
from engine.link.logs import Told
from engine.link.messages import NO_DRAFT, EngineDescription, Policy, Regime, load_bucket, prefill_bucket
from engine.link.reporter import Live, Reporter
from engine.link.settings import LinkSettings
from engine.link.static import StaticLink
from engine.link.ticket import RowOutcome, StepOutcome, Ticket
from engine.link.trace import RequestTrace, Tracer, trace_step

__all__ = ["Link", "RowOutcome", "StaticLink", "StepOutcome", "Ticket"]

_log = logging.getLogger(__name__)
# Plans for which a step at K = 0 may still belong to an order to run plain: engines that schedule ahead complete late.
_ORDER_LAG = 2
_NARROWED = 64  # clauses of what is not carried out that are remembered as said; after them silence


class Link:
    """Reports an engine to its pool and lets it obey the pool's policy. All calls but `status` and `close` belong to
    one thread, the decode loop; none of them does I/O, waits for a lock, or raises.

    A step with impossible numbers is left out, counted in `lost` and logged. The first internal error is logged and
    counted there too; from then on the link behaves like a `StaticLink`.
    `Link.connect` starts it; the constructor alone starts no thread and is what tests drive step by step.
    """

    def __init__(self, settings: LinkSettings, describe: EngineDescription) -> None:
        describe = msgspec.structs.replace(describe, static=settings.static)
        # A round trip checks labels and ranges: a description nobody can read must fail here, not at the controller.
        describe = msgspec.convert(msgspec.to_builtins(describe), EngineDescription)
        self.incarnation = uuid.uuid4().hex
        self.counters = Counters(key_cap=settings.key_cap, cost_cap=settings.cost_cap, pending=settings.pending_steps)
        self._settings = settings
        self._fallback = StaticLink(settings.static.draft, settings.static.k)
        self._rng = random.Random(settings.seed)
        self._chooser = Chooser(
            describe,
            clock=time.monotonic,
            rng=self._rng,
            nonadaptive=settings.nonadaptive,
            guarded=settings.breaker,
            switch=self.counters.switch,
        )
        self._breaker = Breaker() if settings.breaker else None
        self._tracer = None
        if settings.trace_dir is not None:
            self._tracer = Tracer(settings.trace_dir, settings.engine_id, self.incarnation, settings.trace_buffer)
        self.judge = Judge(settings.pool, self._use, settings.engine_id)
        self.follower = Follower(settings, self.judge)
        chores = [self._tracer.flush] if self._tracer is not None else []
        self.reporter = Reporter(settings, describe, self.incarnation, self.counters, self._live, chores)
        self._log = Told(
            _log, pool=settings.pool, engine=settings.engine_id, policy_version=lambda: self._chooser.version
        )
        self._running = 0
        self._waiting = 0
        self._lost = 0
        self._refused = 0
        self._ordered = 0
        self._recorded = 0
        self._broken: str | None = None
        self._narrowed: set[str] = set()

    @classmethod
    def connect(cls, settings: LinkSettings, describe: EngineDescription) -> "Link":
        """A link that reports and follows from now on. Returns at once, whether the server can be reached or not.

        Raises `ValueError` (or msgspec's `ValidationError`) for a description or a URL that nobody could use.
        """
        link = cls(settings, describe)
        link.follower.start()
        link.reporter.start()
        return link

    def admit(self, domain: str, regime: Regime, batch: int) -> Ticket:
        """A ticket for a new request. `batch`: decode rows, this one included.

        The domain is taken over as a label of at most 64 characters without control characters; others, and those
        beyond the engine's cap, count as `other`.
        """
        self._running += 1
        if self._broken is None:
            try:
                return self._admit(domain, regime, batch)
            except Exception as error:
                self._fail("admit", error)
        return self._fallback.admit(domain, regime, batch)

    def _admit(self, domain: str, regime: Regime, batch: int) -> Ticket:
        ticket = self._chooser.admit(domain, regime, batch)
        ticket.domain = self.counters.place(domain, regime, ticket.draft)
        if self._tracer is not None:
            ticket.trace = RequestTrace(ticket.draft)
        return ticket

    def plan(self, tickets: Sequence[Ticket], batch: int) -> list[int]:
        """K for every decode row of the next step, before the engine's own clamps. Call it once a step."""
        if self._broken is None:
            try:
                return self._plan(tickets, batch)
            except Exception as error:
                self._fail("plan", error)
        static = self._fallback.static.k
        return [0 if ticket.draft == NO_DRAFT else static for ticket in tickets]

    def _plan(self, tickets: Sequence[Ticket], batch: int) -> list[int]:
        if self._breaker is not None and self._breaker.blocks(load_bucket(batch)):
            self._ordered = _ORDER_LAG
            return [0] * len(tickets)
        planned = self._chooser.plan(tickets, batch)
        if self._chooser.probing:
            self._ordered = _ORDER_LAG
        elif self._ordered:
            self._ordered -= 1
        return planned

    def record(self, step: StepOutcome) -> None:
        """Take in a completed step."""
        if self._broken is not None:
            self._lost += 1
            return
        try:
            self._record(step)
        except ImpossibleStepError as error:
            self._refuse(error)
        except Exception as error:
            self._fail("record", error)

    def _record(self, step: StepOutcome) -> None:
        rows = len(step.rows)
        load = load_bucket(rows)
        # A pass that only keeps a draft in step (tokens 0) guesses nothing: paused is as near to plain as such a batch
        # can come, and neither a probe nor a breaker that waits for plain steps would ever end without it.
        tokens, plain = 0, not any(asked for asked, _ in step.drafted.values())
        for row in step.rows:
            tokens += row.emitted
            if row.drafted:
                plain = False
        ordered = plain and self._ordered > 0
        self._recorded += 1  # the counters' own number lags while a snapshot is being taken
        self.counters.record(step, probing=ordered)
        if self._tracer is not None:  # before the rows' own evidence moves their K
            trace_step(step, self._recorded, ordered=ordered, version=self._chooser.version)
        self._chooser.observe(step)
        if self._breaker is not None:
            prefill = prefill_bucket(step.prefill)
            self._breaker.observe(load, prefill, plain=plain, rows=rows, tokens=tokens, seconds=step.seconds)

    def finish(self, ticket: Ticket) -> None:
        """The request has ended or was aborted. Call it once, after its last step was recorded."""
        self._running -= 1
        if self._broken is not None:
            return
        try:
            self.counters.finish(ticket)
            if self._tracer is not None:
                self._tracer.finish(ticket)
        except Exception as error:
            self._fail("finish", error)

    def queue(self, waiting: int) -> None:
        """Say how many requests wait for admission; it travels with the next frame."""
        self._waiting = waiting

    def close(self, timeout: float = 3.0) -> None:
        """Send the last frame and stop the threads, in at most about `timeout` seconds."""
        deadline = time.monotonic() + timeout
        ended = self.reporter.close(timeout)
        ended = self.follower.close(max(0.1, deadline - time.monotonic())) and ended
        if self._tracer is not None and ended:
            self._tracer.flush()
        if not ended:
            self._log.warning("link: a background thread is still waiting for the server; leaving it behind")

    def status(self) -> dict[str, object]:
        """What the link knows about itself, for the engine's status page and logs."""
        return {
            **self._chooser.status(),
            "policy": self.judge.why,
            "narrowed": self._chooser.narrowed,
            "policy_reads": dict(self.judge.counts),
            "connected": self.reporter.connected and self.follower.connected,
            "why": self._broken or self.reporter.why or self.follower.why,
            "breaker": "closed" if self._breaker is None else self._breaker.state,
            "breaker_by_load": {} if self._breaker is None else self._breaker.status(),
            "frames": {"delivered": self.reporter.delivered, "failed": self.reporter.failed},
            "steps": self.counters.steps,
            "unreported": self.reporter.unreported,
            "pending": self.counters.waiting,
            "running": self._running,
            "lost": self._lost + self.counters.lost,
            "refused": self._refused,
            "trace_dropped": 0 if self._tracer is None else self._tracer.dropped,
        }

    def _use(self, policy: Policy | None, unix_now: float) -> None:
        """Let the chooser take over a policy. What this engine cannot carry out is said once: policies come every
        second, and in a pool of engines that differ it is no fault."""
        self._chooser.use(policy, unix_now)
        news = [clause for clause in self._chooser.narrowed if clause not in self._narrowed]
        if news and len(self._narrowed) < _NARROWED:
            self._narrowed.update(news)
            self._log.info("link: the policy asks for what this engine has not: %s", "; ".join(news))

    def _live(self) -> Live:
        return Live(
            None if self._broken else self._chooser.version,
            "closed" if self._breaker is None else self._breaker.state,
            max(0, self._running),
            self._waiting,
            self._lost + self.counters.lost,
            None if self._broken else self._chooser.age,
        )

    def _refuse(self, error: ImpossibleStepError) -> None:
        self._lost += 1
        self._refused += 1
        if self._refused & (self._refused - 1) == 0:  # the 1st, 2nd, 4th, 8th, ...: an engine that always errs is heard
            self._log.warning("link: step left out (%d so far): %s", self._refused, error)

    def _fail(self, where: str, error: Exception) -> None:
        self._lost += 1
        self._broken = f"internal error in {where}: {error!r}"
        self._log.error(
            "link: %s; the static choice (%s, K = %d) is in force until this engine restarts. Please report this.",
            self._broken,
            self._fallback.static.draft,
            self._fallback.static.k,
            exc_info=error,
        )
