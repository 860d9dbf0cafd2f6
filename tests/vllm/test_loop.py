"""The closed loop of a real vLLM (CPU), a real server and a real controller process. Run by `make test-vllm`.

What is known here and nowhere else: how often each domain's drafts are kept (vLLM's synthetic acceptance) and what a
step costs (each is made as long as its price says, in CPU time, see real/known.py), so that the best K is known and a
shared machine does not change it. The plug-in and the learner do not know: they measure, and so does the reference.
"""

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
QUIET = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING", "OMP_WAIT_POLICY": "passive", "PYTHONPATH": str(ROOT),
}  # fmt: skip
NEAR = 0.95  # of the best goodput by measured seconds, whose medians are good to some 3%


def ran(script: str, *arguments: "Path | str") -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, HERE / script, *map(str, arguments)],
        capture_output=True, text=True, timeout=1800, env={**os.environ, **QUIET}, check=False,
    )  # fmt: skip
    reports = [line for line in done.stdout.splitlines() if line.startswith("REPORT ")]
    assert reports, done.stdout[-3000:] + done.stderr[-3000:]
    report: dict[str, Any] = json.loads(reports[-1].removeprefix("REPORT "))
    report["log"] = done.stderr + done.stdout
    return report


def goodput(survival: list[float], seconds: dict[int, float]) -> dict[int, float]:
    """(1 + sum of survival) / seconds by K."""
    return {k: (1.0 + sum(survival[:k])) / value for k, value in seconds.items()}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target and a draft."""
    folder = tmp_path_factory.mktemp("models")
    made = folder / "target", folder / "draft"
    program = "import sys; from tests.vllm.real.pair import *; write(Path(sys.argv[1])); write(Path(sys.argv[2]), 1, 1)"
    subprocess.run([sys.executable, "-c", program, *made], check=True, capture_output=True, env={**os.environ, **QUIET})
    return made


@pytest.fixture(scope="module")
def closed(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    report = ran("closed.py", *models, tmp_path_factory.mktemp("logs"))
    assert report["errors"] == 0
    return report


@pytest.mark.parametrize("phase", ["at first", "changed", "bad", "back"])
def test_k_comes_to_the_best_for_each_domain_whatever_its_drafts_are_worth_now(
    closed: dict[str, Any], phase: str
) -> None:
    """Two domains of known acceptance; then they change places; then nothing is kept any more; then it is as at first.

    The best K is that of the largest (1 + sum of survival) / seconds.
    """
    told = closed["phases"][phase]
    assert told["held"] >= 100, told["trail"]
    seconds = {int(k): value for k, value in closed["measured"].items()}
    for domain, survival in told["survival"].items():
        worth = goodput(survival, seconds)
        assert worth[told["chosen"][domain]] >= NEAR * max(worth.values()), (domain, told["trail"], worth)


def test_the_domains_ask_for_different_k_and_bad_drafts_for_none(closed: dict[str, Any]) -> None:
    """By the prices, 7 ms + 2 ms a pass (one at K = 0) + .7 ms a token: deep (.97 at every position) is best at K = 8
    with 7.99 tokens in 29.3 ms, K = 6 2% below; short (.85, .8, .29, ...) at K = 2 with 2.53 tokens in 13.1 ms, K = 1
    8% and K = 3 11% below; of bad ones even the first brings 2% more tokens for 7% more time.
    """
    phases = closed["phases"]
    for name, deep, short in (("at first", "code", "chat"), ("changed", "chat", "code"), ("back", "code", "chat")):
        assert phases[name]["chosen"][deep] >= 6
        assert phases[name]["chosen"][short] == 2
    assert phases["bad"]["chosen"] == {"code": 0, "chat": 0}


def test_domains_that_share_their_steps_are_decided_together(closed: dict[str, Any]) -> None:
    """Deep and short in every step. The best for each alone, K = 8 and 2, brings 10.52 tokens in 31.4 ms, 335 a second;
    K = 2 and 2 brings 5.44 in 15.2 ms, 358 a second: the short one pays for the passes of the deep one, too.
    """
    told = closed["together"]
    assert told["held"] >= 100, told["trail"]


@pytest.mark.parametrize("domain", ["code", "chat"])
@pytest.mark.parametrize(
    ("rows", "told"), [("played", "due"), ("own", "best")], ids=["keeps to the policy", "follows its own luck"]
)
def test_the_engine_plays_what_the_policy_says(closed: dict[str, Any], domain: str, rows: str, told: str) -> None:
    """Total variation of a phase's rows by K from what the policy said at the time, exploration included, as a share of
    all rows. Requests of one domain differ by luck alone here, so those that follow theirs stay at the best K, too.
    """
    astray = count = 0.0
    for phase in closed["phases"].values():
        played, due = phase[rows].get(domain, {}), phase[told].get(domain, {})
        astray += sum(abs(played.get(k, 0) - due.get(k, 0)) for k in {*played, *due}) / 2
        count += sum(played.values())
    assert count >= 50
    assert astray <= 0.12 * count, closed["phases"]


@pytest.fixture(scope="module")
def outage(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return ran("outage.py", models[0], tmp_path_factory.mktemp("logs"))


def test_without_a_server_at_the_start_the_configured_k_is_in_force_until_one_is_there(outage: dict[str, Any]) -> None:
    assert outage["alone"] == {"connected": False, "mode": "static", "version": None, "variants": ["static"]}
    assert outage["through"]["nothing is there"] >= 12
    assert outage["log"].count("reporter: redis://") >= 1
    assert "is not reachable" in outage["log"]
    assert "so the static choice is in force" in outage["log"]
    assert outage["equal"]["at first"]


def test_no_request_fails_while_the_server_and_the_controller_die_and_text_stays_the_same(
    models: tuple[Path, Path], outage: dict[str, Any]
) -> None:
    stock = ran("outage.py", models[0], "stock")
    assert [len(given) for given in stock["answers"]] == [1] * 5
    assert outage["answers"] == stock["answers"]
    assert (outage["unfinished"], outage["errors"], outage["refused"], outage["lost"]) == (0, 0, 0, 0)
    assert min(outage["through"].values()) >= 12


def test_after_every_outage_the_controller_counts_what_the_engine_counted(outage: dict[str, Any]) -> None:
    assert min(outage["frames"].values()) > 0
    assert outage["equal"] == dict.fromkeys(("at first", "server", "controller", "hung server", "both"), True)
