"""The plug-in on real vLLM servers, beside stock ones: `make bench-vllm`, or `python -m tests.bench.bench_vllm`.

Servers that differ in nothing but speculation - none, every fixed K, ours with a fixed K, ours adaptive - are started
once and asked in turn, round after round, each time with the same prompts in the same order (`vllm bench serve` is the
client). Traffic is all domains at once, and each domain alone. `--json FILE` keeps every run, `--from-json FILE` prints
the tables again. `--turns` plays them in one engine instead, a few prompts at a time, for machines whose speed wanders.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from controller.cli.demo.processes import Processes, free_port
from controller.cli.demo.run import EmbeddedRedis
from engine.models import fetch_smollm2, load_prompts
from tests.bench.vllm_report import ADAPTIVE, MIXED, PLAIN, Report, Run, fixed, held, priced, read

ROOT = Path(__file__).parents[2]
POOL = "bench"


class Client:
    """`vllm bench serve`, started once."""

    def __init__(self, python: Path, model: Path, tokens: int, temperature: float) -> None:
        self._asked = {"model": str(model), "tokens": tokens, "temperature": temperature}
        self._process = subprocess.Popen(
            [str(python), str(ROOT / "tests" / "bench" / "on_vllm" / "load.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def run(self, url: str, dataset: Path, requests: int, concurrency: int, seed: int) -> dict[str, Any]:
        """What the client reports."""
        assert self._process.stdin
        assert self._process.stdout
        asked = {
            **self._asked, "url": url, "dataset": str(dataset), "requests": requests, "concurrency": concurrency,
            "seed": seed,
        }  # fmt: skip
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("RESULT "):
                result: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
                return result
        raise RuntimeError(f"the client ended with {self._process.wait()} while asked {asked}")


def datasets(folder: Path) -> dict[tuple[str, bool], Path]:
    """Prompts as JSON lines by (domain or mixed, for warm-up), halves of each domain's prompts in a fixed order."""
    made: dict[tuple[str, bool], Path] = {}
    prompts = {domain: [p.messages[-1]["content"] for p in of] for domain, of in load_prompts().items()}
    for warm in (True, False):
        halves = {}
        for domain, texts in prompts.items():
            ordered = random.Random(0).sample(texts, len(texts))
            halves[domain] = ordered[0::2] if warm else ordered[1::2]
        least = min(map(len, halves.values()))
        halves[MIXED] = [text for of in halves.values() for text in of[:least]]
        for domain, texts in halves.items():
            made[domain, warm] = folder / f"{domain}-{'warm-up' if warm else 'measured'}.jsonl"
            made[domain, warm].write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return made


