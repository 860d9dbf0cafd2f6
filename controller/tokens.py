"""Who may do what: named bearer tokens with a role, from a file that is read again when it changes.

A line is `NAME ROLE TOKEN`; empty lines and those that begin with # are passed over. Roles: `read`, `admin` (who may
read as well). Two tokens of one name may stand beside each other while one replaces the other.
"""

import hmac
import logging
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple, cast, get_args

log = logging.getLogger("controller")

Role = Literal["read", "admin"]
LEAST = 16  # characters of a token
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


class TokenError(ValueError):
    """A tokens file that cannot be used; the message names the line, never the token."""


class Token(NamedTuple):
    """One token and whose it is."""

    name: str
    role: Role
    secret: str


def parse(text: str, where: str = "tokens") -> list[Token]:
    """The tokens of a file's text.

    >>> parse("# us\\nops admin 0123456789abcdef\\n")[0].name
    'ops'
    >>> parse("ops admin short")
    Traceback (most recent call last):
    controller.tokens.TokenError: tokens, line 1: a token of 5 characters; allowed: 16 or more
    """
    return list(_lines(text, where))


def _lines(text: str, where: str) -> Iterator[Token]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        parts = line.split()
        if len(parts) != 3:
            raise TokenError(f"{where}, line {number}: {len(parts)} words; needed: NAME ROLE TOKEN")
        name, role, secret = parts
        if not NAME.fullmatch(name):
            raise TokenError(
                f"{where}, line {number}: name {name!r}; allowed: 1-64 letters, digits, '.', '_', '@', '-'"
            )
        if role not in get_args(Role):
            raise TokenError(f"{where}, line {number}: role {role!r}; allowed: 'read' and 'admin'")
        if len(secret) < LEAST:
            raise TokenError(f"{where}, line {number}: a token of {len(secret)} characters; allowed: {LEAST} or more")
        yield Token(name, cast(Role, role), secret)


def create(path: Path) -> None:
    """Write a file with one random admin token, readable by its owner only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(
            f"# NAME ROLE TOKEN; this file is read again when it changes\nadmin admin {secrets.token_urlsafe(32)}\n"
        )


class Tokens:
    """The tokens of a file, or none at all (`path` None). Raises `TokenError` for a file that cannot be used at start;
    one that becomes so later is logged, and the tokens before it stay in force."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._tokens: list[Token] = []
        if path is not None:
            try:
                self._read(path)
            except (OSError, UnicodeDecodeError) as error:
                raise TokenError(f"tokens_file {str(path)!r} cannot be read: {error}") from None
            if not self._tokens:
                raise TokenError(f"tokens_file {str(path)!r} holds no token; needed: a line NAME ROLE TOKEN")

    @property
    def configured(self) -> bool:
        """Whether anybody has to show a token."""
        return self._path is not None

    def holder(self, secret: str) -> Token | None:
        """Whose token it is, compared in constant time."""
        self._refresh()
        given, found = secret.encode(), None
        for token in self._tokens:
            if hmac.compare_digest(token.secret.encode(), given):
                found = token
        return found

    def _refresh(self) -> None:
        if self._path is None:
            return
        try:
            self._read(self._path)
        except (OSError, UnicodeDecodeError, TokenError) as error:
            log.error("tokens stay as they were: %s", error)  # noqa: TRY400

    def _read(self, path: Path) -> None:
        status = path.stat()
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        if stamp == self._stamp:
            return
        tokens = parse(path.read_text("utf-8"), str(path))
        self._stamp, self._tokens = stamp, tokens
