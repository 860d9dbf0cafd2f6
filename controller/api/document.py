"""The OpenAPI document: FastAPI's, with a whole example of every answer and the wire's schema of the policy."""

from collections.abc import Iterable
from typing import Any

import msgspec
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from pydantic import TypeAdapter

from controller.api.examples import EXAMPLES, POLICY
from engine.link.messages import Policy

_JSON = "application/json"


def install(app: FastAPI, routers: Iterable[APIRouter]) -> None:
    """Make `app`, which serves these routers, describe itself in full. The document is made when it is first asked."""
    made = app.openapi
    routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = made()
            _policy(document)
            for route in routes:
                _example(document, route)
        return made()

    app.openapi = openapi  # type: ignore[method-assign]  # as FastAPI's documentation has it


def _policy(document: dict[str, Any]) -> None:
    """What engines read is described by the wire's own types, like docs/reference/schema/policy.json."""
    _, parts = msgspec.json.schema_components([Policy], ref_template="#/components/schemas/{name}")
    schemas = document["components"]["schemas"]
    taken = sorted(parts.keys() & schemas.keys())
    if taken:
        raise ValueError(f"{taken} are names of the API's schemas and of the wire's; rename one")
    schemas.update(parts)
    content = document["paths"]["/v1/pools/{pool}/policy"]["get"]["responses"]["200"]["content"][_JSON]
    content.update(schema={"$ref": "#/components/schemas/Policy"}, example=msgspec.to_builtins(POLICY))


def _example(document: dict[str, Any], route: APIRoute) -> None:
    if not route.include_in_schema or route.response_model is None:
        return
    content = document["paths"][route.path_format][min(route.methods or {"GET"}).lower()]["responses"]["200"]["content"]
    if _JSON in content:
        kind = route.response_model
        content[_JSON]["example"] = TypeAdapter(kind).dump_python(EXAMPLES[kind], mode="json")
