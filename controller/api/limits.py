"""Bounds on what a client may send, how long it may take, and how many may listen."""

import asyncio
from collections.abc import AsyncIterator

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controller.api.access import settings_of
from controller.api.problems import ProblemError, answer

LARGEST_BODY = 64 << 10  # bytes; the largest order is a pin with a note
_CLOSE = {"Connection": "close"}  # what is still to come of the body is not read


class BodyLimit:
    """Answers 413 to a request whose body is longer, and 408 to one whose body takes more than `seconds`, before any
    route sees it; a body without a length is counted."""

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app, self._seconds = app, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._seconds):
                body = await _body(receive)
        except TimeoutError:
            late = f"The body did not arrive within {self._seconds:g} s; that is the limit (AKC_REQUEST_SECONDS)"
            await answer(408, "Too slow", late, _CLOSE)(scope, receive, send)
            return
        if body is None:
            return
        if len(body) > LARGEST_BODY:
            long = f"A body of more than {LARGEST_BODY} bytes; that is the limit"
            await answer(413, "Too long", long, _CLOSE)(scope, receive, send)
            return
        given = False

        async def replay() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, replay, send)


async def _body(receive: Receive) -> bytes | None:
    """The whole body, or just more than is allowed; None where the client has gone."""
    body, more = b"", True
    while more and len(body) <= LARGEST_BODY:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body, more = body + message.get("body", b""), message.get("more_body", False)
    return body


async def listening(request: Request) -> AsyncIterator[None]:
    """Counts a listener of an event stream for as long as it listens. 503 where there are `max_listeners`."""
    state, most = request.app.state, settings_of(request).max_listeners
    if state.listeners >= most:
        raise ProblemError(
            503, "Too many listeners",
            f"{most} event streams are open, the limit (AKC_MAX_LISTENERS); close one, or ask /history instead",
            {"Retry-After": "5"},
        )  # fmt: skip
    state.listeners += 1
    try:
        yield
    finally:
        state.listeners -= 1
