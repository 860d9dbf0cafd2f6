"""What a step costs at one load, in the terms the decision needs: plain, per drafted token, per drafting passes.

    seconds(batch) = plain + sum_rows slope[draft] * K + sum_drafts fixed[draft, largest K of its rows]

Rows share the drafting passes (fixed, with the offset of that kind of step) but not the verified tokens (slope). Draws
are repaired where they are absurd: see `repaired`.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from controller.learner.cost import CostDraws
from controller.learner.discount import Array

CHEAPEST = 0.9  # a speculative step costs at least this share of a plain one
DIP = 0.75  # and at least this share of the dearest step of smaller K: real costs have stairs and dips, not cliffs


Real = NDArray[np.floating[Any]]


class Prices(NamedTuple):
    """Draws of prices at one load: plain [S], slope [S, J], fixed [S, J, Kn] (0 at K = 0), in seconds."""

    plain: Real
    slope: Real
    fixed: Real


def repaired(seconds: Array, plain: Array) -> Array:
    """Seconds [..., Kn] by ascending K, made plausible: over CHEAPEST of plain, and over DIP of the dearest smaller K.

    >>> repaired(np.array([[1.0, 0.5, 4.0, 2.0]]), np.array([1.0])).tolist()
    [[1.0, 0.9, 4.0, 3.0]]
    """
    fair = np.maximum(seconds, CHEAPEST * plain[..., None])
    return np.maximum(fair, DIP * np.maximum.accumulate(fair, axis=-1))


def prices_at(draws: CostDraws, load: int, ks: tuple[int, ...]) -> Prices:
    """Prices of decode steps (no prefill) with the load's mean rows and KV tokens; `load` is an index."""
    posterior = draws.posterior
    loads, drafts = posterior.loads, posterior.spec.drafts
    law = draws.laws[:, load, :]
    rows, kv = loads.rows[load], loads.kv[load]
    bare = law[:, 0] + law[:, 1] * rows + law[:, 3] * kv
    idle = draws.step_effect((), load, 0)
    plain = np.maximum(bare + idle, 0.2 * loads.seconds[load])
    slope = np.empty((len(law), len(drafts)))
    fixed = np.zeros((len(law), len(drafts), len(ks)))
    k = np.array(ks, dtype=np.float64)
    for j, draft in enumerate(drafts):
        raw = law[:, 1] + law[:, 4 + 2 * j]
        passes = law[:, 5 + 2 * j] * posterior.passes_per_k[j]
        seconds = (bare + 0.0)[:, None] + (raw * rows + passes)[:, None] * k
        for i in range(1, len(ks)):
            seconds[:, i] += draws.step_effect((draft.name,), load, ks[i])
        seconds[:, 0] = plain
        seconds = repaired(seconds, plain)
        slope[:, j] = np.maximum(raw, 0.0)
        fixed[:, j] = seconds - plain[:, None] - (slope[:, j] * rows)[:, None] * k
        fixed[:, j, 0] = 0.0
    return Prices(plain, slope, fixed)
