"""Steering: modes, pins, resets, drafts. Every change is written with an audit entry: who, when, what, why."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Header, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from controller import steering
from controller.api.access import AdminOf, LoopOf
from controller.api.problems import ProblemError, documented, redis_problem
from controller.audit import Act
from controller.loop import PoolLoop
from controller.steering import Measure as Measurement
from controller.steering import OrderError, Orders, Pin
from controller.store import UNAVAILABLE
from controller.tuner import Tuner
from controller.view import DomainName, DraftName, UnixSeconds
from engine.link.messages import MAX_K, Mode, Regime

log = logging.getLogger("controller")
router = APIRouter(prefix="/v1/pools/{pool}", tags=["steer"])

TRIES = 5  # when somebody else steers at the same moment
_STOP = "stop measuring"

_WHY = f"for the audit log and the controller's log: up to {steering.MAX_NOTE} characters; may be empty"
Why = Annotated[str, Field(max_length=steering.MAX_NOTE, description=_WHY, examples=["load test"])]
WhyAsked = Annotated[str, Query(max_length=steering.MAX_NOTE, description=_WHY)]  # where there is no body
IfMatch = Annotated[str | None, Header(description="the ETag of the orders that were read; 412 when they have changed")]
_STATUSES = documented(400, 401, 403, 404, 408, 409, 412, 413, 422, 503)


class Body(BaseModel):
    """A request's body: unknown fields and other types are errors, a mistake must not steer silently."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ModeOrder(Body):
    """A mode. `share`: of requests that follow the policy, in `canary` (0 to 1) and `shadow+probe` (0 to 0.01)."""

    mode: Annotated[Mode, Field(examples=["canary"])]
    share: Annotated[float | None, Field(ge=0, le=1, examples=[0.1])] = None
    why: Why = ""


class PinOrder(Body):
    """One arm for a domain. `regime` null: both; `until`: Unix seconds, null: until it is unpinned."""

    draft: Annotated[str, Field(min_length=1, max_length=64, examples=["ngram"])]
    k: Annotated[int, Field(ge=0, le=MAX_K, examples=[4])]
    regime: Regime | None = None
    until: Annotated[float | None, Field(ge=0, examples=[1764003600.0])] = None
    why: Why = ""


class ResetOrder(Body):
    """What to learn anew: a domain, a draft, or a draft in a domain."""

    domain: Annotated[str | None, Field(min_length=1, max_length=64, examples=["chat"])] = None
    draft: Annotated[str | None, Field(min_length=1, max_length=64)] = None
    why: Why = ""


class MeasureOrder(Body):
    """Measure the gain: `windows` windows, two a pair, over `minutes`. `share`: of that time in which everything plays
    the fixed choice, which is what it costs; `against`: that choice, the static one or no speculation."""

    minutes: Annotated[float, Field(gt=0, le=steering.MAX_MINUTES, examples=[10.0])]
    windows: Annotated[int, Field(ge=6, le=20_000, examples=[20])] = 20
    share: Annotated[float, Field(gt=0, le=0.5)] = 0.5
    against: Literal["static", "none"] = "static"
    why: Why = ""


class DraftOrder(Body):
    """Whether policies leave the draft out."""

    retired: Annotated[bool, Field(examples=[True])]
    why: Why = ""


@dataclass(frozen=True, slots=True)
class PinView:
    """One standing pin."""

    domain: DomainName
    draft: DraftName
    k: int
    regime: Regime | None
    until: UnixSeconds | None
    why: str
    by: str
    at: UnixSeconds


@dataclass(frozen=True, slots=True)
class MeasureView:
    """A measurement that runs. Its result is `measured_gain` of the pool."""

    since: UnixSeconds
    until: UnixSeconds
    windows: int
    window_seconds: float
    share: float
    against: str
    why: str
    by: str


@dataclass(frozen=True, slots=True)
class OrdersView:
    """What is ordered. `mode` null: nobody has, and the controller's setting is in force."""

    revision: int
    mode: Mode | None
    share: float
    pins: list[PinView]
    retired: list[str]
    measure: MeasureView | None = None


