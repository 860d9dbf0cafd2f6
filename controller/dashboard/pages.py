"""The dashboard and the API's page, each with its few files, served from packages: they work without any other host."""

import gzip
import hashlib
from functools import cache
from importlib import resources

from fastapi import APIRouter, Request, Response

from controller.api.problems import ProblemError

router = APIRouter(include_in_schema=False)

FILES = {
    "app.js": "text/javascript",
    "api.js": "text/javascript",
    "charts.js": "text/javascript",
    "docs.js": "text/javascript",
    "dom.js": "text/javascript",
    "style.css": "text/css",
    "plotly.min.js": "text/javascript",
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
}
# Read from where others' packages keep them. Of plotly's this does not load the 50 MB of Python classes around it.
_FOREIGN = {
    "plotly.min.js": ("plotly", "package_data"),
    "swagger-ui-bundle.js": ("fastapi_swagger", "resources"),
    "swagger-ui.css": ("fastapi_swagger", "resources"),
}
# Plotly and Swagger UI write style attributes; nothing on the page comes from, or goes to, another host.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "connect-src 'self'; img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


@cache
def _file(name: str) -> tuple[bytes, bytes, str]:
    """Content, the same compressed, and its tag."""
    package, folder = _FOREIGN.get(name, (__package__, "static"))
    content = resources.files(package).joinpath(folder, name).read_bytes()
    return content, gzip.compress(content, 6), f'"{hashlib.sha256(content).hexdigest()[:16]}"'


def _answer(request: Request, name: str, kind: str) -> Response:
    content, packed, tag = _file(name)
    headers = {**_HEADERS, "ETag": tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(packed, headers={**headers, "Content-Encoding": "gzip"}, media_type=kind)
    return Response(content, headers=headers, media_type=kind)


@router.get("/")
async def page(request: Request) -> Response:
    """The dashboard."""
    return _answer(request, "index.html", "text/html; charset=utf-8")


@router.get("/docs")
async def docs(request: Request) -> Response:
    """The API's page: every endpoint with its schemas and examples, to be tried out."""
    return _answer(request, "docs.html", "text/html; charset=utf-8")


@router.get("/static/{name}")
async def file(request: Request, name: str) -> Response:
    """One of these pages' files; they need no other host."""
    if name not in FILES:
        raise ProblemError(404, "No such file", f"The pages have no file {name!r}")
    return _answer(request, name, f"{FILES[name]}; charset=utf-8")
