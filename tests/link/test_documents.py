"""The reference says what the code does: examples decode, and tables list every setting, field and flag."""

import dataclasses
import re
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import numpy as np
import pytest
import typer.main

from controller.cli.commands import app
from controller.cli.demo.run import POOL
from controller.settings import ControllerSettings
from engine.link import DraftInfo
from engine.link.messages import Frame, Offer, OfferCell, Policy, decode_frame, decode_offer, decode_policy
from engine.link.router import RoutedPool, compose
from engine.link.settings import LinkSettings, allowed
from engine.link.table import Table
from engine.link.trace import TraceLine
from engine.server.schema import ChatRequest, CompletionRequest, Facts
from engine.server.settings import EngineSettings
from engine.traffic import TrafficSettings
from simulations import recording

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
WIRE = REFERENCE / "wire.md"


def text(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def section(name: str, heading: str) -> str:
    """The text under a heading, up to the next one of its level or above."""
    level = heading.partition(" ")[0]
    _, found, rest = text(name).partition(f"\n{heading}\n")
    assert found, f"{name} has no heading {heading!r}"
    return re.split(rf"\n#{{1,{len(level)}}} ", rest)[0]


def rows(part: str) -> list[list[str]]:
    """Cells of all tables, without their heads."""
    tables = re.findall(r"(?:^\|.*\n?)+", part, flags=re.MULTILINE)
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for table in tables for line in table.splitlines()[2:]
    ]


def marked(cell: str) -> list[str]:
    """What stands in backquotes."""
    return re.findall(r"`([^`]+)`", cell)


def blocks() -> list[bytes]:
    """The example messages: a frame, a policy, an offer."""
    return [b.encode() for b in re.findall(r"```json\n(.*?)```", WIRE.read_text(encoding="utf-8"), flags=re.DOTALL)]


@pytest.fixture
def examples() -> tuple[Frame, Policy]:
    frame, policy, _ = blocks()
    return decode_frame(frame), decode_policy(policy)


def test_the_example_offer_can_be_routed_by_and_every_field_is_explained() -> None:
    offer = decode_offer(blocks()[2])
    (route,) = compose([offer], domain="code")
    assert (route.regime, route.pools[0].pool, route.pools[0].probability) == ("greedy", "smollm2", 1.0)
    told = {word for row in rows(section("wire.md", "## The offer: a hint for routers")) for word in marked(row[0])}
    named = {field.name for kind in (Offer, OfferCell) for field in msgspec.structs.fields(kind)}
    assert told == named - {"v", "domain", "regime"}


def test_every_field_of_a_routed_pool_is_explained() -> None:
    part = section("api.md", "## Which pool serves a domain best")
    fields = {field.name for field in dataclasses.fields(RoutedPool)} - {"pool"}
    assert fields <= set(marked(part))


def test_the_example_frame_obeys_the_counting_rules(examples: tuple[Frame, Policy]) -> None:
    frame, policy = examples
    assert frame.full
    assert frame.applied == policy.version
    assert frame.describe is not None
    assert frame.describe.drafts[1] == DraftInfo("ngram", "ngram", 8)
    for cell in frame.acceptance:
        assert all(a <= s for s, a in zip(cell.seen, cell.accepted, strict=True))
        assert all(s <= a for s, a in zip(cell.seen[1:], cell.accepted, strict=False))
        assert all(s <= d for s, d in zip(cell.seen, cell.drafted, strict=True))
    assert sum(sum(c.drafted) for c in frame.acceptance) == frame.cost[0].sx[3]  # tokens drafted
    # Every row of every step emits one token more than it accepted.
    assert frame.account[0].tokens == frame.account[0].row_steps + sum(sum(c.accepted) for c in frame.acceptance)
    assert frame.account[0].row_seconds == pytest.approx(2 * frame.cost[0].seconds)
    assert frame.cost[0].count == frame.steps == sum(frame.cost[0].hist.values())
    assert frame.moments[0].s == frame.acceptance[0].seen


def test_the_example_policy_can_be_obeyed(examples: tuple[Frame, Policy]) -> None:
    frame, policy = examples
    assert frame.describe is not None
    table = Table(policy, {d.name: d.max_k for d in frame.describe.drafts}, frame.describe.k_values)
    cell = table.cell("code", "greedy", 2)
    assert cell is not None
    choice = cell.draw(0.5)
    assert [choice.at(u) for u in (0.0, 0.09, 0.11, 0.79, 0.81, 0.999)] == [2, 2, 4, 4, 6, 6]
    other = table.cell("poetry", "greedy", 1)
    assert other is not None
    assert other.best.draft == "none"


def shown(default: object) -> str:
    """A default as the tables write it."""
    match default:
        case None:
            return "not set"
        case bool():
            return str(default).lower()
        case tuple():
            return ",".join(map(str, default)) or "empty"
        case float():
            return f"{default:g}"
    return str(default)


