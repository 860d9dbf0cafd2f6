"""`akc simulate` and sweeps, end to end on short scenarios."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from controller.cli.simulate import register
from simulations.load import load, shipped
from simulations.scenario import cut
from simulations.sweep import OURS, SweepError, chosen, kinds, sweep
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
    ],
)
def test_what_cannot_be_played_ends_with_a_sentence(app: typer.Typer, arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["simulate", *arguments])
    assert result.exit_code == 2
    assert message in result.output


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
    assert kinds(["ours", "plain", "fixed:small:1", "turbospec@ngram", "tensorrt-gate"]) == {
        "ours": "ours",
        "plain": "rival",
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


def test_dask_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(SweepError, match=r"--backend dask needs the package distributed: pip install"):
        sweep([cut(load("three-domains"), 20)], ["plain"], 1, backend="dask")
