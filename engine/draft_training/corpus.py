"""Prompts for the target to answer: code, math and chat, from packages with clear licences and from templates.

The texts are those the domain classifier learns from (`engine.domains.sources`, licences there). A source unit that
shares a run of seven words with any evaluation prompt (HumanEval, GSM8K, MT-Bench) is left out as a whole, so that
gsm_symbolic's rewordings of the GSM8K cases go too.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from engine.domains import sources, templates
from engine.domains.held_out import held_out
from engine.domains.sources import Example
from engine.domains.train import decontaminate

SHARES = {"code": 0.36, "math": 0.32, "chat": 0.32}
_COMPLETE = (
    "Complete this Python function.",
    "Complete the following function:",
    "Finish the implementation.",
    "Please write the body of this function.",
)
_SOLVE = ("", "", "", "Solve step by step. ", "Answer the question. ", "Think before you answer: ")


class Task(NamedTuple):
    """What the target is asked, and of which domain it is."""

    domain: str
    text: str


def _ask(row: Example, rng: Random) -> Task:
    text = row.text.strip()
    if row.source == "library":
        text = f"{rng.choice(_COMPLETE)}\n\n```python\n{text}\n```"
    elif row.source == "gsm_symbolic":
        text = rng.choice(_SOLVE) + text
    return Task(row.label, text)


def _examples(wheels: Path, rng: Random) -> Iterator[Example]:
    for i in range(3000):
        yield Example(templates.code_request(rng), "code", "asked code", f"ask-{i}")
        yield Example(templates.math_request(rng), "math", "asked math", f"ask-{i}")
        yield Example(templates.chat_request(rng), "chat", "asked chat", f"ask-{i}")
    yield from sources.code_tasks(wheels, rng, 2500)
    yield from sources.library_functions(rng, 1500)
    yield from sources.word_problems(wheels, rng, 60)
    yield from sources.competition(wheels)
    yield from sources.conversations(wheels, rng, 1000)
    yield from (row for row in sources.questions(wheels, rng, 60) if row.label == "chat")


def tasks(wheels: Path, seed: int) -> Iterator[Task]:
    """An endless, seeded sequence of tasks mixed by `SHARES`; each domain comes round again only when it is used up.

    `wheels`: the folder the packages' wheels are in, or are downloaded to.
    """
    rng = Random(seed)
    evaluation = [text for texts in held_out(wheels).values() for text in texts]
    rows = decontaminate(list(_examples(wheels, rng)), evaluation)
    unique = sorted({_ask(row, rng) for row in rows})
    rounds = {domain: _rounds([task for task in unique if task.domain == domain], rng) for domain in SHARES}
    while True:
        yield next(rounds[rng.choices(list(SHARES), list(SHARES.values()))[0]])


def _rounds(items: Sequence[Task], rng: Random) -> Iterator[Task]:
    while True:
        yield from rng.sample(items, len(items))
