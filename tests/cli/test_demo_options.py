"""Bad options of `akc demo` end it at once, with the value named, before any process is started."""

import io
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from controller.cli import commands
from controller.cli.demo import run as demo
from controller.cli.demo.processes import Processes


@pytest.fixture(autouse=True)
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(options: demo.DemoOptions) -> None:
        pytest.fail(f"the demo was started with {options}")

    monkeypatch.setattr(demo, "run", run)


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(commands.app, ["demo", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == 2, result.output
    return result.output


@pytest.mark.parametrize("seed", ["x", "1.5", "-1"])
def test_a_seed_that_is_none_is_named(seed: str) -> None:
    words = refused("--seed", seed)
    assert "--seed" in words
    assert seed in words


@pytest.mark.parametrize("draft", ["nosuch", "small=nosuch", "/no/such/folder"])
def test_a_draft_that_is_not_there_is_named(draft: str) -> None:
    assert f"--draft is {draft!r}; allowed: ngram, or [NAME=]FOLDER that exists" in refused(
        "--draft", "ngram", "--draft", draft
    )


@pytest.mark.parametrize("where", ["no/such/folder/result.json", "."])
def test_a_path_that_results_cannot_be_written_to_is_named(where: str, tmp_path: Path) -> None:
    path = str(tmp_path / where)
    assert f"--json is {path!r}, which cannot be written as a file" in refused("--json", path)


def test_good_options_reach_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[demo.DemoOptions] = []
    monkeypatch.setattr(demo, "run", seen.append)
    path = tmp_path / "result.json"
    options = ["--seed", "3", "--draft", "ngram", "--draft", f"small={tmp_path}", "--json", str(path), "--quick"]
    result = CliRunner().invoke(commands.app, ["demo", *options])
    assert result.exit_code == 0, result.output
    assert seen == [demo.DemoOptions(seed=3, drafts=("ngram", f"small={tmp_path}"), json=path, quick=True)]
    assert not path.exists()


@pytest.mark.parametrize(("port", "command"), [(8080, "akc watch"), (81, "akc watch --url http://127.0.0.1:81")])
def test_what_stays_is_told_and_the_dashboard_s_address_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: int, command: str
) -> None:
    def pressed(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", pressed)
    addresses = demo.Addresses("redis://127.0.0.1:1/0", f"http://127.0.0.1:{port}", "http://127.0.0.1:2")
    told = io.StringIO()
    with Processes(tmp_path) as group, pytest.raises(KeyboardInterrupt):
        demo._stay(addresses, group, Console(file=told, width=40))
    assert told.getvalue().splitlines()[-1] == f"dashboard  http://127.0.0.1:{port}/"
    assert demo._watch(addresses) == command
