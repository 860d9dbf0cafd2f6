"""`akc simulate` and sweeps, end to end on short scenarios."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from controller.cli.simulate import register
from simulations.load import load, shipped
from simulations.play import play
from simulations.randomised import randomised
from simulations.rivals import LEARNING, MEASURED, TOLD
from simulations.rivals.fixed import plain
from simulations.scenario import AcceptanceChange, CostChange, Domain, Falling, Scenario, cut
from simulations.sweep import OURS, SweepError, chosen, kinds, makers, sweep
from simulations.timeline import Timeline

FACTS = Timeline(load("three-domains")).facts


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    register(app)
    app.command("other")(lambda: None)  # with one command only, typer drops its name
    return app


def test_a_short_comparison_is_printed_written_and_drawn(app: typer.Typer, tmp_path: Path) -> None:
    arguments = [
        "simulate",
        "three-domains",
        "--steps",
        "400",
        "--seeds",
        "2",
        "--rivals",
        "plain,static,fixed:small:4",
    ]
    files = ["--json", str(tmp_path / "out.json"), "--plots", str(tmp_path / "plots")]
    result = CliRunner().invoke(app, [*arguments, *files])
    assert result.exit_code == 0, result.output
    assert "three-domains: medians over 2 seeds" in result.output
    data = json.loads((tmp_path / "out.json").read_bytes())
    assert {row["policy"] for row in data[0]["rows"]} == {"ours", "plain", "static", "best fixed (small K=4)"}
    assert len(list((tmp_path / "plots").iterdir())) == 3


def test_shipped_scenarios_are_listed(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["simulate", "--list"])
    assert [line.split(":")[0] for line in result.output.splitlines()] == shipped()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["three-domain"], "akc: scenario 'three-domain' is neither a file nor shipped"),
        ([], "akc: no scenario given; shipped are: "),
        (["dip", "dip"], "akc: scenarios dip, dip: a name is given twice"),
        (["dip", "--rivals", "nobody"], "akc: rival 'nobody' is unknown; allowed: all, rivals, fixed, drafts, none"),
        (["dip", "--jobs", "0"], "akc: --jobs is 0; allowed: a number of processes, or -1 for one a core"),
        (["dip", "--json", "/dev/null/x.json"], "akc: --json '/dev/null/x.json' cannot be written: "),
        (["dip", "--json", "/"], "akc: --json '/' cannot be written: it is a folder"),
        (["dip", "--plots", "/dev/null/x"], "akc: --plots '/dev/null/x' cannot be written: Not a directory"),
        (["--random", "-1"], "Invalid value for '--random'"),
        (["dip", "--variant", "-1"], "Invalid value for '--variant'"),
    ],
)
def test_what_cannot_be_played_ends_with_a_sentence(app: typer.Typer, arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["simulate", *arguments])
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize("columns", ["80", "120"])
def test_every_number_of_the_table_is_legible(app: typer.Typer, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    """Of 80 columns, what a terminal has at least, the longest names take the rest; nothing is cut off."""
    monkeypatch.setenv("COLUMNS", columns)
    arguments = ["simulate", "three-domains", "--steps", "60", "--seeds", "1", "--rivals", "gaussian-ts-scaled,fixed"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "medians over 1 seed" in result.output
    table = result.output.split("speedup: over plain")[0]
    assert "switches" in table
    assert "…" not in table


def test_random_scenarios_are_played_by_seed(app: typer.Typer) -> None:
    result = CliRunner().invoke(
        app, ["simulate", "--random", "3", "--steps", "60", "--seeds", "1", "--rivals", "plain"]
    )
    assert result.exit_code == 0, result.output
    assert "random-3" in result.output


def test_groups_of_rivals() -> None:
    assert chosen(["none"], FACTS) == [OURS]
    assert chosen(["fixed"], FACTS)[1:4] == ["fixed:small:1", "fixed:small:2", "fixed:small:3"]
    assert set(chosen(["rivals"], FACTS)) < set(chosen(["all"], FACTS))
    assert MEASURED in chosen(["rivals"], FACTS)
    assert MEASURED in TOLD - LEARNING
    assert set(chosen(["all", "drafts"], FACTS)) == set(makers(Timeline(load("three-domains"))))
    assert kinds(["ours", "plain", MEASURED, "fixed:small:1", "turbospec@ngram", "tensorrt-gate"]) == {
        "ours": "ours",
        "plain": "rival",
        MEASURED: "rival",
        "fixed:small:1": "yardstick",
        "turbospec@ngram": "yardstick",
        "tensorrt-gate": "yardstick",
    }


def test_a_sweep_over_processes_gives_the_same_as_one_here() -> None:
    scenario = cut(load("three-domains"), 120)
    told: list[str] = []
    here = sweep([scenario], ["plain"], 2)
    there = sweep([scenario], ["plain"], 2, jobs=2, told=lambda what, done: told.append(f"{what}: {done}"))
    assert here == there
    assert told == ["three-domains seed 0: 2", "three-domains seed 1: 2"]


def test_a_dask_cluster_gives_the_same_as_one_process_here() -> None:
    pytest.importorskip("distributed", reason="needs dask[distributed]")
    scenario = cut(load("three-domains"), 120)
    assert sweep([scenario], ["plain"], 2, jobs=2, backend="dask") == sweep([scenario], ["plain"], 2)


def test_an_unknown_backend_is_refused_in_words() -> None:
    with pytest.raises(SweepError, match="backend 'ray' is unknown; allowed: loky, dask, multiprocessing, threading"):
        sweep([cut(load("three-domains"), 20)], ["none"], 1, backend="ray")


def test_dask_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "dask", None)
    with pytest.raises(SweepError, match=r"--backend dask needs the package dask: pip install 'dask\[distributed\]'"):
        sweep([cut(load("three-domains"), 20)], ["plain"], 1, backend="dask")


RANDOM = [randomised(seed) for seed in range(50)]


def curves(domain: Domain, events: tuple[object, ...]) -> list[Falling | tuple[float, ...]]:
    changed = [event.acceptance for event in events if isinstance(event, AcceptanceChange)]
    return [*domain.acceptance.values(), *changed]


@pytest.mark.parametrize("scenario", RANDOM, ids=lambda scenario: scenario.name)
def test_a_random_scenario_is_playable_and_within_its_documented_ranges(scenario: Scenario) -> None:
    plain_step = scenario.target.memory_seconds + scenario.target.overhead
    assert 0.008 <= plain_step <= 0.040
    assert 0.1 <= scenario.target.overhead / plain_step <= 0.5
    assert 16 <= scenario.target.memory_seconds / scenario.target.seconds_per_token <= 512 * (1 + 1e-9)
    assert 1 <= len(scenario.drafts) <= 4
    for draft in scenario.drafts.values():
        low, high = (0.001, 0.01) if draft.kind == "ngram" else (0.01, 0.3)
        assert low <= draft.seconds_per_pass / plain_step <= high
        assert 0 <= draft.seconds_per_token / plain_step <= 0.002
        assert draft.max_k == max(scenario.ks)
    assert 2 <= len(scenario.domains) <= 6
    for domain in scenario.domains.values():
        assert 0.2 <= domain.share <= 1
        assert 24 <= domain.output <= 128
        assert 32 <= domain.prompt <= 512
        assert domain.spread is None or 4 <= domain.spread <= 50
        for curve in curves(domain, scenario.events):
            first = curve.first if isinstance(curve, Falling) else curve[0]
            assert 0.05 <= first <= 0.97
            if isinstance(curve, Falling):
                assert 0.92 <= curve.decay <= 1
            else:
                assert 0.4 <= curve[1] / first <= 0.7
                assert curve[2] == first
    assert scenario.mislabelled == 0 or 0.05 <= scenario.mislabelled <= 0.2
    assert 0.02 <= scenario.noise.sigma <= 0.15
    assert 0 <= scenario.noise.prefill_seconds_per_token / scenario.target.seconds_per_token <= 0.2
    assert len(scenario.events) <= 1
    for event in scenario.events:
        assert 2000 <= event.step < 3000
        assert not isinstance(event, CostChange) or 0.5 <= event.factor <= 2
    timeline = Timeline(scenario)
    assert 1 <= timeline.rows.min() <= timeline.max_batch <= 65
    assert play(Timeline(cut(scenario, 20)), plain, 0).logs[0].tokens.sum() > 0


def test_random_scenarios_reach_every_kind_and_both_ends_of_every_range() -> None:
    kinds_of_load = Counter(type(scenario.load[0]).__name__ for scenario in RANDOM)
    assert kinds_of_load.keys() == {"Constant", "Sine", "Bursts", "Ramp", "Alternating"}
    assert any(scenario.load[0] == load("three-domains").load[0] for scenario in RANDOM)  # batch 1
    assert {scenario.ks for scenario in RANDOM} == {tuple(range(9)), (0, 2, 4, 8), (0, 1, 2, 3, 4, 6, 8, 12)}
    assert {len(scenario.drafts) for scenario in RANDOM} == {1, 2, 3, 4}
    assert {len(scenario.domains) for scenario in RANDOM} == {2, 3, 4, 5, 6}
    drafts = [draft for scenario in RANDOM for draft in scenario.drafts.values()]
    assert {draft.kind for draft in drafts} == {"model", "eagle", "ngram"}
    events = Counter(type(event).__name__ for scenario in RANDOM for event in scenario.events)
    assert events.keys() == {"AcceptanceChange", "CostChange"}
    # 50 draws at 1/2 and at 1/5: within four standard deviations, 3.5 and 2.8.
    assert sum(events.values()) == pytest.approx(25, abs=4 * 3.5)
    assert sum(scenario.mislabelled > 0 for scenario in RANDOM) == pytest.approx(10, abs=4 * 2.8)
    domains = [domain for scenario in RANDOM for domain in scenario.domains.values()]
    spreads = [domain.spread for domain in domains]
    assert 0.3 < spreads.count(None) / len(spreads) < 0.7
    dips = [not isinstance(curve, Falling) for domain in domains for curve in domain.acceptance.values()]
    assert np.mean(dips) == pytest.approx(0.2, abs=4 * np.sqrt(0.16 / len(dips)))
    plain_steps = [s.target.memory_seconds + s.target.overhead for s in RANDOM]
    firsts = [c.first for domain in domains for c in domain.acceptance.values() if isinstance(c, Falling)]
    uniform = {
        "plain step": (plain_steps, 0.008, 0.040),
        "overhead": ([s.target.overhead / p for s, p in zip(RANDOM, plain_steps, strict=True)], 0.1, 0.5),
        "share": ([domain.share for domain in domains], 0.2, 1.0),
        "output": ([domain.output for domain in domains], 24, 128),
        "prompt": ([domain.prompt for domain in domains], 32, 512),
        "acceptance": (firsts, 0.05, 0.97),
        "noise": ([scenario.noise.sigma for scenario in RANDOM], 0.02, 0.15),
        "bend (log2)": ([np.log2(s.target.memory_seconds / s.target.seconds_per_token) for s in RANDOM], 4, 9),
    }
    for name, (values, low, high) in uniform.items():
        where = (np.array(values) - low) / (high - low)
        # That none of 50 uniform draws is in the lowest fifth has probability .8^50 = 1e-5.
        assert where.min() < 0.2, name
        assert where.max() > 0.8, name
