"""What did not count as reported, and engines that are unlike: asked of a real process over HTTP."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis

from engine.link.messages import AccountCell, DraftInfo, Frame, Keys, encode
from tests.controller.engines import CountingEngine, description
from tests.controller.process import free_port, start

Until = Callable[[Callable[[], object]], Awaitable[None]]


@asynccontextmanager
async def controller(server: str, log: Path, *, kill: bool = False) -> AsyncIterator[httpx.AsyncClient]:
    """A controller process and a client of it; at the end it is told to stop, or killed with -9."""
    port = free_port()
    process = start(server, log, AKC_PORT=str(port))
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=10) as http:
            while not await _up(http):
                assert process.poll() is None, f"see {log}"
                await asyncio.sleep(0.02)
            yield http
        process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 20) == (-signal.SIGKILL if kill else 0)
    finally:
        process.kill()
        process.wait()


async def _up(http: httpx.AsyncClient) -> bool:
    try:
        return (await http.get("/v1/pools/p")).status_code == 200
    except httpx.TransportError:
        return False


async def send(client: "Redis", frame: Frame) -> None:
    await client.xadd(Keys("p").frames, {"frame": encode(frame)})


async def pool(http: httpx.AsyncClient) -> Any:
    return (await http.get("/v1/pools/p")).json()


async def samples(http: httpx.AsyncClient) -> dict[tuple[str, str], float]:
    """The metrics of the pool by name and by what is left of the labels."""
    text = (await http.get("/metrics")).text
    return {
        (sample.name, " ".join(value for name, value in sample.labels.items() if name != "pool")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("pool") == "p"
    }


async def test_evidence_that_did_not_count_is_shown_and_survives_a_kill(
    client: "Redis", server: str, until: Until, tmp_path: Path
) -> None:
    engine, other = CountingEngine(started=time.time() - 60), CountingEngine("other", "o", time.time() - 60)
    # 66 domains, two more than are kept apart: acceptance, moments and account of both come under `other`.
    for i in range(66):
        engine.step(f"d{i}", 1)
    # 17 drafts with ngram, one more than are kept: the acceptance and moments of "late" and the cost that holds it go.
    other.step("d0", 1)
    other.describe = description(drafts=("ngram", *(f"x{i}" for i in range(15)), "late"))
    late = other.frame(full=True)
    late = msgspec.structs.replace(
        late,
        acceptance=[msgspec.structs.replace(c, draft="late") for c in late.acceptance],
        moments=[msgspec.structs.replace(c, draft="late") for c in late.moments],
        cost=[msgspec.structs.replace(c, drafts=["late"]) for c in late.cost],
        # Two row-steps that took no time: no engine can have seen that.
        account=[AccountCell("d0", "greedy", 1, "static", row_steps=2, tokens=2, row_seconds=0.0)],
    )
    await client.sadd(Keys.POOLS, "p")
    # 65 starts of a third engine end with a final frame; only 64 ends are kept, so the first is let go.
    starts = [CountingEngine("third", f"t{i}", time.time() - 60) for i in range(65)]
    starts[0].step("d0", 1)
    for third in starts:
        await send(client, third.frame(full=True))
    last = starts[-1]
    expected = {
        "merged": 6,
        "dropped": 3,
        "rebased": 1,
        "rejected": {"acceptance": 0, "moments": 0, "cost": 0, "account": 1},
    }

    async def counted() -> bool:
        return bool((await pool(http))["evidence"] == expected)

    async with controller(server, tmp_path / "log", kill=True) as http:
        await send(client, last.frame(final=True))

        async def let_go() -> bool:
            answer = await http.get("/v1/pools/p/engines")  # 503 before the first commit
            known = {e["incarnation"] for e in answer.json()} if answer.status_code == 200 else set()
            return known == {f"t{i}" for i in range(1, 65)}

        await until(let_go)
        await send(client, starts[0].frame(full=True))
        await send(client, engine.frame(full=True))
        await send(client, late)
        await until(counted)
        found = await samples(http)
        assert found["akc_cells_merged_total", ""] == 6
        assert found["akc_cells_dropped_total", ""] == 3
        assert found["akc_incarnations_rebased_total", ""] == 1
        kinds = {what: n for (name, what), n in found.items() if name == "akc_cells_rejected_total"}
        assert kinds == expected["rejected"]
        page = (await http.get("/status")).text
        assert "6 under domain other, 3 of drafts beyond the cap, 1 that contradict themselves; 1 incarnations" in page
    async with controller(server, tmp_path / "log") as http:
        await until(counted)
        assert (await samples(http))["akc_cells_merged_total", ""] == 6


async def test_unlike_engines_are_a_problem_by_name_and_value_until_one_has_gone(
    client: "Redis", server: str, until: Until, tmp_path: Path
) -> None:
    here, there = (CountingEngine(name, name, time.time() - 60) for name in ("here", "there"))
    there.describe = msgspec.structs.replace(there.describe, hardware="gpu", drafts=[DraftInfo("ngram", "model", 4)])
    words = (
        "engine 'there' is not like engine 'here': hardware 'gpu' against 'cpu', "
        "draft 'ngram' of kind 'model' against 'ngram'; give it a pool of its own"
    )
    await client.sadd(Keys.POOLS, "p")
    async with controller(server, tmp_path / "log") as http:

        async def told(problem: str | None, engines: int) -> bool:
            found = await pool(http)
            return (found["problem"], found["engines"]) == (problem, engines)

        await send(client, here.frame(full=True))
        await until(lambda: told(None, 1))
        for _ in range(3):
            await send(client, there.frame(full=True))
        await until(lambda: told(words, 2))
        assert (await http.get("/v1/pools")).json() == [{"pool": "p", "role": "leading", "problem": words}]
        assert (await http.get("/readyz")).status_code == 200
        assert (await samples(http))["akc_pool_problem", ""] == 1
        assert "draft &#39;ngram&#39; of kind &#39;model&#39;" in (await http.get("/status")).text
        await send(client, there.frame(final=True))
        await until(lambda: told(None, 1))
        assert (await samples(http))["akc_pool_problem", ""] == 0
    log = (tmp_path / "log").read_text()
    assert log.count("is not like engine") == 1
    assert log.count("its engines are alike again") == 1


async def test_an_engine_with_another_target_is_refused_and_named(
    client: "Redis", server: str, until: Until, tmp_path: Path
) -> None:
    here, there = (CountingEngine(name, name, time.time() - 60) for name in ("here", "there"))
    there.describe = description(target="large")
    await client.sadd(Keys.POOLS, "p")
    async with controller(server, tmp_path / "log") as http:
        await send(client, here.frame(full=True))
        await send(client, there.frame(full=True))

        async def told() -> bool:
            problem = (await pool(http))["problem"]
            return bool(problem) and problem.startswith(
                "engine 'there' is not like engine 'here': target 'large' against 'smol';"
            )

        await until(told)
        found = await pool(http)
        assert (found["engines"], found["frames"]["rejected"]) == (1, 1)
