"""What happened and happens: history for charts, and the event stream."""

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import Field, TypeAdapter

from controller.api.access import LoopOf
from controller.api.limits import listening
from controller.api.pools import PoolSummary, summary
from controller.api.problems import documented
from controller.history import Sample
from controller.view import DomainName, DraftName, Interval, RegimeName, UnixSeconds

router = APIRouter(prefix="/v1/pools/{pool}", tags=["pools"])

HOUR = 3600.0
_summary = TypeAdapter(PoolSummary)


@dataclass(frozen=True, slots=True)
class PlayedThen:
    """A domain's arm in force at the load most of it was served at, and what came of it. `acceptance`: posterior means
    at the draft's first positions; unlike `accepted_per_step` it does not move with K."""

    domain: DomainName
    regime: RegimeName
    draft: DraftName
    k: int
    tokens_per_second: float | None
    accepted_per_step: float | None
    load: int | None
    acceptance: list[float]


@dataclass(frozen=True, slots=True)
class Moment:
    """One sample. `goodput`: tokens per second of engines' steps; `plain`: what plain decoding is estimated to have
    given at the same loads, `static` what the operators' static choice would have."""

    time: UnixSeconds
    goodput: float | None
    speedup: Interval | None
    plain: float | None
    static: float | None
    rows: Annotated[float | None, Field(description="mean decode rows of a step")]
    running: int
    waiting: int
    domains: list[PlayedThen]
    measuring: Annotated[bool, Field(description="a measurement ran")] = False
    fixed: Annotated[bool, Field(description="in a window of it in which all play its fixed choice")] = False


def moment(one: Sample) -> Moment:
    """A sample for people."""
    speedup = None if one.speedup is None else Interval(*one.speedup)
    plain = one.goodput / speedup.value if one.goodput is not None and speedup is not None else None
    static = plain * one.static if plain is not None and one.static is not None else None
    domains = [
        PlayedThen(
            d.domain, d.regime, d.draft, d.k, d.tokens_per_second, d.accepted_per_step, d.load, list(d.acceptance)
        )
        for d in one.domains
    ]
    return Moment(
        one.time, one.goodput, speedup, plain, static, one.rows, one.running, one.waiting, domains, one.measuring,
        one.fixed,
    )  # fmt: skip


@router.get("/history", responses=documented(404, 422))
async def read_history(
    loop: LoopOf,
    since: Annotated[float | None, Query(description="Unix seconds; null: an hour before `until`")] = None,
    until: Annotated[float | None, Query(description="Unix seconds; null: now")] = None,
    points: Annotated[int, Query(ge=1, le=1000)] = 300,
) -> list[Moment]:
    """How it went, oldest first: goodput, what plain decoding and the static choice are estimated to have given, load,
    draft, K and acceptance by domain; a day is kept, its last quarter of an hour densely."""
    end = time.time() if until is None else until
    return [moment(one) for one in loop.history.between(end - HOUR if since is None else since, end, points)]


@router.get(
    "/events",
    response_class=EventSourceResponse,
    responses=documented(404, 503),
    dependencies=[Depends(listening)],
)
async def events(
    request: Request,
    loop: LoopOf,
    last_event_id: Annotated[str | None, Header(description="go on after this event")] = None,
) -> AsyncIterator[ServerSentEvent]:
    """Server-sent events `state` (the pool's summary, after every decision), `decision` (some cell's most probable arm
    changed) and `order` (somebody steered); with `Last-Event-ID` from there on. A comment every 15 s where nothing
    happens. 503 where too many listen."""
    state = request.app.state
    async for event in loop.feed.after(last_event_id, lambda: bool(state.ending)):
        data = event.data or _summary.dump_json(summary(loop))
        yield ServerSentEvent(raw_data=data.decode(), event=event.kind, id=event.id)