class Servers:
    """The servers, the controller and Redis."""

    def __init__(self, group: Processes, given: argparse.Namespace, model: Path, redis_url: str) -> None:
        self._group, self._given, self._model = group, given, model
        self.urls: dict[str, str] = {}
        self._logs: dict[str, str] = {}
        self.controller = f"http://127.0.0.1:{free_port()}"
        group.start(
            "controller",
            [sys.executable, "-m", "controller.cli", "controller", "--port", self.controller.rsplit(":", 1)[1]],
            {"REDIS_URL": redis_url, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        deepest = max(given.k)
        self._start(PLAIN, None, None)
        for k in given.k:
            self._start(fixed(k), k, None)
        if given.held:
            self._start(held(given.held), given.held, {"redis_url": "redis://127.0.0.1:1/0"})
        self._start(ADAPTIVE, deepest, {"redis_url": redis_url, "pool": POOL})
        group.wait_ready("controller", f"{self.controller}/healthz", 60)
        for name, log in self._logs.items():
            group.wait_ready(log, f"{self.urls[name]}/health", 900)  # all start at once, on as many cores as there are
            print(f"{name}: {self.urls[name]}", file=sys.stderr)

    def _start(self, name: str, k: int | None, ours: dict[str, str] | None) -> None:
        url = self.urls[name] = f"http://127.0.0.1:{free_port()}"
        argv = [
            str(self._given.vllm_python.parent / "vllm"), "serve", str(self._model), "--served-model-name", "target",
            "--port", url.rsplit(":", 1)[1], "--max-model-len", "1024", "--max-num-seqs", "16", "--enforce-eager",
            "--no-enable-prefix-caching", "--block-size", "32", "--num-gpu-blocks-override", "400",
            "--dtype", self._given.dtype, "--distributed-executor-backend", "uni",
        ]  # fmt: skip
        if k is not None:
            speculative = {
                "method": "ngram",
                "num_speculative_tokens": k,
                "prompt_lookup_max": 3,
                "prompt_lookup_min": 1,
            }
            argv += ["--speculative-config", json.dumps(speculative)]
        if ours is not None:
            argv += ["--scheduler-cls", "engine.vllm.AdaptiveScheduler"]
            argv += ["--additional-config", json.dumps({"adaptive_k": ours})]
        env = {
            "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(self._given.threads), "OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": str(ROOT),
            # A worker in a process of its own is waited for by spinning, on a core that others need here; without this
            # vLLM gives it one on CPU, whatever backend was asked for.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        }  # fmt: skip
        log = name.replace(" ", "").replace("=", "").replace(",", "-")
        self._group.start(log, argv, env)
        self._logs[name] = log

    def policy(self) -> Any:
        """The policy in force."""
        return httpx.get(f"{self.controller}/v1/pools/{POOL}/policy", timeout=10).json()


def runs(given: argparse.Namespace) -> Iterator[Run]:
    """Play everything."""
    model = given.model or fetch_smollm2()
    with (
        tempfile.TemporaryDirectory() as folder,
        Processes(given.logs) as group,
        EmbeddedRedis() as redis_url,
    ):
        sets = datasets(Path(folder))
        servers = Servers(group, given, model, redis_url)
        client = Client(given.vllm_python, model, given.tokens, given.temperature)

        def run(round_: int, server: str, traffic: str, concurrency: int) -> Run:
            warm = round_ < 0
            result = client.run(
                servers.urls[server], sets[traffic, warm], max(2, given.per_client * concurrency), concurrency,
                seed=abs(round_),
            )  # fmt: skip
            return Run(
                round_, server, traffic, concurrency, result["total_output_tokens"], result["duration"],
                result["p50_tpot_ms"] / 1e3, result["p95_tpot_ms"] / 1e3, result["failed"],
            )  # fmt: skip

        for server in servers.urls:
            if server != ADAPTIVE:
                run(-1, server, MIXED, 1)  # first requests pay for what is made lazily
        started = time.monotonic()
        turn = 0
        while time.monotonic() - started < given.warm_up:
            turn += 1
            for concurrency in given.concurrency:
                yield run(-turn, ADAPTIVE, MIXED, concurrency)
        rng = random.Random(1)
        for round_ in range(1, given.rounds + 1):
            for concurrency in given.concurrency:
                # Mixed traffic twice: it is what most questions are about. Every run of a pair has prompts of its own.
                cells = [(MIXED, 2 * round_ - 1), (MIXED, 2 * round_)]
                cells += [(domain, round_) for domain in given.domains if concurrency in given.alone]
                for traffic, nth in cells:
                    for server in rng.sample(list(servers.urls), len(servers.urls)):
                        yield run(nth, server, traffic, concurrency)
        if given.policy:
            given.policy.write_text(json.dumps(servers.policy()))


def table(given: argparse.Namespace) -> None:
    """The case of a table whose boundary the batch flickers across."""
    with tempfile.TemporaryDirectory() as folder:
        prompts = datasets(Path(folder))[MIXED, False]
        script = ROOT / "tests" / "bench" / "on_vllm" / "table.py"
        argv = [str(given.vllm_python), str(script), "--model", str(given.model or fetch_smollm2())]
        subprocess.run(
            [*argv, "--prompts", str(prompts), "--rounds", str(given.rounds), "--dtype", given.dtype],
            check=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip


def turns(given: argparse.Namespace) -> Iterator[Run]:
    """All modes in one engine, in turn."""
    with tempfile.TemporaryDirectory() as folder:
        prompts = Path(folder) / "prompts.json"
        texts = {domain: [p.messages[-1]["content"] for p in of] for domain, of in load_prompts().items()}
        prompts.write_text(json.dumps({domain: texts[domain] for domain in given.domains}))
        names = ("k", "held", "concurrency", "rounds", "warm_up", "tokens", "per_client", "dtype")
        argv = [str(given.vllm_python), str(ROOT / "tests" / "bench" / "on_vllm" / "turns.py")]
        argv += ["--model", str(given.model or fetch_smollm2()), "--prompts", str(prompts)]
        argv += ["--settings", json.dumps({name: getattr(given, name) for name in names})]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env) as process:
            assert process.stdout
            for line in process.stdout:
                if line.startswith("RUN "):
                    yield read(line.removeprefix("RUN "))
        if process.returncode:
            raise RuntimeError(f"the engine ended with {process.returncode}")


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--vllm-python", type=Path, help="python of the environment with vLLM (and pandas)")
    parser.add_argument("--model", type=Path, help="folder of the target [SmolLM2-135M-Instruct]")
    parser.add_argument("--k", type=_numbers, default=[1, 2, 4, 8], help="fixed K of stock servers [1,2,4,8]")
    parser.add_argument("--held", type=int, default=4, help="K of the server that prices the plug-in; 0: none [4]")
    parser.add_argument("--concurrency", type=_numbers, default=[1, 4, 8, 16], help="clients [1,4,8,16]")
    parser.add_argument("--domains", type=lambda t: t.split(","), default=["code", "math", "chat"], help="run alone")
    parser.add_argument("--alone", type=_numbers, default=[1, 16], help="clients at which domains run alone [1,16]")
    parser.add_argument("--rounds", type=int, default=3, help="rounds; mixed traffic runs twice in each [3]")
    parser.add_argument("--warm-up", type=float, default=240.0, help="seconds [240]")
    parser.add_argument("--tokens", type=int, default=96, help="of an answer, at most [96]")
    parser.add_argument("--per-client", type=int, default=2, help="requests of a client in a run [2]")
    parser.add_argument(
        "--dtype", default="bfloat16", help="float32 where the CPU does not multiply bfloat16 [bfloat16]"
    )
    parser.add_argument("--threads", type=int, default=1, help="of a server's model [1]")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--json", type=Path, help="append every run here, a line a run")
    parser.add_argument("--policy", type=Path, help="write the last policy here")
    parser.add_argument("--logs", type=Path, default=Path(tempfile.gettempdir()) / "akc-bench-vllm")
    parser.add_argument("--table", action="store_true", help="play vllm issue 49548's case instead")
    parser.add_argument("--turns", action="store_true", help="one engine that plays all modes in turn, without servers")
    parser.add_argument("--from-json", type=Path, help="play nothing, print what the file holds")
    given = parser.parse_args(arguments)
    if given.from_json is None and given.vllm_python is None:
        parser.error("--vllm-python is needed: the python of an environment with vLLM")
    if given.held and given.from_json is None and given.held not in given.k:
        parser.error(f"--held is {given.held}; allowed: 0 or one of --k {given.k}")
    return given


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    given = options(arguments)
    if given.from_json is not None:
        _print([read(line) for line in given.from_json.read_text().splitlines()])
        return
    if given.table:
        table(given)
        return
    done = []
    for run in (turns if given.turns else runs)(given):
        done.append(run)
        speed = run.tokens / run.seconds
        print(
            f"{run.round:3} {run.traffic:6} {run.concurrency:3} {run.server:12} {speed:7.1f} tokens/s", file=sys.stderr
        )
        if given.json is not None:
            with given.json.open("a") as kept:
                kept.write(json.dumps(run) + "\n")
    _print(done)


def _print(done: Sequence[Run]) -> None:
    print(Report(done))
    if all(run.cpu for run in done):
        print("\nBy the CPU time of the engine's thread:\n")
        print(Report(done, cpu=True))
    if all(run.steps for run in done):
        print("\nBy the steps of each mode, at one price list for all of them (median CPU time of a kind of step):\n")
        print(Report(priced(done)))


if __name__ == "__main__":
    main()
