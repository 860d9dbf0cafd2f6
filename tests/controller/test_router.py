"""The router hint: two controllers, each with a pool of its own and another draft, and what a router makes of both."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import httpx
import msgspec
import pytest
import redis
from redis.asyncio import Redis
from typer.testing import CliRunner

from controller.app import create_app
from controller.cli.commands import app
from controller.loop import PoolLoop
from controller.settings import ControllerSettings
from controller.store import PoolStore, offers
from engine.link.messages import Keys, decode_offer, encode
from engine.link.router import Route, compose, read_offers
from tests.controller.engines import CountingEngine

Until = Callable[[Callable[[], object]], Awaitable[None]]
FAST = ControllerSettings(draws=64, seed=1, decide_seconds=0.05, policy_seconds=60, lease_seconds=5.0)
GOOD, BAD = (2, 2, 2, 1, 2), (0, 0, 1, 0, 0)  # tokens kept by step, in turn


class Pool:
    """A pool of one engine, which keeps many tokens of the domain its draft is for and few of the other."""

    def __init__(self, client: "Redis", name: str, draft: str, domain: str) -> None:
        self.client, self.name, self.domain = client, name, domain
        self.engine = CountingEngine(started=time.time() - 3_600, draft=draft)
        # One K, so that what it brings is known: no deeper one is guessed at.
        self.engine.describe = msgspec.structs.replace(self.engine.describe, k_values=[0, 2])
        self.loop = PoolLoop(PoolStore(client, name, lease_seconds=FAST.lease_seconds), FAST)

    async def serve(self, steps: int, *domains: str) -> None:
        for nth in range(steps):
            for domain in domains:
                self.engine.step(domain, (GOOD if domain == self.domain else BAD)[nth % 5])
        await self.send()

    async def send(self, *, final: bool = False) -> None:
        await self.client.sadd(Keys.POOLS, self.name)
        frame = self.engine.frame(full=True, final=final)
        await self.client.xadd(Keys(self.name).frames, {"frame": encode(frame)})


@pytest.fixture
async def pools(client: "Redis") -> AsyncIterator[tuple[Pool, Pool]]:
    """`a` has a draft for code, `b` one for chat; each is led by a controller loop of its own."""
    both = Pool(client, "a", "coder", "code"), Pool(client, "b", "talker", "chat")
    async with AsyncExitStack() as stack:
        for pool in both:
            task = asyncio.create_task(pool.loop.run())

            async def end(pool: Pool = pool, task: "asyncio.Task[None]" = task) -> None:
                pool.loop.stop()
                await task

            stack.push_async_callback(end)
        yield both


async def route(client: "Redis", domain: str) -> Route | None:
    """The greedy route of a domain, once both pools have timed steps."""
    found = compose(await offers(client), domain=domain, regime="greedy")
    return found[0] if found and len([p for p in found[0].pools if p.goodput]) == 2 else None


async def test_each_domain_is_routed_to_the_pool_whose_draft_knows_it(
    client: "Redis", pools: tuple[Pool, Pool], until: Until
) -> None:
    for pool in pools:
        await pool.serve(300, "code", "chat")
    await until(lambda: route(client, "code"))
    code, chat = await route(client, "code"), await route(client, "chat")
    assert code is not None
    assert chat is not None
    assert (code.target, code.domain, code.regime) == ("smol", "code", "greedy")
    assert (code.pools[0].pool, code.pools[0].draft) == ("a", "coder")
    assert (chat.pools[0].pool, chat.pools[0].draft) == ("b", "talker")
    best = code.pools[0]
    assert best.probability > 0.95
    assert sum(p.probability for p in code.pools) == pytest.approx(1.0)
    assert best.load == 1
    assert best.effective > 50
    assert 0 <= time.time() - best.computed < 60
    # 2.8 tokens a step of 50 ms; the prior of acceptance and a plain price that no step has shown move it a little.
    assert best.goodput == pytest.approx(56, rel=0.05)
    assert best.low is not None
    assert best.high is not None
    assert best.low < 56 < best.high


async def test_with_few_steps_the_hint_is_near_a_coin_toss(
    client: "Redis", pools: tuple[Pool, Pool], until: Until
) -> None:
    for pool, accepted in zip(pools, ((2, 1), (1, 1)), strict=True):  # 3 and 2 tokens kept: luck, or not
        for kept in accepted:
            pool.engine.step("code", kept)
        await pool.send()
    await until(lambda: route(client, "code"))
    code, unseen = await route(client, "code"), await route(client, "chat")
    assert code is not None
    assert unseen is not None
    assert all(0.25 < p.probability < 0.75 for p in code.pools)
    assert all(p.effective <= 2 for p in code.pools)
    assert [p.effective for p in unseen.pools] == [0.0, 0.0]
    assert unseen.pools[0].probability < code.pools[0].probability


async def test_a_pool_that_has_served_nothing_is_listed_with_an_even_chance(
    client: "Redis", pools: tuple[Pool, Pool], until: Until
) -> None:
    await pools[0].serve(300, "code")
    await pools[1].send()

    async def both() -> bool:
        return len(await offers(client)) == 2

    await until(both)
    (code,) = compose(await offers(client), domain="code", regime="greedy")
    assert [(p.pool, p.probability) for p in code.pools] == [("a", 0.5), ("b", 0.5)]
    assert (code.pools[1].goodput, code.pools[1].effective) == (None, 0.0)


async def test_a_pool_whose_last_engine_left_leaves_the_hint_at_once(
    client: "Redis", pools: tuple[Pool, Pool], until: Until
) -> None:
    for pool in pools:
        await pool.serve(50, "code")
    await until(lambda: route(client, "code"))
    await pools[0].send(final=True)

    async def left() -> bool:
        return [offer.pool for offer in await offers(client)] == ["b"]

    await until(left)


async def test_a_pool_that_stopped_reporting_leaves_the_hint_by_itself(
    client: "Redis", pools: tuple[Pool, Pool], until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pool in pools:
        await pool.serve(50, "code")
    await until(lambda: route(client, "code"))
    assert 0 < await client.pttl(Keys("a").offer) <= 30_000
    monkeypatch.setattr("controller.tuner.OFFER_SECONDS", 0.3)
    await pools[0].send()
    await until(lambda: pools[0].loop.view and pools[0].loop.view.frames.learned == 2)

    async def left() -> bool:
        return [offer.pool for offer in await offers(client)] == ["b"]

    await until(left)
    # `a` is still led and still issues policies for its silent engine.
    assert pools[0].loop.role == "leading"


async def test_the_api_answers_for_all_pools_whoever_leads_them(
    client: "Redis", server: str, pools: tuple[Pool, Pool], until: Until
) -> None:
    for pool in pools:
        await pool.serve(100, "code", "chat")
    await until(lambda: route(client, "code"))
    other = create_app(ControllerSettings(redis_url=server, draws=32, pools=("a",)))  # stands by for one, not the other
    async with other.router.lifespan_context(other):
        transport = httpx.ASGITransport(other)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            body = (await http.get("/v1/router?domain=code&regime=greedy")).json()
            assert [(r["target"], r["domain"], [p["pool"] for p in r["pools"]]) for r in body] == [
                ("smol", "code", ["a", "b"])
            ]
            assert {r["domain"] for r in (await http.get("/v1/router")).json()} == {"code", "chat", "other"}
            assert (await http.get("/v1/router?target=nobody")).json() == []
            document = (await http.get("/openapi.json")).json()
            assert "RoutedPool" in document["components"]["schemas"]


async def test_the_command_tells_the_same(client: "Redis", server: str, pools: tuple[Pool, Pool], until: Until) -> None:
    for pool in pools:
        await pool.serve(100, "code", "chat")
    await until(lambda: route(client, "code"))
    runner, asked = CliRunner(), ["route", "--redis-url", server, "--target", "smol", "--domain", "code"]
    told = await asyncio.to_thread(runner.invoke, app, asked)
    assert told.exit_code == 0
    first, best, *_ = told.stdout.splitlines()
    assert first == "smol, code, greedy"
    assert best.startswith("  a  best with ")
    parsed = json.loads((await asyncio.to_thread(runner.invoke, app, [*asked, "--json"])).stdout)
    assert parsed[0]["pools"][0]["pool"] == "a"
    nobody = await asyncio.to_thread(runner.invoke, app, ["route", "--redis-url", server, "--target", "x"])
    assert nobody.exit_code == 1


def test_a_server_that_is_away_ends_the_command_with_5() -> None:
    told = CliRunner().invoke(app, ["route", "--redis-url", "unix:///nowhere/at/all"])
    assert told.exit_code == 5
    assert "unix:///nowhere/at/all does not answer" in told.stderr


async def test_what_is_no_offer_is_passed_over(client: "Redis", server: str) -> None:
    await client.sadd(Keys.POOLS, "p", "q", "r")
    await client.set(Keys("p").offer, b"{oops")
    await client.set(Keys("q").offer, b'{"pool":"q","target":"t","computed":1,"load":1,"engines":1,"cells":[],"v":99}')
    await client.set(Keys("r").offer, b'{"pool":"r","target":"t","computed":1,"load":1,"engines":1,"cells":[]}')
    with redis.Redis.from_url(server) as plain:
        found = await asyncio.to_thread(read_offers, plain)
    assert [offer.pool for offer in found] == ["r"]
    assert found[0] == decode_offer(encode(found[0]))
