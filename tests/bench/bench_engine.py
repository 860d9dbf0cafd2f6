"""The torch engine against `transformers` `generate`, interleaved: same weights, prompts, dtype and threads.

Run it as `python -m tests.bench.bench_engine`. Each row is decoded by both in turn, round after round, and both emit
exactly the same number of tokens; a row's figure is the median over rounds of tokens per second, prompt included. The
last lines price the link: recording a step and planning K, as a share of the step.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM

from engine.core import Engine, SamplingParams
from engine.link import EngineDescription, Link, LinkSettings, StaticLink, StepOutcome, Ticket
from engine.link.messages import NO_DRAFT, DraftChoice, Policy, PolicyCell, Regime, StaticChoice, encode
from engine.models import fetch_smollm2, load_prompts

EAGLE = Path(__file__).parents[2] / "engine" / "data" / "smollm2-eagle"
DEFAULT_K = 4


class TimedLink:
    """A link whose `plan` and `record` are timed."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.seconds = 0.0
        self.step_seconds = 0.0
        self.steps = 0

    def admit(self, domain: str, regime: Regime, batch: int) -> Ticket:
        """Passed on."""
        return self._link.admit(domain, regime, batch)

    def plan(self, tickets: Sequence[Ticket], batch: int) -> list[int]:
        """Passed on, timed."""
        start = time.perf_counter()
        planned = self._link.plan(tickets, batch)
        self.seconds += time.perf_counter() - start
        return planned

    def record(self, step: StepOutcome) -> None:
        """Passed on, timed."""
        start = time.perf_counter()
        self._link.record(step)
        self.seconds += time.perf_counter() - start
        self.step_seconds += step.seconds
        self.steps += 1

    def finish(self, ticket: Ticket) -> None:
        """Passed on."""
        self._link.finish(ticket)

    def queue(self, waiting: int) -> None:
        """Passed on."""
        self._link.queue(waiting)


class Row(NamedTuple):
    """One line of the table: `batch` prompts at a time; `k` 0 is plain decoding."""

    name: str
    domain: str
    batch: int
    k: int


class Bench:
    """Both engines loaded with one model."""

    def __init__(self, args: argparse.Namespace) -> None:
        folder = fetch_smollm2()
        self.args = args
        drafts: dict[str, str | Path] = {"ngram": "ngram"}
        if (EAGLE / "config.json").is_file():
            drafts["eagle"] = EAGLE
        self.engine = Engine(
            folder, drafts, max_batch=max(args.batch, 1), max_len=1024, dtype=args.dtype, threads=args.threads
        )
        self.reference: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=self.engine.dtype)
        self.reference.generation_config.eos_token_id = None
        self.reference.generation_config.pad_token_id = 0
        self.params = SamplingParams(max_tokens=args.tokens, ignore_eos=True)
        self.prompts = {
            domain: [self.engine.encode(p.messages) for p in prompts[: args.prompts]]
            for domain, prompts in load_prompts().items()
        }

    def groups(self, row: Row) -> list[list[list[int]]]:
        """The row's prompts, `batch` at a time, those of a group cut to one length: padding is not the question."""
        listed = self.prompts[row.domain]
        if row.batch == 1:
            return [[p] for p in listed]
        repeated = (listed * row.batch)[: row.batch]
        length = min(len(p) for p in repeated)
        return [[p[:length] for p in repeated]]

    def ours(self, row: Row, draft: str = "ngram") -> list[list[int]]:
        """Decode with this engine."""
        self.engine.link = StaticLink(draft if row.k else "none", row.k)
        return [r.output for group in self.groups(row) for r in self.engine.generate(group, self.params)]

    def theirs(self, row: Row) -> list[list[int]]:
        """Decode with `transformers`."""
        outputs = []
        more = {"prompt_lookup_num_tokens": row.k} if row.k else {}
        for group in self.groups(row):
            ids = torch.tensor(group)
            with torch.inference_mode():
                out = self.reference.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=self.args.tokens,
                    min_new_tokens=self.args.tokens,
                    do_sample=False,
                    **more,
                )
            outputs += out[:, ids.shape[1] :].tolist()
        return outputs


def timed(run: Callable[[], list[list[int]]]) -> tuple[float, list[list[int]]]:
    """Tokens per second, and the outputs."""
    start = time.perf_counter()
    outputs = run()
    return sum(map(len, outputs)) / (time.perf_counter() - start), outputs


