"""Scenario files: what is shipped loads, what is wrong is refused in words that name key, value and what is allowed."""

from pathlib import Path
from typing import Any

import pytest

from simulations.load import load, parse, shipped
from simulations.randomised import randomised
from simulations.scenario import Alternating, Constant, Falling, Ramp, ScenarioError, Sine, cut
from simulations.schedule import batches

SMALL: dict[str, Any] = {
    "name": "small",
    "steps": 100,
    "k_values": [0, 2, 4],
    "target": {"memory_seconds": 0.02},
    "drafts": {"a": {"kind": "ngram", "max_k": 4}},
    "domains": {"code": {"acceptance": {"a": [0.5, 0.25]}}},
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """SMALL with one value set, its key given with dots."""
    data: dict[str, Any] = {**SMALL}
    *tables, last = path.split(".")
    level = data
    for table in tables:
        level[table] = dict(level.get(table, {}))
        level = level[table]
    level[last] = value
    return data


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_scenario_loads_and_says_what_it_is_about(name: str) -> None:
    scenario = load(name)
    assert scenario.name == name
    assert scenario.about


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("steps", 0, "steps is 0; allowed: whole number from 1 to 10000000"),
        ("stepps", 1, "stepps is no key; did you mean steps?"),
        ("colour", 1, "colour is no key; allowed: name, about, steps, engines"),
        ("target", 3, "target is 3; allowed: a table with memory_seconds, seconds_per_token, overhead"),
        ("target", {}, "target.memory_seconds is missing; needed: number from 1e-06 to 1000"),
        ("k_values", [0, 40], "k_values[1] is 40; allowed: whole number from 0 to 32"),
        ("drafts.a.kind", "tree", "drafts.a.kind is 'tree'; allowed: 'eagle' or 'model' or 'ngram'"),
        ("drafts.b", {"kind": "model"}, "domains.code.acceptance lacks draft 'b'; needed: one curve a draft"),
        ("domains.code.acceptance.c", [0.5], "domains.code.acceptance is 'c'; allowed: 'a'"),
        ("domains.code.acceptance.a", [0.5, 1.5], "domains.code.acceptance.a[1] is 1.5; allowed: number from 0 to 1"),
        ("domains.code.acceptance.a", 0.5, "domains.code.acceptance.a is 0.5; allowed: list of number from 0 to 1, or"),
        ("domains.code.acceptance.a", {"first": 2}, "domains.code.acceptance.a.first is 2; allowed: number from 0"),
        ("load", [{"kind": "wave"}], "load[0].kind is 'wave'; allowed: 'constant', 'ramp', 'sine', 'bursts', 'alter"),
        ("load", [{"batch": 1}], "load[0].kind is None; allowed: 'constant', 'ramp', 'sine', 'bursts', 'alternating'"),
        (
            "load",
            [{"kind": "constant", "batch": 1}, {"kind": "constant", "batch": 2}],
            "load[0].steps is not set; only the last phase may go on to the end",
        ),
        ("events", [{"kind": "cost", "step": 5, "of": "b", "factor": 2}], "events[0].of is 'b'; allowed: 'target', "),
        (
            "events",
            [{"kind": "appears", "step": 100, "draft": "a"}],
            "events[0].step is 100; allowed: below steps (100)",
        ),
        ("static", {"draft": "a", "k": 3}, "static.k is 3; allowed with draft 'a': [0, 2, 4]"),
        ("static", {"k": 2}, "static.k is 2; allowed with draft 'none': [0]"),
        ("hostile", 1, "hostile is 1; allowed: fewer than engines (1)"),
        ("domains.other", {"acceptance": {"a": [0.5]}}, "domains.other: the name is taken; allowed: any but other"),
        ("target.memory_seconds", 1e-300, "target.memory_seconds is 1e-300; allowed: number from 1e-06 to 1000"),
        ("target.memory_seconds", float("nan"), "target.memory_seconds is nan; allowed: number from 1e-06 to 1000"),
        ("drafts.a.memory", float("inf"), "drafts.a.memory is inf; allowed: number from 0 to 1"),
        ("domains.code.share", float("inf"), "domains.code.share is inf; allowed: number from 0 to 1000000.0"),
        ("k_values", [], "k_values is empty; needed is one at least"),
        ("load", [], "load is empty; needed is one at least"),
        ("domains.code.acceptance.a", [], "domains.code.acceptance.a is empty; needed is one at least"),
        ("domains.code.acceptance.a", [0.5] * 33, "domains.code.acceptance.a has 33 members; allowed: at most 32"),
        ("name", "../small", "name is '../small'; allowed: no slashes"),
        (
            "events",
            [{"kind": "share", "step": 5, "domain": "code", "share": 0}],
            "events[0].share is 0, and so is every other; needed: one above 0 at any step",
        ),
        ("domains.code.share", 0, "domains: every share is 0; needed: one above 0 from the first step on"),
    ],
)  # fmt: skip
def test_an_error_names_key_value_and_what_is_allowed(path: str, value: Any, message: str) -> None:
    with pytest.raises(ScenarioError) as error:
        parse(changed(path, value))
    assert str(error.value).startswith(message)


