"""History and the event stream: what is kept, and taking a stream up again."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import httpx
import msgspec
from redis.asyncio import Redis

from controller.feed import KEPT, Event, Feed
from controller.history import History, Played, Sample, thinned
from engine.link.messages import Keys
from tests.controller.engines import CountingEngine
from tests.controller.test_steer_api import P, policy, running

Until = Callable[[Callable[[], object]], Awaitable[None]]


def at(time: float) -> Sample:
    return Sample(time, 100.0, (1.5, 1.4, 1.6), 1.2, 2.0, 2, 0, (Played("code", "greedy", "ngram", 4, 50.0, 1.5),))


def test_dense_samples_cover_the_last_minutes_and_sparse_ones_a_day() -> None:
    history = History()
    stored = [t for t in range(4000) if history.add(at(float(t)))]
    assert stored == list(range(0, 4000, 30))
    assert not history.add(at(3999.5))  # less than a second after the last
    whole = [s.time for s in history.between(0.0, 5000.0, 10_000)]
    assert whole == [*(float(t) for t in range(0, 3100, 30)), *(float(t) for t in range(3100, 4000))]
    again = History(at(float(t)) for t in stored)
    assert [s.time for s in again.between(0.0, 5000.0, 10_000)] == [float(t) for t in stored]


def test_thinning_keeps_the_last_sample_and_equal_parts_of_time() -> None:
    uneven = [at(t) for t in (0.0, 1.0, 2.0, 50.0, 99.0, 100.0)]
    assert [s.time for s in thinned(uneven, 4)] == [2.0, 50.0, 100.0]
    assert thinned(uneven, 6) == uneven


async def take(feed: Feed, last: str | None, n: int) -> list[Event]:
    taken: list[Event] = []
    async with asyncio.timeout(10):
        async for event in feed.after(last, lambda: False):
            taken.append(event)
            if len(taken) == n:
                break
    return taken


async def test_a_listener_takes_the_stream_up_where_it_was_cut_off() -> None:
    feed = Feed()
    feed.begin(7)
    for n in range(4):
        feed.put("decision", str(n).encode())
    assert [e.data for e in await take(feed, "7.2", 2)] == [b"2", b"3"]
    feed.put("state", b"")
    # Unknown or long gone: from the newest state on.
    assert [e.id for e in await take(feed, None, 1)] == ["7.5"]
    assert [e.id for e in await take(feed, "3.9", 1)] == ["7.5"]
    for nonsense in ("nonsense", "1." + 5000 * "9"):
        assert [e.id for e in await take(feed, nonsense, 1)] == ["7.5"]


async def test_a_state_replaces_the_state_before_it_and_old_events_go() -> None:
    feed = Feed()
    feed.begin(1)
    feed.put("state", b"")
    feed.put("state", b"")
    assert [e.id for e in await take(feed, None, 1)] == ["1.2"]
    for _ in range(2 * KEPT):
        feed.put("order", b"{}")
    assert [e.id for e in await take(feed, f"1.{KEPT + 3}", 1)] == [f"1.{KEPT + 4}"]


async def test_a_waiting_listener_is_told_at_once() -> None:
    feed = Feed()
    feed.begin(1)
    waiting = asyncio.create_task(take(feed, None, 1))
    await asyncio.sleep(0)
    feed.put("order", b"{}")
    assert [e.kind for e in await waiting] == ["order"]


async def test_history_is_served_and_outlives_the_controller(server: str, engine: CountingEngine, until: Until) -> None:
    async with running(server) as api:
        await policy(api, until, lambda p: bool(p.cells))
        (now,) = (await api.get(f"{P}/history")).json()
        summary = (await api.get(P)).json()
        assert now["goodput"] == summary["traffic"]["tokens_per_busy_second"]
        assert now["plain"] == now["goodput"] / now["speedup"]["value"]
        assert {d["domain"] for d in now["domains"]} == {"code", "chat"}
        assert {d["load"] for d in now["domains"]} == {1}  # a change of load is no change of choice
        assert {len(d["acceptance"]) for d in now["domains"] if d["k"]} <= {3}
        assert (await api.get(f"{P}/history", params={"until": 5.0})).json() == []
        assert (await api.get(f"{P}/history", params={"points": 0})).status_code == 422
    async with running(server) as api:

        async def there() -> bool:
            answer = await api.get(f"{P}/history")
            return answer.status_code == 200 and now["time"] in [m["time"] for m in answer.json()]

        await until(there)


async def test_what_is_not_a_sample_of_this_version_is_passed_over(client: "Redis", server: str, until: Until) -> None:
    await client.sadd(Keys.POOLS, "p")
    await client.xadd(Keys("p").history, {"sample": b'{"time": "yesterday"}'})
    await client.xadd(Keys("p").history, {"sample": msgspec.json.encode(at(time.time()))})
    async with running(server) as api:

        async def there() -> bool:
            return len((await api.get(f"{P}/history")).json()) == 1 if (await api.get(P)).status_code == 200 else False

        await until(there)


async def test_the_stream_over_http_tells_of_decisions_and_orders(
    server: str, engine: CountingEngine, until: Until
) -> None:
    async with running(server) as api:
        await policy(api, until, lambda p: bool(p.cells))
        app = api._transport.app  # type: ignore[attr-defined]  # httpx's
        (loop,) = app.state.supervisor.pools.values()
        before = (await take(loop.feed, None, 1))[0].id
        await api.put(f"{P}/mode", json={"mode": "off"})
        await policy(api, until, lambda p: p.mode == "off")
        app.state.ending = True  # the stream ends, so that the answer is whole
        answer = await api.get(f"{P}/events", headers={"Last-Event-ID": before})
        assert answer.headers["content-type"].startswith("text/event-stream")
        kinds = [line.removeprefix("event: ") for line in answer.text.splitlines() if line.startswith("event: ")]
        assert "order" in kinds
        assert kinds[-1] == "state"
        states = [line for line in answer.text.splitlines() if line.startswith("data: ") and '"policy_version"' in line]
        assert httpx.Response(200, text=states[-1].removeprefix("data: ")).json()["mode"] == "off"


async def test_so_many_may_listen_and_the_next_one_when_one_has_gone(
    server: str, engine: CountingEngine, until: Until
) -> None:
    async with running(server, max_listeners=1) as api:
        await policy(api, until, lambda p: bool(p.cells))
        app = api._transport.app  # type: ignore[attr-defined]  # httpx's
        first = asyncio.create_task(api.get(f"{P}/events"))  # has no end
        await until(lambda: app.state.listeners == 1)
        second = await api.get(f"{P}/events")
        assert (second.status_code, second.headers["content-type"]) == (503, "application/problem+json")
        assert second.json()["detail"].startswith("1 event streams are open, the limit (AKC_MAX_LISTENERS)")
        assert (await api.get(P)).status_code == 200
        first.cancel()
        await until(lambda: app.state.listeners == 0)
        app.state.ending = True
        assert (await api.get(f"{P}/events")).status_code == 200
        assert app.state.listeners == 0