def expected_settings(kind: type[msgspec.Struct], base: type[msgspec.Struct] | None) -> dict[str, tuple[str, str]]:
    """Variable to (default, what is allowed) for the fields that `kind` adds to `base`; patterns are told in words."""
    inherited = {field.name for field in msgspec.structs.fields(base)} if base is not None else set()
    hints: dict[str, Any] = get_type_hints(kind, include_extras=True)
    return {
        f"`AKC_{field.name.upper()}`": (shown(field.default), re.sub(r" matching \S+", "", allowed(hints[field.name])))
        for field in msgspec.structs.fields(kind)
        if field.name not in inherited
    }


@pytest.mark.parametrize(
    ("heading", "kind", "base"),
    [
        ("## Controller", ControllerSettings, None),
        ("## Engine: the link to the controller", LinkSettings, None),
        ("## Engine: the torch engine's own", EngineSettings, LinkSettings),
        ("## Traffic generator", TrafficSettings, None),
    ],
)
def test_every_setting_is_documented_with_its_default_and_range(
    heading: str, kind: type[msgspec.Struct], base: type[msgspec.Struct] | None
) -> None:
    table = rows(section("settings.md", heading))
    assert {name: (default, range_) for name, default, _, range_, _ in table} == expected_settings(kind, base)
    assert all(meaning for *_, meaning in table)


def test_variables_that_compose_and_the_code_read_elsewhere_are_documented() -> None:
    others = {name for row in rows(section("settings.md", "## Others")) for name in marked(row[0])}
    compose = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    knobs = set(re.findall(r"^(\w+)=", (ROOT / ".env").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"\$\{(\w+)", compose)) <= knobs
    assert ".env" in others
    read = set()
    for path in [*ROOT.glob("engine/**/*.py"), *ROOT.glob("controller/**/*.py")]:
        read |= set(
            re.findall(r"""environ(?:\.get|\.setdefault)?[\[(]"([A-Z_]+)\"""", path.read_text(encoding="utf-8"))
        )
    assert {"AKC_CACHE", "OMP_WAIT_POLICY", "OPENBLAS_NUM_THREADS"} <= read  # the search finds something
    assert read <= others
    assert "REDIS_URL" in others


def test_every_flag_of_the_engine_is_documented() -> None:
    command = typer.main.get_command(app).commands["engine"]  # type: ignore[attr-defined]  # a group, by its subcommands
    options = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    documented = {word.split()[0] for row in rows(section("engine.md", "## Flags")) for word in marked(row[0])}
    assert documented - {"-h", "--help"} == options - {"-h", "--help"}


def test_every_route_of_the_engine_is_documented() -> None:
    source = (ROOT / "engine" / "server" / "app.py").read_text(encoding="utf-8")
    routes = re.findall(r"@app\.(get|post|put|delete)\(\"([^\"]+)\"", source)
    assert len(routes) == 7
    documented = [name for row in rows(section("engine.md", "## Endpoints")) for name in marked(row[0])]
    assert {f"{verb.upper()} {path.replace(':path', '')}" for verb, path in routes} <= set(documented)


def test_every_field_of_a_request_and_of_the_account_is_documented() -> None:
    requests = set(marked(section("engine.md", "## Requests")))
    declared = {field.name for kind in (ChatRequest, CompletionRequest) for field in msgspec.structs.fields(kind)}
    words = {word for name in requests for word in re.findall(r"\w+", name)}
    assert declared <= words
    account = rows(section("engine.md", "### `akc`: what speculation did for this answer"))
    kinds = {str: "string", int: "integer", float: "number"}
    told = {marked(name)[0]: kind.partition(",")[0] for name, kind, _ in account}
    assert told == {field.name: kinds[field.type] for field in msgspec.structs.fields(Facts)}


def test_every_field_of_a_trace_is_documented() -> None:
    documented = [name for row in rows(section("trace.md", "### Fields")) for name in marked(row[0])]
    assert documented == [field.name for field in msgspec.structs.fields(TraceLine)]


def test_every_column_of_a_recording_is_documented_with_its_type(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    line = TraceLine(
        "e", "i", 1, "code", "greedy", "ngram", 1.0, "policy", None, 1,
        [1], [1], [2], [1.0], [2], [1], [2], [2], [False], [0.1], [1], [0],
    )  # fmt: skip
    steps = recording.from_lines([line])
    assert np.array_equal(steps.position, [0])
    recording.write(steps, tmp_path / "a.parquet")
    schema = parquet.read_schema(tmp_path / "a.parquet")
    documented = [
        (name, kind.partition(",")[0].partition(" (")[0])
        for names, kind, _ in rows(section("trace.md", "## Recordings"))
        for name in marked(names)
    ]
    assert sorted(documented) == sorted((field.name, str(field.type)) for field in schema)


def test_the_pools_named_for_redis_cli_are_those_of_engine_demo_and_compose() -> None:
    page = (ROOT / "docs" / "how-to" / "redis-cli.md").read_text(encoding="utf-8")
    composed = re.search(r"AKC_POOL:-(\w+)", (ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    assert composed is not None
    told = [marked(row[1])[0] for row in rows(page) if marked(row[1])]
    assert told == [LinkSettings().pool, POOL, composed[1]]


def test_links_between_documents_lead_to_files() -> None:
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
    links = [
        (page, link) for page in pages for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
    ]
    broken = [(page.name, link) for page, link in links if "://" not in link and not (page.parent / link).exists()]
    assert len(links) > 20
    assert not broken
