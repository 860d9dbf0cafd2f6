"""Engines: every incarnation that is known, as of its last frame."""

from fastapi import APIRouter

from controller.api.access import ViewOf
from controller.api.problems import documented
from controller.view import Engine

router = APIRouter(prefix="/v1/pools/{pool}/engines", tags=["engines"])


@router.get("", responses=documented(404, 503))
async def list_engines(view: ViewOf) -> list[Engine]:
    """Every incarnation: last seen, load, policy applied, breaker, frames missed; live ones first."""
    return sorted(view.engines, key=lambda engine: (engine.ended is not None, -engine.last_seen))
