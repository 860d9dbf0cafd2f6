"""Decisions of idle loads, which may stand for a while.

Most pools run at a few of their load buckets. A load at which nothing has run since it was decided gains nothing from
a fresh decision until the evidence behind it has moved, and a joint choice is worth a fresh one as a whole or not at
all: its contexts answer each other. So a load's decision stands while

* no row ran there since the last decision (what is in use is always decided anew);
* no (context, draft) has gained or lost more than _MOVED of its observations, no load of its steps (_SOME of either are
  free): posteriors have moved by a small part of their own width, less than the spread between two samples of draws;
* the mix of contexts at the load moved by less than _SHIFTED in every context;
* contexts, gates, what may be played and which drafts must still be tried are the same.

An abrupt change of acceptance drops observations, so it falls under the second rule. Once rows come to the load, the
next decision is about it.
"""

from typing import NamedTuple

import numpy as np

from controller.learner.decision import LoadTable
from controller.learner.discount import Array
from engine.link.messages import PolicyCell

_MOVED, _SOME = 0.05, 20.0
_SHIFTED = 0.02


class Basis(NamedTuple):
    """What a decision rests on: observations (any shape), mix [C], and whatever must stay the same."""

    observations: Array
    mix: Array
    same: bytes

    def holds(self, now: "Basis") -> bool:
        """Whether a decision made on this basis may stand when `now` is the basis.

        >>> basis = Basis(np.array([180.0, 0.0]), np.array([0.5, 0.5]), b"")
        >>> basis.holds(basis._replace(observations=np.array([190.0, 1.0]))), basis.holds(basis._replace(same=b"x"))
        (True, False)
        >>> basis.holds(basis._replace(observations=np.array([191.0, 0.0])))    # more than 5% of 180 + 20
        False
        """
        if self.same != now.same or self.observations.shape != now.observations.shape:
            return False
        moved = np.abs(now.observations - self.observations) > _MOVED * (self.observations + _SOME)
        return not moved.any() and bool((np.abs(now.mix - self.mix) <= _SHIFTED).all())


class Standing(NamedTuple):
    """A load's decision. `plain_sd`: relative sd of its plain price; `gain` [C, J, Kn]: mean gains."""

    basis: Basis
    table: LoadTable
    plain_sd: float
    gain: Array
    cells: list[PolicyCell]
