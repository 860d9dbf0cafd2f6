"""One vLLM engine in this process, asked one thing after another; prints what came of each as JSON. vLLM starts only
one engine in a process and takes long for it, so what can share an engine does: `python serve.py ENGINE`, a JSON table

    {"model": FOLDER, "draft": FOLDER or "" for n-gram, "lora": FOLDER, "asynchronous": false, "supported": true,
     "engine": {vLLM's settings}, "speculative": {vLLM's}, "cases": [CASE, ...]}

and a case is {"name": ..., "k": "stock" | "static" | "mixed", "fault": HOOK, "settings": {ours}, "traffic": NAME}: the
scheduler gets a fresh bridge for each (none for `stock`), `mixed` is a K at random for every row of every step, and a
fault is an error in the bridge's side of a hook, or in the scheduler's `_apply`. `"supported": false` makes the
installed version one that we do not support. Traffic is one of `TRAFFIC`.
"""

import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1", VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="WARNING",
    OMP_WAIT_POLICY="passive",  # else a step takes ten times as long on cores that others use, too
)  # fmt: skip

from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

from engine.vllm import versions

NOWHERE = "redis://127.0.0.1:1/0"
NAMES = ("a", "bob", "carl", "d e", "x y z", "q")
PROMPTS = [f"Hello my name is {name}, hello my name is {name}, hello" for name in NAMES]


class Asked(NamedTuple):
    """A request. `abort_at`: the step after which it is aborted; `amid`: while the next one is under way."""

    prompt: str
    params: SamplingParams
    lora: bool = False
    abort_at: int | None = None
    amid: bool = False
    alone: bool = False  # the next ones wait for its end


def params(nth: int, **further: Any) -> SamplingParams:
    """Different lengths; one request that a string stops, one that ignores the end; half of them name their domain."""
    given = {
        "temperature": 0.0, "max_tokens": 40 + 7 * nth, "stop": ["q\r"] if nth == 2 else None, "ignore_eos": nth == 3,
        "extra_args": {"domain": "code"} if nth % 2 else None, "output_kind": RequestOutputKind.FINAL_ONLY,
    }  # fmt: skip
    return SamplingParams(**{**given, **further})


def plain() -> list[Asked]:
    """Six prompts."""
    return [Asked(prompt, params(nth)) for nth, prompt in enumerate(PROMPTS)]


def two() -> list[Asked]:
    """Two prompts."""
    return plain()[:2]


def long() -> list[Asked]:
    """Texts, one after another, that end where the model's longest sequence does, with each remainder of K + 1."""
    further = params(0, max_tokens=99, ignore_eos=True)
    return [Asked((PROMPTS[4] * 9)[:length], further, alone=True) for length in range(226, 231)]


def aborts() -> list[Asked]:
    """Two of the six are aborted, one between steps and one within a step."""
    one, two, three, *others = plain()
    return [one._replace(abort_at=8), two, three._replace(abort_at=9, amid=True), *others]


def several() -> list[Asked]:
    """Three answers to a prompt, sampled, and beside them a greedy request."""
    return [Asked(PROMPTS[0], params(3, n=3, temperature=0.8)), Asked(PROMPTS[1], params(1))]


def grammars() -> list[Asked]:
    """Regular expression, JSON and choice beside a free request."""
    kinds: list[dict[str, Any]] = [
        {"regex": "(ab|cd|ef){4,12}x"},
        {"json": {"type": "object", "properties": {"a": {"enum": ["yes", "no"]}}, "required": ["a"]}},
        {"choice": ["positive, said hello", "negative, said hello"]},
    ]
    asked = [
        Asked(prompt, params(nth, stop=None, structured_outputs=StructuredOutputsParams(**kind)))
        for nth, (prompt, kind) in enumerate(zip(PROMPTS, kinds, strict=False))
    ]
    return [*asked, Asked(PROMPTS[5], params(5))]


def loras() -> list[Asked]:
    """All with the adapter: in a mixed batch vLLM 0.32 on a CPU applies it to rows without one, ours or not."""
    return [Asked(prompt, params(nth, extra_args=None), lora=True) for nth, prompt in enumerate(PROMPTS[:4])]


def again() -> list[Asked]:
    """A prompt of one block and one token, and then twice the same: its block is in the cache."""
    first = Asked(PROMPTS[0][:33], params(5, stop=None), alone=True)
    return [first, first._replace(alone=False), first._replace(alone=False, params=params(3))]


