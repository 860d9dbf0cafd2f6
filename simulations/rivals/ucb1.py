"""UCB1, the textbook bandit, which BanditSpec starts from.

Source: Auer, Cesa-Bianchi, Fischer 2002, Finite-time analysis of the multiarmed bandit problem (Machine Learning 47),
figure 1: the arm with the largest mean + sqrt(2 log t / n), rewards in [0, 1].
"""

import numpy as np

from simulations.policy import Maker
from simulations.rivals.bandit import Optimist, Real, maker


def ucb1_index(mean: Real, pulls: Real, total: Real) -> Real:
    """mean + sqrt(2 log t / n), [..., arms]; infinite where n = 0. mean in [0, 1], pulls n, total t [..., 1].

    >>> ucb1_index(np.array([0.5, 0.2, 0.0]), np.array([8.0, 2.0, 0.0]), np.array([10.0])).round(6).tolist()
    [1.258714, 1.717427, inf]
    """
    n = np.maximum(pulls, 1)
    return np.where(pulls > 0, mean + np.sqrt(2 * np.log(np.maximum(total, 1)) / n), np.inf)


class Ucb1(Optimist):
    """Rewards as a share of the most a step can give, longest K + 1 tokens in a plain step's time."""

    def index(self, mean: Real, pulls: Real, total: Real) -> Real:
        """UCB1's index."""
        return ucb1_index(mean / (self.longest + 1), pulls, total)


def ucb1() -> Maker:
    """No parameters."""
    return maker(Ucb1, "ucb1")
