"""Host time of the vLLM plug-in's hooks: `python -m tests.bench.on_vllm.overhead`, where vLLM is, prints
microseconds of the scheduler's thread per step. The hooks run over a scheduler that does only what they read, with a
policy in force and every row decoding; the time of that scheduler alone is taken off.
"""

import random
import statistics
import time
from types import SimpleNamespace
from typing import Any

from engine.link import DraftInfo, EngineDescription, Link, LinkSettings, StaticChoice
from engine.link.messages import encode
from engine.vllm.bridge import Bridge
from engine.vllm.drafter import drafter_of
from engine.vllm.labels import Labels
from engine.vllm.scheduler import _Hooks
from engine.vllm.settings import VllmSettings
from tests.bench.bench_link import policy

K = 6
ROUNDS, STEPS = 9, 60


class _Core:
    """The part of a scheduler that the hooks meet."""

    def __init__(self, rows: int) -> None:
        self.requests: dict[str, Any] = {}
        self.running: list[Any] = []
        self.waiting: list[Any] = []
        self.rows = rows

    def add_request(self, request: Any) -> None:
        self.requests[request.request_id] = request
        self.running.append(request)

    def _free_request(self, request: Any) -> None:
        del self.requests[request.request_id]

    def _update_after_schedule(self, step: Any) -> None:
        for request_id, tokens in step.num_scheduled_tokens.items():
            self.requests[request_id].num_computed_tokens += tokens

    def update_draft_token_ids(self, drafts: Any) -> None:
        for request_id, tokens in zip(drafts.req_ids, drafts.draft_token_ids, strict=True):
            self.requests[request_id].spec_token_ids = tokens

    def update_from_output(self, step: Any, output: Any) -> None:
        for request_id, at in output.req_id_to_index.items():
            self.requests[request_id].num_output_tokens += len(output.sampled_token_ids[at])

    def shutdown(self) -> None: ...


class _Hooked(_Hooks, _Core):
    def _start(self) -> None:
        drafter = drafter_of("draft_model", "/models/model", 8)
        describe = EngineDescription(
            "bench", "t", "cpu", [DraftInfo("model", "model", 8)], [0, 2, 4, 6], StaticChoice("model", 4), 128
        )
        link = Link(LinkSettings(pool="bench", seed=1), describe)
        link.judge.judge(encode(policy()), time.time())
        self._akc = Bridge(link, Labels(VllmSettings(classify=False), lambda: str), drafter)


def _requests(rows: int) -> list[Any]:
    made = []
    for nth in range(rows):
        params = SimpleNamespace(
            temperature=0.0, min_p=0.0, logit_bias=None, extra_args={"domain": ("code", "math", "chat")[nth % 3]}
        )
        made.append(SimpleNamespace(
            request_id=f"chatcmpl-{nth:032x}", prompt_token_ids=[1] * 200, sampling_params=params, lora_request=None,
            cache_salt=None, num_computed_tokens=200, num_output_placeholders=0, num_output_tokens=0,
            is_prefill_chunk=False, spec_token_ids=[],
        ))  # fmt: skip
    return made


def _step(scheduler: Any, requests: list[Any], rng: random.Random, *, new: bool) -> None:
    drafts = {one.request_id: one.spec_token_ids for one in requests}
    step = SimpleNamespace(
        num_scheduled_tokens={one.request_id: 1 + len(one.spec_token_ids) for one in requests},
        scheduled_spec_decode_tokens={name: tokens for name, tokens in drafts.items() if tokens},
        scheduled_new_reqs=[SimpleNamespace(req_id=one.request_id) for one in requests] if new else [],
        scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set()),
        num_invalid_spec_tokens=None, num_spec_tokens_to_schedule=8,
    )  # fmt: skip
    scheduler._update_after_schedule(step)
    sampled = [[7] * (1 + rng.randrange(1 + len(tokens))) for tokens in drafts.values()]
    output = SimpleNamespace(req_id_to_index={name: at for at, name in enumerate(drafts)}, sampled_token_ids=sampled)
    scheduler.update_from_output(step, output)
    scheduler.update_draft_token_ids(
        SimpleNamespace(req_ids=list(drafts), draft_token_ids=[[7] * step.num_spec_tokens_to_schedule for _ in drafts])
    )


def _microseconds(scheduler: Any, rows: int) -> float:
    requests, rng = _requests(rows), random.Random(1)
    for request in requests:
        scheduler.add_request(request)
    _step(scheduler, requests, rng, new=True)
    rounds = []
    for _ in range(ROUNDS):
        start = time.thread_time()
        for _ in range(STEPS):
            _step(scheduler, requests, rng, new=False)
        rounds.append((time.thread_time() - start) / STEPS * 1e6)
    return statistics.median(rounds)


def main() -> None:
    """Print the table."""
    print(f"{'rows':>4}  {'hooks us':>9}  {'us a row':>8}")
    for rows in (1, 16, 128):
        hooked = _Hooked(rows)
        cost = _microseconds(hooked, rows) - _microseconds(_Core(rows), rows)
        link: Any = hooked._akc.link if hooked._akc else None
        if link is None or link.status()["lost"]:
            raise SystemExit("a hook failed while it was measured")
        print(f"{rows:>4}  {cost:>9.1f}  {cost / rows:>8.1f}")


if __name__ == "__main__":
    main()
