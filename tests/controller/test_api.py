import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from html.parser import HTMLParser

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis

from controller.api.pools import explored
from controller.app import create_app
from controller.settings import ControllerSettings
from controller.view import Choice, Domain, Interval, Traffic
from engine.link.messages import Keys, decode_policy, encode
from tests.controller.engines import CountingEngine

Until = Callable[[Callable[[], object]], Awaitable[None]]


@pytest.fixture
async def api(client: "Redis", server: str) -> AsyncIterator[httpx.AsyncClient]:
    """The application on a real server, asked through ASGI."""
    app = create_app(
        ControllerSettings(redis_url=server, draws=32, seed=1, decide_seconds=0.05, policy_seconds=60, lease_seconds=30)
    )
    async with app.router.lifespan_context(app):
        # What a client sees when a route fails is the point; the exception itself goes to the log.
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            yield http


@pytest.fixture
async def pool(engine: CountingEngine, api: httpx.AsyncClient, until: Until) -> CountingEngine:
    """A pool `p` whose one engine has reported 200 steps of code and chat, already decided on."""

    async def decided() -> bool:
        return (await api.get("/v1/pools/p/policy")).status_code == 200

    await until(decided)
    return engine


async def test_a_pool_is_summed_up(api: httpx.AsyncClient, pool: CountingEngine) -> None:
    assert (await api.get("/v1/pools")).json() == [{"pool": "p", "role": "leading", "problem": None}]
    summary = (await api.get("/v1/pools/p")).json()
    assert (summary["target"], summary["k_values"]) == ("smol", [0, 2, 4])
    (draft,) = summary["drafts"]
    assert (draft["draft"], draft["memory_bytes"]) == ("ngram", 0)
    assert draft["gain"] >= 0
    assert (summary["engines"], summary["running"], summary["stale"]) == (1, 1, False)
    assert summary["frames"]["learned"] == 1
    tokens = sum(cell.tokens for cell in pool.cells["account"].values())
    assert summary["traffic"]["tokens"] == tokens
    assert summary["traffic"]["tokens_per_busy_second"] == pytest.approx(tokens / 10.0)
    assert 0 <= summary["explored"] < 1
    speedup = summary["traffic"]["speedup"]
    assert speedup["low"] < speedup["value"] < speedup["high"]


def test_exploration_is_weighed_by_what_was_served_lately() -> None:
    """30 row-steps of which 10% explore, 10 with 50% (their other load does not count): (30 * 0.1 + 10 * 0.5) / 40.

    What explores under real policies: test_published."""

    def domain(row_steps: int, main_load: int | None, *shares: float) -> Domain:
        recent = Traffic(60.0, 0, row_steps, 1.0, None, None, None)
        choices = [
            Choice(2**i, "ngram", 2, 0.5, Interval(1.0, 1.0, 1.0), "", 0, [], explored=p) for i, p in enumerate(shares)
        ]
        return Domain("d", "greedy", 0, 0, recent, main_load, [], choices)

    assert explored([domain(30, 1, 0.1), domain(10, 2, 0.3, 0.5)]) == pytest.approx(0.2)
    assert explored([domain(0, None, 0.1)]) is None


