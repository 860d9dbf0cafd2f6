"""Which of our touch points a vLLM has, read from its source without importing it (its wheels need their own torch):

    python -m tests.vllm.inspect_wheel vllm-0.33.0-cp38-abi3-manylinux_2_28_x86_64.whl

prints what is missing or changed, one line each, and ends with 1 if there is any. An installed folder does as well.
`test_contract.py` runs the same over the installed vLLM. What is touched and not listed here breaks without notice:
extend the lists with every new attribute that `engine/vllm/` reads or sets.
"""

import ast
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from engine.vllm.versions import TOUCHED

Read = Callable[[str], str]  # source of a file, by its path inside the folder `vllm`; raises KeyError or OSError

SCHEDULER = "v1/core/sched/scheduler.py"
ASYNC = "v1/core/sched/async_scheduler.py"

# (file, class) -> what the scheduler's hooks and the bridge read or set of it.
ATTRIBUTES: dict[tuple[str, str], tuple[str, ...]] = {
    ("v1/request.py", "Request"): (
        "request_id", "prompt_token_ids", "sampling_params", "lora_request", "num_computed_tokens",
        "num_output_placeholders", "is_prefill_chunk", "spec_token_ids", "num_output_tokens", "cache_salt",
        "block_hashes", "update_block_hashes",
    ),
    ("v1/core/sched/output.py", "SchedulerOutput"): (
        "num_scheduled_tokens", "scheduled_spec_decode_tokens", "scheduled_new_reqs", "scheduled_cached_reqs",
        "num_invalid_spec_tokens", "num_spec_tokens_to_schedule",
    ),
    ("v1/core/sched/output.py", "NewRequestData"): ("req_id",),
    ("v1/core/sched/output.py", "CachedRequestData"): ("resumed_req_ids",),
    ("v1/outputs.py", "ModelRunnerOutput"): ("req_id_to_index", "sampled_token_ids"),
    ("v1/outputs.py", "DraftTokenIds"): ("req_ids", "draft_token_ids"),
    (SCHEDULER, "Scheduler"): (
        "requests", "running", "waiting", "vllm_config", "max_num_running_reqs", "kv_cache_config",
    ),
    ("config/vllm.py", "VllmConfig"): (
        "scheduler_config", "parallel_config", "speculative_config", "model_config", "device_config",
        "additional_config", "use_v2_model_runner",
    ),
    ("config/model.py", "ModelConfig"): ("model", "dtype", "max_model_len"),
    ("config/scheduler.py", "SchedulerConfig"): ("async_scheduling", "max_num_seqs"),
    ("config/parallel.py", "ParallelConfig"): (
        "data_parallel_index", "data_parallel_size", "tensor_parallel_size", "pipeline_parallel_size",
    ),
    ("config/speculative.py", "SpeculativeConfig"): (
        "method", "model", "num_speculative_tokens", "parallel_drafting", "draft_model_config", "use_multi_module_mtp",
        "use_gemma4_mtp",
    ),
    ("config/device.py", "DeviceConfig"): ("device_type",),
    ("sampling_params.py", "SamplingParams"): ("temperature", "min_p", "logit_bias", "extra_args"),
    ("lora/request.py", "LoRARequest"): ("lora_name",),
}  # fmt: skip

# (file, attribute): who must still use what we set or override, or else it has no effect.
USES: tuple[tuple[str, str], ...] = (
    (SCHEDULER, "_update_after_schedule"),
    (SCHEDULER, "_free_request"),
    ("v1/engine/core.py", "update_draft_token_ids"),
    ("v1/engine/core.py", "update_from_output"),
    ("v1/engine/core.py", "set_pause_state"),
    ("v1/worker/gpu_model_runner.py", "num_spec_tokens_to_schedule"),
    (ASYNC, "spec_token_ids"),
)


def problems(read: Read) -> list[str]:
    """What is missing or changed in the vLLM whose source `read` gives."""
    return [*_methods(read), *_attributes(read), *_uses(read)]


def _methods(read: Read) -> Iterator[str]:
    found = _class(read, SCHEDULER, "Scheduler")
    for name, wanted in TOUCHED.items():
        method = found.get(name) if found else None
        if not isinstance(method, ast.FunctionDef):
            yield f"{SCHEDULER}: Scheduler.{name} is not there"
        elif (there := tuple(arg.arg for arg in (*method.args.posonlyargs, *method.args.args)))[
            : len(wanted)
        ] != wanted:
            yield f"{SCHEDULER}: Scheduler.{name} takes {there}; needed: {wanted}"


def _attributes(read: Read) -> Iterator[str]:
    for (path, name), wanted in ATTRIBUTES.items():
        found = _class(read, path, name)
        if found is None:
            yield f"{path}: class {name} is not there"
        else:
            yield from (f"{path}: {name}.{one} is not there" for one in wanted if one not in found)


def _uses(read: Read) -> Iterator[str]:
    for path, name in USES:
        tree = _tree(read, path)
        if tree is None or not any(isinstance(node, ast.Attribute) and node.attr == name for node in ast.walk(tree)):
            yield f"{path}: nothing uses {name} any more"


def _tree(read: Read, path: str) -> ast.Module | None:
    try:
        return ast.parse(read(path))
    except (KeyError, OSError):
        return None


def _class(read: Read, path: str, name: str) -> dict[str, ast.AST] | None:
    """A class's methods, fields and what its methods set on `self`; None where there is no such class."""
    tree = _tree(read, path)
    body = next((node for node in ast.walk(tree or ast.Module([], [])) if _is_class(node, name)), None)
    if body is None:
        return None
    found: dict[str, ast.AST] = {}
    for node in ast.walk(body):
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        for target in _targets(node):
            if isinstance(target, ast.Name):
                found.setdefault(target.id, target)
            elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
                found.setdefault(target.attr, target)
    return found


def _is_class(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.ClassDef) and node.name == name


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign) else []


def reader(path: Path) -> Read:
    """Reads a wheel, or an installed folder `vllm`."""
    if path.is_dir():
        return lambda name: (path / name).read_text()
    wheel = zipfile.ZipFile(path)
    return lambda name: wheel.read(f"vllm/{name}").decode()


if __name__ == "__main__":
    found = problems(reader(Path(sys.argv[1])))
    print("\n".join(found) or "all touch points are there")
    sys.exit(bool(found))
