"""The optional trace: one JSON line per request, with what was drawn, how probable it was, and what came of it."""

import logging
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from engine.link.messages import Message, Regime, Version, load_bucket
from engine.link.ticket import LinkLike, RowOutcome, StepOutcome, Ticket

_log = logging.getLogger(__name__)
MAX_TRACED_STEPS = 8192


class TraceLine(Message, frozen=True):
    """One request. Lists run over its steps: `step` (number of the engine's step: rows of one step share it), `load`
    (load bucket), `k` (planned), `p` (probability of the K that ran, given the draft; null where the request's own
    evidence, a clamp, a probe or the breaker set it), `drafted`, `accepted`, `seen`, `emitted`, `limited`, `seconds`
    (of the whole step), `batch` (its decode rows), `prefill` (prompt tokens read in it; 0, like `batch`, where the
    writer does not say).
    `draft`, `draft_p`: draft at admission and its probability. Where the engine changed the draft within the request,
    by step: `switched` the draft, `draft_ps` its probability (null without a policy), `versions` the policy in force;
    else these are empty. `version`: policy at admission, null for the static choice.
    """

    engine: str
    incarnation: str
    request: int
    domain: str
    regime: str
    draft: str
    draft_p: float
    origin: str
    version: Version | None
    steps: Annotated[int, msgspec.Meta(ge=0)]
    step: list[int]
    load: list[int]
    k: list[int]
    p: list[float | None]
    drafted: list[int]
    accepted: list[int]
    seen: list[int]
    emitted: list[int]
    limited: list[bool]
    seconds: list[float]
    batch: list[int] = msgspec.field(default_factory=list)
    prefill: list[int] = msgspec.field(default_factory=list)
    switched: list[str] = msgspec.field(default_factory=list)
    draft_ps: list[float | None] = msgspec.field(default_factory=list)
    versions: list[Version | None] = msgspec.field(default_factory=list)


_STEP_FIELDS = TraceLine.__struct_fields__[TraceLine.__struct_fields__.index("step") :]


class RequestTrace:
    """Steps of one request while it runs; the first 8192 are kept."""

    __slots__ = ("draft", "rows", "steps", "switched")

    def __init__(self, draft: str) -> None:
        self.steps = 0
        self.draft = draft
        self.switched = False
        self.rows: list[tuple[Any, ...]] = []  # in the order of the fields of TraceLine from `step` on

    def add(
        self,
        number: int,
        load: int,
        row: RowOutcome,
        seconds: float,
        *,
        ordered: bool,
        batch: int = 0,
        prefill: int = 0,
        version: Version | None = None,
    ) -> None:
        """Keep one row of a completed step; `ordered`: the whole batch was told to run at K = 0."""
        self.steps += 1
        if len(self.rows) >= MAX_TRACED_STEPS:
            return
        ticket, drafted, accepted, seen, emitted, limited = row
        choice = ticket.choice
        p: float | None = 1.0
        if ordered or limited or (ticket.evidence is not None and ticket.evidence.own_k is not None):
            p = None
        elif choice is not None:
            # An adaptive request draws nothing: it runs the most probable arm.
            p = (
                (1.0 if drafted == choice.best_k else None)
                if ticket.origin == "request"
                else choice.probability.get(drafted)
            )
        planned = 0 if ordered else ticket.k
        shown = (drafted, accepted, seen, emitted, limited, seconds, batch, prefill)
        share = None if choice is None else 1.0 if ticket.origin == "request" else choice.p
        self.rows.append((number, load, planned, p, *shown, ticket.draft, share, version))
        self.switched |= ticket.draft != self.draft


def trace_step(step: StepOutcome, number: int, *, ordered: bool = False, version: Version | None = None) -> None:
    """Add a completed step to the traces of its rows' requests."""
    batch = len(step.rows)
    load = load_bucket(batch)
    for row in step.rows:
        if row.ticket.trace is not None:
            row.ticket.trace.add(
                number, load, row, step.seconds, ordered=ordered, batch=batch, prefill=step.prefill, version=version
            )


