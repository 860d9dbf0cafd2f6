"""Steering over HTTP on a real server: orders reach the policy, are audited, and only who may gives them."""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from redis.asyncio import Redis

from controller.app import create_app
from controller.audit import Act
from controller.loop import PoolLoop
from controller.settings import ControllerSettings
from controller.view import DecisionRecord
from engine.link.messages import Keys, Policy, decode_policy, encode
from tests.controller.engines import CountingEngine

Until = Callable[[Callable[[], object]], Awaitable[None]]
P = "/v1/pools/p"
TOKENS = "# ours\nana admin aaaaaaaaaaaaaaaa\nbob read bbbbbbbbbbbbbbbb\n"


@asynccontextmanager
async def running(server: str, base: str = "http://127.0.0.1", **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(
        ControllerSettings(
            redis_url=server, draws=32, seed=1, decide_seconds=0.05, policy_seconds=60, lease_seconds=30, **settings
        )
    )
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=base) as http:
            yield http


async def policy(api: httpx.AsyncClient, until: Until, holds: Callable[[Policy], bool]) -> Policy:
    """The first policy of which `holds` is true."""
    found: list[Policy] = []

    async def there() -> bool:
        answer = await api.get(f"{P}/policy")
        if answer.status_code == 200 and holds(decode_policy(answer.content)):
            found.append(decode_policy(answer.content))
        return bool(found)

    await until(there)
    return found[0]


def arms(policy: Policy, domain: str) -> set[tuple[str, int]]:
    return {
        (c.draft, k) for cell in policy.cells if cell.domain == domain for c in cell.drafts if c.p for k, p in c.k if p
    }


async def test_a_pin_reaches_the_policy_and_its_end_too(server: str, engine: CountingEngine, until: Until) -> None:
    async with running(server) as api:
        await policy(api, until, lambda p: bool(p.cells))
        made = await api.put(f"{P}/pins/code", json={"draft": "ngram", "k": 2, "why": "a test"})
        assert (made.status_code, made.headers["ETag"]) == (200, '"1"')
        (pin,) = made.json()["pins"]
        assert (pin["domain"], pin["draft"], pin["k"], pin["by"], pin["why"]) == ("code", "ngram", 2, "local", "a test")
        await policy(api, until, lambda p: arms(p, "code") == {("ngram", 2)})
        assert (await api.delete(f"{P}/pins/code", params={"why": "enough"})).json()["pins"] == []
        free = await policy(
            api, until, lambda p: any(c.nonadaptive < 1 or c.draw for c in p.cells if c.domain == "code")
        )
        assert free.version > (0, 0)
        told = (await api.get(f"{P}/audit")).json()
        assert [(e["who"], e["what"], e["why"]) for e in told if e["who"] == "local"] == [
            ("local", "unpin code", "enough"),
            ("local", "pin code to ngram at K = 2", "a test"),
        ]
        learned = [e["why"] for e in told if e["who"] == "controller" and " at load " in e["what"]]
        assert learned
        assert all("plain" in why and " at this load" in why for why in learned)


async def test_modes_and_retired_drafts_reach_the_policy(server: str, engine: CountingEngine, until: Until) -> None:
    async with running(server) as api:
        await policy(api, until, lambda p: bool(p.cells))
        await api.put(f"{P}/mode", json={"mode": "canary", "share": 0.25})
        canary = await policy(api, until, lambda p: p.mode == "canary")
        assert canary.share == 0.25
        assert (await api.get(P)).json()["mode"] == "canary"
        await api.put(f"{P}/drafts/ngram", json={"retired": True})
        await policy(api, until, lambda p: not any(c.draft == "ngram" for cell in p.cells for c in cell.drafts))
        await api.put(f"{P}/drafts/ngram", json={"retired": False})
        await policy(api, until, lambda p: any(c.draft == "ngram" for cell in p.cells for c in cell.drafts))


