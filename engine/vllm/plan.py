"""What a step drafts, from the scheduler to the worker: a number that carries who gets what."""

from collections.abc import Mapping, Sequence


class Plan(int):
    """The K of a step's drafting, and by request the place of its drafter and its own K.

    vLLM hands one number from its scheduler to its drafter: `SchedulerOutput.num_spec_tokens_to_schedule` becomes the
    first argument of `propose`, pickled on the way where the worker is another process. This one travels there, so that
    a step's plan cannot be mixed up with another step's and no further part of vLLM is touched. Who does not know it,
    reads a number.

    >>> plan = Plan(4, {"a": 0, "b": 2}, {"a": 4, "b": 1})
    >>> plan + 1, plan.rows(["b", "c", "a"])
    (5, {2: [0], 0: [2]})
    """

    drafts: Mapping[str, int]
    ks: Mapping[str, int]

    def __new__(cls, k: int, drafts: Mapping[str, int] | None = None, ks: Mapping[str, int] | None = None) -> "Plan":
        """The number `k`, with what it carries."""
        made = super().__new__(cls, k)
        made.drafts = drafts or {}  # a request without a drafter is not among them
        made.ks = ks or {}  # of requests that will decode next
        return made

    def rows(self, requests: Sequence[str]) -> dict[int, list[int]]:
        """Rows of a batch, ascending, by the place of their drafter."""
        found: dict[int, list[int]] = {}
        for row, request in enumerate(requests):
            at = self.drafts.get(request)
            if at is not None:
                found.setdefault(at, []).append(row)
        return found
