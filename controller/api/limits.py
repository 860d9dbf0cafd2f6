"""Bounds on what a client may send."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controller.api.problems import answer

LARGEST_BODY = 64 << 10  # bytes; the largest order is a pin with a note


class BodyLimit:
    """Answers 413 to a request whose body is longer, before any route sees it; a body without a length is counted."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        body, more = b"", True
        while more and len(body) <= LARGEST_BODY:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message.get("body", b""), message.get("more_body", False)
        if len(body) > LARGEST_BODY:
            refusal = answer(413, "Too long", f"A body of more than {LARGEST_BODY} bytes; that is the limit")
            await refusal(scope, receive, send)
            return
        given = False

        async def replay() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, replay, send)
