"""Who asks, as far as the controller can tell."""

from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Request
from pydantic import Field

from controller.api.access import Credentials, holder
from controller.api.problems import ProblemError, documented

router = APIRouter(prefix="/v1/whoami", tags=["steer"])


@dataclass(frozen=True, slots=True)
class Who:
    """`name` null: nobody in particular, who may read; `role`: what may be done."""

    name: Annotated[str | None, Field(examples=["ops"])]
    role: Literal["read", "admin"]


@router.get("", responses=documented(401, 403))
async def whoami(request: Request, credentials: Credentials) -> Who:
    """Whose token was sent, and its role. 401 where reading needs a token and this one is not known."""
    for role in ("admin", "read"):
        try:
            return Who(holder(request, credentials, role), role)
        except ProblemError as error:
            refused = error
    if credentials is None and request.app.state.open_reads:
        return Who(None, "read")
    raise refused
