"""What tests of whole batches share: an engine on tiny models, prompts, links that record or choose K at random."""

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.core import Engine, Request, SamplingParams
from engine.link import RowOutcome, StaticLink, StepOutcome, Ticket
from tests.engine.conftest import VOCABULARY

DRAFTS = ("none", "ngram", "small", "self", "eagle")
GREEDY = SamplingParams(max_tokens=40, ignore_eos=True)


class Recorder(StaticLink):
    """A static link that keeps what it was told; the domain of a request names its draft."""

    def __init__(self, draft: str = "none", k: int = 0, **more: Any) -> None:
        super().__init__(draft, k, table={name: (name, k) for name in DRAFTS}, **more)
        self.outcomes: list[StepOutcome] = []
        self.played: list[tuple[str, int, int]] = []  # a row's draft then, tokens asked for, accepted
        self.finished: list[Ticket] = []

    def record(self, step: StepOutcome) -> None:
        self.outcomes.append(step)
        self.played += [(r.ticket.draft, r.drafted, r.accepted) for r in step.rows]

    def finish(self, ticket: Ticket) -> None:
        self.finished.append(ticket)

    def rows(self) -> Iterator[RowOutcome]:
        return (row for step in self.outcomes for row in step.rows)


def erratic(seed: int, largest: int = 6) -> Any:
    """K at random, for every row and step anew."""
    rng = random.Random(seed)
    return lambda ticket, batch: rng.randint(0, largest)


def build(folder: Path, drafts: Mapping[str, str | Path], link: Any, **more: Any) -> Engine:
    settings = {"max_batch": 5, "max_len": 120, "dtype": "float32", "device": "cpu", "prefill_budget": 16, **more}
    return Engine(folder, drafts, link, **settings)


def prompts(count: int, seed: int = 0, longest: int = 40) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(3, VOCABULARY) for _ in range(rng.randint(1, longest))] for _ in range(count)]


def decode(engine: Engine, asked: Sequence[list[int]], params: SamplingParams, domains: Sequence[str]) -> list[Request]:
    requests = [engine.submit(p, params, d) for p, d in zip(asked, domains, strict=True)]
    while engine.step():
        pass
    return [r.result() for r in requests]
