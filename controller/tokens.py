"""Who may do what: named bearer tokens with a role, from a file that is read again when it changes.

A line is `NAME ROLE TOKEN`; empty lines and those that begin with # are passed over. Roles: `read`, `admin` (who may
read as well). Two tokens of one name may stand beside each other while one replaces the other; one token on two lines
is refused, since nobody could say whose it is.
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
_HEAD = "# NAME ROLE TOKEN; this file is read again when it changes\n"
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
    >>> parse("ops admin 0123456789abcdef\\nbob read 0123456789abcdef")
    Traceback (most recent call last):
    controller.tokens.TokenError: tokens, lines 1 and 2: the same token on both; allowed: another one on every line
    """
    first: dict[str, int] = {}
    tokens = []
    for number, token in _lines(text, where):
        if token.secret in first:
            raise TokenError(
                f"{where}, lines {first[token.secret]} and {number}: the same token on both; allowed: another one on "
                "every line"
            )
        first[token.secret] = number
        tokens.append(token)
    return tokens


def _lines(text: str, where: str) -> Iterator[tuple[int, Token]]:
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
        yield number, Token(name, cast(Role, role), secret)


def create(path: Path) -> bool:
    """Write a file with one random admin token, readable by its owner only, unless there is one: then False.

    It appears whole or not at all, so that two controllers that start at once have the same one. Raises `TokenError`.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{_HEAD}admin admin {secrets.token_urlsafe(32)}\n")
        try:
            os.link(beside, path)
        except FileExistsError:
            return False
        finally:
            beside.unlink()
    except OSError as error:
        raise TokenError(f"tokens_file {str(path)!r} is not there and cannot be made: {error}") from None
    return True


class Tokens:
    """The tokens of a file, or none at all (`path` None). Raises `TokenError` for a file that cannot be used at start;
    one that becomes so later is logged once, and the tokens before it stay in force."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None  # of the file as it was looked at last, good or not
        self._missing = False
        self._tokens: list[Token] = []
        if path is not None:
            try:
                self._read(path)
            except (OSError, UnicodeDecodeError) as error:
                raise TokenError(f"tokens_file {str(path)!r} cannot be read: {error}") from None

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
            self._missing = False
        except (UnicodeDecodeError, TokenError) as error:
            log.error("tokens stay as they were: %s", error)  # noqa: TRY400
        except OSError as error:  # away, or not readable: looked at again each time, told once
            if not self._missing:
                log.error("tokens stay as they were: %s", error)  # noqa: TRY400
            self._missing, self._stamp = True, None

    def _read(self, path: Path) -> None:
        status = path.stat()
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        if stamp == self._stamp:
            return
        text = path.read_bytes()
        self._stamp = stamp
        tokens = parse(text.decode("utf-8"), str(path))
        if not tokens:
            raise TokenError(f"tokens_file {str(path)!r} holds no token; needed: a line NAME ROLE TOKEN")
        self._tokens = tokens
