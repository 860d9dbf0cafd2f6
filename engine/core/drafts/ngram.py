"""Prompt lookup: the text so far, searched for its own last words (Saxena 2023; Yang et al. 2023).

Free of weights and good where outputs repeat their input or themselves: code, quotations, lists.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from engine.core.drafts.draft import Ask, Proposal

LONGEST = 3


class NgramIndex:
    """Where each n-gram of a growing sequence last ended, n = 1..3; a lookup takes constant time.

    An n-gram enters when the token after it is known, so that the sequence's own end is never its own match.

    >>> index = NgramIndex()
    >>> index.continuation([1, 2, 3, 9, 1, 2, 3], 2)
    [9, 1]
    >>> index.continuation([1, 2, 3, 9, 1, 2, 3, 8, 7], 2)
    []
    """

    def __init__(self) -> None:
        self._after: list[dict[tuple[int, ...], int]] = [{} for _ in range(LONGEST)]
        self._indexed = 0

    def continuation(self, tokens: Sequence[int], k: int) -> list[int]:
        """What followed the latest earlier occurrence of the longest known suffix: `k` tokens, or none.

        Where the occurrence overlaps the end, the copy goes on in what it has just copied, so that a repeating pattern
        is continued for all `k` tokens. `tokens` must extend the sequence of the previous call.
        """
        self._extend(tokens)
        size = len(tokens)
        for n in range(min(LONGEST, size - 1), 0, -1):
            at = self._after[n - 1].get(tuple(tokens[size - n :]))
            if at is not None:
                copied = list(tokens[at : at + k])
                period = size - at
                while len(copied) < k:
                    copied.append(copied[len(copied) - period])
                return copied
        return []

    def _extend(self, tokens: Sequence[int]) -> None:
        for end in range(max(1, self._indexed), len(tokens)):
            for n in range(1, min(LONGEST, end) + 1):
                self._after[n - 1][tuple(tokens[end - n : end])] = end
        self._indexed = len(tokens)


class NgramDraft:
    """The draft of kind `ngram`: no weights, no cache; catches up with the tokens it has missed when asked."""

    kind: Literal["ngram"] = "ngram"
    needs_hidden = False
    memory_bytes = 0

    def __init__(self, device: torch.device, max_len: int) -> None:
        self._device = device
        self.max_len = max_len

    def admit(self) -> NgramIndex:
        """An empty index; prompt and output are read at the first question."""
        return NgramIndex()

    def observe(self, state: NgramIndex, hidden: Tensor) -> None:
        """Hidden states do not matter here."""

    def propose(self, asks: Sequence[Ask]) -> Proposal:
        """Copy what followed last time; nothing for rows whose last token is new."""
        found = [ask.state.continuation(ask.tokens, ask.k) for ask in asks]
        width = max(len(f) for f in found)
        padded = [f + [0] * (width - len(f)) for f in found]
        tokens = torch.tensor(padded, dtype=torch.long, device=self._device).view(len(asks), width)
        return Proposal(tokens, [len(f) for f in found], width)

    def rollback(self, state: NgramIndex, length: int) -> None:
        """Only settled tokens are ever indexed."""

    def release(self, state: NgramIndex) -> None:
        """Nothing to give back."""
