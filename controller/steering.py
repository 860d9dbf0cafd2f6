"""What operators have ordered for a pool, and what their orders do to a policy. No I/O, no clock.

Orders are one record with a revision: who writes must have read the revision that is there, so that two people who
steer at once cannot undo each other unseen. The record lies in Redis beside the pool; any replica may write it, the
pool's leader obeys it.
"""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Literal

import msgspec

from controller.learner.config import PoolSpec
from controller.learner.evidence import Context
from engine.link.messages import MAX_K, NO_DRAFT, DraftChoice, Label, Mode, PolicyCell, Regime, StaticChoice

MAX_PINS = 256
MAX_RESETS = 64  # the newest; older ones were carried out long ago
MAX_NOTE = 500
MAX_MINUTES = 10_080  # a week
SHORTEST_WINDOW = 5.0  # seconds
LAST_TIME = 4e9  # Unix seconds (the year 2096): later ones are told as this

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

    @property
    def told(self) -> str:
        """In words.

        >>> Pin("chat", "ngram", 3, "greedy", until=0.0).told
        'pin chat (greedy) to ngram at K = 3 until 1970-01-01 00:00:00Z'
        """
        regime = "" if self.regime is None else f" ({self.regime})"
        until = ""
        if self.until is not None:
            until = time.strftime(" until %Y-%m-%d %H:%M:%SZ", time.gmtime(min(self.until, LAST_TIME)))
        return f"pin {self.domain}{regime} to {self.draft} at K = {self.k}{until}"


class Reset(msgspec.Struct, frozen=True):
    """Learn anew: of a domain, of a draft, of a draft in a domain. `number` grows with every reset of the pool."""

    number: int
    domain: Label | None = None
    draft: Label | None = None


class Measure(msgspec.Struct, frozen=True):
    """A measurement of the gain by `controller.switchback`: `windows` windows, two a pair, over `minutes` from `at` on.

    `share`: of that time in which everything plays the fixed choice, at most a half; `against`: which choice that is,
    the operators' static one or no speculation. `number` grows with every measurement of the pool.

    >>> hour = Measure(number=1, at=0.0, minutes=60.0, windows=20, share=0.1)
    >>> hour.pairs, hour.period, hour.window    # ten pairs, one every six minutes, of two windows of 36 s
    (10, 360.0, 36.0)
    """

    number: int
    at: float
    minutes: float
    windows: int
    share: float = 0.5
    against: Literal["static", "none"] = "static"
    by: str = ""
    note: Note = ""

    @property
    def pairs(self) -> int:
        """Pairs of windows."""
        return self.windows // 2

    @property
    def period(self) -> float:
        """Seconds from one pair's start to the next one's."""
        return 60.0 * self.minutes / self.pairs

    @property
    def window(self) -> float:
        """Seconds of one window."""
        return self.share * self.period

    @property
    def until(self) -> float:
        """Unix seconds at which it is over."""
        return self.at + 60.0 * self.minutes


class Orders(msgspec.Struct, frozen=True):
    """Everything ordered. `mode` None: the controller's own setting; `share`: of requests that follow the policy in the
    modes `canary` and `shadow+probe`; `retired`: drafts that no policy may name; `measure`: the newest measurement
    that was not stopped; `measures`: how many were ordered."""

    revision: int = 0
    mode: Mode | None = None
    share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.01
    pins: tuple[Pin, ...] = ()
    retired: tuple[Label, ...] = ()
    resets: tuple[Reset, ...] = ()
    measure: Measure | None = None
    measures: int = 0

    def standing(self, now: float) -> tuple[Pin, ...]:
        """Pins that have not run out."""
        return tuple(pin for pin in self.pins if pin.until is None or pin.until > now)


def with_mode(orders: Orders, mode: Mode, share: float | None) -> Orders:
    """Another mode; `share` None leaves it as it is, in `shadow+probe` at most 0.01. What is being measured under the
    old one ends."""
    if share is not None and mode not in ("canary", "shadow+probe"):
        raise OrderError(f"share is {share} in mode {mode!r}; allowed with 'canary' and 'shadow+probe' only")
    if mode == "shadow+probe" and share is not None and share > 0.01:
        raise OrderError(f"share is {share} in mode 'shadow+probe'; allowed: 0 to 0.01")
    share = orders.share if share is None else share
    if mode == "shadow+probe":  # a canary's share must not become one of probes
        share = min(share, 0.01)
    measure = orders.measure if (mode, share) == (orders.mode, orders.share) else None
    return msgspec.structs.replace(orders, mode=mode, share=share, measure=measure)


