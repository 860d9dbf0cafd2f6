"""What a step costs at one load, in the terms the decision needs: plain, per drafted token, per drafting passes.

    seconds(batch) = plain + sum_rows slope[draft] * K + sum_drafts fixed[draft, largest K of its rows]

Rows share the drafting passes (fixed, with the offset of that kind of step) but not the verified tokens (slope). Draws
are repaired where they are absurd: see `repaired`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controller.learner.cost import CostDraws
from controller.learner.discount import Array

CHEAPEST = 0.9  # a speculative step costs at least this share of a plain one
DIP = 0.75  # and at least this share of the dearest step of smaller K: real costs have stairs and dips, not cliffs

Single = NDArray[np.float32]


class Prices(NamedTuple):
    """Draws of prices at one load: plain [S], slope [J, S], fixed [Kn, J, S] (0 at K = 0), in seconds."""

    plain: Single
    slope: Single
    fixed: Single


def repaired(seconds: Array, plain: Array) -> Array:
    """Seconds [Kn, ...] by ascending K, made plausible: over CHEAPEST of plain, and over DIP of the dearest smaller K.

    >>> repaired(np.array([[1.0], [0.5], [4.0], [2.0]]), np.array([1.0])).tolist()
    [[1.0], [0.9], [4.0], [3.0]]
    """
    fair = np.maximum(seconds, CHEAPEST * plain)
    dearest = DIP * fair[0]
    for here in fair[1:]:
        np.maximum(here, dearest, out=here)
        np.maximum(dearest, DIP * here, out=dearest)
    return fair


def prices_at(draws: CostDraws, load: int, ks: tuple[int, ...]) -> Prices:
    """Prices of decode steps (no prefill) with the load's mean rows and KV tokens; `load` is an index."""
    posterior = draws.posterior
    loads, drafts = posterior.loads, posterior.spec.drafts
    law = draws.laws[load]
    rows, kv = loads.rows[load], loads.kv[load]
    bare = law[0] + law[1] * rows + law[3] * kv
    idle = draws.step_effect((), load, 0)
    plain = np.maximum(bare + idle, 0.2 * loads.seconds[load])
    raw = law[1] + law[4::2]  # [J, S]
    passes = law[5::2] * posterior.passes_per_k[:, None]
    k = np.array(ks, dtype=np.float64)[:, None, None]
    seconds = (raw * rows + passes) * k
    seconds += bare
    seconds[1:] += draws.step_effects([(draft.name,) for draft in drafts], load, ks[1:])
    seconds[0] = plain
    seconds = repaired(seconds, plain)
    slope = np.maximum(raw, 0.0)
    seconds -= plain
    seconds -= slope * rows * k
    seconds[0] = 0.0
    return Prices(*(array.astype(np.float32) for array in (plain, slope, seconds)))
