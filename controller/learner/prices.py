"""What a step costs at one load, in the terms the decision needs: plain, per drafted token, per drafting passes.

    seconds(batch) = plain + verify(sum K) + sum_rows slope[draft] K + sum_drafts fixed[draft, its largest K]

Verification is priced by all the tokens of the step, along a curve: up to the roofline's bend they are free, beyond it
they are not, so what a token of one row costs depends on what the other rows draft. Rows share the drafting passes
(fixed, with the offset of that kind of step). Draws are repaired where they are absurd: see `repaired`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controller.learner.cost import CostDraws
from controller.learner.discount import Array
from controller.learner.verification import along

CHEAPEST = 0.9  # a speculative step costs at least this share of a plain one
GRID = 32  # intervals of the curve of verification, from no drafted token to the largest K in every row
DIP = 0.75  # and at least this share of the dearest step of smaller K: real costs have stairs and dips, not cliffs

Single = NDArray[np.float32]


class Prices(NamedTuple):
    """Draws of prices at one load, in seconds; fixed is 0 at K = 0.

    >>> grid = np.array([[0.0], [1.0], [4.0]], dtype=np.float32)
    >>> prices = Prices(np.ones(1, dtype=np.float32), grid[:1], grid[None, :1], grid, 2.0)
    >>> prices.verify(np.array([[1.0], [3.0], [5.0]], dtype=np.float32)).ravel().tolist()
    [0.5, 2.5, 5.5]
    >>> prices.marginal(np.array([1.0], dtype=np.float32)).tolist()
    [0.5]
    """

    plain: Single  # [S]
    slope: Single  # [J, S]: of a drafted token, on top of its verification
    fixed: Single  # [Kn, J, S]
    curve: Single  # [grid, S]: of verifying 0, 1, 2, .. times `grain` drafted tokens
    grain: float

    def some(self, draws: slice | NDArray[np.intp]) -> "Prices":
        """The prices of those draws."""
        plain, slope, fixed, curve = (np.ascontiguousarray(array[..., draws]) for array in self[:4])
        return Prices(plain, slope, fixed, curve, self.grain)

    def verify(self, drafted: Single) -> Single:
        """Seconds of verifying so many drafted tokens [..., S] of the batch; straight on beyond the grid."""
        place, at = self._interval(drafted)
        flat, s = self.curve.reshape(-1), self.curve.shape[1]
        low = flat.take(at)
        at += np.int32(s)
        high = flat.take(at)
        high -= low
        high *= place
        high += low
        return high

    def marginal(self, drafted: Single) -> Single:
        """Seconds that one more drafted token of the batch costs to verify."""
        _, at = self._interval(drafted)
        flat, s = self.curve.reshape(-1), self.curve.shape[1]
        return np.asarray((flat.take(at + s) - flat.take(at)) / np.float32(self.grain), dtype=np.float32)

    def _interval(self, drafted: Single) -> tuple[Single, NDArray[np.int32]]:
        """Where in its interval of the grid each number lies (0..1), and the flat index of the interval's lower end."""
        place = drafted * np.float32(1.0 / self.grain)
        at = np.minimum(place, np.float32(len(self.curve) - 2)).astype(np.int32)
        place -= at
        at *= np.int32(self.curve.shape[1])
        at += np.arange(self.curve.shape[1], dtype=np.int32)
        return place, at


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
    rows, kv = float(loads.rows[load]), loads.kv[load]
    drafted = np.linspace(0.0, rows * max(ks[-1], 1), GRID + 1)
    verified = draws.curve(rows + drafted) + law[1] * drafted[:, None]
    bare = verified[0] + law[0] + law[1] * rows + law[3] * kv
    curve = verified - verified[0]
    idle = draws.step_effect((), load, 0)
    plain = np.maximum(bare + idle, 0.2 * loads.seconds[load])
    slope = law[4::2]  # [J, S]
    passes = law[5::2] * posterior.passes_per_k[:, None]
    k = np.array(ks, dtype=np.float64)[:, None, None]
    verify = along(drafted, rows * k[:, 0, 0], curve)
    seconds = (slope * rows + passes) * k
    seconds += (bare + verify)[:, None]
    seconds[1:] += draws.step_effects([(draft.name,) for draft in drafts], load, ks[1:])
    seconds[0] = plain
    seconds = repaired(seconds, plain)
    seconds -= plain
    seconds -= slope * rows * k + verify[:, None]
    seconds[0] = 0.0
    plain, slope, fixed, curve = (array.astype(np.float32) for array in (plain, slope, seconds, curve))
    return Prices(plain, slope, fixed, curve, float(drafted[1]))
