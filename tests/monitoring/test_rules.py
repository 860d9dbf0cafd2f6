"""The alerts: they name only what is exported, promtool takes them, and each fires and keeps still where it should."""

import re

from tests.monitoring.conftest import Families
from tests.monitoring.promql import exported, unknown
from tests.monitoring.promtool import ALERTS, ROOT, RULES, needs_promtool, promtool

RULE = re.compile(r"- alert: (\w+)\n(.*?)(?=\n      - alert:|\Z)", flags=re.DOTALL)


def rules() -> dict[str, str]:
    """The body of every rule by the alert's name."""
    return dict(RULE.findall(RULES.read_text("utf-8")))


def test_rules_and_their_tests_name_only_what_is_exported(
    controller_families: Families, engine_families: Families
) -> None:
    known = exported(controller_families, engine_families)
    bodies = rules()
    assert len(bodies) == 11
    for alert, body in bodies.items():
        expression = re.sub(r"#.*", "", body).partition("annotations:")[0]
        assert "akc_" in expression, alert
        assert unknown(expression, known) == [], alert
    for line in re.findall(r"series: '(.*)'", ALERTS.read_text("utf-8")):
        assert unknown(line, known) == [], line


def test_every_alert_is_tested_both_ways() -> None:
    text = ALERTS.read_text("utf-8")
    for alert in rules():
        assert re.search(rf"alertname: {alert}, exp_alerts: \[\]", text), f"{alert} is never shown to keep still"
        assert re.search(rf"alertname: {alert}\n\s+exp_alerts:\n", text), f"{alert} is never shown to fire"


def test_every_alert_is_explained_with_what_to_do() -> None:
    page = (ROOT / "docs" / "how-to" / "monitor.md").read_text("utf-8")
    explained = re.findall(r"^\| `(Akc\w+)` \|", page, flags=re.MULTILINE)
    assert explained == list(rules())


@needs_promtool
def test_promtool_takes_rules_and_configuration() -> None:
    assert "11 rules found" in promtool("check", "rules", RULES)
    assert "SUCCESS" in promtool("check", "config", RULES.with_name("prometheus.yml"))


@needs_promtool
def test_alerts_fire_and_keep_still_on_the_series_that_they_should() -> None:
    assert "SUCCESS" in promtool("test", "rules", ALERTS)


@needs_promtool
def test_the_metrics_of_both_processes_pass_promtool_s_lint(controller_text: str, engine_text: str) -> None:
    """`check metrics` reads an exposition as Prometheus would and knows its naming rules."""
    for text in (controller_text, engine_text):
        ours = [line for line in text.splitlines() if re.match(r"(# (HELP|TYPE) )?akc_", line)]
        assert promtool("check", "metrics", given="\n".join([*ours, ""])) == ""
