"""The Grafana dashboard: whole by structure, and every expression is PromQL over series that are exported."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.monitoring.conftest import Families
from tests.monitoring.promql import exported, unknown
from tests.monitoring.promtool import ROOT, needs_promtool, promtool

FOLDER = ROOT / "docs" / "monitoring" / "grafana"
COLUMNS = 24  # of Grafana's grid


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text("utf-8"))
    return loaded


@pytest.fixture(scope="module")
def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = dashboard["panels"]
    return found


def expressions(dashboard: dict[str, Any]) -> list[str]:
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return queries + [note["expr"] for note in dashboard["annotations"]["list"]]


def test_panels_are_whole(panels: list[dict[str, Any]]) -> None:
    assert not [i for i, n in Counter(panel["id"] for panel in panels).items() if n > 1]
    for panel in panels:
        assert panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        for target in panel["targets"]:
            assert target["expr"]
            assert target["legendFormat"]
            assert target["datasource"] == panel["datasource"]


def test_panels_lie_in_the_grid_and_do_not_overlap(panels: list[dict[str, Any]]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= COLUMNS
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_variables_choose_the_data_source_and_the_pool(dashboard: dict[str, Any]) -> None:
    variables = {v["name"]: v for v in dashboard["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    assert variables["pool"]["datasource"]["uid"] == "${datasource}"
    used = set(re.findall(r"\$\{?(\w+)", json.dumps([dashboard["panels"], dashboard["annotations"]])))
    assert used - {"__rate_interval"} == set(variables)


def test_everything_that_the_pool_page_shows_has_a_panel(dashboard: dict[str, Any]) -> None:
    """Speedup with interval, goodput and both estimates, K, load, engines, breakers, lag, refusals."""
    text = " ".join(expressions(dashboard))
    for name in (
        'akc_speedup_ratio{pool=~"$pool", bound="low"}', 'akc_speedup_ratio{pool=~"$pool", bound="high"}',
        "akc_goodput_tokens_per_second", "akc_static_speedup_ratio", "akc_choice_k", "akc_requests_waiting",
        "akc_decode_rows", "akc_engines", "akc_reported_breaker", "akc_frame_lag_seconds", "akc_dead_letters_total",
        "akc_reported_policy_age_seconds", "akc_reported_step_seconds_bucket", "akc_gate_reserve_steps",
        "akc_reported_slowness_ratio", 'akc_measured_gain_ratio{pool=~"$pool", bound="low"}',
    ):  # fmt: skip
        assert name in text


def test_expressions_name_only_what_is_exported(
    dashboard: dict[str, Any], controller_families: Families, engine_families: Families
) -> None:
    known = exported(controller_families, engine_families)
    for expression in expressions(dashboard):
        assert "akc_" in expression
        assert unknown(expression, known) == [], expression
    pool = next(v for v in dashboard["templating"]["list"] if v["name"] == "pool")
    name, label = re.findall(r"\w+", pool["definition"])[1:]
    assert label in known[name]


@needs_promtool
def test_expressions_are_promql(dashboard: dict[str, Any], tmp_path: Path) -> None:
    """As rules that promtool reads; what Grafana fills in is filled in."""
    plain = [e.replace("$pool", "p").replace("$__rate_interval", "1m") for e in expressions(dashboard)]
    recorded = [{"record": f"panel:{i}", "expr": expression} for i, expression in enumerate(plain)]
    path = tmp_path / "rules.yml"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": recorded}]}))  # JSON is YAML
    assert f"{len(plain)} rules found" in promtool("check", "rules", path)


def test_the_compose_file_hands_prometheus_and_grafana_these_files() -> None:
    compose = (ROOT / "docker-compose.yml").read_text("utf-8")
    for source in re.findall(r"\./(docs/monitoring[\w./]*)", compose):
        assert (ROOT / source).exists(), source
    services = re.split(r"^  (?=\w+:$)", compose.partition("\nservices:\n")[2].partition("\nvolumes:\n")[0], flags=re.M)
    extra = {text.partition(":")[0] for text in services if 'profiles: ["monitoring"]' in text}
    assert extra == {"prometheus", "grafana"}  # without the profile `docker compose up` starts what it always did
    source = re.search(r"url: (\S+)", (FOLDER / "datasource.yml").read_text("utf-8"))
    assert source is not None
    assert source[1] == "http://prometheus:9090"
