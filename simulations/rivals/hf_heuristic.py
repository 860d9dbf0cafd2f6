"""Hugging Face's heuristic for assisted generation: two tokens more after a full success, else one fewer.

Source: huggingface/transformers, `src/transformers/generation/candidate_generator.py`
(`AssistedCandidateGenerator.update_candidate_strategy`), schedule `heuristic_transient` (the number starts afresh with
each request), starting at 5 tokens as in the releases where the heuristic was the default; 5.x ships 20 and `constant`.
"""

import numpy as np

from simulations.policy import Ints, Maker, Outcome, PoolFacts, View
from simulations.rivals.one_draft import OneDraft

INITIAL = 5


def updated(wanted: Ints, accepted: Ints, drafted: Ints, limit: int) -> Ints:
    """Tokens to draft next, [rows]: +2 where all drafted tokens were accepted, else -1 but at least 1.

    Unchanged where nothing was drafted. Never above `limit`, the largest K that can run: else a long success would
    take as long to forget.

    >>> updated(np.array([5, 5, 1, 5, 7]), np.array([5, 4, 0, 0, 7]), np.array([5, 5, 1, 0, 7]), 8).tolist()
    [7, 4, 1, 5, 8]
    """
    moved = np.where(accepted >= drafted, np.minimum(wanted + 2, limit), np.maximum(wanted - 1, 1))
    return np.where(drafted > 0, moved, wanted)


class HfHeuristic(OneDraft):
    """A number of tokens for each running request."""

    def __init__(self, pool: PoolFacts, draft: int | None, initial: int) -> None:
        super().__init__("hf-heuristic", pool, draft)
        self.limit = max(int(self.rungs[-1]), 1)
        self.initial = min(initial, self.limit)
        self.running: dict[int, tuple[Ints, Ints]] = {}  # engine: requests, ascending, and their wanted tokens

    def wanted(self, engine: int, request: Ints) -> Ints:
        """Tokens wanted by each row, [rows]; the initial number for a request not seen in the last step."""
        known, tokens = self.running.get(engine, (request[:0], request[:0]))
        if not len(known):
            return np.full(request.shape, self.initial, dtype=np.intp)
        at = np.minimum(np.searchsorted(known, request), len(known) - 1)
        return np.where(known[at] == request, tokens[at], self.initial)

    def length(self, view: View, drafting: int) -> Ints:
        """K of each row."""
        return self.wanted(view.engine, view.request)

    def observe(self, outcome: Outcome) -> None:
        """Move each request's number, and forget the finished ones."""
        view = outcome.view
        tokens = updated(self.wanted(view.engine, view.request), outcome.accepted, outcome.k, self.limit)
        alive = np.flatnonzero(~outcome.finished)
        order = alive[np.argsort(view.request[alive], kind="stable")]
        self.running[view.engine] = (view.request[order], tokens[order])


def hf_heuristic(draft: int | None = None, initial: int = INITIAL) -> Maker:
    """One configured draft; `initial` tokens for a fresh request."""

    def make(pool: PoolFacts, rng: np.random.Generator) -> HfHeuristic:
        return HfHeuristic(pool, draft, initial)

    return make