async def test_orders_outlive_the_controller(server: str, engine: CountingEngine, until: Until) -> None:
    async with running(server) as api:
        await policy(api, until, lambda p: bool(p.cells))
        await api.put(f"{P}/pins/chat", json={"draft": "none", "k": 0})
    async with running(server) as api:
        await policy(api, until, lambda p: arms(p, "chat") == {("none", 0)})
        assert (await api.get(f"{P}/orders")).json()["revision"] == 1


async def test_a_reset_is_carried_out_once(server: str, engine: CountingEngine, until: Until) -> None:
    def known(answer: httpx.Response) -> float:
        (domain,) = (d for d in answer.json() if d["regime"] == "greedy")
        return float(domain["curves"][0]["effective_n"])

    async with running(server) as api:
        await policy(api, until, lambda p: bool(p.cells))
        assert known(await api.get(f"{P}/domains/code")) > 10
        assert (await api.post(f"{P}/resets", json={"domain": "code"})).status_code == 200

        async def forgotten() -> bool:
            return known(await api.get(f"{P}/domains/code")) < 1

        await until(forgotten)
        assert known(await api.get(f"{P}/domains/chat")) > 10
        engine.run(200, random.Random(2))
    async with running(server) as api:  # a controller that starts anew must not reset again
        client = Redis.from_url(server)
        await client.xadd(Keys("p").frames, {"frame": encode(engine.frame())})
        await client.aclose()

        async def learned() -> bool:
            answer = await api.get(f"{P}/domains/code")
            return answer.status_code == 200 and known(answer) > 10

        await until(learned)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "said"),
    [
        ("PUT", "pins/code", {"draft": "ngram", "k": 3}, 422, "k is 3 for draft 'ngram'; allowed: 0, 2, 4"),
        ("PUT", "pins/code", {"draft": "eagle", "k": 2}, 422, "draft is 'eagle'; allowed: 'none', 'ngram'"),
        ("PUT", "pins/code", {"draft": "ngram", "k": 2, "untill": 5}, 422, "untill"),
        ("PUT", "mode", {"mode": "fast"}, 422, "'off', 'shadow', 'shadow+probe', 'canary' or 'on'"),
        ("PUT", "mode", {"mode": "on", "share": 0.5}, 422, "share is 0.5 in mode 'on'"),
        ("DELETE", "pins/code", None, 422, "domain 'code' is not pinned; pinned are none"),
        ("POST", "resets", {}, 422, "a reset names a domain, a draft or both"),
        ("POST", "resets", {"draft": "zzz"}, 422, "nothing was learned of draft 'zzz'; known are 'ngram'"),
        ("POST", "resets", {"domain": "a\u0000b"}, 422, "nothing was learned of domain"),
        ("POST", "resets", {"draft": "\x7f"}, 422, "nothing was learned of draft"),
        ("PUT", "drafts/eagle", {"retired": True}, 422, "draft 'eagle' is loaded by no engine; loaded are 'ngram'"),
        ("PUT", "mode", {"mode": "on", "why": "x" * 70_000}, 413, "more than 65536 bytes"),
    ],
)
async def test_bad_orders_are_told_what_is_allowed(
    server: str, engine: CountingEngine, until: Until, method: str, path: str, body: Any, status: int, said: str
) -> None:
    async with running(server) as api:
        await policy(api, until, lambda p: bool(p.cells))
        answer = await api.request(method, f"{P}/{path}", json=body)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
        assert said in answer.json()["detail"]
        assert (await api.get(f"{P}/orders")).json()["revision"] == 0


