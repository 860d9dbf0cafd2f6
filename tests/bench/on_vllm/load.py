"""Load on one server by `vllm bench serve`, again and again: one line of JSON in, one line `RESULT {...}` out.

Runs in the environment that has vLLM, driven by `tests.bench.bench_vllm`. vLLM's own client is used as it is; only its
start is spared, which takes longer than most of the runs.
"""

import argparse
import json
import sys
from typing import Any

from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser


def options(asked: dict[str, Any]) -> argparse.Namespace:
    """The command line of `vllm bench serve`. asked: url, model (folder), dataset (JSON lines with `prompt`), requests,
    concurrency, tokens (of an answer, at most), seed, temperature."""
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    made: argparse.Namespace = parser.parse_args([
        "--backend", "openai", "--endpoint", "/v1/completions", "--base-url", asked["url"], "--model", asked["model"],
        "--served-model-name", "target", "--dataset-name", "custom", "--dataset-path", asked["dataset"],
        "--num-prompts", str(asked["requests"]), "--max-concurrency", str(asked["concurrency"]),
        "--output-len", str(asked["tokens"]), "--seed", str(asked["seed"]), "--disable-tqdm",
        "--temperature", str(asked["temperature"]), "--metric-percentiles", "50,95",
        "--percentile-metrics", "ttft,tpot",
    ])  # fmt: skip
    return made


if __name__ == "__main__":
    for line in sys.stdin:
        result = main(options(json.loads(line)))
        kept = {key: value for key, value in result.items() if isinstance(value, int | float | str)}
        print("RESULT " + json.dumps(kept), flush=True)
