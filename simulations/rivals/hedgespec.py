"""HedgeSpec: no exploration; in every step all drafts are judged on what the target really wrote.

Source: Liu et al. 2025, Not-a-Bandit: Provably No-Regret Drafter Selection in Speculative Decoding for LLMs
(arXiv:2510.20064; loss of a draft 1 - accepted length / (K + 1), NormalHedge as the learner, K given) and, for the
learner, Chaudhuri, Freund, Hsu 2009, A parameter-free hedging algorithm (NeurIPS), figure 1. A draft that did not
draft is judged after verification, in one pass over the tokens at hand (`Choice.evaluated` says what that costs).
"""

import numpy as np
from numpy.typing import NDArray

from simulations.policy import NO_DRAFT, Bools, Choice, Maker, Outcome, PoolFacts, View
from simulations.rivals.one_draft import ladder, loaded, snapped
from simulations.rivals.rival import Rival

Real = NDArray[np.float64]
LENGTH = 5  # where the operator configured no K
_NEWTON = 12


def normal_hedge(regret: Real, known: Bools) -> Real:
    """NormalHedge's weights, [..., experts], for cumulative regrets to the experts; they sum to 1.

    p_i ~ [R_i]+ / c exp([R_i]+^2 / 2c), with c such that the mean of exp([R_i]+^2 / 2c) is e; uniform where no regret
    is positive. Experts that are not `known` [..., experts] get nothing; zeros where none is.

    >>> normal_hedge(np.array([[1.0, -1.0], [-2.0, 0.0]]), np.ones((2, 2), dtype=bool)).tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    plus = np.where(known, np.maximum(regret, 0), 0)
    top, count = plus.max(axis=-1, keepdims=True), np.maximum(known.sum(axis=-1, keepdims=True), 1)
    half = (plus / np.where(top > 0, top, 1)) ** 2 / 2  # so c is in units of top^2
    # log mean exp(half x) - 1 is convex in x = 1 / c and positive at the start: Newton falls steadily to its root
    x = 2 * (1 + np.log(count))
    for _ in range(_NEWTON):
        terms = np.where(known, np.exp(half * x), 0)
        total = np.maximum(terms.sum(axis=-1, keepdims=True), 1)
        slope = (half * terms).sum(axis=-1, keepdims=True) / total
        x -= np.where(top > 0, np.log(total / count) - 1, 0) / np.where(slope > 0, slope, 1)
    weight: Real = np.where(top > 0, plus * np.exp(half * x), known)
    total = weight.sum(axis=-1, keepdims=True)
    return weight / np.where(total > 0, total, 1)


class HedgeSpec(Rival):
    """A NormalHedge over drafts for each domain, and one K. `regret` [domains + 1, drafts]."""

    def __init__(self, pool: PoolFacts, rng: np.random.Generator) -> None:
        self.name, self.pool, self.rng = "hedgespec", pool, rng
        self.regret = np.zeros((len(pool.domains) + 1, len(pool.drafts)))
        self.weight: Real | None = None  # of the present regrets, for the drafts of `among`
        self.among = np.zeros(0, dtype=np.bool_)
        wanted = pool.static[1] if pool.static[1] else LENGTH
        lengths = [int(snapped(ladder(pool, j), wanted)) for j in range(len(pool.drafts))]
        self.k = np.array([*lengths, 0], dtype=np.intp)  # last: NO_DRAFT = -1

    def weights(self, available: Bools) -> Real:
        """Probability of each draft, [domains + 1, drafts]."""
        if self.weight is None or not np.array_equal(self.among, available):
            self.weight = normal_hedge(self.regret, np.broadcast_to(available, self.regret.shape))
            self.among = available.copy()
        return self.weight

    def choose(self, view: View) -> Choice:
        """Drafts by their weights, of all rows where the pool switches, else of new ones; the others are evaluated."""
        draft = np.where(view.new, NO_DRAFT, view.draft)
        drawn = np.ones_like(view.new) if self.pool.switches else view.new
        if not len(draft) or not view.available.any():
            return Choice(draft, np.zeros_like(draft))
        if drawn.any():
            steps = self.weights(view.available)[view.domain[drawn]].cumsum(axis=1)
            # One draw for the step where drafts switch: rows on different drafts would pay for all of them.
            u = self.rng.random((1, 1) if self.pool.switches else (len(steps), 1))
            draft[drawn] = np.minimum((u >= steps).sum(axis=1), np.flatnonzero(view.available)[-1])
        k = np.where(loaded(view, draft), self.k[draft], 0)
        drafting = np.bincount(draft[k > 0], minlength=len(view.available))
        others = view.available & (drafting < len(draft))  # a draft that every row uses shows all there is to see
        worth = bool(k.any()) and int(view.available.sum()) > 1 and bool(others.any())
        return Choice(draft, k, others if worth else None)

    def observe(self, outcome: Outcome) -> None:
        """Every row judges every draft it can see by the length it got or would have got."""
        view, longest = outcome.view, int(outcome.k.max(initial=0))
        if not longest or outcome.would_accept is None:
            return
        accepted = outcome.would_accept.T.astype(np.float64)  # [rows, drafts]
        own = np.flatnonzero(outcome.k > 0)
        accepted[own, outcome.draft[own]] = outcome.accepted[own]
        known = (accepted >= 0) & view.available
        loss = np.where(known, 1 - (accepted + 1) / (longest + 1), 0)
        weight = self.weights(view.available)[view.domain] * known
        total = weight.sum(axis=1, keepdims=True)
        ours = (weight * loss).sum(axis=1, keepdims=True) / np.where(total > 0, total, 1)
        np.add.at(self.regret, view.domain, np.where(known & (total > 0), ours - loss, 0))
        self.weight = None


def hedgespec() -> Maker:
    """No parameters but the operator's K."""

    def make(pool: PoolFacts, rng: np.random.Generator) -> HedgeSpec:
        return HedgeSpec(pool, rng)

    return make
