"""What the engine and the link hand each other: a ticket per request, an outcome per completed step."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from engine.link.cells import AcceptanceCounts, AccountCounts, Segment
from engine.link.messages import Origin, Regime, Variant, Version

if TYPE_CHECKING:
    from engine.link.adapt import Evidence
    from engine.link.table import Choice
    from engine.link.trace import RequestTrace


class Ticket:
    """One request, from its admission to its end. Made by `admit`; only the link changes it.

    `domain` holds for the whole request, and so does `draft` unless the engine can switch. `origin` is `policy` where K
    never follows the request's own evidence, else `request`. `version` is the policy in force at admission, `None` for
    the operator's static choice.

    >>> Ticket("code", "greedy", "ngram")
    Ticket(code/greedy draft=ngram origin=policy version=None)
    """

    __slots__ = (
        "accept",
        "account",
        "base",
        "choice",
        "domain",
        "draft",
        "evidence",
        "evidences",
        "explores",
        "follows",
        "k",
        "limit",
        "number",
        "origin",
        "probability",
        "regime",
        "segment",
        "segments",
        "stamp",
        "trace",
        "variant",
        "version",
    )

    def __init__(
        self,
        domain: str,
        regime: Regime,
        draft: str,
        origin: Origin = "policy",
        version: Version | None = None,
        *,
        follows: bool = False,
        probability: float = 1.0,
        number: int = 0,
    ) -> None:
        self.domain = domain
        self.regime: Regime = regime
        self.draft = draft
        self.origin: Origin = origin
        self.version = version
        self.number = number
        # State of the choice. `follows`: the request obeys the policy (else the static choice); `probability`: of its
        # draft at admission; `base`: K of the window's draw or of the best arm; `k`: K planned last; `explores`: that
        # is not the cell's most probable arm; `stamp`: when `base` was computed.
        self.follows = follows
        self.probability = probability
        self.base = 0
        self.k = 0
        self.explores = False
        self.stamp = -1
        self.choice: Choice | None = None
        self.evidence: Evidence | None = None
        self.evidences: dict[str, Evidence] = {}  # by draft, where the request may move by its own luck
        self.variant: Variant = "static"
        # Cells this request counts into, looked up once.
        self.accept: AcceptanceCounts | None = None
        self.limit: AcceptanceCounts | None = None
        self.account: AccountCounts | None = None
        self.segment = Segment()
        # By draft: a request that comes back to one goes on with its segment, whose steps are correlated.
        self.segments = {draft: self.segment}
        self.trace: RequestTrace | None = None

    def take(self, draft: str) -> None:
        """Go on with another draft: cells and evidence are looked up anew."""
        self.draft = draft
        self.accept = self.limit = None
        self.evidence = self.evidences.get(draft)
        self.segment = self.segments.setdefault(draft, Segment())

    def __repr__(self) -> str:
        return f"Ticket({self.domain}/{self.regime} draft={self.draft} origin={self.origin} version={self.version})"


class RowOutcome(NamedTuple):
    """One decode row of a completed step.

    `drafted`: tokens asked of the draft and judged (0..MAX_K); where it offered fewer, the first one missing counts as
    seen and not accepted, since asking is all that a policy decides. `accepted`: draft tokens kept, 0..drafted. `seen`:
    positions whose outcome was decided, `min(accepted + 1, drafted)`, or `accepted` where a stop token, length or
    grammar cut the step before the next position was decided (censored, not rejected). `emitted`: tokens given out,
    0..accepted + 1. `limited`: K was clamped below the planned one by room, length, grammar or the operator.
    """

    ticket: Ticket
    drafted: int
    accepted: int
    seen: int
    emitted: int
    limited: bool = False


class StepOutcome(NamedTuple):
    """One completed step of the engine.

    `seconds`: interval between the ends of consecutive completed steps, idle gaps excluded. `rows`: decode rows only.
    `verified`: sum of K + 1 over decode rows, K as asked. `prefill`: prompt tokens prefilled in this
    step. `kv_tokens`: resident KV tokens of the running rows. `drafted`: for each draft that ran, its name to
    (tokens asked for, passes); (0, 1): it was kept in step for paused rows. A step is *plain* when no draft was asked
    for tokens in it and no row had draft tokens.
    """

    seconds: float
    rows: Sequence[RowOutcome]
    verified: int
    prefill: int = 0
    kv_tokens: int = 0
    drafted: Mapping[str, tuple[int, int]] = {}


class LinkLike(Protocol):
    """What an engine needs of a link: `engine.link.Link`, `StaticLink`, or one that wraps them."""

    def admit(self, domain: str, regime: Regime, batch: int) -> Ticket:
        """A ticket for a new request."""

    def plan(self, tickets: Sequence[Ticket], batch: int) -> list[int]:
        """K for every decode row."""

    def record(self, step: StepOutcome) -> None:
        """A step has been completed."""

    def finish(self, ticket: Ticket) -> None:
        """A request has ended."""

    def queue(self, waiting: int) -> None:
        """Requests waiting for a row."""