def barred() -> list[Asked]:
    """What vLLM cannot sample rightly with drafts, beside a plain request."""
    return [
        Asked(PROMPTS[0], params(0, min_p=0.2, temperature=1.0)),
        Asked(PROMPTS[1], params(0, logit_bias={5: 2.0})),
        Asked(PROMPTS[5], params(5)),
    ]


TRAFFIC: dict[str, Callable[[], list[Asked]]] = {
    "plain": plain, "two": two, "long": long, "aborts": aborts, "several": several, "grammars": grammars,
    "loras": loras, "again": again, "barred": barred,
}  # fmt: skip


def spoil(ours: Any, hook: str) -> None:
    """Make a method of the bridge or the scheduler fail at its 20th call."""
    calls = [0]
    whole = getattr(ours, hook)

    def failing(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == 20 or hook in ("came", "ended"):
            raise RuntimeError(f"a fault, on purpose: {hook}")
        return whole(*args, **kwargs)

    setattr(ours, hook, failing)


class Served:
    """The engine, and what its scheduler does, seen from outside of our hooks."""

    def __init__(self, engine: dict[str, Any]) -> None:
        if not engine.get("supported", True):
            vars(versions)["TESTED"] = ()
        if engine.get("asynchronous"):
            stay_asynchronous()
        method = {"method": "draft_model", "model": engine["draft"]} if engine.get("draft") else {
            "method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 1,
        }  # fmt: skip
        lora = {"enable_lora": True, "max_lora_rank": 8} if engine.get("lora") else {}
        self.lora = LoRARequest("sql-writer", 1, engine["lora"]) if lora else None
        self.llm = LLM(
            engine["model"], dtype="float32", enforce_eager=True, max_model_len=256, max_num_seqs=4,
            disable_log_stats=True,
            speculative_config={"num_speculative_tokens": 4, **method, **engine.get("speculative", {})},
            per_request_spec_decode_metrics="detailed", scheduler_cls="engine.vllm.AdaptiveScheduler",
            additional_config={"adaptive_k": {"redis_url": NOWHERE}}, **lora, **engine.get("engine", {}),
        )  # fmt: skip
        self.core: Any = self.llm.llm_engine.engine_core.engine_core
        self.scheduler: Any = self.core.scheduler
        self.requests: dict[str, Any] = {}
        self.joined = 0  # drafts that a request brings along when it joins: dummies, of vLLM's own
        self.limited = 0  # rows whose drafts a grammar or the room cut
        self.chunks = 0  # prompts that a step left unfinished
        self.steps: list[tuple[int, int]] = []  # of each: rows, and the most drafts that one of them verifies
        self._watch()

    def _watch(self) -> None:
        scheduled = self.scheduler.schedule

        def schedule(*args: Any, **kwargs: Any) -> Any:
            step = scheduled(*args, **kwargs)
            joined = {new.req_id for new in step.scheduled_new_reqs} | set(step.scheduled_cached_reqs.resumed_req_ids)
            self.requests |= self.scheduler.requests
            drafts = {name: len(tokens) for name, tokens in step.scheduled_spec_decode_tokens.items()}
            self.joined += sum(n for name, n in drafts.items() if name in joined)
            most = max((n for name, n in drafts.items() if name not in joined), default=0)
            self.steps.append((len(step.num_scheduled_tokens), most))
            self.chunks += sum(self.scheduler.requests[name].is_prefill_chunk for name in step.num_scheduled_tokens)
            return step

        self.scheduler.schedule = schedule

    def _note_limits(self, link: Any) -> None:
        self.limited, whole = 0, link.record

        def record(step: Any) -> None:
            self.limited += sum(row.limited for row in step.rows)
            whole(step)

        link.record = record

    def case(self, case: dict[str, Any]) -> dict[str, Any]:
        """Serve a case's requests and report."""
        scheduler = self.scheduler
        vars(scheduler).pop("_apply", None)  # of a fault before
        if hasattr(scheduler, "_start"):
            if scheduler._akc is not None:
                scheduler._akc.abandon()
            scheduler._akc, scheduler.akc_errors = None, 0
            scheduler.vllm_config.additional_config = {
                "adaptive_k": {
                    "redis_url": NOWHERE,
                    "off": case.get("k") == "stock",
                    "classify": False,
                    **case.get("settings", {}),
                }
            }
            scheduler._start()
        bridge = getattr(scheduler, "_akc", None)
        if bridge is not None and case.get("k") == "mixed":
            rng = random.Random(1)
            bridge.link.plan = lambda tickets, batch: [rng.randrange(5) for _ in tickets]
        if bridge is not None:
            self._note_limits(bridge.link)
        if "fault" in case:
            spoil(bridge if hasattr(bridge, case["fault"]) else scheduler, case["fault"])
        self.llm.reset_prefix_cache()
        self.requests.clear()
        self.joined = self.chunks = 0
        self.steps = []
        texts, lengths, ends = self.drive(TRAFFIC[case.get("traffic", "plain")]())
        return {"texts": texts, "lengths": lengths, "ends": ends, **self.report()}

    def drive(self, asked: list[Asked]) -> tuple[list[list[str]], list[int], list[str]]:
        """Serve requests to their ends; returns texts, the number of tokens, and how it ended, of each."""
        texts: list[list[str]] = [[] for _ in asked]
        lengths, ends = [0] * len(asked), [""] * len(asked)
        for nth, one in enumerate(asked):
            try:
                self.llm.llm_engine.add_request(
                    f"math.{nth}", one.prompt, one.params, lora_request=self.lora if one.lora else None
                )
            except Exception as error:  # its type differs between versions
                ends[nth] = f"refused: {error}"
            if not one.alone and nth + 1 < len(asked):
                continue
            for outputs in self._steps(asked):
                for output in outputs:
                    at = int(output.request_id.split(".")[1])
                    ends[at] = str(output.outputs[0].finish_reason)
                    if output.finished and ends[at] != "abort":
                        texts[at] = [one.text for one in output.outputs]
                        lengths[at] = sum(len(one.token_ids) for one in output.outputs)
        return texts, lengths, ends

    def _steps(self, asked: list[Asked]) -> Iterator[list[Any]]:
        engine, at = self.llm.llm_engine, 0
        while engine.has_unfinished_requests():
            yield engine.step()
            at += 1
            for nth, one in enumerate(asked):
                if one.abort_at == at and one.amid:
                    # What the engine does with an abort that arrives while a step is under way.
                    self.core.aborts_queue.put(engine.output_processor.abort_requests([f"math.{nth}"], False))
                elif one.abort_at == at:
                    engine.abort_request([f"math.{nth}"])
        while self.core.scheduler.has_requests() or getattr(self.core, "batch_queue", None):
            yield engine.step()  # what is under way still comes back

    def report(self) -> dict[str, Any]:
        """What vLLM counted, and what we did."""
        scheduler, bridge = self.scheduler, getattr(self.scheduler, "_akc", None)
        metrics = [request.spec_decode_metrics for request in self.requests.values()]
        report: dict[str, Any] = {
            "cpu": round(time.process_time(), 1),  # seconds since the process started: who adds a case may look
            "scheduler": type(scheduler).__name__,
            "drafted": [metric.per_step_drafted for metric in metrics],
            "vllm": [sum(sum(m.per_step_drafted) for m in metrics), sum(sum(m.per_step_accepted) for m in metrics)],
            "joined": self.joined,
            "steps": self.steps,
            "chunks": self.chunks,
            "preempted": sum(request.num_preemptions for request in self.requests.values()),
            "errors": getattr(scheduler, "akc_errors", 0),
            "hooked": bridge is not None,
        }
        if bridge is not None:
            cells = bridge.link.counters.snapshot()
            report |= {
                "counts": list(bridge.counts),
                "left": [len(bridge._known), len(bridge._over), len(bridge._steps)],
                "refused": bridge.link.status()["refused"],
                "running": bridge.link.status()["running"],
                "tokens": sum(cell.tokens for cell in cells.account),
                "domains": sorted({cell.domain for cell in cells.account}),
                "limited": self.limited,
            }
        return report


def stay_asynchronous() -> None:
    """vLLM turns asynchronous scheduling off on a CPU, where it wins nothing; it works there all the same."""
    platform: Any = type(current_platform)
    whole = platform.check_and_update_config.__func__

    def check(cls: Any, config: Any) -> None:
        whole(cls, config)
        config.scheduler_config.async_scheduling = True

    platform.check_and_update_config = classmethod(check)


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    served = Served(asked)
    for one in asked["cases"]:
        print("REPORT " + json.dumps([one["name"], served.case(one)]), flush=True)
