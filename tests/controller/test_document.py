"""The OpenAPI document's examples and the page that shows it."""

import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema_rs
import msgspec
import pytest

from controller.app import create_app
from controller.settings import ControllerSettings
from engine.link.messages import Policy, decode_policy


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    app = create_app(ControllerSettings())
    assert app.openapi() is app.openapi()  # made once
    return app.openapi()


def answers(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every answer with JSON, by method and path."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            content = operation["responses"]["200"].get("content", {})
            if "application/json" in content:
                yield f"{method} {path}", content["application/json"]


def test_every_answer_has_a_whole_example_that_fits_its_schema(document: dict[str, Any]) -> None:
    found = dict(answers(document))
    assert len(found) >= 22
    for name, content in found.items():
        schema = {**content["schema"], "components": document["components"]}
        assert schema.keys() & {"$ref", "items", "type"}, name
        jsonschema_rs.validator_for(schema).validate(content["example"])
        assert name.endswith("/policy") or not holes(content["example"]), name


def test_the_examples_tell_one_story(document: dict[str, Any]) -> None:
    """Whoever follows a figure from one answer to the next finds the same one, or what it is worked out to."""
    found = {name: content["example"] for name, content in answers(document)}
    base = "get /v1/pools/{pool}"
    pool, policy, orders = found[base], found[f"{base}/policy"], found[f"{base}/orders"]
    (engine,), (moment,), (code,) = (found[f"{base}/{name}"] for name in ("engines", "history", "domains/{domain}"))
    summaries = {one["domain"]: one for one in found[f"{base}/domains"]}
    (choice,), traffic, log = code["choices"], pool["traffic"], found[f"{base}/audit"]
    # One policy, one mode, one static choice.
    assert pool["policy_version"] == list(policy["version"]) == engine["applied"]
    assert pool["policy_expires"] == policy["expires"]
    assert pool["mode"] == policy["mode"] == orders["mode"]
    assert engine["last_seen"] - policy["issued"] == pytest.approx(engine["policy_age"])
    fixed = found["post /v1/pools/{pool}/what-if"]["fixed"]
    assert [fixed["draft"], fixed["k"]] == [policy["static"]["draft"], policy["static"]["k"]]
    assert fixed["loss"]["value"] == pytest.approx(1 - fixed["speedup"]["value"] / fixed["learned"]["value"], abs=5e-4)
    # Sums and what they come to; plain and static as the chart draws them.
    rate, speedup = traffic["tokens_per_busy_second"], traffic["speedup"]["value"]
    assert rate == moment["goodput"] == pytest.approx(traffic["tokens"] / traffic["busy_seconds"], abs=0.05)
    assert moment["plain"] == pytest.approx(rate / speedup, abs=0.05)
    assert moment["static"] == pytest.approx(moment["plain"] * traffic["static"], abs=0.05)
    assert (
        moment["rows"]
        == traffic["mean_rows"]
        == pytest.approx(traffic["row_seconds"] / traffic["busy_seconds"], abs=0.005)
    )
    assert (moment["running"], pool["running"]) == (engine["running"], engine["running"])
    assert traffic["tokens"] == sum(one["recent"]["tokens"] for one in summaries.values())
    assert summaries["code"]["recent"] == code["recent"]
    # What is played: by the policy as an engine reads it, in the tables, on the chart, on the route.
    played = [choice["draft"], choice["k"]]
    now, (then,), (routed,) = summaries["code"]["now"], moment["domains"], found["get /v1/router"][0]["pools"]
    assert all([one["draft"], one["k"]] == played for one in (now, then, routed, choice["would_choose"]))
    (cell,) = (c for c in policy["cells"] if c["domain"] == "code")
    shares = {(d["draft"], k): d["p"] * p for d in cell["drafts"] for k, p in d["k"]}
    most = 1 - cell["nonadaptive"] + cell["nonadaptive"] * shares[*played]
    assert choice["probability"] == now["probability"] == choice["arms"][0]["probability"] == pytest.approx(most)
    assert pool["explored"] == choice["explored"] == pytest.approx(cell["nonadaptive"] * (1 - shares[*played]))
    assert sum(arm["probability"] for arm in choice["arms"]) == pytest.approx(1.0)
    plain = next(arm for arm in choice["arms"] if arm["draft"] == "none")
    for arm in choice["arms"]:
        assert arm["speedup"]["value"] == pytest.approx(arm["goodput"] / plain["goodput"], abs=0.005)
    # The last change: in the sentence, the decisions, the log and the chart's acceptance.
    (decision,), (learned,) = found[f"{base}/decisions"], (one for one in log if one["who"] == "controller")
    (switch,) = decision["switches"]
    assert learned["why"] == switch["reason"] == choice["reason"]
    assert (learned["time"], switch["after"]) == (decision["time"], played)
    clock = time.strftime("last change %H:%M UTC: ", time.gmtime(decision["time"]))
    assert clock + f"acceptance at position 3 fell from 0.71 to {then['acceptance'][2]:.2f}" in choice["reason"]
    curve = [p["acceptance"]["value"] for p in code["curves"][0]["positions"]]
    assert then["acceptance"] == curve
    # Orders: the pin is in the log, the policy and the summary; the measurement's result is that of the one that runs.
    (pin,), measured = orders["pins"], pool["measured_gain"]
    (held,) = summaries[pin["domain"]]["choices"]
    assert (held["held"], held["draft"], held["k"], log[0]["time"]) == ("pin", pin["draft"], pin["k"], pin["at"])
    assert log[0]["what"].startswith(f"pin {pin['domain']} (greedy) to {pin['draft']} at K = {pin['k']} until ")
    assert [entry["time"] for entry in log] == sorted((entry["time"] for entry in log), reverse=True)
    assert orders["revision"] == sum(one["who"] != "controller" for one in log)
    assert (measured["running"], moment["measuring"]) == (True, True)
    assert measured["planned"] == orders["measure"]["windows"] // 2
    for name in ("since", "until", "share", "window_seconds"):
        assert measured[name] == orders["measure"][name]
    assert measured["against"][0] == orders["measure"]["against"]
    assert not {draft["draft"] for draft in pool["drafts"]} & {*orders["retired"]}


def test_every_problem_has_an_example_of_its_own_status(document: dict[str, Any]) -> None:
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    problems = [
        (int(s), r["content"]) for operation in operations for s, r in operation["responses"].items() if s > "4"
    ]
    assert {status for status, _ in problems} == {400, 401, 403, 404, 408, 409, 412, 413, 422, 500, 503}
    assert all(content["application/problem+json"]["example"]["status"] == status for status, content in problems)


def holes(value: Any) -> bool:
    """Whether an object or a list in it has nothing in it."""
    if isinstance(value, dict | list):
        parts = list(value.values()) if isinstance(value, dict) else value
        return not parts or any(holes(part) for part in parts)
    return False


def test_the_policy_is_described_as_on_the_wire(document: dict[str, Any]) -> None:
    content = dict(answers(document))["get /v1/pools/{pool}/policy"]
    assert content["schema"] == {"$ref": "#/components/schemas/Policy"}
    wire = msgspec.json.schema(Policy)["$defs"]
    for name, part in wire.items():
        ours = str(document["components"]["schemas"][name])
        assert ours.replace("#/components/schemas/", "#/$defs/") == str(part)
    policy = decode_policy(msgspec.json.encode(content["example"]))
    for cell in policy.cells:
        assert sum(choice.p for choice in cell.drafts) == pytest.approx(1.0)
        assert all(sum(p for _, p in choice.k) == pytest.approx(1.0) for choice in cell.drafts)


async def test_the_page_comes_with_all_it_loads_and_asks_no_other_host() -> None:
    transport = httpx.ASGITransport(create_app(ControllerSettings()))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        page = await http.get("/docs")
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "default-src 'none'; script-src 'self'" in page.headers["content-security-policy"]
        loaded = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        assert {"/static/swagger-ui-bundle.js", "/static/swagger-ui.css", "/static/docs.js"} <= {*loaded}
        for address in loaded:
            assert address.startswith(("/", "data:")), address
            if address.startswith("/static"):
                file = await http.get(address)
                assert (file.status_code, len(file.content) > 100) == (200, True)