async def test_the_policy_has_its_version_as_etag_and_is_not_sent_twice(
    api: httpx.AsyncClient, pool: CountingEngine
) -> None:
    answer = await api.get("/v1/pools/p/policy")
    policy = decode_policy(answer.content)
    tag = f'"{policy.version[0]}.{policy.version[1]}"'
    assert answer.headers["etag"] == tag
    for known in (tag, f'"1.1", W/{tag}'):
        again = await api.get("/v1/pools/p/policy", headers={"If-None-Match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert (await api.get("/v1/pools/p/policy", headers={"If-None-Match": '"1.1"'})).status_code == 200


async def test_a_domain_shows_posteriors_raw_counts_arms_and_the_reason(
    api: httpx.AsyncClient, pool: CountingEngine
) -> None:
    listed = (await api.get("/v1/pools/p/domains")).json()
    assert {entry["domain"] for entry in listed} == {"code", "chat"}
    assert all(entry["now"]["load"] == 1 for entry in listed)
    (code,) = (await api.get("/v1/pools/p/domains/code")).json()
    curve = code["curves"][0]
    counted = pool.cells["acceptance"]["code"]
    assert curve["draft"] == "ngram"
    assert [p["seen"] for p in curve["positions"][:2]] == counted.seen
    assert [p["accepted"] for p in curve["positions"][:2]] == counted.accepted
    first, second = curve["positions"][:2]
    assert first["acceptance"]["low"] < counted.accepted[0] / counted.seen[0] < first["acceptance"]["high"]
    assert first["survival"]["value"] == pytest.approx(first["acceptance"]["value"])
    # Positions share what is unsure of the whole curve, so their product is kept a little more often than by itself.
    alone = first["acceptance"]["value"] * second["acceptance"]["value"]
    assert alone < second["survival"]["value"] < 1.02 * alone
    assert first["acceptance"]["low"] * second["acceptance"]["low"] < second["survival"]["low"]
    assert second["survival"]["high"] < first["acceptance"]["high"] * second["acceptance"]["high"]
    # Every segment of this engine is one step, which tells nothing of how requests differ.
    about = pytest.approx(counted.seen[0], rel=1e-4)  # they have faded for some milliseconds
    assert curve["spread"] == {"segments": about, "sd": None, "observed": about, "design_effect": 1.0}
    assert curve["effective_n"] == about
    choice = code["choices"][0]
    assert choice["reason"]
    assert sum(arm["probability"] for arm in choice["arms"]) == pytest.approx(1.0)
    assert {(arm["draft"], arm["k"]) for arm in choice["arms"]} == {("none", 0), ("ngram", 2), ("ngram", 4)}


async def test_engines_and_decisions_are_listed(api: httpx.AsyncClient, pool: CountingEngine) -> None:
    (engine,) = (await api.get("/v1/pools/p/engines")).json()
    assert (engine["engine"], engine["incarnation"], engine["steps"]) == ("e", "i", 200)
    # All steps lie in bucket 151, in the half octave from 2 ** 18.5 to 2 ** 19 microseconds: half way, and 95% of it.
    assert (engine["step_p50"], engine["step_p95"]) == pytest.approx((2**18.75 / 1e6, 2**18.975 / 1e6))
    decisions = (await api.get("/v1/pools/p/decisions?limit=1")).json()
    assert {switch["domain"] for switch in decisions[0]["switches"]} <= {"code", "chat"}


@pytest.mark.parametrize(
    ("path", "status", "detail"),
    [
        ("/v1/pools/q", 404, "There is no pool 'q'; known pools: 'p'"),
        ("/v1/pools/p/domains/poetry", 404, "Pool 'p' has no domain 'poetry'; known domains: 'chat', 'code'"),
        ("/v1/pools/p/decisions?limit=0", 422, "query.limit: Input should be greater than or equal to 1"),
        ("/nowhere", 404, "GET /nowhere"),
    ],
)
async def test_errors_are_problem_details_that_say_what_there_is(
    api: httpx.AsyncClient, pool: CountingEngine, path: str, status: int, detail: str
) -> None:
    answer = await api.get(path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert (body["status"], body["detail"]) == (status, detail)
    assert body["title"]


async def test_a_bug_in_a_route_is_a_problem_without_its_traceback(
    api: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    transport = api._transport
    assert isinstance(transport, httpx.ASGITransport)

    async def broken() -> None:
        raise RuntimeError("secret detail")

    transport.app.add_api_route("/broken", broken)  # type: ignore[attr-defined]  # the app is a FastAPI
    answer = await api.get("/broken")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert answer.json()["title"] == "Internal error"
    assert "secret detail" in caplog.text


async def test_writing_is_not_possible(api: httpx.AsyncClient, pool: CountingEngine) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert (await api.request(method, "/v1/pools/p")).status_code == 405


async def test_a_process_without_pools_is_healthy_and_ready(api: httpx.AsyncClient, until: Until) -> None:
    assert (await api.get("/healthz")).json() == {"status": "ok", "pools": {}}

    async def ready() -> bool:
        return (await api.get("/readyz")).status_code == 200

    await until(ready)
    assert "No pool yet" in (await api.get("/status")).text


async def test_without_redis_the_process_lives_and_says_why_it_is_not_ready(until: Until) -> None:
    app = create_app(ControllerSettings(redis_url="unix:///nowhere/at/all", pools=("p",)))
    async with app.router.lifespan_context(app):
        await until(lambda: "p" in app.state.supervisor.pools and app.state.supervisor.pools["p"].problem)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http:
            assert (await http.get("/healthz")).status_code == 200
            answer = await http.get("/readyz")
            assert answer.status_code == 503
            assert "Redis does not answer" in answer.json()["detail"]
            answer = await http.get("/v1/pools/p/domains")
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "2"
            page = await http.get("/status")
            assert "Redis does not answer" in page.text


async def test_metrics_parse_and_agree_with_the_api(api: httpx.AsyncClient, pool: CountingEngine) -> None:
    text = (await api.get("/metrics")).text
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["akc_frames_total", (("outcome", "learned"), ("pool", "p"))] == 1
    assert samples["akc_pool_leading", (("pool", "p"),)] == 1
    assert samples["akc_engines", (("pool", "p"),)] == 1
    key = (("domain", "code"), ("draft", "ngram"), ("pool", "p"), ("position", "1"), ("regime", "greedy"))
    (code,) = (await api.get("/v1/pools/p/domains/code")).json()
    assert samples["akc_acceptance_mean", key] == pytest.approx(
        code["curves"][0]["positions"][0]["acceptance"]["value"], abs=0.01
    )


class _Text(HTMLParser):
    """The text of a page, the addresses it names, and its tags."""

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self.addresses: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.text.append(data.strip())


async def test_the_status_page_shows_what_the_api_says_and_asks_no_other_host(
    client: "Redis", api: httpx.AsyncClient, pool: CountingEngine
) -> None:
    page = await api.get("/status")
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    seen = _Text()
    seen.feed(page.text)
    assert seen.addresses == []
    assert "script" not in seen.tags
    for word in ("p", "code", "chat", "greedy", "Choices", "Engines", "Recent decisions", "e"):
        assert word in seen.text
    (code,) = (await api.get("/v1/pools/p/domains/code")).json()
    assert f"{code['tokens']:,}" in seen.text
    assert "stale" not in page.text


async def test_a_label_that_is_markup_stays_text(
    client: "Redis", api: httpx.AsyncClient, pool: CountingEngine, until: Until
) -> None:
    evil = "<script>alert(1)</script>"
    pool.step(evil, 2)
    await client.xadd(Keys("p").frames, {"frame": encode(pool.frame())})

    async def shown() -> bool:
        return evil in [entry["domain"] for entry in (await api.get("/v1/pools/p/domains")).json()]

    await until(shown)
    seen = _Text()
    seen.feed((await api.get("/status")).text)
    assert "script" not in seen.tags
    assert evil in seen.text
    assert (await api.get(f"/v1/pools/p/domains/{evil}")).json()[0]["domain"] == evil


async def test_the_page_and_the_api_say_when_data_is_stale(
    api: httpx.AsyncClient, pool: CountingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.loop.STALE_SECONDS", -1.0)
    assert (await api.get("/v1/pools/p")).json()["stale"] is True
    assert "stale: the last frame came" in (await api.get("/status")).text


async def test_the_openapi_document_describes_every_route_and_its_problems(api: httpx.AsyncClient) -> None:
    document = (await api.get("/openapi.json")).json()
    assert set(document["paths"]) >= {
        "/healthz",
        "/readyz",
        "/v1/pools",
        "/v1/pools/{pool}",
        "/v1/pools/{pool}/policy",
        "/v1/pools/{pool}/domains",
        "/v1/pools/{pool}/domains/{domain}",
        "/v1/pools/{pool}/decisions",
        "/v1/pools/{pool}/engines",
    }
    problems = document["paths"]["/v1/pools/{pool}"]["get"]["responses"]["404"]["content"]
    assert list(problems) == ["application/problem+json"]
    assert set(problems["application/problem+json"]["schema"]["properties"]) == {"type", "title", "status", "detail"}
    assert "HTTPValidationError" not in document["components"]["schemas"]


async def test_answers_come_while_many_are_asking(api: httpx.AsyncClient, pool: CountingEngine) -> None:
    answers = await asyncio.gather(*(api.get("/v1/pools/p/domains/code") for _ in range(50)))
    assert {answer.status_code for answer in answers} == {200}
