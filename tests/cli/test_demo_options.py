"""Bad options of `akc demo` end it at once, with the value named, before any process is started."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from controller.cli import commands
from controller.cli.demo import run as demo


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
