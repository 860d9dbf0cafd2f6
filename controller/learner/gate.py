"""The safety gate: explore while the budget lasts, then speculate only where the gain is sure.

Every context holds a reserve of at most B0 steps, counted against plain decoding in *expectation* (the luck of tokens
would swamp them): for every batch step since the last decision, with arms played with probabilities pi,

    reserve += epsilon - loss,   loss = sum_arm pi(arm) * E[seconds / plain - tokens], by today's posterior

kept at B0 or below. What was played lately is not settled yet but pending, and judged anew at every decision
(`Learner._book`). So a context may lose B0 steps to find out, and epsilon of its steps for ever. The pool holds a
reserve of B0 too, on the sum over contexts: where nothing helps anywhere the contexts together lose B0, and where
drafts help in one of them its gains pay for looking in the others.

* an arm is *sure* when the lower bound of its gain clears 1 + margin: it may always be played;
* it is *open* while its upper bound reaches 1 + margin and there is something left to learn, its gain known no better
  than the margin: it may be played while the reserve lasts (explore early);
* a closed gate (own or pool's reserve spent, until half of it is back) plays sure arms only; mostly that is none.

Either way plain wins a draw unless an arm beats it by the margin.
"""

import numpy as np
from numpy.typing import NDArray

from controller.learner.discount import Array

_Z_LOW = 1.2816  # one-sided 90%
_Z_HIGH = 1.6449  # one-sided 95%


class Gate:
    """Reserves of all contexts, in batch steps."""

    def __init__(self, budget: float, epsilon: float, margin: float) -> None:
        self.budget, self.epsilon, self.margin = budget, epsilon, margin
        self.settled: Array = np.zeros(0)  # without what is pending
        self.reserve: Array = np.zeros(0)
        self.closed: NDArray[np.bool_] = np.zeros(0, dtype=bool)
        self.pool_settled = self.pool_reserve = budget
        self.pool_closed = False

    def grow(self, contexts: int) -> None:
        """Give contexts new since the last call a full budget."""
        more = contexts - len(self.reserve)
        if more > 0:
            self.settled = np.concatenate([self.settled, np.full(more, self.budget)])
            self.reserve = np.concatenate([self.reserve, np.full(more, self.budget)])
            self.closed = np.concatenate([self.closed, np.zeros(more, dtype=bool)])

    def refill(self, context: int) -> None:
        """Give a context its full budget again, as if it were new."""
        self.settled[context] = self.reserve[context] = self.budget
        self.closed[context] = False

    def charge(self, steps: Array, lost: Array, pending: Array | float = 0.0) -> None:
        """Book steps played, plain steps lost for good and those that are lost as it looks now; opens or closes
        contexts. [contexts] each.

        A gain that is only hoped for fills up the reserve while the hope lasts, and forgives nothing: it is pending. A
        debt ends at -B0: what a machine that became three times slower makes of the last hundred steps was lost by
        nobody's exploring, and would keep the gate shut for thousands of them.

        >>> gate = Gate(budget=10.0, epsilon=0.005, margin=0.01)
        >>> gate.grow(1)
        >>> gate.charge(np.array([100.0]), np.array([8.5]), np.array([-5.0]))
        >>> float(gate.reserve[0].round(6)), bool(gate.closed[0])    # 10 + .5 - 8.5 + 5
        (7.0, False)
        >>> gate.charge(np.array([0.0]), np.array([0.0]), np.array([5.0]))
        >>> float(gate.reserve[0].round(6)), bool(gate.closed[0])
        (-3.0, True)
        """
        change = steps * self.epsilon - lost
        self.settled = np.clip(self.settled + change, -self.budget, self.budget)
        self.reserve = np.clip(self.settled - pending, -self.budget, self.budget)
        self.closed = np.where(self.closed, self.reserve < 0.5 * self.budget, self.reserve <= 0.0)
        looks = float((pending * np.ones_like(lost)).sum())
        self.pool_settled = float(np.clip(self.pool_settled + float(change.sum()), -self.budget, self.budget))
        self.pool_reserve = float(np.clip(self.pool_settled - looks, -self.budget, self.budget))
        self.pool_closed = self.pool_reserve < 0.5 * self.budget if self.pool_closed else self.pool_reserve <= 0.0

    @property
    def shut(self) -> NDArray[np.bool_]:
        """Contexts that may play sure arms only, [contexts]."""
        return self.closed | self.pool_closed

    def admitted(self, mean: Array, relative_sd: Array) -> NDArray[np.bool_]:
        """Which arms may be played, [contexts, ...], from mean and relative sd of their gain over plain, same shape."""
        edge = 1.0 + self.margin
        hopeful = (mean * np.exp(_Z_HIGH * relative_sd) >= edge) & (relative_sd > self.margin)
        sure = mean * np.exp(-_Z_LOW * relative_sd) >= edge
        closed = self.shut.reshape(-1, *[1] * (mean.ndim - 1))
        return np.asarray(np.where(closed, sure, sure | hopeful), dtype=bool)


def nonadaptive_share(steps: Array, least: float) -> Array:
    """Share of requests whose K must not follow their own luck: everybody while the domain is young, `least` later.

    >>> nonadaptive_share(np.array([0.0, 200.0, 1800.0]), 0.2).round(2).tolist()
    [1.0, 0.6, 0.28]
    """
    return np.asarray(least + (1.0 - least) * 200.0 / (200.0 + steps), dtype=np.float64)
