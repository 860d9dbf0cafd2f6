"""The router hint: which pool serves a domain best, over all live pools, whoever leads them."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query

from controller.api.access import SupervisorOf
from controller.api.problems import documented, redis_problem
from controller.store import UNAVAILABLE, offers
from engine.link.router import Route, compose

router = APIRouter(prefix="/v1/router", tags=["router"])

Named = Annotated[str | None, Query(description="only this one")]


@router.get("", responses=documented(503))
async def read_router(
    supervisor: SupervisorOf, target: Named = None, domain: Named = None, regime: Named = None
) -> list[Route]:
    """Which pool serves a domain best, over all live pools, whichever replica leads them: by target, domain and regime,
    highest expected goodput first. Empty: no live pool offers any."""
    try:
        found = await offers(supervisor.client)
    except UNAVAILABLE as error:
        raise redis_problem(error) from None
    return await asyncio.to_thread(compose, found, target=target, domain=domain, regime=regime)
