"""Which versions of vLLM the plug-in fits, checked against the installed one before anything is hooked.

The scheduler is no public interface of vLLM. So its version must be one of those that the contract tests have run with,
and what we override must still be there with the arguments we pass on.
"""

import inspect
import re
from collections.abc import Mapping
from typing import Any

TESTED = ("0.31", "0.32")  # minor versions; docs/reference/vllm.md says what was run with each

# Method of the scheduler -> parameters that it must have, in order.
TOUCHED: dict[str, tuple[str, ...]] = {
    "schedule": ("self",),
    "add_request": ("self", "request"),
    "_update_after_schedule": ("self", "scheduler_output"),
    "update_draft_token_ids": ("self", "draft_token_ids"),
    "update_from_output": ("self", "scheduler_output", "model_runner_output"),
    "_free_request": ("self", "request"),
    "set_pause_state": ("self", "pause_state"),
    "shutdown": ("self",),
}

# The same of the proposer that several drafters take the place of.
PROPOSER: dict[str, tuple[str, ...]] = {
    "propose": (
        "self", "num_speculative_tokens", "target_token_ids", "target_positions", "target_hidden_states",
        "next_token_ids", "token_indices_to_sample", "common_attn_metadata", "sampling_metadata", "mm_embed_inputs",
        "num_rejected_tokens_gpu",
    ),
    "prepare_next_token_ids_padded": (
        "self", "sampled_token_ids", "requests", "gpu_input_batch", "discard_request_mask",
    ),
    "_get_model": ("self",),
    "_create_draft_vllm_config": ("self",),
    "load_model": ("self", "target_model"),
    "initialize_attn_backend": ("self", "kv_cache_config", "kernel_block_sizes"),
    "initialize_cudagraph_keys": ("self", "cudagraph_mode"),
    "build_per_group_and_layer_attn_metadata": ("self", "common_attn_metadata", "draft_index"),
    "dummy_run": ("self", "num_tokens", "use_cudagraphs", "is_graph_capturing", "slot_mappings"),
}  # fmt: skip


def minor(version: str) -> str:
    """The minor version.

    >>> minor("0.32.0+cpu"), minor("0.9.2rc1")
    ('0.32', '0.9')
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    return f"{found[1]}.{found[2]}" if found else version


def problem(version: str, scheduler: type[Any]) -> str | None:
    """Why the plug-in must not hook into that scheduler class, None where it may.

    >>> class Scheduler:
    ...     def add_request(self, request): ...
    >>> problem("0.30.0", Scheduler)
    'vLLM 0.30.0 is not among the versions it was tested with (0.31, 0.32)'
    >>> problem("0.32.0", Scheduler)
    'Scheduler.schedule of vLLM 0.32.0 is not there'
    """
    if minor(version) not in TESTED:
        return f"vLLM {version} is not among the versions it was tested with ({', '.join(TESTED)})"
    return missing(version, scheduler, TOUCHED)


def missing(version: str, cls: type[Any], touched: Mapping[str, tuple[str, ...]]) -> str | None:
    """Which of the touched methods the class lacks, or has with other parameters; None where all are there."""
    for name, wanted in touched.items():
        method = getattr(cls, name, None)
        if method is None:
            return f"{cls.__name__}.{name} of vLLM {version} is not there"
        there = tuple(inspect.signature(method).parameters)
        if there[: len(wanted)] != wanted:
            return f"{cls.__name__}.{name} of vLLM {version} takes {there}; needed: {wanted}"
    return None
