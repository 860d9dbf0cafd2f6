"""Prompt lookup on the host, with the answers of vLLM's own (`vllm/v1/spec_decode/ngram_proposer.py`, 0.32)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def continuation(tokens: NDArray[np.integer[Any]], k: int, least: int, most: int) -> list[int]:
    """Up to k tokens that followed the earliest occurrence of the text's longest known end, of `least` to `most`.

    An occurrence may overlap the end itself, but not be it. vLLM's own needs numba, which must not be imported before
    its CPU worker starts; an occurrence is rare enough that comparing backwards from each is as quick.

    >>> text = np.array([1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 3])
    >>> continuation(text, 3, 1, 3), continuation(text, 3, 4, 5), continuation(text[:7], 9, 2, 2)
    ([9, 1, 2], [], [9, 1, 2, 3])
    """
    size = len(tokens)
    ends = np.flatnonzero(tokens[: size - 1] == tokens[size - 1]) if size else np.zeros(0, dtype=np.intp)
    if not len(ends) or k <= 0:
        return []
    length = 1
    while length < most:
        longer = ends[ends >= length]
        longer = longer[tokens[longer - length] == tokens[size - 1 - length]]
        if not len(longer):
            break
        ends, length = longer, length + 1
    if length < least:
        return []
    after = int(ends[0]) + 1
    return [int(token) for token in tokens[after : after + k]]