async def test_who_read_an_old_revision_does_not_write(server: str, engine: CountingEngine, until: Until) -> None:
    async with running(server) as api:
        await policy(api, until, lambda p: bool(p.cells))
        old = (await api.get(f"{P}/orders")).headers["ETag"]
        await api.put(f"{P}/mode", json={"mode": "off"}, headers={"If-Match": old})
        late = await api.put(f"{P}/mode", json={"mode": "on"}, headers={"If-Match": old})
        assert late.status_code == 412
        assert "revision 1" in late.json()["detail"]
        # Without a revision everybody's order counts, one after the other.
        both = await asyncio.gather(
            *(api.put(f"{P}/pins/{domain}", json={"draft": "none", "k": 0}) for domain in ("a", "b"))
        )
        assert [answer.status_code for answer in both] == [200, 200]
        assert {p["domain"] for p in (await api.get(f"{P}/orders")).json()["pins"]} == {"a", "b"}


async def test_tokens_say_who_may(server: str, engine: CountingEngine, until: Until, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(TOKENS)
    ana, bob = ({"Authorization": f"Bearer {letter * 16}"} for letter in "ab")
    async with running(server, base="http://gpu-1", tokens_file=str(file)) as api:
        await policy(api, until, lambda p: bool(p.cells))
        order = {"mode": "off"}
        nobody = await api.put(f"{P}/mode", json=order)
        assert (nobody.status_code, nobody.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert (await api.put(f"{P}/mode", json=order, headers={"Authorization": "Bearer guess"})).status_code == 401
        assert (await api.put(f"{P}/mode", json=order, headers=bob)).status_code == 403
        assert (await api.put(f"{P}/mode", json=order, headers=ana)).status_code == 200
        assert (await api.get(f"{P}/audit")).json()[0]["who"] == "ana"
        # Rotation: the new token counts at once, the old one no more; a file that is broken changes nothing.
        file.write_text("ana admin cccccccccccccccc\n")
        assert (await api.put(f"{P}/mode", json=order, headers=ana)).status_code == 401
        file.write_text("ana admin short\n")
        new = {"Authorization": f"Bearer {'c' * 16}"}
        assert (await api.put(f"{P}/mode", json=order, headers=new)).status_code == 200


async def test_reading_can_need_a_token_too(server: str, engine: CountingEngine, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(TOKENS)
    async with running(server, base="http://gpu-1", tokens_file=str(file), open_reads=False) as api:
        bob = {"Authorization": f"Bearer {'b' * 16}"}
        for path in ("/v1/pools", "/metrics", "/status"):
            assert (await api.get(path)).status_code == 401
            assert (await api.get(path, headers=bob)).status_code == 200
        assert (await api.get("/healthz")).status_code == 200


@pytest.mark.parametrize(
    "path",
    ["/", "/static/app.js", "/openapi.json", "/metrics", "/status", "/v1/whoami", "/v1/pools", f"{P}/policy", P],
)
async def test_without_tokens_a_foreign_name_of_this_machine_reads_nothing(
    server: str, engine: CountingEngine, path: str
) -> None:
    async with running(server, base="http://evil.example") as api:
        answer = await api.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (403, "application/problem+json")
        assert "'evil.example'" in answer.json()["detail"]
        assert (await api.get("/healthz")).status_code == 200
        assert (await api.get("/readyz")).status_code in (200, 503)  # as ready as it is


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.:8080", "127.0.0.1", "127.0.0.1:8080", "[::1]:8080"])
async def test_without_tokens_loopback_reads_and_steers_by_any_of_its_names(
    server: str, engine: CountingEngine, until: Until, host: str
) -> None:
    async with running(server, base=f"http://{host}") as api:
        await policy(api, until, lambda p: bool(p.cells))
        assert (await api.put(f"{P}/mode", json={"mode": "off"})).status_code == 200


async def test_without_tokens_a_foreign_name_of_this_machine_steers_nothing(
    server: str, engine: CountingEngine, until: Until
) -> None:
    async with running(server) as api:
        await policy(api, until, lambda p: bool(p.cells))
        answer = await api.put(f"{P}/mode", json={"mode": "off"}, headers={"Host": "evil.example"})
        assert answer.status_code == 403
        assert "'evil.example'" in answer.json()["detail"]
        assert (await api.get(f"{P}/orders")).json()["revision"] == 0


async def test_a_page_of_another_origin_gets_no_permission(server: str, engine: CountingEngine, until: Until) -> None:
    foreign = {"Origin": "https://evil.example"}
    async with running(server) as api:
        await policy(api, until, lambda p: bool(p.cells))
        asks = {"Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "content-type"}
        preflight = await api.options(f"{P}/mode", headers={**foreign, **asks})
        assert preflight.status_code == 405
        read = await api.get(P, headers=foreign)
        # What browsers send unasked: a POST whose body does not call itself JSON.
        form = {**foreign, "Content-Type": "text/plain"}
        simple = await api.post(f"{P}/resets", content=b'{"domain": "code"}', headers=form)
        nameless = await api.post(f"{P}/resets", content=b'{"domain": "code"}', headers=foreign)
        assert (read.status_code, simple.status_code, nameless.status_code) == (200, 422, 422)
        for answer in (preflight, read, simple, nameless):
            assert not [name for name in answer.headers if name.startswith("access-control-")]
        assert (await api.get(f"{P}/orders")).json()["revision"] == 0


async def test_a_tokens_file_is_made_where_there_is_none(server: str, tmp_path: Path) -> None:
    file = tmp_path / "made" / "tokens"
    async with running(server, tokens_file=str(file)):
        pass
    assert file.stat().st_mode & 0o777 == 0o600
    name, role, secret = file.read_text().splitlines()[-1].split()
    assert (name, role, len(secret)) == ("admin", "admin", 43)


async def test_what_a_pin_would_cost_is_told_before_it_is_ordered(
    server: str, engine: CountingEngine, until: Until
) -> None:
    async with running(server) as api:
        await policy(api, until, lambda p: bool(p.cells))
        before = (await api.get(f"{P}/policy")).json()["version"]
        answer = await api.post(f"{P}/what-if", json={"load": 1})
        assert answer.status_code == 200, answer.text
        code = [arm for arm in answer.json()["arms"] if arm["domain"] == "code"]
        assert {(arm["draft"], arm["k"]) for arm in code} == {("none", 0), ("ngram", 2), ("ngram", 4)}
        # The best arm gives up nothing; goodput falls as the loss rises.
        assert code[0]["loss"]["value"] == 0
        assert [arm["goodput"] for arm in code] == sorted((arm["goodput"] for arm in code), reverse=True)
        ratio = code[-1]["goodput"] / code[0]["goodput"]
        assert code[-1]["loss"]["value"] == pytest.approx(1 - ratio, abs=0.02)
        pin = {"domain": "code", "draft": code[-1]["draft"], "k": code[-1]["k"]}
        (held,) = (await api.post(f"{P}/what-if", json={"load": 1, "pin": pin})).json()["arms"]
        assert (held["draft"], held["k"], held["chosen"]) == (pin["draft"], pin["k"], code[-1]["chosen"])
        assert held["loss"] == pytest.approx(code[-1]["loss"], rel=1e-3)  # counts fade between two questions
        assert (await api.get(f"{P}/policy")).json()["version"][0] == before[0]
        assert (await api.get(f"{P}/orders")).json()["revision"] == 0


async def test_what_if_takes_another_mix(server: str, engine: CountingEngine, until: Until) -> None:
    async with running(server) as api:
        await policy(api, until, lambda p: bool(p.cells))
        answer = (await api.post(f"{P}/what-if", json={"load": 2, "mix": {"code": 3, "chat": 1}})).json()
        assert answer["mix"] == {"code": pytest.approx(0.75), "chat": pytest.approx(0.25)}


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ({"load": 400}, "load is 400; allowed: 1 to"),
        ({"load": 1, "mix": {"poetry": 1}}, "mix has domain 'poetry'; known: "),
        ({"load": 1, "mix": {"code": -1}}, "mix has -1.0 for 'code'; allowed: 0 or more"),
        (
            {"load": 1, "pin": {"domain": "code", "draft": "ngram", "k": 3}},
            "k is 3 for draft 'ngram'; allowed: 0, 2, 4",
        ),
        (
            {"load": 1, "pin": {"domain": "poetry", "draft": "ngram", "k": 2}},
            "domain 'poetry' has no rows at this load",
        ),
    ],
)
async def test_what_cannot_be_imagined_is_told(
    server: str, engine: CountingEngine, until: Until, question: Any, said: str
) -> None:
    async with running(server) as api:
        await policy(api, until, lambda p: bool(p.cells))
        answer = await api.post(f"{P}/what-if", json=question)
        assert answer.status_code == 422
        assert said in answer.json()["detail"]


async def test_a_measurement_plays_the_static_choice_in_its_windows_and_is_shown(
    server: str, engine: CountingEngine, until: Until
) -> None:
    async with running(server) as api:
        await policy(api, until, lambda p: bool(p.cells))
        # Pairs of two windows of 5 s, so that one with the static choice comes within 5 s. It is ngram at K = 2.
        body = {"minutes": 0.5, "windows": 6, "why": "worth it?"}
        made = await api.put(f"{P}/measure", json=body)
        assert made.status_code == 200, made.text
        told = made.json()["measure"]
        assert (told["window_seconds"], told["share"], told["against"], told["by"]) == (5.0, 0.5, "static", "local")

        def static(p: Policy) -> bool:
            choices = {(c.draft, *c.k, c.p) for cell in p.cells for c in cell.drafts}
            return choices == {("none", (0, 1.0), 0.0), ("ngram", (2, 1.0), 1.0)} and p.probe.every == p.allowance == 0

        await policy(api, until, static)
        gain = (await api.get(P)).json()["measured_gain"]
        assert (gain["ratio"], gain["pairs"], gain["planned"], gain["running"]) == (None, 0, 3, True)
        assert gain["against"] == ["ngram", 2]
        entry = (await api.get(f"{P}/audit")).json()[0]
        assert entry["what"] == (
            "measure the gain over the static choice: 0.5 minutes in 6 windows, 50.0% of the time without the policy"
        )
        assert (entry["who"], entry["why"]) == ("local", "worth it?")
        assert (await api.delete(f"{P}/measure")).json()["measure"] is None
        await policy(api, until, lambda p: not static(p))
        assert (await api.delete(f"{P}/measure")).status_code == 422


async def test_in_shadow_nothing_is_measured_and_the_answer_says_why(
    server: str, engine: CountingEngine, until: Until
) -> None:
    async with running(server) as api:
        await policy(api, until, lambda p: bool(p.cells))
        await api.put(f"{P}/mode", json={"mode": "shadow"})
        await policy(api, until, lambda p: p.mode == "shadow")
        answer = await api.put(f"{P}/measure", json={"minutes": 10})
        assert answer.status_code == 422
        assert answer.json()["detail"] == (
            "mode is 'shadow', in which all requests play the static choice: there is nothing to compare it with, so "
            "no gain can be measured. Set mode 'canary' or 'on' first"
        )


async def test_a_pin_that_runs_out_leaves_the_orders_with_an_entry_of_its_own(
    server: str, engine: CountingEngine, until: Until
) -> None:
    async with running(server) as api:
        await policy(api, until, lambda p: bool(p.cells))
        over = time.time() + 3.0  # the order must reach a busy machine's controller before it is over
        await api.put(f"{P}/pins/code", json={"draft": "ngram", "k": 2, "until": over})
        await api.put(f"{P}/pins/chat", json={"draft": "none", "k": 0})

        async def told() -> list[dict[str, str]]:
            found = (await api.get(f"{P}/audit", params={"who": "controller"})).json()
            return [entry for entry in found if "ran out" in entry["what"]]

        await until(told)
        (entry,) = await told()
        stamp = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(over))
        assert entry["what"] == f"pin code to ngram at K = 2 until {stamp} ran out"
        assert entry["why"] == "ordered by local"
        orders = (await api.get(f"{P}/orders")).json()
        assert (orders["revision"], [pin["domain"] for pin in orders["pins"]]) == (3, ["chat"])
    async with running(server) as api:  # and none again from a controller that starts anew
        await policy(api, until, lambda p: arms(p, "chat") == {("none", 0)})
        assert len(await told()) == 1


async def test_the_audit_log_is_read_page_by_page_and_by_name(
    server: str, client: "Redis", engine: CountingEngine, until: Until
) -> None:
    async with running(server) as api:
        await policy(api, until, lambda p: bool(p.cells))
        for number in range(5):
            await api.put(f"{P}/mode", json={"mode": "on" if number % 2 else "off", "why": str(number)})
        (loop,) = await loops(api, until)
        loop.stop()  # so that the log stands still
        await until(lambda: loop.role == "stopped")
        # Entries of one id, in both streams: no page's end may part them.
        ahead = f"{int(1000 * time.time()) + 60_000}-0"
        act = Act(time.time(), "eve", "mode on", "", 9).encode()
        note = msgspec.json.encode(DecisionRecord(time.time(), (1, 1), "a note", []))
        await client.xadd(Keys("p").acts, {"entry": act}, id=ahead)
        await client.xadd(Keys("p").audit, {"entry": note}, id=ahead)
        whole = (await api.get(f"{P}/audit", params={"limit": 1000})).json()
        assert [entry["id"] for entry in whole[:2]] == [ahead, ahead]
        paged: list[Any] = []
        while page := (await api.get(f"{P}/audit", params=after(paged))).json():
            assert 1 <= len(page) <= 2
            paged += page
        assert paged == whole
        acts = (await api.get(f"{P}/audit", params={"who": "local"})).json()
        assert [entry["why"] for entry in acts] == ["4", "3", "2", "1", "0"]
        older = {"who": "local", "limit": 2, "before": acts[1]["id"]}
        assert [entry["why"] for entry in (await api.get(f"{P}/audit", params=older)).json()] == ["2", "1"]
        assert (await api.get(f"{P}/audit", params={"who": "nobody"})).json() == []
        assert (await api.get(f"{P}/audit", params={"before": "0-0"})).json() == []
        for wrong in ("yesterday", "٣-٣", "1", f"{'9' * 20}-0"):
            assert (await api.get(f"{P}/audit", params={"before": wrong})).status_code == 422


def after(paged: list[Any]) -> dict[str, Any]:
    return {"limit": 1} | ({"before": paged[-1]["id"]} if paged else {})


async def loops(api: httpx.AsyncClient, until: Until) -> list[PoolLoop]:
    app = api._transport.app  # type: ignore[attr-defined]  # httpx's
    await until(lambda: app.state.supervisor.pools)
    return list(app.state.supervisor.pools.values())


async def test_who_steers_is_in_the_log_with_what_and_why(
    server: str, engine: CountingEngine, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(server) as api:
        await policy(api, until, lambda p: bool(p.cells))
        with caplog.at_level(logging.INFO, "controller"):
            await api.put(f"{P}/mode", json={"mode": "off", "why": "a test"})
            await api.put(f"{P}/mode", json={"mode": "on"})
    lines = [(record.message, record.pool) for record in caplog.records if "mode" in record.message]  # type: ignore[attr-defined]
    assert lines == [("pool p: mode off by local: a test", "p"), ("pool p: mode on by local", "p")]


async def test_a_key_that_somebody_else_wrote_is_not_called_a_server_that_is_away(
    server: str, client: "Redis", engine: CountingEngine, until: Until
) -> None:
    await client.set(Keys("p").orders, "not ours")
    async with running(server) as api:
        (loop,) = await loops(api, until)
        await until(lambda: loop.problem)
        assert loop.problem is not None
        assert loop.problem.startswith("Redis holds something of another type under one of our keys")
        answer = await api.get(f"{P}/orders")
        assert (answer.status_code, "does not answer" in answer.text, "WRONGTYPE" in answer.text) == (503, False, True)
