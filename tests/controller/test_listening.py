"""How the process listens: where, for whom, how long it waits for a request, and how many it serves at once. No Redis
is needed for that."""

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from starlette.types import Message
from typer.testing import CliRunner

from controller.api.limits import BodyLimit
from controller.cli.commands import app
from controller.settings import ControllerSettings
from engine.link.settings import SettingsError
from tests.controller.process import free_port, start


class Listening(NamedTuple):
    port: int
    log: Path

    def connect(self, sent: bytes = b"", host: str = "127.0.0.1") -> socket.socket:
        """A connection over which these bytes have gone; reads give up after half a minute."""
        made = socket.create_connection((host, self.port), timeout=30)
        made.sendall(sent)
        return made


@contextmanager
def listening(folder: Path, **environment: str) -> Iterator[Listening]:
    """A controller whose Redis is away, until the block ends."""
    log, port = folder / "log", free_port()
    process = start("unix:///nowhere/at/all", log, AKC_PORT=str(port), **environment)
    try:
        deadline = time.monotonic() + 60
        while not _healthy(port):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield Listening(port, log)
    finally:
        process.terminate()
        process.wait(30)


def _healthy(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
    except httpx.TransportError:
        return False


def everything(connection: socket.socket) -> bytes:
    """What comes until the other side closes."""
    parts = []
    while part := connection.recv(65_536):
        parts.append(part)
    return b"".join(parts)


def test_without_tokens_it_listens_on_loopback_only_whatever_was_asked_for_and_says_so(tmp_path: Path) -> None:
    with listening(tmp_path, AKC_HOST="0.0.0.0") as here:
        # All of 127.0.0.0/8 is this machine: who listens everywhere listens on 127.0.0.2, too.
        with pytest.raises(ConnectionRefusedError):
            here.connect(host="127.0.0.2")
        said = here.log.read_text()
    assert "no tokens are configured: listening on loopback only, not on '0.0.0.0' as asked for" in said
    assert "everybody on this machine may steer; set AKC_TOKENS_FILE" in said


def test_a_command_that_is_refused_for_its_address_is_told_which_ones_are_allowed(tmp_path: Path) -> None:
    """0.0.0.0 reaches this machine, and is no loopback name: without tokens no token and no role would help."""
    with listening(tmp_path) as here:
        asked = ["mode", "off", "--pool", "p", "--url", f"http://0.0.0.0:{here.port}", "--token", "t" * 16]
        refused = CliRunner().invoke(app, asked)
    assert refused.exit_code == 3
    assert "Not from here: Host '0.0.0.0'; without tokens only loopback is allowed" in refused.output
    assert "Run akc on the controller's own machine with --url http://127.0.0.1:PORT" in refused.output
    assert "role 'admin'" not in refused.output


def test_with_tokens_it_listens_where_it_was_asked_to(tmp_path: Path) -> None:
    with listening(tmp_path, AKC_HOST="0.0.0.0", AKC_TOKENS_FILE=str(tmp_path / "tokens")) as here:
        here.connect(host="127.0.0.2").close()
        assert "no tokens are configured" not in here.log.read_text()


def test_a_client_that_stalls_is_cut_off_in_the_head_and_told_so_in_the_body(tmp_path: Path) -> None:
    order = b"PUT /v1/pools/p/mode HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"
    with listening(tmp_path, AKC_REQUEST_SECONDS="1") as here:
        for begun in (b"", b"GET /healthz HTTP/1.1\r\nHost: local"):
            with here.connect(begun) as stalled:
                assert everything(stalled) == b""
        with here.connect(order) as stalled:
            answer = everything(stalled)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"application/problem+json" in answer
        assert b"did not arrive within 1 s" in answer
        # A head that comes in two parts, and a second request over the same connection, are served.
        with here.connect(b"GET /healthz HTTP/1.1\r\nHost: localhost") as slow:
            slow.sendall(b"\r\n\r\n")
            assert slow.recv(65_536).startswith(b"HTTP/1.1 200 ")
            slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert b"HTTP/1.1 200 " in everything(slow)
        # The host that it would have anyway: the log says all the same who may steer.
        assert "no tokens are configured: listening on loopback only, and everybody" in here.log.read_text()


def test_connections_beyond_the_bound_get_503_until_one_is_closed(tmp_path: Path) -> None:
    ask = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with listening(tmp_path, AKC_MAX_CONNECTIONS="2", AKC_MAX_LISTENERS="1", AKC_REQUEST_SECONDS="600") as here:
        with ExitStack() as idle:
            for _ in range(2):
                idle.enter_context(here.connect())
            with here.connect(ask) as third:
                assert everything(third).startswith(b"HTTP/1.1 503 ")
        deadline, answer = time.monotonic() + 30, b""
        while not answer.startswith(b"HTTP/1.1 200 "):  # the server has yet to see that they are closed
            assert time.monotonic() < deadline
            with here.connect(ask) as again:
                answer = everything(again)


def test_listeners_must_leave_room_for_others() -> None:
    with pytest.raises(SettingsError, match=r"max_listeners is 8; allowed: less than max_connections \(8\)"):
        ControllerSettings(max_connections=8, max_listeners=8)


async def test_a_body_that_stops_in_its_middle_is_answered_though_the_client_says_nothing_more() -> None:
    parts: list[Message] = [{"type": "http.request", "body": b"{", "more_body": True}]
    sent: list[Message] = []

    async def receive() -> Message:
        if not parts:
            await asyncio.Event().wait()  # for ever
        return parts.pop()

    async def send(message: Message) -> None:
        sent.append(message)

    async def app(*_: object) -> None:
        raise AssertionError("the route was asked")

    await BodyLimit(app, 0.01)({"type": "http", "method": "PUT", "headers": []}, receive, send)
    assert (sent[0]["status"], b"within 0.01 s" in sent[1]["body"]) == (408, True)
    assert (b"connection", b"close") in sent[0]["headers"]
