"""A request's own luck: its accepts and rejects sharpen the domain's curve, and K follows, with hysteresis."""

from engine.link.messages import MAX_K
from engine.link.table import Choice, best_k, values

DECIDE_EVERY = 4  # own steps between two decisions
HYSTERESIS = 0.03  # a move must promise this much more goodput
MEMORY_STEPS = 64  # own steps are forgotten at this time constant, so that K = 0 is not for ever


class Evidence:
    """What one request has shown, per position: accepted and missed, exponentially forgotten.

    `own_k` is the K that the evidence asks for, `None` while the request stays with the best arm.
    """

    __slots__ = ("accepted", "missed", "own_k", "steps")

    def __init__(self) -> None:
        self.accepted = [0.0] * MAX_K
        self.missed = [0.0] * MAX_K
        self.steps = 0
        self.own_k: int | None = None

    def observe(self, seen: int, accepted: int) -> bool:
        """Add a step; True when it is time to decide."""
        for i in range(accepted):
            self.accepted[i] += 1.0
        if seen > accepted:
            self.missed[accepted] += 1.0
        self.steps += 1
        return self.steps % DECIDE_EVERY == 0

    def forget(self) -> None:
        """Let the evidence fade by the steps of one decision."""
        keep = 1.0 - DECIDE_EVERY / MEMORY_STEPS
        self.accepted = [value * keep for value in self.accepted]
        self.missed = [value * keep for value in self.missed]


def decide(choice: Choice, evidence: Evidence) -> int | None:
    """K that the request's own evidence asks for under the cell's prices, or `None`: stay with the best arm.

    The domain's posterior (Beta, strength capped) takes the request's counts as a conjugate update; K maximises
    (1 + sum of survival) / seconds. K moves only where the gain over the present one exceeds the hysteresis, and only
    what differs from the domain's own best counts as moved: without evidence the answer is `None`.

    >>> from engine.link.messages import DraftChoice
    >>> prices = [(0, 1.0), (2, 1.2), (4, 1.5)]
    >>> choice = Choice(DraftChoice("d", 1.0, [(2, 1.0)], [6, 6, 6, 6], [4, 4, 4, 4], prices), 1.0, [0, 2, 4], 4)
    >>> own = Evidence()
    >>> choice.prior_k, decide(choice, own)
    (2, None)
    >>> for _ in range(12):
    ...     due = own.observe(4, 4)
    >>> decide(choice, own)
    4
    """
    if not choice.priced:
        return None
    priced = values(choice, evidence.accepted, evidence.missed)
    value = dict(priced)
    best = best_k(priced)
    present = choice.prior_k if evidence.own_k is None else evidence.own_k
    if value[best] > (1.0 + HYSTERESIS) * value.get(present, 0.0):
        present = best
    return None if present == choice.prior_k else present