def shown(orders: Orders, now: float) -> OrdersView:
    """Orders for people, pins that have run out left out."""
    pins = [PinView(p.domain, p.draft, p.k, p.regime, p.until, p.note, p.by, p.at) for p in orders.standing(now)]
    m = orders.measure
    measure = None
    if m is not None and m.until > now:
        measure = MeasureView(m.at, m.until, m.windows, m.window, m.share, m.against, m.note, m.by)
    return OrdersView(orders.revision, orders.mode, orders.share, pins, list(orders.retired), measure)


async def read(loop: PoolLoop) -> Orders:
    """The orders as they lie in Redis."""
    data = await loop.store.orders()
    try:
        return Orders() if data is None else msgspec.json.decode(data, type=Orders)
    except msgspec.MsgspecError as error:
        key = loop.store.keys.orders
        raise ProblemError(503, "Orders cannot be read", f"What lies in {key} is none of ours: {error}") from None


def written(orders: Orders) -> bytes:
    """As they are stored. Raises `OrderError` for what could not be read again: labels with control characters."""
    try:
        data = msgspec.json.encode(orders)
        msgspec.json.decode(data, type=Orders)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise OrderError(f"not a label or a note that can be kept: {error}") from None
    return data


def ends(before: Orders, after: Orders, now: float) -> bool:
    """Whether a measurement that runs does not go on under the new orders: another mode or another one ends it."""
    ran = before.measure
    return ran is not None and ran.until > now and (after.measure is None or after.measure.number != ran.number)


async def change(
    loop: PoolLoop, who: str, what: str, why: str, if_match: str | None, order: Callable[[Orders, Tuner, float], Orders]
) -> Orders:
    """Write what `order` makes of the present orders, with an audit entry. Problems: 409, 412, 422, 503."""
    tuner = loop.tuner
    if tuner is None or loop.role != "leading":
        raise ProblemError(503, "Not here", f"Steer the replica that leads: {loop.explain()}", {"Retry-After": "2"})
    try:
        for _ in range(TRIES):
            before = await read(loop)
            if if_match is not None and if_match.strip('"') != str(before.revision):
                raise ProblemError(
                    412, "Changed meanwhile", f"Orders are at revision {before.revision}; read them again"
                )
            now = time.time()
            after = msgspec.structs.replace(order(before, tuner, now), revision=before.revision + 1)
            data = written(after)
            told = what if what == _STOP or not ends(before, after, now) else f"{what}; ends the measurement that ran"
            act = Act(now, who, told, why, after.revision)
            if await loop.store.steer(before.revision, after.revision, data, act.encode()):
                pool = loop.store.pool
                log.info("pool %s: %s by %s%s", pool, told, who, f": {why}" if why else "", extra={"pool": pool})
                return after
    except OrderError as error:
        raise ProblemError(422, "That cannot be ordered", str(error)) from None
    except UNAVAILABLE as error:
        raise redis_problem(error, "Nothing was changed: ") from None
    raise ProblemError(
        409, "Too many at once", f"Others steered {TRIES} times meanwhile; nothing was changed, try again"
    )


def _answer(response: Response, orders: Orders) -> OrdersView:
    response.headers["ETag"] = f'"{orders.revision}"'
    return shown(orders, time.time())


@router.get("/orders", responses=documented(404, 503))
async def read_orders(loop: LoopOf, response: Response) -> OrdersView:
    """What operators have ordered: mode, pins, retired drafts. The `ETag` is their revision."""
    try:
        return _answer(response, await read(loop))
    except UNAVAILABLE as error:
        raise redis_problem(error) from None


@router.put("/mode", responses=_STATUSES)
async def set_mode(
    loop: LoopOf, who: AdminOf, body: ModeOrder, response: Response, if_match: IfMatch = None
) -> OrdersView:
    """Set the pool's mode."""
    what = f"mode {body.mode}" + ("" if body.share is None else f", share {body.share:g}")
    made = await change(
        loop, who, what, body.why, if_match, lambda orders, _, __: steering.with_mode(orders, body.mode, body.share)
    )
    return _answer(response, made)


