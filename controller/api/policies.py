"""The policy in force, as engines read it; its version is the ETag."""

from typing import Annotated

from fastapi import APIRouter, Header, Response

from controller.api.access import ViewOf
from controller.api.problems import ProblemError, documented

router = APIRouter(prefix="/v1/pools/{pool}/policy", tags=["policy"])


@router.get(
    "",
    response_class=Response,
    responses={
        200: {"description": "The policy, as docs/reference/wire.md describes it", "content": {"application/json": {}}},
        304: {"description": "The version in If-None-Match is still in force"},
        **documented(404, 503),
    },
)
async def read_policy(view: ViewOf, if_none_match: Annotated[str | None, Header()] = None) -> Response:
    """The policy in force, as engines read it. `ETag` is its version; with `If-None-Match` 304 while it is the same."""
    if view.policy is None or view.version is None:
        raise ProblemError(404, "No policy yet", f"No engine of pool {view.pool!r} has described itself yet")
    tag = f'"{view.version[0]}.{view.version[1]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if if_none_match is not None and tag in {part.strip().removeprefix("W/") for part in if_none_match.split(",")}:
        return Response(status_code=304, headers=headers)
    return Response(view.policy, media_type="application/json", headers=headers)
