"""A real controller process, killed with -9 again and again while an engine reports: no count is lost or doubled."""

import random
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
from redis.asyncio import Redis

from controller.settings import ControllerSettings
from controller.store import PoolStore
from controller.tuner import Tuner
from engine.link.messages import AcceptanceCell, AccountCell, Keys, encode
from tests.controller.engines import CountingEngine
from tests.controller.process import free_port, start

Until = Callable[[Callable[[], object]], Awaitable[None]]


async def test_a_controller_killed_at_any_moment_goes_on_with_exact_counts(
    client: "Redis", server: str, until: Until, tmp_path: Path
) -> None:
    rng, engine, store = random.Random(5), CountingEngine(started=time.time() - 3_600), PoolStore(client, "p")
    await client.sadd(Keys.POOLS, "p")

    async def committed() -> int:
        checkpoint = await store.load()
        if checkpoint is None:
            return 0
        return Tuner.restore("p", ControllerSettings(), checkpoint).ledger.counts.learned

    async def report() -> None:
        engine.run(rng.randrange(1, 5), rng)
        await client.xadd(Keys("p").frames, {"frame": encode(engine.frame(full=engine.seq % 30 == 0))})

    for _ in range(4):
        process = start(server, tmp_path / "log")
        try:
            before = await committed()

            async def at_work(before: int = before) -> bool:
                await report()
                return await committed() > before

            await until(at_work)
            for _ in range(rng.randrange(40)):  # so that it dies at some moment of its work
                await report()
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    await report()
    process = start(server, tmp_path / "log")
    try:

        async def all_learned() -> bool:
            return await committed() == engine.seq

        await until(all_learned)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
    assert await client.exists(store.keys.lease) == 0
    tuner = Tuner.restore("p", ControllerSettings(), await store.load())
    acceptance = [cell for cell in tuner.ledger.totals.values() if isinstance(cell, AcceptanceCell)]
    assert {cell.domain: (cell.seen, cell.accepted) for cell in acceptance} == engine.totals()
    account = {cell.domain: cell for cell in tuner.ledger.totals.values() if isinstance(cell, AccountCell)}
    assert account == engine.cells["account"]
    assert tuner.ledger.counts.rejected == tuner.ledger.counts.missed == 0


async def test_the_process_serves_http_and_ends_cleanly_on_a_signal(
    client: "Redis", server: str, until: Until, tmp_path: Path
) -> None:
    port = str(free_port())
    process = start(server, tmp_path / "log", AKC_PORT=port)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:

            async def ready() -> bool:
                assert process.poll() is None, (tmp_path / "log").read_text()
                try:
                    return (await http.get("/readyz")).status_code == 200
                except httpx.TransportError:
                    return False

            await until(ready)
            answer = await http.get("/v1/pools")
            assert answer.json() == []
            assert "server" not in answer.headers
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in (tmp_path / "log").read_text()