def test_a_file_that_is_missing_unknown_or_broken_says_so(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"'three-domain' is neither a file nor shipped; shipped: .*three-domains"):
        load("three-domain")
    with pytest.raises(ScenarioError, match=r"scenario file 'mine\.toml' does not exist"):
        load("mine.toml")
    path = tmp_path / "mine.toml"
    path.write_text("steps = \n")
    with pytest.raises(ScenarioError, match=r"mine\.toml' is not valid TOML: .*line 1"):
        load(path)
    path.write_text("steps = -1\n")
    with pytest.raises(ScenarioError, match=r"mine\.toml: steps is -1; allowed"):
        load(path)


def test_both_ways_to_give_acceptance_and_all_defaults() -> None:
    scenario = parse(changed("domains.math", {"acceptance": {"a": {"first": 0.5}}}))
    assert scenario.domains["code"].acceptance["a"] == (0.5, 0.25)
    assert scenario.domains["math"].acceptance["a"] == Falling(first=0.5, decay=1.0)
    assert scenario.load == (Constant(batch=1),)
    assert scenario.ks == (0, 2, 4)


def test_traffic_may_pass_from_one_domain_to_another_in_one_step() -> None:
    events = [
        {"kind": "share", "step": 5, "domain": name, "share": share} for name, share in (("code", 0), ("math", 1))
    ]
    data = changed("domains.math", {"share": 0, "acceptance": {"a": [0.5]}})
    assert len(parse({**data, "events": events}).events) == 2


def test_phases_of_the_load_follow_each_other_and_start_over() -> None:
    load_ = (Sine(low=1, high=5, period=4, steps=4), Alternating(batches=(4, 5), every=2, steps=4))
    assert batches(load_, 10).tolist() == [1, 3, 5, 3, 4, 4, 5, 5, 1, 3]
    # Every doubling takes as long: 1, 2, 4, 8 in four steps.
    assert batches((Ramp(first=1, last=8, scale="log", steps=4),), 4).tolist() == [1, 2, 4, 8]


def test_cutting_a_scenario_leaves_later_events_out() -> None:
    events = [{"kind": "cost", "step": step, "of": "a", "factor": 2} for step in (10, 50)]
    short = cut(parse(changed("events", events)), 50)
    assert short.steps == 50
    assert [event.step for event in short.events] == [10]


def test_a_ramp_to_the_end_is_cut_and_not_made_steeper() -> None:
    load_ = [{"kind": "constant", "batch": 1, "steps": 20}, {"kind": "ramp", "first": 1, "last": 81}]
    whole = parse(changed("load", load_))
    short = cut(whole, 50)
    assert batches(short.load, 50).tolist() == batches(whole.load, 100)[:50].tolist()
    assert batches(short.load, 50)[-1] == round(1 + 80 * 29 / 79)


@pytest.mark.parametrize("seed", range(25))
def test_random_scenarios_are_valid_and_within_the_documented_ranges(seed: int) -> None:
    scenario = randomised(seed)
    assert scenario == randomised(seed)
    assert 1 <= len(scenario.drafts) <= 4
    assert 2 <= len(scenario.domains) <= 6
    plain = scenario.target.memory_seconds + scenario.target.overhead
    assert 0.008 <= plain <= 0.040
    for draft in scenario.drafts.values():
        assert 0.001 * plain <= draft.seconds_per_pass <= 0.3 * plain
    for domain in scenario.domains.values():
        assert 24 <= domain.output <= 128
