"""Request bodies: read with a limit, decoded into a struct, refused with a message that names the field."""

from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from engine.server.errors import ApiError, from_msgspec, invalid
from engine.server.schema import Sampling

MAX_BYTES = 8 * 1024 * 1024

T = TypeVar("T", bound=Sampling)


async def read_body(request: Request, kind: type[T]) -> T:
    """The request's body as a checked `kind`. Raises `ApiError` 400 for what is wrong with it, 413 above 8 MiB."""
    data = bytearray()
    try:
        async for chunk in request.stream():
            data += chunk
            if len(data) > MAX_BYTES:
                raise ApiError(413, f"the body is larger than {MAX_BYTES} bytes", code="body_too_large")
    except ClientDisconnect:
        raise invalid("the client went away before the body was complete") from None
    try:
        body = msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise from_msgspec(error) from error
    except RecursionError:
        raise invalid("the body is nested too deeply", code="invalid_json") from None
    body.check()
    return body