# `path`: a domain is a label from a request and may hold a slash.
@router.put("/pins/{domain:path}", responses=_STATUSES)
async def pin(
    loop: LoopOf, who: AdminOf, domain: str, body: PinOrder, response: Response, if_match: IfMatch = None
) -> OrdersView:
    """Hold a domain on one arm for all its requests, whose own luck does not move K; until a time, or until it is
    unpinned."""
    if not 1 <= len(domain) <= 64 or not domain.isprintable():
        raise ProblemError(422, "That cannot be ordered", f"domain {domain!r}; allowed: 1-64 printable characters")

    def order(orders: Orders, tuner: Tuner, now: float) -> Orders:
        made = Pin(domain, body.draft, body.k, body.regime, body.until, body.why, who, now)
        return steering.with_pin(orders, made, tuner.spec, now)

    what = Pin(domain, body.draft, body.k, body.regime, body.until).told
    return _answer(response, await change(loop, who, what, body.why, if_match, order))


@router.delete("/pins/{domain:path}", responses=_STATUSES)
async def unpin(
    loop: LoopOf,
    who: AdminOf,
    domain: str,
    response: Response,
    regime: Annotated[Regime | None, Query()] = None,
    why: WhyAsked = "",
    if_match: IfMatch = None,
) -> OrdersView:
    """Let a domain go back to what is learned."""
    what = f"unpin {domain}" + ("" if regime is None else f" ({regime})")
    made = await change(
        loop, who, what, why, if_match, lambda orders, _, now: steering.without_pin(orders, domain, regime, now)
    )
    return _answer(response, made)


@router.post("/resets", responses=_STATUSES)
async def reset(
    loop: LoopOf, who: AdminOf, body: ResetOrder, response: Response, if_match: IfMatch = None
) -> OrdersView:
    """Learn anew: a domain, a draft (its prices too), or a draft in a domain; exploration budgets are full again."""
    names = [f"{word} {value}" for word, value in (("domain", body.domain), ("draft", body.draft)) if value is not None]
    made = await change(
        loop, who, "reset " + ", ".join(names), body.why, if_match,
        lambda orders, tuner, _: steering.with_reset(orders, body.domain, body.draft, *tuner.learned),
    )  # fmt: skip
    return _answer(response, made)


@router.put("/measure", responses=_STATUSES)
async def measure(
    loop: LoopOf, who: AdminOf, body: MeasureOrder, response: Response, if_match: IfMatch = None
) -> OrdersView:
    """Measure what the policy gains over a fixed choice, by windows of time under either."""

    def order(orders: Orders, tuner: Tuner, now: float) -> Orders:
        made = Measurement(0, now, body.minutes, body.windows, body.share, body.against, who, body.why)
        shortest = max(steering.SHORTEST_WINDOW, 10 * tuner.settings.decide_seconds)
        return steering.with_measure(orders, made, tuner.mode, tuner.static, tuner.spec, shortest)

    against = "the static choice" if body.against == "static" else "no speculation"
    what = (
        f"measure the gain over {against}: {body.minutes:g} minutes in {body.windows} windows, {body.share:.1%} of the "
        "time without the policy"
    )
    return _answer(response, await change(loop, who, what, body.why, if_match, order))


@router.delete("/measure", responses=_STATUSES)
async def stop_measuring(
    loop: LoopOf,
    who: AdminOf,
    response: Response,
    why: WhyAsked = "",
    if_match: IfMatch = None,
) -> OrdersView:
    """End the measurement; what is complete counts."""
    made = await change(loop, who, _STOP, why, if_match, lambda orders, _, now: steering.without_measure(orders, now))
    return _answer(response, made)


@router.put("/drafts/{draft}", responses=_STATUSES)
async def set_draft(
    loop: LoopOf, who: AdminOf, draft: str, body: DraftOrder, response: Response, if_match: IfMatch = None
) -> OrdersView:
    """Retire a draft (policies leave it out, what was learned of it stays), or bring it back."""
    made = await change(
        loop, who, f"{'retire' if body.retired else 'bring back'} draft {draft}", body.why, if_match,
        lambda orders, tuner, now: steering.with_retired(orders, draft, body.retired, tuner.loaded, now),
    )  # fmt: skip
    return _answer(response, made)
