"""What a loaded draft is worth: how much goodput the pool would lose without it, beside the memory it holds."""

from typing import NamedTuple

import numpy as np

from controller.learner.discount import Array


class DraftWorth(NamedTuple):
    """`gain`: goodput with all drafts over goodput without this one, minus 1, at the loads and the mix served.

    `memory_bytes`: what the engine says it holds.
    """

    draft: str
    memory_bytes: int
    gain: float


def gains(gain: Array, mix: Array, served: Array) -> Array:
    """Gain of every draft [J] from mean gains over plain [L, C, J, Kn], mix [L, C] and steps served by load [L].

    At each load every context plays its best arm, with and without the draft; contexts weigh by their share of rows,
    loads by their steps. Plain (gain 1) is always there.

    >>> gain = np.array([[[[1.0, 1.5], [1.0, 1.2]], [[1.0, 0.8], [1.0, 1.1]]]])   # one load, 2 contexts, 2 drafts
    >>> gains(gain, np.array([[0.5, 0.5]]), np.array([10.0])).round(3).tolist()   # 1.3 / 1.15 and 1.3 / 1.25
    [0.13, 0.04]
    """
    weight = mix / np.maximum(mix.sum(axis=1, keepdims=True), 1e-12)
    steps = served / max(float(served.sum()), 1e-12)
    best = np.maximum(gain.max(axis=3), 1.0)  # [L, C, J]
    whole = float((steps[:, None] * weight * best.max(axis=2)).sum())
    result = np.zeros(gain.shape[2])
    for j in range(gain.shape[2]):
        others = np.delete(best, j, axis=2).max(axis=2, initial=1.0)
        without = float((steps[:, None] * weight * others).sum())
        result[j] = whole / without - 1.0 if without > 0 else 0.0
    return result
