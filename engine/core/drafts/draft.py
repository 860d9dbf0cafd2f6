"""What the engine asks of a draft, and how tokens picked pass by pass become a proposal."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from engine.core.request import SamplingParams
from engine.core.sampling import Filters, best, distribution, draw
from engine.core.speculation import DraftDistribution
from engine.link.messages import MAX_K


class Ask(NamedTuple):
    """One row's question: continue `tokens` (prompt and output so far) by up to `k` >= 1 tokens.

    `state` is what the draft's `admit` returned. `luck`: k uniforms in [0, 1) to sample with; empty for greedy rows,
    which take the most probable token.
    """

    state: Any
    tokens: Sequence[int]
    k: int
    params: SamplingParams
    luck: Sequence[float] = ()


class Proposal(NamedTuple):
    """Answers to R asks: `counts[r]` tokens, the first ones of row r of `tokens` [R, K] (padded with 0).

    `source`: the distributions of the sampled rows' tokens, in the order of the asks; None where the draft does not
    sample (all mass on its token). `passes`: forward passes it took. `read`: see `backlog`.
    """

    tokens: Tensor
    counts: list[int]
    passes: int
    source: DraftDistribution | None = None
    read: int = 0


def backlog(missing: Iterable[int]) -> int:
    """Tokens that rows' drafts have to read because they were not asked for long: more than one step can add.

    They are a prompt to the draft, and are to be booked as such: billed to a draft that has just been switched on, they
    would make it look dear.

    >>> backlog([3, MAX_K + 1, 200])
    200
    """
    return sum(n for n in missing if n > MAX_K + 1)


class Draft(Protocol):
    """A draft as the engine uses it. Calls come from the decode thread only.

    `needs_hidden`: the engine must hand over the target's hidden states by `observe`. `max_len`: positions it can hold.
    """

    needs_hidden: bool
    max_len: int
    memory_bytes: int

    @property
    def kind(self) -> Literal["ngram", "model", "eagle"]:
        """What it is, as the wire names it."""

    def admit(self) -> Any:
        """State for a new request."""

    def observe(self, state: Any, hidden: Tensor) -> None:
        """The target's hidden states [positions, hidden] of the positions it has just processed for this request."""

    def propose(self, asks: Sequence[Ask]) -> Proposal:
        """Guess ahead for several rows at once, bringing the state up to date with `tokens` first."""

    def rollback(self, state: Any, length: int) -> None:
        """Only the first `length` tokens of the sequence are certain to stay; forget what followed."""

    def release(self, state: Any) -> None:
        """The request has ended."""


class Picks:
    """Tokens picked for `asks`, one draft position a pass, without reading any of them back to the host."""

    def __init__(self, asks: Sequence[Ask], device: torch.device) -> None:
        self._asks = asks
        self._width = max(ask.k for ask in asks)
        self._tokens = torch.zeros(len(asks), self._width, dtype=torch.long, device=device)
        # Place of each sampled ask among the sampled ones.
        sampled = [i for i, ask in enumerate(asks) if ask.params.temperature > 0]
        self._place = {i: n for n, i in enumerate(sampled)}
        self._chance: Tensor | None = None
        self._values: Tensor | None = None

    def add(self, step: int, active: Sequence[int], logits: Tensor) -> Tensor:
        """Pick draft position `step` for the asks `active` from logits [active, S]; the picks [active], of the S."""
        warm = [i for i in active if i in self._place]
        if not warm:
            picked = best(logits)
        elif len(warm) == len(active):
            picked = self._sample(step, warm, logits)
        else:
            picked = best(logits)
            at = torch.tensor([n for n, i in enumerate(active) if i in self._place], device=logits.device)
            picked[at] = self._sample(step, warm, logits[at])
        if list(active) == list(range(len(self._asks))):
            self._tokens[:, step] = picked
        else:
            self._tokens[torch.tensor(active, device=logits.device), step] = picked
        return picked

    def _sample(self, step: int, warm: Sequence[int], logits: Tensor) -> Tensor:
        params = [self._asks[i].params for i in warm]
        filters = Filters([p.temperature for p in params], [p.top_k for p in params], [p.top_p for p in params])
        p = distribution(logits, filters)
        luck = torch.tensor([self._asks[i].luck[step] for i in warm], dtype=torch.float64, device=p.device)
        picked = draw(p, luck)
        if self._values is None or self._chance is None:
            shape = (len(self._place), self._width)
            # Places of shorter rows stay unwritten: the verdict never looks at them.
            self._values = p.new_empty(*shape, p.shape[1])
            self._chance = p.new_zeros(shape)
        rows = torch.tensor([self._place[i] for i in warm], device=p.device)
        self._values[rows, step] = p
        self._chance[rows, step] = p.gather(1, picked[:, None])[:, 0]
        return picked

    def proposal(self, passes: int, support: Tensor | None = None, read: int = 0) -> Proposal:
        """All picks. `support`: target ids of the S tokens; None where they are the target's first S."""
        tokens = self._tokens if support is None else support[self._tokens]
        source = None
        if self._chance is not None and self._values is not None:
            source = DraftDistribution(self._chance, self._values, support)
        return Proposal(tokens, [ask.k for ask in self._asks], passes, source, read)
