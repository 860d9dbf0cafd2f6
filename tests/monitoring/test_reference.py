"""docs/reference/metrics.md lists what the processes really export: names, types, labels, and the code's caps."""

import re
from pathlib import Path

import pytest

from controller.ledger import Limits
from controller.metrics import counts, engines, pools
from controller.portrait import REPORTED
from controller.reported import STEP_BOUNDS
from engine.link.messages import MAX_K
from engine.server import metrics as engine_metrics
from tests.link.test_documents import marked, rows, section
from tests.monitoring.conftest import Families

PAGE = "metrics.md"
Table = dict[str, tuple[str, set[str]]]


def documented(heading: str) -> Table:
    return {
        marked(name)[0]: (kind, set(re.findall(r"\w+", labels)))
        for name, kind, _, labels, *_ in rows(section(PAGE, heading))
    }


def exported(families: Families) -> Table:
    """Type and labels by name; the text format knows no info, so that is a gauge."""
    return {
        name: (family.type, {label for sample in family.samples for label in sample.labels} - {"le"})
        for name, family in families.items()
    }


def test_every_metric_of_the_controller_is_documented_with_type_and_labels(controller_families: Families) -> None:
    assert documented("## The controller") == exported(controller_families)


def test_every_metric_of_the_engine_is_documented_with_type_and_labels(engine_families: Families) -> None:
    table = documented("## The torch engine")
    assert engine_families["akc_engine_position_seen_total"].samples  # the request did draft
    assert table == exported(engine_families)


def test_metrics_have_help_and_names_end_in_their_unit(
    controller_families: Families, engine_families: Families
) -> None:
    units = {
        marked(row[0])[0]: row[2]
        for heading in ("## The controller", "## The torch engine")
        for row in rows(section(PAGE, heading))
    }
    for name, family in {**controller_families, **engine_families}.items():
        assert family.documentation, name
        if units[name].startswith("s"):
            assert re.search(r"_(row_)?(seconds|steps)(_total)?$", name), name


def test_the_measured_gain_and_an_engine_s_slowness_are_the_api_s(controller_families: Families) -> None:
    gains = controller_families["akc_measured_gain_ratio"].samples
    assert {s.labels["bound"] for s in gains} == {"low", "value", "high"}
    assert {(s.labels["draft"], s.labels["k"]) for s in gains} == {("ngram", "2")}
    assert [s.value for s in gains] == pytest.approx([1.5] * 3)  # four pairs that agree: no width
    (slowness,) = controller_families["akc_reported_slowness_ratio"].samples
    assert slowness.labels == {"pool": "p", "engine": "e"}
    assert slowness.value == pytest.approx(1.0, abs=0.2)  # one engine is its own usual


def test_documented_caps_are_the_code_s() -> None:
    caps = {marked(row[0])[0]: row[4] for row in rows(section(PAGE, "## The controller"))}
    curves, domains = counts.CURVES_OF_A_POOL, Limits().domains
    assert caps["akc_acceptance_mean"] == f"{curves} curves known best, {pools.POSITIONS_OF_A_CURVE} positions"
    assert caps["akc_position_seen_total"] == f"{curves} curves known best, {counts.POSITIONS} positions"
    assert caps["akc_choice_k"] == f"{domains} domains and `other`, 2 regimes"
    assert caps["akc_row_k"] == f"{domains} domains and `other`, 2 regimes, {len(counts.K_BOUNDS) + 1} buckets"
    of_engine = f"{engines.DRAFTS_OF_AN_ENGINE} drafts of an engine, {counts.POSITIONS} positions"
    assert caps["akc_reported_position_seen_total"] == of_engine
    assert caps["akc_reported_silence_seconds"] == f"{REPORTED} engines a pool"
    assert caps["akc_reported_step_seconds"] == f"{len(STEP_BOUNDS) + 1} buckets"
    own = {marked(row[0])[0]: row[4] for row in rows(section(PAGE, "## The torch engine"))}
    assert own["akc_engine_step_seconds"] == f"{len(engine_metrics.BUCKETS) + 1} buckets"
    assert own["akc_engine_row_k"].startswith(f"{engine_metrics.MOST_DOMAINS} domains and `other`")
    assert own["akc_engine_position_seen_total"] == f"drafts loaded, {MAX_K} positions"


def test_the_example_of_a_biased_ratio_is_worked_out_right() -> None:
    """Acceptance 0.8 everywhere, half the steps at K = 4 and half at K = 2: position 3 by vLLM's ratio and by ours."""
    text = (Path(__file__).parents[2] / "docs" / "reference" / PAGE).read_text("utf-8")
    drafts, deep, kept = 1000, 500, 0.8
    accepted = deep * kept**3
    assert f"= {accepted / drafts:.3f}," in text
    assert f"survival is {kept**3:.3f} and the acceptance {accepted / (deep * kept**2):.1f}" in text
