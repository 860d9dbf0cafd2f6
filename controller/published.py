"""What requests really play under a policy as it was published: pins, mode, share and measurement carried out. Pure.

The learner's most probable arm is what the policy *would* play. It is what is played only in mode `on`, without a pin
and outside of a measurement's fixed windows; everywhere else people must be shown the arm in force.
"""

from collections.abc import Collection
from typing import Literal, NamedTuple

from controller.learner.evidence import Context
from engine.link.messages import NO_DRAFT, Mode, Policy, PolicyCell, StaticChoice

Arm = tuple[str, int]  # draft, K
Cell = tuple[str, str, int]  # domain, regime, load
Held = Literal["mode", "pin", "measurement"]

STATIC_MODES = frozenset[str](("off", "shadow"))
_SHARED = frozenset(("canary", "shadow+probe"))


class InForce(NamedTuple):
    """One cell. `shares`: of requests by the arm they are given (their own luck may then move K); `explored`: of
    requests given another arm than the policy's most probable one; `held`: what most requests play an arm for that was
    not learned, None where it was."""

    shares: dict[Arm, float]
    explored: float
    held: Held | None

    @property
    def top(self) -> Arm:
        """The arm that most requests are given."""
        return max(self.shares, key=lambda arm: self.shares[arm])


class Published(NamedTuple):
    """A policy as it was published. `static`: the static choice as engines play it (`PoolSpec.static_arm`); `pins`: the
    contexts whose cells are pinned; `measuring`: whether its cells are the fixed choice of a measurement."""

    policy: Policy
    static: Arm
    pins: Collection[Context] = ()
    measuring: bool = False

    def in_force(self, contexts: Collection[Context], load: int | None = None) -> dict[Cell, InForce]:
        """What is in force in every cell of these contexts, at every load or one."""
        return {
            (cell.domain, cell.regime, cell.load): self._cell(cell)
            for cell in self.policy.cells
            if load in (None, cell.load) and (cell.domain, cell.regime) in contexts
        }

    def _cell(self, cell: PolicyCell) -> InForce:
        mode, follows = self.policy.mode, followers(self.policy.mode, self.policy.share)
        if not follows:
            return InForce({self.static: 1.0}, 0.0, "mode")
        drawn = _drawn(cell)
        best = max(drawn, key=lambda arm: drawn[arm])
        drawing = 1.0 if mode == "shadow+probe" else cell.nonadaptive  # the others start from the best arm
        shares = {arm: follows * drawing * p for arm, p in drawn.items()}
        shares[best] += follows * (1.0 - drawing)
        ordered: Held | None = "pin" if (cell.domain, cell.regime) in self.pins else None
        held = "measurement" if self.measuring else ordered
        if 1.0 - follows >= shares[best] and not self.measuring:  # in a fixed window all play one arm, in canary too
            held = "mode"
        if follows < 1.0:
            shares[self.static] = shares.get(self.static, 0.0) + 1.0 - follows
        return InForce(shares, follows * drawing * max(0.0, 1.0 - drawn[best]), held)


def followers(mode: Mode, share: float) -> float:
    """Share of requests that follow the policy.

    >>> [followers(mode, 0.1) for mode in ("off", "shadow", "canary", "on")]
    [0.0, 0.0, 0.1, 1.0]
    """
    return 0.0 if mode in STATIC_MODES else share if mode in _SHARED else 1.0


def _drawn(cell: PolicyCell) -> dict[Arm, float]:
    """Probabilities by arm of a request that explores; K = 0 on a draft is no speculation."""
    drawn: dict[Arm, float] = {}
    for choice in cell.drafts:
        for k, p in choice.k:
            arm = (choice.draft, k) if k else (NO_DRAFT, 0)
            drawn[arm] = drawn.get(arm, 0.0) + choice.p * p
    return drawn


def arm_words(draft: str, k: int) -> str:
    """An arm in words.

    >>> arm_words("ngram", 2), arm_words("none", 0)
    ('ngram at K = 2', 'no speculation')
    """
    return f"{draft} at K = {k}" if k and draft != NO_DRAFT else "no speculation"


def identified(mode: Mode, static: StaticChoice, draft: str, k: int) -> bool:
    """Whether what is played in this mode shows an arm's acceptance.

    >>> static = StaticChoice("ngram", 2)
    >>> [identified("shadow", static, *arm) for arm in (("none", 0), ("ngram", 2), ("ngram", 4), ("eagle", 2))]
    [True, True, False, False]
    >>> identified("shadow+probe", static, "ngram", 4)
    True
    """
    return mode not in STATIC_MODES or k == 0 or (draft == static.draft and k <= static.k)


def honest(mode: Mode, static: StaticChoice) -> str | None:
    """What a mode in which all play the static choice can tell, and what it cannot; None for the others.

    >>> print(honest("off", StaticChoice()))
    in mode off all play no speculation, which shows what a plain step costs; drafts' acceptance and prices are prior \
or known from before
    """
    if mode not in STATIC_MODES:
        return None
    played = f"in mode {mode} all play {arm_words(static.draft, static.k)}, which shows"
    if not static.k or static.draft == NO_DRAFT:
        return f"{played} what a plain step costs; drafts' acceptance and prices are prior or known from before"
    return (
        f"{played} its acceptance up to position {static.k}; deeper positions, other drafts and what any other step "
        "costs, a plain one too, are prior or known from before"
    )
