"""Our touch points on the vLLM that is installed (marker `vllm`), and the inspection of a wheel on one made by hand."""

import ast
import dataclasses
import inspect
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from engine.vllm.versions import TESTED, TOUCHED, minor, problem
from tests.vllm import inspect_wheel
from tests.vllm.inspect_wheel import ATTRIBUTES, SCHEDULER, USES, problems, reader


def sources(without: str = "", instead: str = "") -> dict[str, str]:
    """A vLLM that has our touch points and nothing else; `without` is replaced by `instead`."""
    made: dict[str, list[str]] = {}
    for (path, name), attributes in ATTRIBUTES.items():
        fields = [f"    {attribute}: int = 0" for attribute in attributes]
        made.setdefault(path, []).extend([f"class {name}:", *fields])
        if name == "Scheduler":
            made[path] += [f"    def {method}({', '.join(wanted)}): pass" for method, wanted in TOUCHED.items()]
    for path, attribute in USES:
        made.setdefault(path, []).append(f"x.{attribute}")
    return {path: "\n".join(lines).replace(without, instead) if without else "\n".join(lines)
            for path, lines in made.items()}  # fmt: skip


def test_a_wheel_with_all_touch_points_has_no_problem(tmp_path: Path) -> None:
    wheel = tmp_path / "vllm-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        for path, text in sources().items():
            packed.writestr(f"vllm/{path}", text)
    done = subprocess.run(
        [sys.executable, "-m", "tests.vllm.inspect_wheel", str(wheel)],
        capture_output=True, text=True, check=False, cwd=Path(inspect_wheel.__file__).parents[2],
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "all touch points are there\n")


@pytest.mark.parametrize(
    ("without", "instead", "told"),
    [
        ("    is_prefill_chunk: int = 0", "    pass", "v1/request.py: Request.is_prefill_chunk is not there"),
        ("class DraftTokenIds", "class Drafts", "v1/outputs.py: class DraftTokenIds is not there"),
        ("def shutdown", "def stop", f"{SCHEDULER}: Scheduler.shutdown is not there"),
        ("x.update_from_output", "x.update", "v1/engine/core.py: nothing uses update_from_output any more"),
        (
            "def update_from_output(self, scheduler_output", "def update_from_output(self, step",
            f"{SCHEDULER}: Scheduler.update_from_output takes ('self', 'step', 'model_runner_output'); "
            "needed: ('self', 'scheduler_output', 'model_runner_output')",
        ),
    ],
)  # fmt: skip
def test_what_is_missing_or_changed_is_named(without: str, instead: str, told: str) -> None:
    assert problems(sources(without, instead).__getitem__) == [told]


def test_what_methods_set_on_themselves_counts_as_an_attribute() -> None:
    made = sources("class Request:", "class Request:\n    def __init__(self):\n        self.request_id = 1\n")
    made["v1/request.py"] = made["v1/request.py"].replace("    request_id: int = 0\n", "")
    assert problems(made.__getitem__) == []


@pytest.mark.skipif("VLLM_WHEEL" not in os.environ, reason="VLLM_WHEEL names no wheel")
def test_a_given_wheel_has_all_touch_points() -> None:
    assert problems(reader(Path(os.environ["VLLM_WHEEL"]))) == []


@pytest.mark.vllm
def test_the_installed_vllm_is_among_the_tested_ones_and_has_all_touch_points() -> None:
    import vllm
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    assert minor(vllm.__version__) in TESTED
    assert [problem(vllm.__version__, one) for one in (Scheduler, AsyncScheduler)] == [None, None]
    assert problems(reader(Path(vllm.__file__).parent)) == []


@pytest.mark.vllm
def test_the_installed_vllm_s_structures_have_what_we_read_when_they_are_made() -> None:
    from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
    from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

    for made in (SchedulerOutput, NewRequestData, CachedRequestData, ModelRunnerOutput):
        wanted = next(names for (_, name), names in ATTRIBUTES.items() if name == made.__name__)
        assert set(wanted) <= {field.name for field in dataclasses.fields(made)} | set(vars(made))
    assert {"req_ids", "draft_token_ids"} <= set(getattr(DraftTokenIds, "_fields", ())) | {
        field.name for field in dataclasses.fields(DraftTokenIds)
    }


@pytest.mark.vllm
def test_requests_and_steps_of_the_installed_vllm_take_what_we_set() -> None:
    from vllm import SamplingParams
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

    request = Request("a", [1, 2, 3], SamplingParams(temperature=0.0, extra_args={"domain": "code"}), None)
    request.spec_token_ids = [-1, -1]
    assert (request.num_output_tokens, request.num_computed_tokens, request.is_prefill_chunk) == (0, 0, False)
    assert request.sampling_params is not None
    assert request.sampling_params.extra_args == {"domain": "code"}
    step = SchedulerOutput.make_empty()
    step.num_spec_tokens_to_schedule = 3
    assert (step.num_scheduled_tokens, step.num_invalid_spec_tokens) == ({}, None)


@pytest.mark.vllm
def test_who_takes_another_k_at_every_step_is_who_we_take_for_it() -> None:
    """V1's proposers by what they assert, V2's by whether `propose` reads the K it is given."""
    import vllm

    root = Path(vllm.__file__).parent / "v1"
    asserting = {
        path.stem
        for path in (root / "spec_decode").glob("*.py")
        if "assert num_speculative_tokens == self." in path.read_text()
    }
    assert asserting == {"medusa", "ngram_proposer_gpu", "suffix_decoding", "extract_hidden_states"}
    reading = {
        path.parent.name
        for path in (root / "worker/gpu/spec_decode").glob("*/speculator.py")
        for method in ast.walk(ast.parse(path.read_text()))
        if isinstance(method, ast.FunctionDef) and method.name == "propose" and _reads(method, "num_speculative_tokens")
    }
    assert reading == ({"target_dependent_ar"} if minor(vllm.__version__) == "0.32" else set())


def _reads(method: ast.FunctionDef, name: str) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load) for node in ast.walk(method)
    )


@pytest.mark.vllm
def test_both_schedulers_of_the_installed_vllm_take_our_hooks() -> None:
    from engine.vllm.scheduler import AsyncAdaptiveScheduler, SyncAdaptiveScheduler

    for ours in (SyncAdaptiveScheduler, AsyncAdaptiveScheduler):
        for name in TOUCHED:
            if name != "_free_request":  # what it returns is vLLM's own affair
                inspect.signature(getattr(ours, name))
            assert getattr(ours, name) is not getattr(ours.__mro__[2], name)
