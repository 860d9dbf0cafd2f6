"""One vLLM engine with several drafters, taken through the phases that are asked for; prints what came of them as JSON.

`python several.py FOLDER TRUNCATED '{"phases": [...], ...}'`: the target, and a draft made of its first layers. The
drafters are `trunc` (configured), `same` (the target itself) and `ngram`. A phase serves the same prompts under a fresh
bridge and a link that decides by the request's domain, which in these tests is the name of its draft:

`fixed` K = 4 · `random` K at random for every row of every step · `none`, `paused`, `same` all requests on one choice
· `fault:1` the model `same` fails from its 5th call on · `broken` sharing out fails
"""

import json
import os
import random
import sys
from collections.abc import Sequence
from typing import Any

os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1", VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="WARNING",
)  # fmt: skip

from vllm import LLM, SamplingParams

from engine.link import StaticLink, StepOutcome, Ticket
from engine.vllm import plugin
from engine.vllm.bridge import Bridge
from engine.vllm.labels import Labels
from engine.vllm.settings import VllmSettings

NOWHERE = "redis://127.0.0.1:1/0"
NAMES = ("trunc", "same", "ngram", "none")
# Read in several chunks beside rows that decode; all have their first block in common.
PROMPTS = [
    f"{'Hello my name is ' * 3}{name}, hello my name is {name}, hello" + " and so on" * (nth % 3) * 3
    for nth, name in enumerate(("a", "bob", "carl", "d e", "x y z", "q", "a b", "zed"))
]


class Watching(StaticLink):
    """Gives every domain its draft, and keeps what it is told."""

    def __init__(self, k: int, choose: Any = None) -> None:
        super().__init__("none", 0, table={name: (name, k if name != "none" else 0) for name in NAMES}, choose=choose)
        self.steps: list[StepOutcome] = []

    def record(self, step: StepOutcome) -> None:
        super().record(step)
        self.steps.append(step)


def watched(drafter: Any) -> dict[str, int]:
    """Count the passes of every model of the drafter from now on."""
    passes = {"trunc": 0, "same": 0}

    def counting(name: str) -> Any:
        def hook(*_: Any) -> None:
            passes[name] += 1

        return hook

    drafter.model.register_forward_pre_hook(counting("trunc"))
    for model in drafter._team.models.values():
        model.model.register_forward_pre_hook(counting("same"))
    return passes


def params(nth: int, draft: str, most: int) -> SamplingParams:
    return SamplingParams(
        temperature=0.0, max_tokens=most + 5 * nth, stop=["e"] if nth == 2 else None, ignore_eos=nth != 1,
        extra_args={"domain": draft},
    )  # fmt: skip


def drafts_of(phase: str) -> list[str]:
    """The drafts of the prompts."""
    if phase in ("none", "paused", "same"):
        return ["trunc" if phase == "paused" else phase] * len(PROMPTS)
    turn = 1 if phase == "random" else 0  # a prompt gets another draft than last time
    return [NAMES[(nth + turn) % len(NAMES)] for nth in range(len(PROMPTS))]


