"""How often speculation leaves greedy output as it is: token for token, by draft, in bfloat16 and in float32.

Run it as `python -m tests.bench.bench_agreement`. In each round one real prompt of every domain is decoded, together,
plain and then with each draft, every row taking a K at random in every step. Rounds go on until the next would not end
in time; bfloat16 is slow where the processor has no instructions for it.

A draft never decides what is kept, but it changes how many tokens one pass of the target reads, and with it the order
of sums: where two tokens are nearly tied, bfloat16 may then choose the other one, and all that follows differs. In
float32 no such tie is expected, so a difference there is a fault and ends the run with code 1.
"""

import argparse
import os
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch

from engine.core import Engine, SamplingParams
from engine.link import StaticLink
from engine.models import fetch_smollm2, load_prompts

EAGLE = Path(__file__).parents[2] / "engine" / "data" / "smollm2-eagle"
DTYPES = ("bfloat16", "float32")

Found = dict[tuple[str, str], list[tuple[str, int]]]  # (dtype, draft): domain and first difference of each request


def first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens before the first that differs; all of them where none does.

    >>> first_difference([5, 6, 7], [5, 9, 7]), first_difference([5, 6], [5, 6])
    (1, 2)
    """
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))


class Bench:
    """The target in both number formats, with its drafts, and the prompts by domain, the shortest first."""

    def __init__(self, args: argparse.Namespace) -> None:
        drafts: dict[str, str | Path] = {"ngram": "ngram"}
        if (EAGLE / "config.json").is_file():
            drafts["eagle"] = EAGLE
        folder = fetch_smollm2(progress=False)
        prompts = load_prompts(progress=False)
        more = {"max_batch": len(prompts), "max_len": 1024, "threads": args.threads}
        self.engines = {dtype: Engine(folder, drafts, dtype=dtype, **more) for dtype in DTYPES}
        self.largest = args.k
        self.params = SamplingParams(max_tokens=args.tokens, ignore_eos=True)
        self.rng = random.Random(args.seed)
        encode = self.engines["float32"].encode
        self.prompts = {d: sorted((encode(p.messages) for p in listed), key=len) for d, listed in prompts.items()}

    def round(self, number: int, found: Found) -> None:
        """Decode every domain's prompt of this number, and add what was found."""
        asked = [listed[number] for listed in self.prompts.values()]
        for dtype, engine in self.engines.items():
            engine.link = StaticLink()
            plain = [request.output for request in engine.generate(asked, self.params)]
            for draft in engine.drafts:
                engine.link = StaticLink(
                    draft, self.largest, choose=lambda ticket, batch: self.rng.randint(0, self.largest)
                )
                outputs = [request.output for request in engine.generate(asked, self.params)]
                found[dtype, draft] += [
                    (domain, first_difference(*pair))
                    for domain, pair in zip(self.prompts, zip(plain, outputs, strict=True), strict=True)
                ]


def show(found: Found, domains: Sequence[str], tokens: int) -> None:
    """Print a line for each number format, draft and domain."""
    print(f"{'dtype':<10}{'draft':<8}{'domain':<8}{'requests':>8}{'equal':>8}{'mean first difference':>23}")
    for (dtype, draft), results in found.items():
        for domain in (*domains, "all"):
            own = [first for name, first in results if domain in (name, "all")]
            equal = sum(first == tokens for first in own) / len(own)
            print(f"{dtype:<10}{draft:<8}{domain:<8}{len(own):>8}{equal:>8.0%}{statistics.mean(own):>23.1f}")


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=110, help="begin no round that would end later")
    parser.add_argument("--prompts", type=int, default=8, help="prompts per domain, at most: rounds")
    parser.add_argument("--tokens", type=int, default=64, help="tokens per prompt")
    parser.add_argument("--k", type=int, default=4, help="the largest K")
    parser.add_argument("--seed", type=int, default=0, help="of K")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    began, longest = time.monotonic(), 0.0
    found: Found = defaultdict(list)
    bench = Bench(args)
    for number in range(min(args.prompts, *map(len, bench.prompts.values()))):
        start = time.monotonic()
        if start + longest > began + args.seconds:
            break
        bench.round(number, found)
        longest = max(longest, time.monotonic() - start)
    print(
        f"{args.tokens} tokens a request, K drawn from 0 to {args.k}, {args.threads} threads, torch {torch.__version__}"
    )
    print(f"mean first difference: index of the first other token, {args.tokens} where there is none")
    show(found, list(bench.prompts), args.tokens)
    print(f"{time.monotonic() - began:.0f} s")
    if any(first < args.tokens for (dtype, _), rows in found.items() if dtype == "float32" for _, first in rows):
        sys.exit("float32: an output differs from plain decoding")


if __name__ == "__main__":
    main()
