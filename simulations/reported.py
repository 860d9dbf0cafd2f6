"""A simulated step as an engine reports it to its link: the same for our policy offline and for virtual engines."""

from collections.abc import Sequence

from engine.link.ticket import RowOutcome, StepOutcome, Ticket
from simulations.policy import Outcome


def step_outcome(
    tickets: Sequence[Ticket], planned: Sequence[int], outcome: Outcome, names: Sequence[str]
) -> StepOutcome:
    """A simulated step as an engine reports it. `names`: of the drafts, the last one answering to NO_DRAFT.

    As everywhere in the simulations, an answer's last step is not cut at its length.
    """
    ks, accepted = outcome.k.tolist(), outcome.accepted.tolist()
    drafted: dict[str, tuple[int, int]] = {}
    for draft, k in zip(outcome.draft.tolist(), ks, strict=True):
        if k:
            tokens, passes = drafted.get(names[draft], (0, 0))
            drafted[names[draft]] = (tokens + k, max(passes, k))
    rows = [
        RowOutcome(ticket, k, a, min(a + 1, k), a + 1, k != plan)
        for ticket, k, a, plan in zip(tickets, ks, accepted, planned, strict=True)
    ]
    return StepOutcome(outcome.seconds, rows, len(ks) + sum(ks), outcome.prefill, outcome.kv, drafted)
