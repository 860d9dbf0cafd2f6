"""The bound on latency: which arms keep the time per output token of every row of the batch within it."""

import numpy as np
from numpy.typing import NDArray

from controller.learner.discount import Array

_Z95 = 1.6449


def slowest_others(tokens: Array, present: NDArray[np.bool_]) -> Array:
    """Least expected tokens a step among the *other* contexts present in the batch [C], infinite where there are none.

    tokens [C]: of each context's arm in force; present [C].

    >>> slowest_others(np.array([3.0, 1.5, 1.0]), np.array([True, True, False])).tolist()
    [1.5, 3.0, 1.5]
    """
    held = np.where(present, tokens, np.inf)
    first = int(held.argmin())
    rest = np.delete(held, first).min(initial=np.inf)
    least = np.full(len(held), held[first])
    least[first] = rest
    return least


def within(seconds: Array, tokens: Array, relative_sd: Array, others: Array, bound: float) -> NDArray[np.bool_]:
    """Which arms [C, J, Kn] keep the 95% quantile of the time per output token at `bound` seconds or below.

    seconds, tokens: expected seconds of the batch's step and tokens of the context's row in it; others [C]: see
    `slowest_others`. A row waits for the whole batch, so an arm that lengthens the step must not break the bound for
    the other contexts' rows either. Time per output token is seconds / tokens, log-normal with the relative sd of its
    estimate: the quantile is that of belief, and of requests of average acceptance.

    >>> seconds, tokens = np.array([[[0.02, 0.03]]]), np.array([[[1.0, 2.0]]])
    >>> within(seconds, tokens, np.zeros((1, 1, 2)), np.array([np.inf]), 0.018).tolist()
    [[[False, True]]]
    >>> within(seconds, tokens, np.zeros((1, 1, 2)), np.array([1.0]), 0.025).tolist()
    [[[True, False]]]
    """
    wait = seconds / np.minimum(tokens, others[:, None, None])
    return np.asarray(wait * np.exp(_Z95 * relative_sd) <= bound, dtype=bool)
