"""What the rivals that know a single draft have in common: every request gets it, and a rule gives K."""

from abc import abstractmethod

import numpy as np

from simulations.policy import NO_DRAFT, Bools, Choice, Ints, PoolFacts, View
from simulations.rivals.rival import Rival


def ladder(pool: PoolFacts, draft: int) -> Ints:
    """Values of K that `draft` can run, ascending, 0 first; only 0 for NO_DRAFT or a draft that is not in the pool.

    >>> from simulations.policy import DraftFacts
    >>> pool = PoolFacts(("code",), (DraftFacts("small", "model", 4, 1e9),), (0, 1, 2, 4, 8), (0, 4), 8, 1)
    >>> ladder(pool, 0).tolist(), ladder(pool, NO_DRAFT).tolist()
    ([0, 1, 2, 4], [0])
    """
    if not 0 <= draft < len(pool.drafts):
        return np.zeros(1, dtype=np.intp)
    limit = pool.drafts[draft].max_k
    return np.array(sorted({0} | {k for k in pool.ks if 0 <= k <= limit}), dtype=np.intp)


def snapped(rungs: Ints, k: Ints | int) -> Ints:
    """The largest rung that is at most k, and the first one above 0 where 0 < k lies below it.

    `rungs` ascending, 0 first. A method that asks for some drafting keeps drafting: only k <= 0 becomes 0.

    >>> snapped(np.array([0, 2, 4, 8]), np.array([0, 1, 2, 3, 7, 20])).tolist()
    [0, 2, 2, 2, 4, 8]
    >>> snapped(np.array([0]), 5).tolist()
    0
    """
    wanted = np.asarray(k, dtype=np.intp)
    at = np.maximum(np.searchsorted(rungs, wanted, side="right") - 1, 0)
    at = np.where(wanted > 0, np.clip(at, 1, None), at)
    return np.asarray(rungs[np.minimum(at, len(rungs) - 1)], dtype=np.intp)


def settled(view: View, draft_of_new: Ints | int) -> Ints:
    """Draft of every row, [rows]: `draft_of_new` where it is loaded for new rows, what they have for the others."""
    wanted = np.broadcast_to(np.asarray(draft_of_new, dtype=np.intp), view.domain.shape)
    return np.where(view.new, np.where(loaded(view, wanted), wanted, NO_DRAFT), view.draft)


def loaded(view: View, draft: Ints) -> Bools:
    """Where `draft` [rows] is a draft that can run now."""
    if not len(view.available):
        return np.zeros(draft.shape, dtype=np.bool_)
    there: Bools = (draft != NO_DRAFT) & view.available[np.maximum(draft, 0)]
    return there


class OneDraft(Rival):
    """Serves every request with one draft, the pool's first unless told otherwise; subclasses give K and observe.

    With a draft named, the policy is called `method@draft`: the yardstick that knew which draft to configure.
    """

    def __init__(self, method: str, pool: PoolFacts, draft: int | None = None) -> None:
        self.pool = pool
        self.draft = (0 if pool.drafts else NO_DRAFT) if draft is None else draft
        self.name = method if draft is None or draft == NO_DRAFT else f"{method}@{pool.drafts[draft].name}"
        self.rungs = ladder(pool, self.draft)

    @abstractmethod
    def length(self, view: View, drafting: int) -> Ints | int:
        """K, one for the batch or [rows], before it is held to what can run. `drafting`: rows that have the draft."""

    def choose(self, view: View) -> Choice:
        """The draft for new rows; K where the draft can run."""
        draft = settled(view, self.draft)
        can = loaded(view, draft)
        k = snapped(self.rungs, self.length(view, int(can.sum()))) if len(draft) else 0
        return Choice(draft, np.where(can, k, 0))
