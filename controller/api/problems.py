"""Errors as problem details (RFC 9457): a title, a status, one sentence of detail; never a stack trace."""

import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from engine.link.transport import trouble, words

log = logging.getLogger("controller")
MEDIA_TYPE = "application/problem+json"


class ProblemDetails(BaseModel):
    """The body of every error."""

    type: str = "about:blank"
    title: Annotated[str, Field(examples=["No such pool"])]
    status: Annotated[int, Field(ge=400, le=599, examples=[404])]
    detail: Annotated[str, Field(examples=["There is no pool 'gpu-a'; known pools: 'gpu-b'"])]


class ProblemError(Exception):
    """Raise it in a route to answer with problem details."""

    def __init__(self, status: int, title: str, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.title, self.detail, self.headers = status, title, detail, headers


def redis_problem(error: Exception, before: str = "") -> ProblemError:
    """503: Redis does not answer, or refuses. `before`: a sentence to begin with, as `Nothing was changed: `."""
    title = f"Redis {trouble(error, 'does not answer')}"
    return ProblemError(503, title, f"{before}{words(error)}", {"Retry-After": "2"})


# For the document: what each status may say.
_SAID = {
    400: ("Bad Request", "There was an error parsing the body"),
    401: ("Who are you?", "No token was sent; send 'Authorization: Bearer TOKEN'"),
    403: ("Not yours to do", "Token 'bob' has role 'read'; needed: 'admin'"),
    404: ("No such pool", "There is no pool 'gpu-a'; known pools: 'gpu-b'"),
    408: ("Too slow", "The body did not arrive within 10 s; that is the limit (AKC_REQUEST_SECONDS)"),
    409: ("Too many at once", "Others steered 5 times meanwhile; nothing was changed, try again"),
    412: ("Changed meanwhile", "Orders are at revision 7; read them again"),
    413: ("Too long", "A body of more than 65536 bytes; that is the limit"),
    422: ("That cannot be ordered", "k is 3 for draft 'ngram'; allowed: 0, 2, 4"),
    500: ("Internal error", "The controller could not answer; its log says why."),
    503: ("Redis does not answer", "Error 111 connecting to 127.0.0.1:6379. Connection refused."),
}


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For a route's `responses`: these statuses answer with problem details."""
    responses: dict[int | str, dict[str, Any]] = {}
    for status in statuses:
        title, detail = _SAID[status]
        example = ProblemDetails(title=title, status=status, detail=detail).model_dump()
        content = {"schema": ProblemDetails.model_json_schema(), "example": example}
        responses[status] = {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: content}}
    return responses


def install(app: FastAPI, routers: Sequence[APIRouter]) -> None:
    """Make `app`, which serves these routers, answer every error with problem details."""

    @app.exception_handler(ProblemError)
    async def on_problem(_: Request, error: ProblemError) -> Response:
        return answer(error.status, error.title, error.detail, error.headers)

    @app.exception_handler(HTTPException)
    async def on_http(request: Request, error: HTTPException) -> Response:
        title = HTTPStatus(error.status_code).phrase
        detail = error.detail if error.detail != title else f"{request.method} {request.url.path}"
        headers = dict(error.headers or {})
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = _allowed(request, routers)
        return answer(error.status_code, title, detail, headers)

    @app.exception_handler(RequestValidationError)
    async def on_invalid(_: Request, error: RequestValidationError) -> Response:
        faults = "; ".join(f"{'.'.join(str(p) for p in e['loc'])}: {e['msg']}" for e in error.errors())
        return answer(422, "The request is not valid", faults)

    @app.exception_handler(Exception)
    async def on_bug(request: Request, error: Exception) -> Response:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return answer(500, "Internal error", "The controller could not answer; its log says why.")


def _allowed(request: Request, routers: Sequence[APIRouter]) -> str:
    """All methods of the request's path, for `Allow` (RFC 9110, 15.5.6); the framework names those of one route."""
    routes = (route for router in routers for route in router.routes if isinstance(route, Route))
    fitting = (route for route in routes if route.matches(request.scope)[0] != Match.NONE)
    return ", ".join(sorted({method for route in fitting for method in route.methods or ()}))


def answer(status: int, title: str, detail: str, headers: dict[str, str] | None = None) -> Response:
    """Problem details as a response."""
    body = ProblemDetails(title=title, status=status, detail=detail).model_dump()
    return JSONResponse(body, status_code=status, media_type=MEDIA_TYPE, headers=headers)
