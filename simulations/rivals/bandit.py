"""What the bandits have in common: one arm per (draft, K), one instance per domain, speed as the reward.

As published, an arm is chosen for a step: where the pool switches drafts, the rows of a domain play its best arm,
afresh in every step. Where it does not, the draft of the best arm is a request's draft from admission on, and K the
best arm's among those of that draft. A pull is one row in one step, its reward the row's tokens / the step's seconds.
"""

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from simulations.policy import NO_DRAFT, Bools, Choice, Ints, Maker, Outcome, PoolFacts, View
from simulations.rivals.one_draft import ladder, loaded
from simulations.rivals.rival import Rival

Real = NDArray[np.float64]


class Bandit(Rival):
    """Counts and sums of every arm, [domains + 1, arms]; subclasses rank the arms.

    `drafts`, `ks` [arms]: arm 0 is plain decoding, then every draft with every K it can run. `longest`: largest K.
    """

    def __init__(self, name: str, pool: PoolFacts, rng: np.random.Generator) -> None:
        self.name, self.pool, self.rng = name, pool, rng
        pairs = [(NO_DRAFT, 0)] + [(j, int(k)) for j in range(len(pool.drafts)) for k in ladder(pool, j)]
        self.drafts = np.array([j for j, _ in pairs], dtype=np.intp)
        self.ks = np.array([k for _, k in pairs], dtype=np.intp)
        self.longest = max(int(self.ks.max()), 1)
        shape = (len(pool.domains) + 1, len(pairs))
        self.pulls, self.sums, self.squares = np.zeros(shape), np.zeros(shape), np.zeros(shape)

    @abstractmethod
    def scores(self) -> Real:
        """How much each arm is wanted now, [domains + 1, arms]."""

    @abstractmethod
    def admitted(self, domain: Ints, usable: Bools) -> Ints:
        """Arms of new rows, [rows], by their domains; usable [arms]."""

    def means(self) -> Real:
        """Mean reward of each arm, [domains + 1, arms], as tokens a plain step would have had to give; 0 unplayed."""
        return np.divide(self.sums, self.pulls, out=np.zeros_like(self.sums), where=self.pulls > 0) / self.unit()

    def unit(self) -> Real:
        """Reward of plain decoding in the domain, [domains + 1, 1]; until known the pool's, or the mean of all."""
        pulls, sums = self.pulls[:, :1], self.sums[:, :1]
        known = sums[:, 0].sum() > 0
        n, s = (pulls.sum(), sums.sum()) if known else (max(self.pulls.sum(), 1.0), self.sums.sum())
        return np.divide(sums, pulls, out=np.full_like(sums, s / n if s > 0 else 1.0), where=pulls > 0)

    def choose(self, view: View) -> Choice:
        """The best arm of each row's domain, or of its draft where that is held."""
        draft = np.where(view.new, NO_DRAFT, view.draft)
        if not len(draft):
            return Choice(draft, np.zeros_like(draft))
        usable = (self.drafts == NO_DRAFT) | loaded(view, self.drafts)
        if self.pool.switches:
            arms = np.where(usable, self.scores(), -np.inf).argmax(axis=1)[view.domain]
            return Choice(self.drafts[arms], self.ks[arms])
        if view.new.any():
            draft[view.new] = self.drafts[self.admitted(view.domain[view.new], usable)]
        scores = self.scores()
        best = np.zeros((len(scores), len(self.pool.drafts) + 1), dtype=np.intp)  # last column: NO_DRAFT = -1
        for j in range(len(self.pool.drafts)):
            arms = np.flatnonzero(self.drafts == j)
            best[:, j] = self.ks[arms[scores[:, arms].argmax(axis=1)]]
        return Choice(draft, np.where(loaded(view, draft), best[view.domain, draft], 0))

    def observe(self, outcome: Outcome) -> None:
        """Credit the arm that ran, be it the chosen one or what clamps made of it."""
        view, arms = outcome.view, len(self.ks)
        played = loaded(view, outcome.draft) | (outcome.draft == NO_DRAFT)
        if not played.any():
            return
        draft, k, domain = outcome.draft[played], outcome.k[played], view.domain[played]
        order = (self.drafts + 1) * (self.longest + 1) + self.ks  # ascending by draft, then K
        arm = np.searchsorted(order, (draft + 1) * (self.longest + 1) + k, side="right") - 1
        reward = (outcome.accepted[played] + 1.0) / outcome.seconds
        cell, shape = domain * arms + arm, self.pulls.shape
        self.pulls += np.bincount(cell, minlength=self.pulls.size).reshape(shape)
        self.sums += np.bincount(cell, weights=reward, minlength=self.pulls.size).reshape(shape)
        self.squares += np.bincount(cell, weights=reward * reward, minlength=self.pulls.size).reshape(shape)


class Optimist(Bandit):
    """A bandit that plays the largest upper confidence bound, and arms it does not know before all others."""

    @abstractmethod
    def index(self, mean: Real, pulls: Real, total: Real) -> Real:
        """Upper bound of each arm, [..., arms]; total [..., 1]: pulls of all arms."""

    def scores(self) -> Real:
        """The index of every arm."""
        return self.index(self.means(), self.pulls, self.pulls.sum(axis=1, keepdims=True))

    def admitted(self, domain: Ints, usable: Bools) -> Ints:
        """One after the other; each counts as a pull without reward for those after it, so that they spread."""
        means, pulls = self.means(), self.pulls.copy()
        arms = np.empty(len(domain), dtype=np.intp)
        for row, d in enumerate(domain):
            index = self.index(means[d], pulls[d], pulls[d].sum(keepdims=True))
            arms[row] = np.where(usable, index, -np.inf).argmax()
            pulls[d, arms[row]] += 1
        return arms


def maker(bandit: type[Bandit], name: str) -> Maker:
    """Makes bandits of a class under a name."""

    def make(pool: PoolFacts, rng: np.random.Generator) -> Bandit:
        return bandit(name, pool, rng)

    return make
