"""The little of vLLM that our hooks touch, as a package on disk: what goes wrong can be looked at without vLLM."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

SCHEDULER = '''
class Scheduler:
    """Serves every request it has with one token a step, and what drafts there are."""

    def __init__(self, vllm_config):
        self.vllm_config = vllm_config
        self.requests, self.waiting, self.running = {}, [], []
        self.max_num_running_reqs, self.kv_cache_config, self.did = 8, None, []

    def add_request(self, request):
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def schedule(self):
        from vllm.v1.core.sched.output import SchedulerOutput

        new, self.waiting = self.waiting, []
        self.running += new
        step = SchedulerOutput(self.running, new)
        self._update_after_schedule(step)
        return step

    def _update_after_schedule(self, scheduler_output):
        self.did.append("_update_after_schedule")
        for name, n in scheduler_output.num_scheduled_tokens.items():
            request = self.requests[name]
            request.num_computed_tokens += n
            request.is_prefill_chunk = False
            request.spec_token_ids = []

    def update_draft_token_ids(self, draft_token_ids):
        self.did.append("update_draft_token_ids")
        for name, tokens in zip(draft_token_ids.req_ids, draft_token_ids.draft_token_ids):
            self.requests[name].spec_token_ids = tokens

    def update_from_output(self, scheduler_output, model_runner_output):
        self.did.append("update_from_output")
        for name, at in model_runner_output.req_id_to_index.items():
            self.requests[name].num_output_tokens += len(model_runner_output.sampled_token_ids[at])

    def _free_request(self, request):
        self.did.append("_free_request")
        self.running.remove(request)
        del self.requests[request.request_id]

    def set_pause_state(self, pause_state):
        self.did.append("set_pause_state")

    def shutdown(self):
        self.did.append("shutdown")
'''
OUTPUT = """
from types import SimpleNamespace

class SchedulerOutput:
    def __init__(self, running, new):
        drafts = {one.request_id: list(one.spec_token_ids) for one in running if one.spec_token_ids}
        rows = {one.request_id: len(drafts.get(one.request_id, ())) + 1 for one in running if one not in new}
        self.num_scheduled_tokens = rows | {one.request_id: len(one.prompt_token_ids) for one in new}
        self.scheduled_spec_decode_tokens = drafts
        self.scheduled_new_reqs = [SimpleNamespace(req_id=one.request_id) for one in new]
        self.scheduled_cached_reqs = SimpleNamespace(resumed_req_ids=set())
        self.num_invalid_spec_tokens, self.num_spec_tokens_to_schedule = None, 4
"""
ASYNC = """
from vllm.v1.core.sched.scheduler import Scheduler

class AsyncScheduler(Scheduler):
    def _update_after_schedule(self, scheduler_output):
        super()._update_after_schedule(scheduler_output)
        for name in scheduler_output.num_scheduled_tokens:
            self.requests[name].spec_token_ids = [-1] * scheduler_output.num_spec_tokens_to_schedule
"""
PLATFORM = """
class current_platform:
    @staticmethod
    def get_device_name():
        return "stub"
"""
FILES = {
    "config.py": "class VllmConfig: ...", "platforms.py": PLATFORM, "v1/request.py": "class Request: ...",
    "v1/outputs.py": "class DraftTokenIds: ...\nclass ModelRunnerOutput: ...", "v1/core/sched/output.py": OUTPUT,
    "v1/core/sched/scheduler.py": SCHEDULER, "v1/core/sched/async_scheduler.py": ASYNC,
}  # fmt: skip


@contextmanager
def installed(
    folder: Path, version: str = "0.32.0", changed: Mapping[str, str] = MappingProxyType({})
) -> Iterator[None]:
    """vLLM of that version; `changed`: other text of a file, by its name without `.py`."""
    given = {**FILES, "version.py": f"__version__ = {version!r}"}
    for path, text in given.items():
        file = folder / "vllm" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(changed.get(file.stem, text))
    for package in ("", "v1", "v1/core", "v1/core/sched"):
        (folder / "vllm" / package / "__init__.py").touch()

    def forget() -> None:
        for name in [*sys.modules]:
            if name.split(".")[0] == "vllm" or name in ("engine.vllm.scheduler", "engine.vllm.proposer"):
                del sys.modules[name]

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        forget()
        try:
            yield
        finally:
            forget()


def config(*, asynchronous: bool = False, settings: dict[str, Any] | None = None) -> Any:
    """A `VllmConfig` with n-gram drafts of 4 tokens."""
    return SimpleNamespace(
        speculative_config=SimpleNamespace(
            method="ngram", model=None, num_speculative_tokens=4, parallel_drafting=False, draft_model_config=None
        ),
        parallel_config=SimpleNamespace(
            data_parallel_size=1, data_parallel_index=0, tensor_parallel_size=1, pipeline_parallel_size=1
        ),
        model_config=SimpleNamespace(model="/models/target", dtype="torch.bfloat16", max_model_len=4096),
        scheduler_config=SimpleNamespace(async_scheduling=asynchronous, max_num_seqs=8),
        additional_config={"adaptive_k": {"classify": False, **(settings or {})}},
        use_v2_model_runner=False,
    )


def request(name: str) -> Any:
    """A request with a prompt of 8 tokens."""

    def hashed() -> None:
        made.block_hashes = [f"{made.cache_salt}#0"]

    made = SimpleNamespace(
        request_id=name, prompt_token_ids=[1] * 8, lora_request=None, cache_salt=None, num_computed_tokens=0,
        num_output_placeholders=0, num_output_tokens=0, is_prefill_chunk=True, spec_token_ids=[],
        sampling_params=SimpleNamespace(temperature=0.0, extra_args=None), update_block_hashes=hashed,
    )  # fmt: skip
    hashed()
    return made
