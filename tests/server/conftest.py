"""A tiny model behind the real server: uvicorn on a free port in a thread, one per test module that asks."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from engine.server import EngineSettings, Host, build, server
from tests.server.gate import Gate
from tests.server.tiny import MAX_LEN, make_model


@dataclass
class Served:
    """A running server, its base URL and its host. `stop` asks it to shut down, without waiting."""

    url: str
    host: Host
    stop: Callable[[], None]

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=30)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def serve(model_folder: Path) -> Iterator[Callable[..., Served]]:
    """Start a server with these settings over the tiny model; all stop at the end."""
    stops: list[Callable[[], None]] = []

    def start(**changes: object) -> Served:
        fields: dict[str, object] = {
            "target": str(model_folder),
            "offline": True,
            "port": 0,
            "max_batch": 4,
            "max_len": MAX_LEN,
            "max_tokens": 16,
            "dtype": "float32",
            "threads": 1,
            "static_draft": "ngram",
            "static_k": 3,
            "drain": 1.0,
            "log_level": "warning",
        }
        host = build(EngineSettings(**{**fields, **changes}))  # type: ignore[arg-type]  # fields of several types
        made = server(host)
        thread = threading.Thread(target=made.run)
        up = threading.Event()
        thread.start()
        while not made.started and thread.is_alive():
            up.wait(0.01)
        assert made.started
        port = made.servers[0].sockets[0].getsockname()[1]

        def ask() -> None:
            made.should_exit = True

        stops.append(ask)
        stops.append(thread.join)
        return Served(f"http://127.0.0.1:{port}", host, ask)

    yield start
    for stop in stops:
        stop()


@pytest.fixture(scope="session")
def served(serve: Callable[..., Served]) -> Served:
    """The server that most tests share."""
    return serve()


@pytest.fixture(scope="module")
def gateway(serve: Callable[..., Served]) -> tuple[Served, Gate]:
    """A server with two rows and a queue of two, whose engine stops between steps while the gate is shut."""
    served = serve(max_batch=2, max_queue=2)
    gate = Gate()
    served.host.desk.link = gate
    return served, gate


@pytest.fixture
def gated(gateway: tuple[Served, Gate]) -> Iterator[tuple[Served, Gate]]:
    """The same, with the gate open again after the test."""
    yield gateway
    gateway[1].open.set()
