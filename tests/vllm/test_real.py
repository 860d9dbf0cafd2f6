"""On a real vLLM (CPU): text, counts, and what happens when something of ours fails. Run by `make test-vllm`."""

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
# Little room for tokens in a step: prompts are read in chunks beside decoding rows.
CHUNKED = {"max_num_batched_tokens": 32}
# Little room for KV: 9 blocks of 32 tokens for four rows of up to 130, not all of whom fit.
CROWDED = {"num_gpu_blocks_override": 9, "block_size": 32}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model") / "tiny"
    subprocess.run([sys.executable, HERE / "model.py", made], check=True, capture_output=True)
    return made


def served(folder: Path, mode: str, engine: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    asked = json.dumps({"mode": mode, "engine": engine or {}, "settings": settings})
    done = subprocess.run(
        [sys.executable, HERE / "serve.py", folder, asked],
        capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    reports = [line for line in done.stdout.splitlines() if line.startswith("REPORT ")]
    assert reports, done.stdout[-3000:] + done.stderr[-3000:]
    report: dict[str, Any] = json.loads(reports[-1].removeprefix("REPORT "))
    report["log"] = done.stderr + done.stdout
    return report


@pytest.fixture(scope="module")
def stock(folder: Path) -> dict[str, Any]:
    return served(folder, "stock", CHUNKED)


def test_without_redis_the_configured_k_is_in_force_and_counted_like_vllm_counts(
    folder: Path, stock: dict[str, Any]
) -> None:
    ours = served(folder, "static", CHUNKED)
    assert ours["scheduler"] == "SyncAdaptiveScheduler"
    assert ours["texts"] == stock["texts"]
    assert ours["drafted"] == stock["drafted"]
    assert ours["counts"] == [sum(map(sum, ours["drafted"])), sum(map(sum, ours["accepted"]))]
    assert ours["left"] == [0, 0, 0]
    assert (ours["refused"], ours["running"], ours["errors"]) == (0, 0, 0)
    # The first token of every answer belongs to its prompt's last step, which has no decode row of it.
    assert ours["tokens"] == sum(ours["lengths"]) - 6
    assert "code" in ours["domains"]
    assert "not reachable" in ours["log"]


@pytest.mark.parametrize("engine", [CHUNKED, CROWDED], ids=["prompts in chunks", "little room for KV"])
def test_text_does_not_depend_on_k_and_counts_agree_whatever_k(
    folder: Path, stock: dict[str, Any], engine: dict[str, Any]
) -> None:
    ours = served(folder, "mixed", engine)
    assert ours["texts"] == stock["texts"]
    assert {k for steps in ours["drafted"] for k in steps} == {0, 1, 2, 3, 4} - {0}
    assert ours["counts"] == [sum(map(sum, ours["drafted"])), sum(map(sum, ours["accepted"]))]
    assert (ours["left"], ours["refused"], ours["errors"]) == ([0, 0, 0], 0, 0)


@pytest.mark.parametrize("hook", ["came", "ended", "scheduled", "offered", "validated", "outputs", "completed"])
def test_an_error_in_a_hook_leaves_vllm_s_own_scheduler(folder: Path, stock: dict[str, Any], hook: str) -> None:
    ours = served(folder, f"fault:{hook}", CHUNKED)
    assert ours["texts"] == stock["texts"]
    assert (ours["errors"], ours["hooked"]) == (1, False)
    assert ours["log"].count("a fault, on purpose") >= 1


def test_settings_nobody_can_use_leave_vllm_s_own_scheduler(folder: Path, stock: dict[str, Any]) -> None:
    ours = served(folder, "static", CHUNKED, k_values=[9])
    assert ours["texts"] == stock["texts"]
    assert (ours["errors"], ours["hooked"]) == (1, False)
    assert "k_values has 9" in ours["log"]
