"""Liveness, readiness and metrics."""

from typing import Annotated

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, Field
from starlette.requests import Request

from controller.api.access import SupervisorOf
from controller.api.problems import ProblemError, documented

router = APIRouter(tags=["health"])
measured = APIRouter(tags=["health"])


class Health(BaseModel):
    """The process answers. `pools`: the part each pool's loop plays."""

    status: Annotated[str, Field(examples=["ok"])]
    pools: Annotated[dict[str, str], Field(examples=[{"smollm2": "leading"}])]


@router.get("/healthz")
async def healthz(supervisor: SupervisorOf) -> Health:
    """200 while the process lives, with the role of each pool's loop; also without Redis: restarting would not help."""
    return Health(status="ok", pools={name: loop.role for name, loop in supervisor.pools.items()})


@router.get("/readyz", responses=documented(503))
async def readyz(supervisor: SupervisorOf) -> Health:
    """200 when Redis answers and every pool is led here or by another replica; else 503 with the reason."""
    problems = [supervisor.problem] if supervisor.problem else []
    for name, loop in supervisor.pools.items():
        if loop.role not in ("leading", "standby") or loop.problem:
            problems.append(f"pool {name}: {loop.explain()}")
    if problems:
        raise ProblemError(503, "Not ready", "; ".join(problems), {"Retry-After": "2"})
    return await healthz(supervisor)


@measured.get("/metrics", response_class=Response, include_in_schema=False)
def metrics(request: Request) -> Response:
    """Prometheus exposition. Made in a thread: with many engines it takes longer than others should wait."""
    return Response(generate_latest(request.app.state.registry), media_type=CONTENT_TYPE_LATEST)
