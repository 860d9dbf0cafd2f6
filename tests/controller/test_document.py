"""The OpenAPI document's examples and the page that shows it."""

import re
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