def spoil(drafter: Any, phase: str) -> None:
    """Let our side of the worker fail."""
    calls = [0]

    def failing(whole: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls[0] += 1
            if calls[0] > 4:
                raise RuntimeError("a fault, on purpose")
            return whole(*args, **kwargs)

        return call

    if phase == "broken":
        drafter._shared = failing(drafter._shared)
    else:
        model = drafter._team.models[1]
        model.propose = failing(model.propose)


def counted(scheduler: Any) -> list[int]:
    """Count preemptions from now on."""
    count, whole = [0], scheduler._preempt_request

    def preempt(*args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        return whole(*args, **kwargs)

    scheduler._preempt_request = preempt
    return count


def planned(bridge: Bridge) -> dict[str, int]:
    """Passes by draft that the bridge will have planned."""
    sums = {"trunc": 0, "same": 0, "ngram": 0}
    whole = bridge.scheduled

    def scheduled(*args: Any) -> Any:
        answer = whole(*args)
        for name, (_, passes) in bridge._steps[-1].drafted.items():
            sums[name] += passes
        return answer

    bridge.scheduled = scheduled  # type: ignore[method-assign,assignment]
    return sums


def serve(llm: Any, scheduler: Any, drafter: Any, phase: str, passes: dict[str, int], most: int) -> dict[str, Any]:
    """One phase. `drafter` is None where the worker is another process."""
    rng = random.Random(1)
    choose = {"random": lambda ticket, batch: rng.randrange(5), "paused": lambda ticket, batch: 0}.get(phase)
    link = Watching(4, choose)
    old: Bridge = scheduler._akc
    labels = Labels(VllmSettings(classify=False), lambda: None)  # type: ignore[arg-type,return-value]  # never called
    others = [one for name, one in old._team.items() if name != "trunc"]
    places = [old._place[one.name] for one in others]
    bridge = scheduler._akc = Bridge(link, labels, old.drafter, others=others, places=places)
    bridge._steps.extend(old._steps)  # under asynchronous scheduling one of the last phase may be under way
    sums = planned(bridge)
    if phase.startswith(("fault", "broken")):
        spoil(drafter, phase)
    before, preempted = dict(passes), counted(scheduler)
    drafts = drafts_of(phase)
    asked = [params(nth, draft, most) for nth, draft in enumerate(drafts)]
    answers = llm.generate(PROMPTS, asked, use_tqdm=False)
    metrics = [answer.outputs[0].spec_decode_metrics for answer in answers]
    tickets = {id(row.ticket): row.ticket for step in link.steps for row in step.rows}
    return {
        "drafts": drafts,
        "texts": [list(answer.outputs[0].token_ids) for answer in answers],
        "drafted": [metric.per_step_drafted for metric in metrics],
        "accepted": [metric.per_step_accepted for metric in metrics],
        "counts": list(bridge.counts),
        "steps": [[len(step.rows), step.drafted] for step in link.steps],
        "tickets": sorted(repr(ticket) for ticket in tickets.values()),
        "by_draft": by_draft(list(tickets.values()), link.steps),
        "planned": sums,
        "passes": {name: passes[name] - before[name] for name in passes},
        "cached": [answer.num_cached_tokens or 0 for answer in answers],
        "left": [len(bridge._known), len(bridge._over), len(bridge._steps)],
        "failed": [] if drafter is None else sorted(drafter._team.failed),
        "preempted": preempted[0],
    }


def by_draft(tickets: Sequence[Ticket], steps: Sequence[StepOutcome]) -> dict[str, list[int]]:
    """Tokens asked and kept by draft, as the link was told; drafts behind a stop are not among them."""
    sums: dict[str, list[int]] = {ticket.draft: [0, 0] for ticket in tickets}
    for step in steps:
        for row in step.rows:
            sums[row.ticket.draft][0] += row.seen
            sums[row.ticket.draft][1] += row.accepted
    return sums


def run(folder: str, truncated: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Serve all phases and report."""
    if asked.get("asynchronous"):
        from vllm.platforms.cpu import CpuPlatform

        whole = CpuPlatform.check_and_update_config

        def kept(config: Any) -> None:
            wanted = config.scheduler_config.async_scheduling
            whole(config)
            config.scheduler_config.async_scheduling = wanted

        CpuPlatform.check_and_update_config = staticmethod(kept)
    if asked.get("plugin", True):
        plugin.register()  # as vLLM does where the package is installed
    lookup = {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    drafters = asked.get("drafters", [{"name": "same", "model": folder}, lookup])
    ours = {
        "scheduler_cls": "engine.vllm.AdaptiveScheduler",
        "additional_config": {"adaptive_k": {"redis_url": NOWHERE, "draft": "trunc", "drafters": drafters}},
        "speculative_config": {"method": "draft_model", "model": truncated, "num_speculative_tokens": 4},
        "per_request_spec_decode_metrics": "detailed",
    }
    llm = LLM(
        folder, enforce_eager=True, max_model_len=256, max_num_seqs=4, dtype="float32", disable_log_stats=True,
        max_num_batched_tokens=64, block_size=32, **({} if asked["phases"] == ["stock"] else ours),
        **asked.get("engine", {}),
    )  # fmt: skip
    core: Any = llm.llm_engine.engine_core.engine_core
    scheduler = core.scheduler
    most = asked.get("most", 40)
    if asked["phases"] == ["stock"]:
        answers = llm.generate(PROMPTS, [params(nth, "x", most) for nth in range(len(PROMPTS))], use_tqdm=False)
        return {"texts": [list(answer.outputs[0].token_ids) for answer in answers]}
    drafter = None
    if asked.get("engine", {}).get("distributed_executor_backend") != "mp":
        drafter = core.model_executor.driver_worker.worker.model_runner.drafter
    report: dict[str, Any] = {
        "scheduler": type(scheduler).__name__,
        "proposer": type(drafter).__name__,
        "described": sorted(scheduler._akc.link._chooser._drafts.items()),
    }
    if not asked["phases"]:
        answers = llm.generate(PROMPTS, [params(nth, "x", most) for nth in range(len(PROMPTS))], use_tqdm=False)
        report["texts"] = [list(answer.outputs[0].token_ids) for answer in answers]
    passes = watched(drafter) if asked["phases"] and drafter is not None else {}
    for phase in asked["phases"]:
        report[phase] = serve(llm, scheduler, drafter, phase, passes, most)
    report["errors"] = scheduler.akc_errors
    return report


if __name__ == "__main__":
    print("REPORT " + json.dumps(run(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))))
