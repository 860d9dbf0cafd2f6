"""What operators have ordered for a pool, and what their orders do to a policy. No I/O, no clock.

Orders are one record with a revision: who writes must have read the revision that is there, so that two people who
steer at once cannot undo each other unseen. The record lies in Redis beside the pool; any replica may write it, the
pool's leader obeys it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated

import msgspec

from controller.learner.config import PoolSpec
from controller.learner.evidence import Context
from engine.link.messages import MAX_K, NO_DRAFT, DraftChoice, Label, Mode, PolicyCell, Regime

MAX_PINS = 256
MAX_RESETS = 64  # the newest; older ones were carried out long ago
MAX_NOTE = 500

Note = Annotated[str, msgspec.Meta(max_length=MAX_NOTE)]


class OrderError(ValueError):
    """An order that cannot be carried out; the message names the value and what is allowed."""


class Pin(msgspec.Struct, frozen=True):
    """A domain held on one arm. `regime` None: both; `until`: Unix seconds, None: until it is unpinned."""

    domain: Label
    draft: Label
    k: Annotated[int, msgspec.Meta(ge=0, le=MAX_K)]
    regime: Regime | None = None
    until: float | None = None
    note: Note = ""
    by: str = ""
    at: float = 0.0


class Reset(msgspec.Struct, frozen=True):
    """Learn anew: of a domain, of a draft, of a draft in a domain. `number` grows with every reset of the pool."""

    number: int
    domain: Label | None = None
    draft: Label | None = None


class Orders(msgspec.Struct, frozen=True):
    """Everything ordered. `mode` None: the controller's own setting; `share`: of requests that follow the policy in the
    modes `canary` and `shadow+probe`; `retired`: drafts that no policy may name."""

    revision: int = 0
    mode: Mode | None = None
    share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.01
    pins: tuple[Pin, ...] = ()
    retired: tuple[Label, ...] = ()
    resets: tuple[Reset, ...] = ()

    def standing(self, now: float) -> tuple[Pin, ...]:
        """Pins that have not run out."""
        return tuple(pin for pin in self.pins if pin.until is None or pin.until > now)


def with_mode(orders: Orders, mode: Mode, share: float | None) -> Orders:
    """Another mode; `share` None leaves it as it is."""
    if share is not None and mode not in ("canary", "shadow+probe"):
        raise OrderError(f"share is {share} in mode {mode!r}; allowed with 'canary' and 'shadow+probe' only")
    if mode == "shadow+probe" and share is not None and share > 0.01:
        raise OrderError(f"share is {share} in mode 'shadow+probe'; allowed: 0 to 0.01")
    return msgspec.structs.replace(orders, mode=mode, share=orders.share if share is None else share)


def with_pin(orders: Orders, pin: Pin, spec: PoolSpec | None, now: float) -> Orders:
    """A pin more, in the place of an older one of the same domain and regime.

    >>> with_pin(Orders(), Pin("chat", "ngram", 3, until=5.0), None, now=10.0)
    Traceback (most recent call last):
    controller.steering.OrderError: until is 5.0, which is past; now is 10.0
    """
    if spec is not None:
        check_arm(pin.draft, pin.k, spec)
    if pin.draft in orders.retired:
        raise OrderError(f"draft {pin.draft!r} is retired; bring it back before a domain is pinned to it")
    if pin.until is not None and pin.until <= now:
        raise OrderError(f"until is {pin.until}, which is past; now is {now}")
    kept = [old for old in orders.standing(now) if not _replaces(pin, old)]
    if len(kept) >= MAX_PINS:
        raise OrderError(f"the pool has {len(kept)} pins; allowed are {MAX_PINS}")
    return msgspec.structs.replace(orders, pins=(*kept, pin))


def _replaces(new: Pin, old: Pin) -> bool:
    return new.domain == old.domain and (new.regime is None or new.regime == old.regime)


def without_pin(orders: Orders, domain: str, regime: Regime | None, now: float) -> Orders:
    """The pins of a domain taken away, of one regime or of both. Raises `OrderError` where there is none.

    >>> both = Orders(pins=(Pin("chat", "none", 0),))
    >>> without_pin(both, "code", None, 0.0)
    Traceback (most recent call last):
    controller.steering.OrderError: domain 'code' is not pinned; pinned are 'chat'
    """
    standing = orders.standing(now)
    kept = [
        pin for pin in standing if pin.domain != domain or (regime is not None and pin.regime not in (None, regime))
    ]
    if len(kept) == len(standing):
        names = ", ".join(sorted({repr(pin.domain) for pin in standing})) or "none"
        raise OrderError(f"domain {domain!r} is not pinned; pinned are {names}")
    # A pin of both regimes of which one is freed goes on for the other.
    gone = [pin for pin in standing if pin not in kept]
    other: dict[Regime, Regime] = {"greedy": "sampled", "sampled": "greedy"}
    if regime is not None:
        kept += [msgspec.structs.replace(pin, regime=other[regime]) for pin in gone if pin.regime is None]
    return msgspec.structs.replace(orders, pins=tuple(kept))


def with_reset(orders: Orders, domain: str | None, draft: str | None) -> Orders:
    """A reset more. Raises `OrderError` where it names nothing."""
    if domain is None and draft is None:
        raise OrderError("a reset names a domain, a draft or both")
    number = 1 + max((reset.number for reset in orders.resets), default=0)
    resets = (*orders.resets, Reset(number, domain, draft))[-MAX_RESETS:]
    return msgspec.structs.replace(orders, resets=resets)


def with_retired(orders: Orders, draft: str, retired: bool, drafts: Iterable[str], now: float) -> Orders:
    """A draft retired, or brought back. `drafts`: those that engines have loaded."""
    known = sorted({*drafts, *orders.retired})
    if draft not in known:
        raise OrderError(f"draft {draft!r} is loaded by no engine; loaded are {', '.join(map(repr, known)) or 'none'}")
    if retired and any(pin.draft == draft for pin in orders.standing(now)):
        pinned = ", ".join(repr(pin.domain) for pin in orders.standing(now) if pin.draft == draft)
        raise OrderError(f"draft {draft!r} is what {pinned} is pinned to; unpin first")
    names = {*orders.retired, draft} if retired else {*orders.retired} - {draft}
    return msgspec.structs.replace(orders, retired=tuple(sorted(names)))


def check_arm(draft: str, k: int, spec: PoolSpec) -> None:
    """Raises `OrderError` for an arm that the pool does not have."""
    if draft == NO_DRAFT:
        if k:
            raise OrderError(f"k is {k} without a draft; allowed: 0")
        return
    names = [d.name for d in spec.drafts]
    if draft not in names:
        raise OrderError(f"draft is {draft!r}; allowed: {', '.join(map(repr, [NO_DRAFT, *names]))}")
    allowed = spec.allowed(draft)
    if k not in allowed:
        raise OrderError(f"k is {k} for draft {draft!r}; allowed: {', '.join(map(str, allowed))}")


def pinned(cells: Sequence[PolicyCell], pins: Iterable[Pin]) -> list[PolicyCell]:
    """The cells with their domains' pins carried out: one arm, and no request's own luck moves K.

    A pin to a draft that the cells do not know (its engines have gone) is left out: what is learned rules meanwhile.
    """
    found = by_context(pins)
    if not found:
        return list(cells)
    return [_held(cell, found.get((cell.domain, cell.regime))) for cell in cells]


def by_context(pins: Iterable[Pin], drafts: Collection[str] | None = None) -> dict[Context, Pin]:
    """The pin of every (domain, regime) that has one; with `drafts` only of those whose draft is among them, or none.

    >>> sorted(by_context([Pin("chat", "none", 0), Pin("code", "eagle", 2, "greedy")], drafts=["ngram"]))
    [('chat', 'greedy'), ('chat', 'sampled')]
    """
    found: dict[Context, Pin] = {}
    for pin in pins:
        for regime in (pin.regime,) if pin.regime is not None else ("greedy", "sampled"):
            found[pin.domain, regime] = pin
    return {c: p for c, p in found.items() if drafts is None or p.draft == NO_DRAFT or p.draft in drafts}


def _held(cell: PolicyCell, pin: Pin | None) -> PolicyCell:
    if pin is None:
        return cell
    choices: Mapping[str, DraftChoice] = {choice.draft: choice for choice in cell.drafts}
    if pin.draft not in choices:
        return cell
    # Without prices no request's own evidence can move its K.
    arm = msgspec.structs.replace(choices[pin.draft], p=1.0, k=[(pin.k, 1.0)], seconds=[])
    rest = [msgspec.structs.replace(c, p=0.0, seconds=[]) for name, c in choices.items() if name != pin.draft]
    return msgspec.structs.replace(cell, drafts=[arm, *rest], nonadaptive=1.0, draw=None, expected_speedup=None)
