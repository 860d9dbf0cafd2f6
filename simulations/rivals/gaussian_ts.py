"""Thompson sampling with Gaussian arms: each arm's mean speed is drawn from its posterior, the fastest draw is played.

Source: Agrawal and Goyal 2013, Further optimal regret bounds for Thompson sampling (AISTATS), Gaussian priors:
rewards in [0, 1], an arm pulled n times with rewards summing to s is drawn from N(s / (n + 1), 1 / (n + 1)). Unit
variance is far above that of a reward in [0, 1], so a second variant estimates it (the conjugate normal of Russo et al.
2018, A tutorial on Thompson sampling, with the pooled variance within arms and one pseudo-pull at the domain's mean).
"""

import numpy as np

from simulations.policy import Bools, Ints, Maker
from simulations.rivals.bandit import Bandit, Real, maker


class GaussianTs(Bandit):
    """The published rule."""

    def posterior(self) -> tuple[Real, Real]:
        """Mean and standard deviation of every arm's reward, [domains + 1, arms]."""
        sums = self.means() * self.pulls / (self.longest + 1)
        return sums / (self.pulls + 1), 1 / np.sqrt(self.pulls + 1)

    def scores(self) -> Real:
        """One draw for the whole step, so that the rows of a domain agree on K."""
        mean, sd = self.posterior()
        return mean + sd * self.rng.standard_normal(mean.shape)

    def admitted(self, domain: Ints, usable: Bools) -> Ints:
        """A draw for each new row."""
        mean, sd = self.posterior()
        drawn = mean[domain] + sd[domain] * self.rng.standard_normal((len(domain), mean.shape[1]))
        return np.asarray(np.where(usable, drawn, -np.inf).argmax(axis=1), dtype=np.intp)


class ScaledTs(GaussianTs):
    """The same with the variance that rewards really have."""

    def posterior(self) -> tuple[Real, Real]:
        """Conjugate normal with the pooled variance within arms; 1 plain token until there are two pulls of an arm."""
        unit, mean, total = self.unit(), self.means(), self.pulls.sum(axis=1, keepdims=True)
        prior = (mean * self.pulls).sum(axis=1, keepdims=True) / np.maximum(total, 1)
        within = (self.squares / unit**2 - self.pulls * mean**2).sum(axis=1, keepdims=True)
        freedom = np.maximum(self.pulls - 1, 0).sum(axis=1, keepdims=True)
        variance = np.divide(np.maximum(within, 1e-6), freedom, out=np.ones_like(within), where=freedom > 0)
        return (mean * self.pulls + prior) / (self.pulls + 1), np.sqrt(variance / (self.pulls + 1))


def gaussian_ts() -> Maker:
    """The published rule."""
    return maker(GaussianTs, "gaussian-ts")


def gaussian_ts_scaled() -> Maker:
    """With the variance estimated."""
    return maker(ScaledTs, "gaussian-ts-scaled")
