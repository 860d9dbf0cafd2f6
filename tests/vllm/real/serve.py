"""One vLLM engine in this process, asked a list of prompts; prints what came of it as JSON. vLLM starts only one engine
in a process, so every run of the tests is a process: `python serve.py FOLDER '{"mode": "stock"}'`.

Modes: `stock` (vLLM's scheduler), `static` (ours, without Redis), `mixed` (ours, a K at random for every row of every
step), `fault:HOOK` (ours, with an error in that hook at its 20th call).
"""

import json
import os
import random
import sys
from typing import Any

os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1", VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="WARNING",
)  # fmt: skip

from vllm import LLM, SamplingParams

NOWHERE = "redis://127.0.0.1:1/0"
PROMPTS = [
    f"Hello my name is {name}, hello my name is {name}, hello" for name in ("a", "bob", "carl", "d e", "x y z", "q")
]
OURS = {"scheduler_cls": "engine.vllm.AdaptiveScheduler"}


def params(nth: int) -> SamplingParams:
    """Different lengths; one request that a string stops, one that ignores the end; half of them name their domain."""
    return SamplingParams(
        temperature=0.0, max_tokens=40 + 7 * nth, stop=["ee"] if nth == 2 else None,
        ignore_eos=nth == 3, extra_args={"domain": "code"} if nth % 2 else None,
    )  # fmt: skip


def spoil(scheduler: Any, hook: str) -> None:
    """Make the bridge's side of a hook fail at its 20th call."""
    bridge, calls = scheduler._akc, [0]
    whole = getattr(bridge, hook)

    def failing(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == 20 or hook in ("came", "ended"):
            raise RuntimeError("a fault, on purpose")
        return whole(*args, **kwargs)

    setattr(bridge, hook, failing)


def run(folder: str, mode: str, engine: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Serve all prompts and report."""
    ours = {} if mode == "stock" else {**OURS, "additional_config": {"adaptive_k": {"redis_url": NOWHERE, **settings}}}
    speculative = {
        "method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1,
    }  # fmt: skip
    llm = LLM(
        folder, enforce_eager=True, max_model_len=256, max_num_seqs=4, speculative_config=speculative,
        per_request_spec_decode_metrics="detailed", disable_log_stats=True, **ours, **engine,
    )  # fmt: skip
    scheduler: Any = llm.llm_engine.engine_core.engine_core.scheduler
    if mode == "mixed":
        rng = random.Random(1)
        scheduler._akc.link.plan = lambda tickets, batch: [rng.randrange(5) for _ in tickets]
    if mode.startswith("fault:"):
        spoil(scheduler, mode.split(":")[1])
    answers = llm.generate(PROMPTS, [params(nth) for nth in range(len(PROMPTS))], use_tqdm=False)
    metrics = [answer.outputs[0].spec_decode_metrics for answer in answers]
    report: dict[str, Any] = {
        "scheduler": type(scheduler).__name__,
        "texts": [answer.outputs[0].text for answer in answers],
        "lengths": [len(answer.outputs[0].token_ids) for answer in answers],
        "drafted": [metric.per_step_drafted for metric in metrics],
        "accepted": [metric.per_step_accepted for metric in metrics],
        "errors": getattr(scheduler, "akc_errors", 0),
        "hooked": getattr(scheduler, "_akc", None) is not None,
    }
    bridge = getattr(scheduler, "_akc", None)
    if bridge is not None:
        cells = bridge.link.counters.snapshot()
        report |= {
            "counts": list(bridge.counts),
            "left": [len(bridge._known), len(bridge._over), len(bridge._steps)],
            "refused": bridge.link.status()["refused"],
            "running": bridge.link.status()["running"],
            "tokens": sum(cell.tokens for cell in cells.account),
            "domains": sorted({cell.domain for cell in cells.account}),
        }
    return report


if __name__ == "__main__":
    asked = json.loads(sys.argv[2])
    print("REPORT " + json.dumps(run(sys.argv[1], asked["mode"], asked.get("engine", {}), asked.get("settings", {}))))
