"""UCBSpec of BanditSpec: an upper confidence bound on the speed of each arm.

Source: Hou et al. 2025, BanditSpec: Adaptive Speculative Decoding via Bandit Algorithms (arXiv:2505.15141v2),
Algorithm 4, equations (5)-(7), with throughput as the reward as in their section 6.2. The released code
(sail-sg/BanditSpec, `generate_utils.py`, `ucb_length_spec_generate`, a30f56d4) does something else: each arm twice,
then the largest mean, since its bonus sqrt(6 log t / total pulls) is the same for every arm. Both are here.
"""

import numpy as np

from simulations.policy import Maker
from simulations.rivals.bandit import Optimist, Real, maker

DELTA = 0.1
ROUNDS = 2


def ucbspec_index(mean: Real, pulls: Real, total: Real, longest: int, delta: float) -> Real:
    """mean + L / 2 sqrt((1 + n) / n^2 (1 + 2 log(A t^2 sqrt(1 + n) / delta))), [..., arms]; infinite for n = 0.

    `mean`: tokens (a plain step's worth), range [0, L + 1]; `pulls` n, `total` t [..., 1]; A arms on the last axis.
    BanditSpec, equations (6) and (7).

    >>> one = np.array([1.0])
    >>> round(float(ucbspec_index(np.array([2.0]), one, one, 2, 1.0)[0]), 6)  # 2 + sqrt(2 (1 + log 2))
    3.840189
    """
    n = np.maximum(pulls, 1)
    arms = pulls.shape[-1]
    inside = 1 + 2 * np.log(arms * np.maximum(total, 1) ** 2 * np.sqrt(1 + n) / delta)
    return np.where(pulls > 0, mean + longest / 2 * np.sqrt((1 + n) / n**2 * inside), np.inf)


class UcbSpec(Optimist):
    """As in the paper."""

    def index(self, mean: Real, pulls: Real, total: Real) -> Real:
        """Equation (7)."""
        return ucbspec_index(mean, pulls, total, self.longest, DELTA)


class UcbSpecReleased(Optimist):
    """As in the released code: every arm twice, in rounds, then the fastest so far."""

    def index(self, mean: Real, pulls: Real, total: Real) -> Real:
        """The mean, but arms pulled fewer than twice come first, the least pulled ones before."""
        return np.where(pulls < ROUNDS, 1e12 * (ROUNDS - pulls), mean)


def ucbspec() -> Maker:
    """Algorithm 4."""
    return maker(UcbSpec, "ucbspec")


def ucbspec_released() -> Maker:
    """The authors' code."""
    return maker(UcbSpecReleased, "ucbspec-released")
