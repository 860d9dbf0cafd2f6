"""Several drafters in one real vLLM engine (CPU): text, counts, passes, and what happens where they cannot be had."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.vllm

HERE = Path(__file__).parent / "real"
ROOT = HERE.parents[2]
LINES = "Metadata-Version: 2.1\nName: adaptive-k-controller\nVersion: 0\n"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    made = tmp_path_factory.mktemp("models")
    both = [made / "tiny", made / "trunc"]
    subprocess.run([sys.executable, HERE / "pair.py", *both], check=True, capture_output=True)
    return both


def served(
    folders: list[Path], *phases: str, path: Path | None = None, env: dict[str, str] | None = None, **asked: Any
) -> dict[str, Any]:
    paths = os.pathsep.join(map(str, [ROOT] + ([path] if path else [])))
    done = subprocess.run(
        [sys.executable, HERE / "several.py", *folders, json.dumps({"phases": phases, **asked})],
        capture_output=True, text=True, timeout=600, check=False,
        env={**os.environ, "PYTHONPATH": paths, **(env or {})},
    )  # fmt: skip
    reports = [line for line in done.stdout.splitlines() if line.startswith("REPORT ")]
    assert reports, done.stdout[-3000:] + done.stderr[-5000:]
    report: dict[str, Any] = json.loads(reports[-1].removeprefix("REPORT "))
    report["log"] = done.stderr + done.stdout
    return report


@pytest.fixture(scope="module")
def stock(folders: list[Path]) -> list[list[int]]:
    """What the target alone says."""
    texts: list[list[int]] = served(folders, "stock")["texts"]
    return texts


@pytest.fixture(scope="module")
def ours(folders: list[Path]) -> dict[str, Any]:
    """All phases in one engine: prompts in chunks, blocks of earlier phases in the prefix cache."""
    return served(folders, "fixed", "random", "none", "paused", "same", "fault:1", "broken")


PHASES = ["fixed", "random", "none", "paused", "same", "fault:1", "broken"]


def kept(phase: dict[str, Any], draft: str) -> list[tuple[int, int]]:
    """Per step of the requests with that draft: tokens drafted and accepted."""
    rows = zip(phase["drafts"], phase["drafted"], phase["accepted"], strict=True)
    return [pair for name, drafted, accepted in rows if name == draft for pair in zip(drafted, accepted, strict=True)]


def test_the_three_are_announced_and_in_force(ours: dict[str, Any]) -> None:
    assert (ours["proposer"], ours["scheduler"]) == ("SeveralDrafters", "SyncAdaptiveScheduler")
    assert ours["described"] == [["ngram", 4], ["same", 4], ["trunc", 4]]
    assert ours["errors"] == 0


@pytest.mark.parametrize("phase", PHASES)
def test_text_is_the_target_s_and_counts_are_vllm_s_whoever_drafts(
    ours: dict[str, Any], stock: list[list[int]], phase: str
) -> None:
    report = ours[phase]
    assert report["texts"] == stock
    assert report["counts"] == [sum(map(sum, report["drafted"])), sum(map(sum, report["accepted"]))]
    assert report["left"] == [0, 0, 0]


def test_each_request_drafts_with_its_own(ours: dict[str, Any]) -> None:
    fixed = ours["fixed"]
    assert sorted(fixed["by_draft"]) == ["ngram", "none", "same", "trunc"]
    assert fixed["by_draft"]["none"] == [0, 0]
    for draft in ("trunc", "ngram"):  # right sometimes, wrong often
        asked, accepted = fixed["by_draft"][draft]
        assert 0.05 * asked < accepted < 0.8 * asked


@pytest.mark.parametrize("phase", ["fixed", "random", "same"])
def test_a_perfect_draft_stays_perfect(ours: dict[str, Any], phase: str) -> None:
    """From the first step on, beside other drafts, after steps at K = 0, and on cached blocks of other requests."""
    steps = kept(ours[phase], "same")
    assert steps
    assert all(drafted == accepted for drafted, accepted in steps)
    if phase == "random":
        assert {drafted for drafted, _ in steps} == {1, 2, 3, 4}


@pytest.mark.parametrize("phase", ["fixed", "random", "none", "paused", "same"])
def test_every_pass_is_booked_and_none_is_run_for_nobody(ours: dict[str, Any], phase: str) -> None:
    report = ours[phase]
    assert report["passes"] == {name: report["planned"][name] for name in ("trunc", "same")}


def test_without_a_holder_no_model_runs(ours: dict[str, Any]) -> None:
    assert ours["none"]["passes"] == {"trunc": 0, "same": 0}
    assert all(drafted == {} for _, drafted in ours["none"]["steps"])
    assert ours["same"]["passes"]["trunc"] == 0


def test_paused_requests_cost_one_pass_a_step(ours: dict[str, Any]) -> None:
    assert all(drafted == {"trunc": [0, 1]} for _, drafted in ours["paused"]["steps"])


def test_blocks_are_shared_among_requests_of_one_model_only(ours: dict[str, Any]) -> None:
    """All prompts begin alike. The first of each model finds nothing that its model has read; later ones do."""
    cached = dict(zip(range(8), ours["fixed"]["cached"], strict=True))
    drafts = dict(enumerate(ours["fixed"]["drafts"]))
    assert {drafts[at]: cached[at] for at in (0, 1, 2)} == {"trunc": 0, "same": 0, "ngram": 0}
    assert all(cached[at] >= 32 for at in (4, 5, 6, 7))
    assert drafts[3] == "none"
    assert cached[3] >= 32  # what lookup's requests left needs no model


def test_a_drafter_that_fails_is_left_alone_and_the_others_go_on(ours: dict[str, Any]) -> None:
    fault = ours["fault:1"]
    assert fault["failed"] == [1]
    assert fault["by_draft"]["trunc"][1] > 0
    assert ours["log"].count("drafter same is out of service") == 1
    assert ours["log"].count("no drafts until this engine restarts") == 1


def test_preemption_and_a_worker_of_its_own_process_change_nothing(
    folders: list[Path], stock: list[list[int]], tmp_path: Path
) -> None:
    """Little room for KV; the plug-in comes by its entry point, as where the package is installed."""
    info = tmp_path / "adaptive_k_controller-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(LINES)
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nadaptive_k = engine.vllm.plugin:register\n")
    report = served(
        folders, "random", "same", path=tmp_path, plugin=False,
        engine={"num_gpu_blocks_override": 12, "distributed_executor_backend": "mp"},
    )  # fmt: skip
    assert report["described"] == [["ngram", 4], ["same", 4], ["trunc", 4]]
    for phase in ("random", "same"):
        assert report[phase]["texts"] == stock
        assert all(drafted == accepted for drafted, accepted in kept(report[phase], "same"))
        assert report[phase]["left"] == [0, 0, 0]
    assert report["random"]["preempted"] + report["same"]["preempted"] > 0
    assert report["errors"] == 0


def test_asynchronous_scheduling_has_the_models_and_says_why_not_lookup(
    folders: list[Path], stock: list[list[int]]
) -> None:
    report = served(folders, "random", "same", asynchronous=True, engine={"async_scheduling": True})
    assert report["scheduler"] == "AsyncAdaptiveScheduler"
    assert report["described"] == [["same", 4], ["trunc", 4]]
    assert "not in force: ngram (it reads the text on the host" in report["log"]
    for phase in ("random", "same"):
        assert report[phase]["texts"] == stock
        assert all(drafted == accepted for drafted, accepted in kept(report[phase], "same"))
        assert report[phase]["passes"] == {name: report[phase]["planned"][name] for name in ("trunc", "same")}
        assert report[phase]["left"][0] == 0  # a step may be under way


def test_where_the_plug_in_did_not_take_there_is_one_drafter_and_a_line(
    folders: list[Path], stock: list[list[int]]
) -> None:
    report = served(folders, plugin=False, env={"VLLM_PLUGINS": "no-such"})
    assert report["proposer"] == "DraftModelProposer"
    assert report["described"] == [["trunc", 4]]
    assert report["texts"] == stock
    assert report["log"].count("not in force: same (the worker has vLLM's own proposer") == 1


def test_a_draft_of_other_tokens_is_refused(folders: list[Path], stock: list[list[int]], tmp_path: Path) -> None:
    """Same size, two tokens changed places: vLLM would take it."""
    other = tmp_path / "other"
    other.mkdir()
    for file in folders[1].iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    report = served(folders, drafters=[{"model": str(other)}, {"method": "ngram"}])
    assert report["described"] == [["ngram", 4], ["trunc", 4]]
    assert report["texts"] == stock
    assert "2 of the target's 259 tokens have other ids" in report["log"]
    assert "not in force: other (the worker could not take it" in report["log"]
