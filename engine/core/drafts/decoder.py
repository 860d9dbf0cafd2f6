"""A smaller decoder as a draft: its own cache rows, brought up to date in one multi-token pass when it is asked."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from engine.core.cache import CacheRow
from engine.core.config import ModelConfig, ModelError
from engine.core.drafts.draft import Ask, Picks, Proposal, backlog
from engine.core.layout import Segment
from engine.core.model import Decoder
from engine.core.tokenizer import Tokenizer

CATCH_UP_CHUNK = 512  # tokens a pass; bounds the memory of a long prompt's first pass


class DecoderDraft:
    """The draft of kind `model`: any decoder folder whose vocabulary agrees with the target's.

    Steps in which a request does not speculate cost nothing here: all tokens missed since (the last one of a fully
    accepted block among them) enter in the first pass of the next proposal, which also yields its first token.
    """

    kind: Literal["model"] = "model"
    needs_hidden = False

    def __init__(self, model: Decoder, slots: int, vocabulary: int) -> None:
        self._model = model
        self._cache = model.cache(slots)
        self._shared = min(vocabulary, model.config.vocab_size)
        self.max_len = model.max_len
        self.memory_bytes = model.memory_bytes + self._cache.memory_bytes

    @classmethod
    def load(
        cls,
        folder: Path,
        target: Path,
        *,
        slots: int,
        max_len: int,
        vocabulary: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> "DecoderDraft":
        """Load `folder` to draft for the model in folder `target`. Raises `ModelError`, for other vocabularies too."""
        ModelConfig.from_folder(folder)  # an unsupported model is the plainer message, so it comes first
        check_vocabulary(folder, target)
        return cls(Decoder(folder, dtype=dtype, device=device, max_len=max_len), slots, vocabulary)

    def admit(self) -> CacheRow:
        """An empty cache row."""
        return self._cache.acquire()

    def observe(self, state: CacheRow, hidden: Tensor) -> None:
        """The target's hidden states do not matter here."""

    def propose(self, asks: Sequence[Ask]) -> Proposal:
        """k tokens a row in as many passes as the largest k."""
        order = sorted(range(len(asks)), key=lambda i: asks[i].state.slot)
        picks = Picks(asks, self._model.device)
        read = backlog(len(ask.tokens) - ask.state.length for ask in asks)
        passes = self._catch_up(asks, order)
        fed = [list(asks[i].tokens[asks[i].state.length :]) for i in order]
        last = self._forward(asks, order, fed)
        picked = picks.add(0, order, last)
        width = max(ask.k for ask in asks)
        for step in range(1, width):
            # The rows that go on, and where their token stands among the ones just picked.
            kept = [n for n, i in enumerate(order) if asks[i].k > step]
            ids = picked if len(kept) == len(order) else picked[torch.tensor(kept, device=picked.device)]
            order = [order[n] for n in kept]
            picked = picks.add(step, order, self._forward(asks, order, ids))
        return picks.proposal(passes + width, read=read)

    def _catch_up(self, asks: Sequence[Ask], order: Sequence[int]) -> int:
        """Feed long backlogs chunk by chunk until one pass can take the rest; the number of passes."""
        passes = 0
        while behind := [i for i in order if len(asks[i].tokens) - asks[i].state.length > CATCH_UP_CHUNK]:
            fed = []
            for i in behind:
                start = asks[i].state.length
                fed.append(list(asks[i].tokens[start : start + CATCH_UP_CHUNK]))
            self._forward(asks, behind, fed, answer=False)
            passes += 1
        return passes

    def _forward(
        self, asks: Sequence[Ask], order: Sequence[int], fed: Sequence[Sequence[int]] | Tensor, *, answer: bool = True
    ) -> Tensor:
        """Feed tokens to the rows `order` (slots ascending): lists, or one token a row. Logits [rows, shared]."""
        rows: list[CacheRow] = [asks[i].state for i in order]
        single = isinstance(fed, Tensor)
        counts = [1] * len(rows) if single else [len(f) for f in fed]
        segments = [Segment(row.slot, row.length, n) for row, n in zip(rows, counts, strict=True)]
        device = self._model.device
        ids = fed if isinstance(fed, Tensor) else torch.tensor([t for f in fed for t in f], device=device)
        if self._model.config.vocab_size > self._shared or not single:
            # The target may know ids past the end of this vocabulary; a wrong guess is all that can come of it.
            ids = ids.clamp(max=self._model.config.vocab_size - 1)
        layout = self._model.layout(segments, self._cache)
        hidden = self._model.forward(ids, layout, self._cache)
        for row, n in zip(rows, counts, strict=True):
            row.length += n
        if not answer:
            return hidden
        if not single:
            last = torch.tensor([o + n - 1 for o, n in zip(layout.offsets, counts, strict=True)], device=device)
            hidden = hidden.index_select(0, last)
        return self._model.logits(hidden)[:, : self._shared]

    def rollback(self, state: CacheRow, length: int) -> None:
        """Keep at most `length` positions."""
        state.length = min(state.length, length)

    def release(self, state: CacheRow) -> None:
        """Give the cache row back."""
        self._cache.release(state)


def check_vocabulary(draft: Path, target: Path) -> None:
    """Compare two folders' tokenizers. Raises `ModelError` naming a token on which they disagree."""
    ours, theirs = Tokenizer(draft).vocabulary(), Tokenizer(target).vocabulary()
    if ours == theirs:
        return
    token = min((t for t in ours.keys() | theirs.keys() if ours.get(t) != theirs.get(t)), key=repr)
    raise ModelError(
        f"the vocabulary of draft {draft} does not agree with the target's: token {token!r} has id "
        f"{ours.get(token, 'none')} in the draft and {theirs.get(token, 'none')} in {target}; "
        "a draft must use the target's own tokenizer"
    )
