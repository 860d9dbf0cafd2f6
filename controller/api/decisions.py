"""Decisions: when some cell's most probable arm changed, and why."""

from typing import Annotated

from fastapi import APIRouter, Query

from controller.api.access import ViewOf
from controller.api.problems import documented
from controller.view import DecisionRecord

router = APIRouter(prefix="/v1/pools/{pool}/decisions", tags=["decisions"])


@router.get("", responses=documented(404, 422, 503))
async def list_decisions(view: ViewOf, limit: Annotated[int, Query(ge=1, le=200)] = 50) -> list[DecisionRecord]:
    """Cells whose most probable arm changed, and why; newest first."""
    return view.records[:limit]
