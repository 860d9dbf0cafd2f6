"""Errors as OpenAI's clients expect them: `{"error": {"message", "type", "param", "code"}}` with a fitting status."""

import re
from collections.abc import Mapping

import msgspec
from starlette.responses import JSONResponse


class ApiError(Exception):
    """What went wrong, for the person who sent the request; `param` names the field, `code` is for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, dict[str, str | None]]:
        """The JSON object a client gets."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    @property
    def kind(self) -> str:
        """OpenAI's word for this class of error."""
        known = {404: "not_found_error", 429: "rate_limit_error"}
        return known.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")

    def response(self) -> JSONResponse:
        """The error as an HTTP response."""
        return JSONResponse(self.body, self.status, self.headers)


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A 400: the request is at fault."""
    return ApiError(400, message, param=param, code=code)


_PATH = re.compile(r" - at `(?:\$\.)?([^`]*)`$")


def from_msgspec(error: msgspec.DecodeError) -> ApiError:
    """A 400 that names the field msgspec complains about.

    >>> from_msgspec(msgspec.ValidationError("Expected `int`, got `str` - at `$.max_tokens`")).body["error"]["message"]
    'max_tokens: Expected `int`, got `str`'
    """
    text = str(error)
    match = _PATH.search(text)
    if not isinstance(error, msgspec.ValidationError):
        return invalid(f"the body is not valid JSON: {text}", code="invalid_json")
    if match is None:
        return invalid(text)
    return invalid(f"{match[1]}: {text[: match.start()]}", param=re.split(r"[.\[]", match[1])[0])