def with_measure(
    orders: Orders,
    measure: Measure,
    mode: Mode,
    static: StaticChoice,
    spec: PoolSpec | None,
    shortest: float = SHORTEST_WINDOW,
) -> Orders:
    """A measurement begun, in the place of one that runs. `mode`: the one in force; `static`: the operators' choice;
    `shortest`: seconds of a window.

    >>> with_measure(Orders(), Measure(0, 0.0, 10.0, 20), "shadow", StaticChoice(), None)
    Traceback (most recent call last):
    controller.steering.OrderError: mode is 'shadow', in which all requests play the static choice: there is nothing \
to compare it with, so no gain can be measured. Set mode 'canary' or 'on' first
    """
    if mode not in ("canary", "on"):
        what = "99% of requests or more" if mode == "shadow+probe" else "all requests"
        raise OrderError(
            f"mode is {mode!r}, in which {what} play the static choice: there is nothing to compare it with, so no "
            "gain can be measured. Set mode 'canary' or 'on' first"
        )
    if measure.windows < 6 or measure.windows % 2:
        raise OrderError(f"windows is {measure.windows}; allowed: even numbers from 6 on, two windows make a pair")
    if measure.window < shortest:
        raise OrderError(
            f"a window would last {measure.window:.1f} s; allowed: {shortest:g} s or more. Order more minutes, fewer "
            "windows or a larger share"
        )
    if spec is None or not spec.drafts:
        raise OrderError("the pool has no draft: there is nothing to measure")
    if measure.against == "none" and mode == "canary":
        raise OrderError(
            "against is 'none' in mode 'canary', in which the rest plays the static choice; allowed: 'static'"
        )
    instead = "set mode 'on' and measure against 'none'" if mode == "canary" else "measure against 'none'"
    if measure.against == "static" and static.draft not in (NO_DRAFT, *(draft.name for draft in spec.drafts)):
        raise OrderError(f"the static draft {static.draft!r} is not loaded or retired; {instead}")
    if measure.against == "static" and static.draft != NO_DRAFT and static.k not in spec.allowed(static.draft):
        prepared = ", ".join(map(str, spec.allowed(static.draft)))
        raise OrderError(
            f"the static K {static.k} is none that engines have prepared for {static.draft!r} ({prepared}): a policy "
            f"cannot order it, and a smaller one would be measured instead; {instead}"
        )
    number = orders.measures + 1
    return msgspec.structs.replace(orders, measure=msgspec.structs.replace(measure, number=number), measures=number)


def without_measure(orders: Orders, now: float) -> Orders:
    """The measurement stopped. Raises `OrderError` where none runs."""
    if orders.measure is None or orders.measure.until <= now:
        raise OrderError("nothing is being measured")
    return msgspec.structs.replace(orders, measure=None)


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


def with_reset(
    orders: Orders, domain: str | None, draft: str | None, domains: Collection[str], drafts: Collection[str]
) -> Orders:
    """A reset more. `domains`, `drafts`: those of which something can have been learned. Raises `OrderError` where it
    names nothing, or something else.

    >>> with_reset(Orders(), "caht", None, ["chat", "code"], ["ngram"])
    Traceback (most recent call last):
    controller.steering.OrderError: nothing was learned of domain 'caht'; known are 'chat', 'code'
    """
    if domain is None and draft is None:
        raise OrderError("a reset names a domain, a draft or both")
    for word, name, known in (("domain", domain, domains), ("draft", draft, drafts)):
        if name is not None and name not in known:
            names = ", ".join(map(repr, sorted(known))) or "none yet"
            raise OrderError(f"nothing was learned of {word} {name!r}; known are {names}")
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


def fixed(cells: Sequence[PolicyCell], choice: StaticChoice) -> list[PolicyCell]:
    """The cells with one choice for everybody, pins included, that no request's own luck moves. Shares of requests that
    explore stay as they are, so that the requests of a window are like those of the next. Requests that hold another
    draft, where engines cannot change it, play that one's K as the engine's own static choice would."""
    held = []
    for cell in cells:
        drafts = [
            msgspec.structs.replace(
                c, p=float(c.draft == choice.draft), k=[(0 if c.draft == NO_DRAFT else choice.k, 1.0)], seconds=[]
            )
            for c in cell.drafts
        ]
        held.append(msgspec.structs.replace(cell, drafts=drafts, draw=None, expected_speedup=None))
    return held
