"""From a request to what it is about: the supervisor, a pool's loop, a pool's view."""

from typing import Annotated, cast

from fastapi import Depends, Request

from controller.api.problems import ProblemError
from controller.loop import PoolLoop
from controller.supervisor import Supervisor
from controller.view import PoolView


def supervisor(request: Request) -> Supervisor:
    """The process's supervisor."""
    return cast(Supervisor, request.app.state.supervisor)


SupervisorOf = Annotated[Supervisor, Depends(supervisor)]


def pool_loop(pool: str, known: SupervisorOf) -> PoolLoop:
    """The loop of the pool named in the path. 404 when there is none."""
    loop = known.pools.get(pool)
    if loop is None:
        names = ", ".join(repr(name) for name in sorted(known.pools)) or "none yet"
        raise ProblemError(404, "No such pool", f"There is no pool {pool!r}; known pools: {names}")
    return loop


LoopOf = Annotated[PoolLoop, Depends(pool_loop)]


def pool_view(loop: LoopOf) -> PoolView:
    """What is known of the pool. 503 while another replica leads it or nothing has been read yet."""
    view = loop.view
    if view is None:
        raise ProblemError(503, "Nothing to show yet", f"{loop.explain()}", {"Retry-After": "2"})
    return view


ViewOf = Annotated[PoolView, Depends(pool_view)]