class Tracer:
    """Lines of finished requests on their way to `<dir>/<engine>-<incarnation>.jsonl`.

    `finish` is called on the decode thread and only appends to a bounded buffer; `flush` writes, on another thread. A
    full buffer or a full disk costs lines, counted in `dropped`, never a request.
    """

    def __init__(self, directory: Path, engine: str, incarnation: str, buffer: int) -> None:
        safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in engine)
        self.path = directory / f"{safe}-{incarnation}.jsonl"
        self.dropped = 0
        self._names = (engine, incarnation)
        self.buffer = buffer
        self._done: deque[tuple[Ticket, RequestTrace]] = deque()
        self._encoder = msgspec.json.Encoder()

    def finish(self, ticket: Ticket) -> None:
        """Hand over a request that has ended."""
        trace, ticket.trace = ticket.trace, None
        if trace is None:
            return
        if len(self._done) >= self.buffer:
            self.dropped += 1
        else:
            self._done.append((ticket, trace))

    def flush(self) -> None:
        """Write what has been handed over."""
        if not self._done:
            return
        lines: list[bytes] = []
        while self._done:
            lines.append(self._encoder.encode(self._line(*self._done.popleft())))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "ab") as file:
                file.write(b"\n".join(lines) + b"\n")
        except OSError as error:
            self.dropped += len(lines)
            _log.warning("trace: %d lines lost, %s cannot be written: %s", len(lines), self.path, error)

    def _line(self, ticket: Ticket, trace: RequestTrace) -> TraceLine:
        columns: list[list[Any]] = [list(c) for c in zip(*trace.rows, strict=True)] or [[] for _ in _STEP_FIELDS]
        if not trace.switched:
            columns[-3:] = [[], [], []]
        by_step: dict[str, Any] = dict(zip(_STEP_FIELDS, columns, strict=True))
        return TraceLine(
            *self._names,
            ticket.number,
            ticket.domain,
            ticket.regime,
            trace.draft,
            ticket.probability,
            ticket.origin,
            ticket.version,
            trace.steps,
            **by_step,
        )


class Traced:
    """Any link with a trace around it: for engines without a controller, and for pinned requests, which no link sees.

    It has no thread. Lines are written when the last running request has ended, which no step waits for, or when a
    quarter of the tracer's buffer is full, at the cost of a millisecond in one step.
    """

    def __init__(self, link: LinkLike, tracer: Tracer) -> None:
        self._link = link
        self._tracer = tracer
        self._admitted = 0
        self._open = 0
        self._steps = 0
        self._unwritten = 0

    def admit(self, domain: str, regime: Regime, batch: int) -> Ticket:
        """The link's ticket, numbered here: pinned requests have no number of the link's."""
        ticket = self._link.admit(domain, regime, batch)
        self._admitted += 1
        self._open += 1
        ticket.number = self._admitted
        ticket.trace = RequestTrace(ticket.draft)
        return ticket

    def plan(self, tickets: Sequence[Ticket], batch: int) -> list[int]:
        """The link's plan."""
        planned = self._link.plan(tickets, batch)
        for ticket, k in zip(tickets, planned, strict=True):
            ticket.k = k
        return planned

    def record(self, step: StepOutcome) -> None:
        """Trace the step and pass it on."""
        self._link.record(step)
        self._steps += 1
        trace_step(step, self._steps)

    def finish(self, ticket: Ticket) -> None:
        """Hand the request's line over."""
        self._link.finish(ticket)
        self._tracer.finish(ticket)
        self._open -= 1
        self._unwritten += 1
        if not self._open or self._unwritten >= max(1, self._tracer.buffer // 4):
            self._tracer.flush()
            self._unwritten = 0

    def queue(self, waiting: int) -> None:
        """Pass it on."""
        self._link.queue(waiting)
