"""The audit log: what operators did, and what the controller changed by itself."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from controller.api.access import LoopOf
from controller.api.problems import documented, redis_problem
from controller.audit import Act, decode
from controller.store import UNAVAILABLE, page
from controller.view import UnixSeconds

SCANNED = 1000  # entries read at a time when those of one name are looked for

router = APIRouter(prefix="/v1/pools/{pool}/audit", tags=["steer"])

LONGEST = 2000  # characters of a reason


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change. `who`: a token's name, `local` where none are configured, `controller` for its own decisions."""

    id: Annotated[str, Field(description="of the entry in the Redis stream", examples=["1764000000000-0"])]
    time: UnixSeconds
    who: Annotated[str, Field(examples=["ops"])]
    what: Annotated[str, Field(examples=["pin chat to ngram at K = 3"])]
    why: Annotated[
        str,
        Field(description="an operator's words; of what was learned the reason of each change", examples=["load test"]),
    ]


def entry_of(id_: str, data: bytes) -> AuditEntry | None:
    """An entry of the stream for people; None for one that this version does not know."""
    entry = decode(data)
    if entry is None:
        return None
    if isinstance(entry, Act):
        return AuditEntry(id_, entry.time, entry.who, entry.what, entry.why)
    moved = [
        f"{s.domain} ({s.regime}) at load {s.load}: {'' if s.before is None else '{} K = {} to '.format(*s.before)}"
        f"{s.after[0]} K = {s.after[1]}"
        for s in entry.switches
    ]
    several = len(entry.switches) > 1
    reasons = [f"{s.domain} at load {s.load}: {s.reason}" if several else s.reason for s in entry.switches]
    what = "; ".join([*([entry.note] if entry.note else []), *moved])
    return AuditEntry(
        id_, entry.time, "controller", what, short("; ".join(reasons)) or "seen by the controller; nobody decided it"
    )


def short(text: str) -> str:
    """The text, or as much of it as an entry may hold.

    >>> short("why"), len(short("why" * 1000)), short("why" * 1000)[-3:]
    ('why', 2000, 'yw…')
    """
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


@router.get("", responses=documented(404, 422, 503))
async def list_audit(
    loop: LoopOf,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Annotated[
        str | None,
        Query(
            pattern="^[0-9]{1,19}-[0-9]{1,19}$",
            description="only entries older than the one with this id: the next page",
        ),
    ] = None,
    who: Annotated[
        str | None, Query(min_length=1, max_length=64, description="only this one's, `controller` for its own")
    ] = None,
) -> list[AuditEntry]:
    """Who changed what, when and why, the controller's own decisions among them; newest first, from any replica. The
    newest 10,000 acts and, apart from them, 10,000 changes of policy are kept. A page may have one entry more than
    `limit`, where two have the same id."""
    found: list[tuple[str, AuditEntry]] = []
    step = limit if who is None else SCANNED
    try:
        while True:
            rows = await loop.store.audit(step, before)
            entries = [(id_, entry) for id_, data in rows if (entry := entry_of(id_, data)) is not None]
            found += [(id_, entry) for id_, entry in entries if who in (None, entry.who)]
            if len(rows) < step or len(found) >= limit:
                break
            before = rows[-1][0]
    except UNAVAILABLE as error:
        raise redis_problem(error) from None
    return [entry for _, entry in found[: page(found, limit)]]
