"""`python -m controller.api.reference [FILE]`: writes the tables of endpoints in docs/reference/api.md from the code.

What a route answers is its docstring, what it takes its parameters and its body's examples, who may ask its
dependencies. The tables stand between `<!-- NAME: ... -->` and `<!-- end -->`; what is around them stays.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute

from controller.api.access import AdminOf

DOCUMENT = Path("docs/reference/api.md")


class Endpoint(NamedTuple):
    """One method of one path. `query`: parameters with their defaults; `needs`: the least role; `body`: an example."""

    method: str
    path: str
    query: list[str]
    needs: str
    body: dict[str, Any] | None
    about: str


def endpoints(app: FastAPI, free: tuple[APIRouter, ...], asking: tuple[APIRouter, ...]) -> Iterator[Endpoint]:
    """All of the routers' routes, by path; `free` ones need no token."""
    document = app.openapi()
    found = [(route, "-") for router in free for route in router.routes]
    found += [(route, "read") for router in asking for route in router.routes]
    routes = [(route, needs) for route, needs in found if isinstance(route, APIRoute)]
    for route, least in sorted(routes, key=lambda pair: pair[0].path):
        method = min(route.methods or {"GET"})
        operation = document["paths"].get(route.path_format, {}).get(method.lower(), {})
        query = [
            f"{p['name']}={p['schema'].get('default', '')}"
            for p in operation.get("parameters", [])
            if p["in"] == "query"
        ]
        admin = AdminOf in get_type_hints(route.endpoint, include_extras=True).values()
        about = " ".join((route.endpoint.__doc__ or "").split())
        yield Endpoint(
            method, route.path_format, query, "admin" if admin else least, _example(document, operation), about
        )


def _example(document: dict[str, Any], operation: dict[str, Any]) -> dict[str, Any] | None:
    """A body out of its fields' examples; a field without one that may be left out is."""
    try:
        name = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    except KeyError:
        return None
    fields = document["components"]["schemas"][name]["properties"]
    return {key: field["examples"][0] for key, field in fields.items() if "examples" in field}


def table(rows: list[Endpoint], bodies: bool) -> str:
    """Rows as a Markdown table, with bodies or without.

    >>> print(table([Endpoint("GET", "/a/{b}", ["limit=9"], "read", None, "All of it.")], bodies=False))
    | endpoint | needs | answer |
    | --- | --- | --- |
    | `GET /a/{b}?limit=9` | read | All of it. |
    """
    lines = ["| endpoint | needs | body | what it does |" if bodies else "| endpoint | needs | answer |"]
    lines.append("| --- " * (4 if bodies else 3) + "|")
    for row in rows:
        query = "?" + "&".join(row.query) if row.query else ""
        cells = [f"`{row.method} {row.path}{query}`", row.needs]
        if bodies:
            cells.append("" if row.body is None else f"`{json.dumps(row.body)}`")
        lines.append(f"| {' | '.join([*cells, row.about])} |".replace("|  |", "| |"))
    return "\n".join(lines)


def filled(text: str, tables: dict[str, str]) -> str:
    """The document with these tables in their places. Raises `ValueError` for a place that is missing.

    >>> filled("a <!-- x: made --> old <!-- end --> b", {"x": "new"})
    'a <!-- x: made -->\\nnew\\n<!-- end --> b'
    """
    for name, content in tables.items():
        place = re.compile(rf"(<!-- {name}:[^>]*-->).*?(<!-- end -->)", re.DOTALL)
        if not place.search(text):
            raise ValueError(f"there is no '<!-- {name}: ... -->' followed by '<!-- end -->'")
        text = place.sub(lambda found, content=content: f"{found[1]}\n{content}\n{found[2]}", text, count=1)  # type: ignore[misc]  # bound at once
    return text


def written(text: str) -> str:
    """The document with the tables as the code has them now."""
    from controller.app import ASKING, FREE, create_app
    from controller.settings import ControllerSettings

    rows = list(endpoints(create_app(ControllerSettings()), FREE, ASKING))
    steering = [row for row in rows if row.needs == "admin"]
    reading = [row for row in rows if row.needs != "admin"]
    return filled(text, {"endpoints": table(reading, bodies=False), "steering": table(steering, bodies=True)})


def main() -> None:
    """Rewrite the document, or the one named."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else DOCUMENT
    path.write_text(written(path.read_text()))


if __name__ == "__main__":
    main()