def compare(bench: Bench, rows: Sequence[Row], rounds: int) -> None:
    """Print the table of both engines."""
    speeds: dict[tuple[str, str], list[float]] = {}
    agreement: dict[str, float] = {}
    for turn in range(-1, rounds):  # the first turn warms up
        for row in rows:
            own, outputs = timed(lambda row=row: bench.ours(row))  # type: ignore[misc]  # mypy and default arguments
            other, expected = timed(lambda row=row: bench.theirs(row))  # type: ignore[misc]
            agreement[row.name] = _agreement(outputs, expected)
            if turn >= 0:
                speeds.setdefault((row.name, "ours"), []).append(own)
                speeds.setdefault((row.name, "theirs"), []).append(other)
    print(f"\n{'row':<22}{'engine tok/s':>14}{'transformers':>14}{'ratio':>8}{'same tokens':>13}")
    for row in rows:
        own = statistics.median(speeds[row.name, "ours"])
        other = statistics.median(speeds[row.name, "theirs"])
        # Rounds are paired: the ratio's median is steadier than the ratio of medians on a noisy machine.
        pairs = zip(speeds[row.name, "ours"], speeds[row.name, "theirs"], strict=True)
        ratio = statistics.median(a / b for a, b in pairs)
        print(f"{row.name:<22}{own:>14.1f}{other:>14.1f}{ratio:>8.2f}{agreement[row.name]:>12.1%}")


def _agreement(outputs: Sequence[Sequence[int]], expected: Sequence[Sequence[int]]) -> float:
    """Share of tokens before the first difference."""
    same = total = 0
    for a, b in zip(outputs, expected, strict=True):
        differs = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        same += differs
        total += len(b)
    return same / total


def price_link(bench: Bench, row: Row, draft: str) -> None:
    """Print what `plan` and `record` of the real link cost in a batch; its threads are off."""
    engine = bench.engine
    describe = EngineDescription(
        "bench",
        "SmolLM2-135M-Instruct",
        "bench",
        engine.draft_infos(),
        [0, row.k],
        StaticChoice(draft, row.k),
        row.batch,
        switches=True,
    )
    real = Link(LinkSettings(static_draft=draft, static_k=row.k), describe)
    # A policy that moves every row every two steps between two K, the most that a controller asks for.
    prices = [(0, 0.05), (row.k, 0.06)]
    choice = DraftChoice(draft, 0.5, [(row.k, 1.0)], [7.0] * row.k, [3.0] * row.k, prices)
    plain = DraftChoice(NO_DRAFT, 0.5, [(0, 1.0)], seconds=prices[:1])
    cells = [PolicyCell(d, "greedy", 1, [plain, choice]) for d in ("code", "math", "chat", "other")]
    now = time.time()
    policy = Policy(
        "default", (1, 1), now, now + 3600, StaticChoice(draft, row.k), [0, row.k], cells, window=2, allowance=10**9
    )
    real.judge.judge(encode(policy), now)
    link = TimedLink(real)
    engine.link = link
    for group in bench.groups(row):
        engine.generate(group, bench.params)
    per_step = link.seconds / link.steps
    share = link.seconds / link.step_seconds
    step = link.step_seconds / link.steps
    print(
        f"link, batch {row.batch:>2}: plan + record {per_step * 1e6:.0f} us of a {step * 1e3:.0f} ms step: {share:.3%}"
    )


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64, help="tokens per prompt")
    parser.add_argument("--prompts", type=int, default=2, help="prompts per domain")
    parser.add_argument("--batch", type=int, default=8, help="rows of the batched row; 1 leaves it out")
    parser.add_argument("--k", type=int, default=DEFAULT_K, help="draft tokens of prompt lookup")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    bench = Bench(args)
    packed = "packed" if bench.engine.target.packed else "plain"
    print(f"{bench.engine.dtype}, {torch.get_num_threads()} threads, {packed} kernels, torch {torch.__version__}")
    domains = ("code", "math", "chat")
    rows = [Row(f"plain {d}", d, 1, 0) for d in domains] + [
        Row(f"lookup K={args.k} {d}", d, 1, args.k) for d in domains
    ]
    if args.batch > 1:
        rows.append(Row(f"plain code, batch {args.batch}", "code", args.batch, 0))
    compare(bench, rows, args.rounds)
    if "eagle" in bench.engine.drafts:
        for domain in domains:
            speed, _ = timed(lambda domain=domain: bench.ours(Row("", domain, 1, 3), "eagle"))  # type: ignore[misc]
            print(f"eagle K=3 {domain}: {speed:.1f} tok/s (no counterpart)")
    for batch in sorted({1, args.batch}):
        price_link(bench, Row("", "code", batch, args.k), "ngram")


if __name__ == "__main__":
    main()
