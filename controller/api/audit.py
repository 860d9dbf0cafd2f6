"""The audit log: what operators did, and what the controller changed by itself."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from controller.api.access import LoopOf
from controller.api.problems import ProblemError, documented
from controller.audit import Act, decode
from controller.store import UNAVAILABLE
from controller.view import UnixSeconds

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


def _entry(id_: str, data: bytes) -> AuditEntry | None:
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
    return AuditEntry(id_, entry.time, "controller", what, short("; ".join(reasons)) or "noticed")


def short(text: str) -> str:
    """The text, or as much of it as an entry may hold.

    >>> short("why"), len(short("why" * 1000)), short("why" * 1000)[-3:]
    ('why', 2000, 'yw…')
    """
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


@router.get("", responses=documented(404, 422, 503))
async def list_audit(loop: LoopOf, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> list[AuditEntry]:
    """Who changed what, when and why, the controller's own decisions among them; newest first, from any replica."""
    try:
        rows = await loop.store.audit(limit)
    except UNAVAILABLE as error:
        raise ProblemError(503, "Redis does not answer", str(error), {"Retry-After": "2"}) from None
    return [entry for id_, data in rows if (entry := _entry(id_, data)) is not None]
