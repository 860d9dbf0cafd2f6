"""Why a cell's choice last changed, from values kept at decision time. Pure.

Of every cell that is served a mark is kept: what is chosen, since when, why, and two earlier sets of the values that
choices rest on, _KEPT_SECONDS apart. When the choice changes, the cause is what moved most between then and now, all in
one unit: with an arm worth ln(tokens / seconds) of one row's step, the new arm's lead over the old one has grown by
what it would have grown by if this value alone had moved.
"""

import math
import time
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from controller.learner.decision import Decision
from controller.learner.discount import Array
from controller.published import Arm, Cell, arm_words, followers, honest
from engine.link.messages import NO_DRAFT, Mode, StaticChoice

MAX_MARKS = 128  # the first cells served; those of later ones would not fit into a small checkpoint
_KEPT_SECONDS = 300.0
_MAX_EVENTS = 16
_LEAST = 0.002  # of goodput: what moves the lead by less is no cause
_MIX_MOVED = 0.1
_ROWS_MOVED = 0.1  # relative


class Basis(msgspec.Struct, frozen=True):
    """What a cell's choice rested on at `time`. `acceptance`: by draft and position; `seconds`: expected, of a step by
    draft and K; `mix`: the domain's share of the rows at this load; `rows`: of a step."""

    time: float
    acceptance: dict[str, list[float]]
    seconds: dict[str, dict[int, float]]
    mix: float
    rows: float


class Mark(msgspec.Struct):
    """A cell's choice. `since`, `why`: of its last change (no `why`: it never changed); `pin`: what it is pinned to, in
    words; `recent`: the values of _KEPT_SECONDS ago or less, `before`: those kept before that."""

    arm: Arm
    since: float
    recent: Basis
    before: Basis | None = None
    why: str = ""
    pin: str = ""


class Event(msgspec.Struct, frozen=True):
    """Something that explains changes after it, of one domain and draft or of all (None)."""

    time: float
    what: str
    domain: str | None = None
    draft: str | None = None


class Playing(NamedTuple):
    """Which requests follow the policy: mode and share, and what the others play."""

    mode: Mode = "on"
    static: StaticChoice = StaticChoice()
    share: float = 1.0


EVERYBODY = Playing()


class State(msgspec.Struct):
    """For the checkpoint."""

    marks: list[tuple[Cell, Mark]] = []
    events: list[Event] = []
    mode: str = ""


class Move(NamedTuple):
    """What a value's move alone adds to the lead, relative goodput, and how to say it."""

    gained: float
    what: str


def worth(basis: Basis, arm: Arm) -> float:
    """ln(tokens / seconds) of a row's step at an arm.

    >>> basis = Basis(0.0, {"d": [0.5, 0.5]}, {"none": {0: 1.0}, "d": {2: 1.75}}, 1.0, 1.0)
    >>> worth(basis, ("d", 2)), worth(basis, ("none", 0))    # 1 + .5 + .25 tokens in 1.75 s
    (0.0, 0.0)
    """
    draft, k = arm
    tokens = survival = 1.0
    for p in basis.acceptance.get(draft, [])[:k]:
        survival *= p
        tokens += survival
    return math.log(tokens) - math.log(basis.seconds[draft][k])


def lead(basis: Basis, new: Arm, old: Arm) -> float:
    """How much better the new arm is than the old one, as a difference of logarithms."""
    return worth(basis, new) - worth(basis, old)


def cause(before: Basis, now: Basis, new: Arm, old: Arm, domain: str) -> str:
    """What moved most for the new arm and against the old one.

    >>> before = Basis(0.0, {"d": [0.8, 0.7, 0.71]}, {"d": {2: 1.2, 3: 1.3}}, 1.0, 1.0)
    >>> now = Basis(9.0, {"d": [0.79, 0.7, 0.58]}, {"d": {2: 1.2, 3: 1.3}}, 1.0, 1.0)
    >>> cause(before, now, ("d", 2), ("d", 3), "chat")
    'acceptance at position 3 fell from 0.71 to 0.58'
    """
    if any(draft not in b.seconds or k not in b.seconds[draft] for b in (before, now) for draft, k in (new, old)):
        return "the arms that can be played have changed"
    start = lead(before, new, old)
    moves = [_priced(before, now, new, old, domain)]
    for draft in sorted({new[0], old[0]} - {NO_DRAFT}):
        ours = "" if new[0] in (old[0], NO_DRAFT) or old[0] == NO_DRAFT else f" of {draft}"
        for i, (then, today) in enumerate(zip(before.acceptance[draft], now.acceptance[draft], strict=False)):
            moved = [*before.acceptance[draft]]
            moved[i] = today
            alone = msgspec.structs.replace(before, acceptance={**before.acceptance, draft: moved})
            verb = "rose" if today > then else "fell"
            what = f"acceptance{ours} at position {i + 1} {verb} from {then:.2f} to {today:.2f}"
            moves.append(Move(lead(alone, new, old) - start, what))
    most = max(moves, key=lambda move: move.gained)
    if most.gained >= _LEAST:
        return most.what
    return "the two are close, and nothing moved by much"


def _priced(before: Basis, now: Basis, new: Arm, old: Arm, domain: str) -> Move:
    """What the prices of steps add, and why they moved: the mix of the batch, its rows, or the steps themselves."""

    def seconds(basis: Basis, arm: Arm) -> float:
        return basis.seconds[arm[0]][arm[1]]

    def dearer(arm: Arm) -> float:
        return math.log(seconds(now, arm) / seconds(before, arm))

    gained = dearer(old) - dearer(new)
    if abs(now.mix - before.mix) >= _MIX_MOVED:
        return Move(gained, f"{domain} is {now.mix:.0%} of the rows at this load, before {before.mix:.0%}")
    if abs(now.rows / before.rows - 1.0) >= _ROWS_MOVED:
        return Move(gained, f"a step at this load has {now.rows:.1f} rows, before {before.rows:.1f}")
    draft, k = arm = max((new, old), key=lambda one: abs(dearer(one)))
    name = "without speculation" if draft == NO_DRAFT else f"at K = {k} on {draft}"
    then, today = (1000.0 * seconds(basis, arm) for basis in (before, now))
    return Move(gained, f"a step {name} takes {today:.3g} ms, before {then:.3g} ms")


def basis_of(decision: Decision, acceptance: Array, at: int, context: int, now: float) -> Basis:
    """The values of one cell of a decision; acceptance [contexts, J, positions]; `at`: the load's index."""
    spec, table = decision.spec, decision.tables[at]
    curves, seconds = {}, {NO_DRAFT: {0: float(table.seconds[context, 0, 0])}}
    for j, draft in enumerate(spec.drafts):
        ks = spec.allowed(draft.name)
        curves[draft.name] = acceptance[context, j, : ks[-1]].round(4).tolist()
        seconds[draft.name] = dict(zip(ks, table.seconds[context, j].tolist(), strict=False))
    return Basis(now, curves, seconds, float(decision.mix[at, context]), float(decision.rows[at]))


class Causes:
    """The marks of a pool's cells."""

    def __init__(self, state: State | None = None) -> None:
        state = state or State()
        self.mode = state.mode
        self.marks: dict[Cell, Mark] = dict(state.marks)
        self.events = list(state.events)

    def saved(self) -> State:
        """For the checkpoint."""
        return State(list(self.marks.items()), self.events, self.mode)

    def happened(self, event: Event) -> None:
        """Remember what explains changes that follow."""
        self.events = [*self.events, event][-_MAX_EVENTS:]

    def steered(self, mode: str, pins: Mapping[tuple[str, str], str], now: float) -> None:
        """The mode in force, and what contexts are pinned to, in words: they change what is played, too."""
        for (domain, regime, _), mark in self.marks.items():
            pin = pins.get((domain, regime), "")
            if pin != mark.pin:
                mark.since, mark.why, mark.pin = now, pin or "unpinned", pin
            elif self.mode not in ("", mode):
                mark.since, mark.why = now, f"mode {mode}, before {self.mode}"
        self.mode = mode

    def see(self, cell: Cell, arm: Arm, basis: Basis, *, spent: bool) -> None:
        """What is chosen for a cell now; `spent`: its exploration budget is."""
        mark = self.marks.get(cell)
        if mark is None:
            if len(self.marks) < MAX_MARKS:
                self.marks[cell] = Mark(arm, basis.time, basis)
            return
        if mark.arm != arm:
            before = mark.before or mark.recent
            if not mark.pin:  # under a pin what is played stays what it is
                mark.since, mark.why = basis.time, self._why(cell[0], before, basis, arm, mark.arm, spent=spent)
            mark.arm, mark.before, mark.recent = arm, None, basis
        elif basis.time - mark.recent.time >= _KEPT_SECONDS:
            mark.before, mark.recent = mark.recent, basis

    def due(self, cell: Cell, arm: Arm, now: float) -> bool:
        """Whether `see` has anything to do."""
        mark = self.marks.get(cell)
        if mark is None:
            return len(self.marks) < MAX_MARKS
        return mark.arm != arm or now - mark.recent.time >= _KEPT_SECONDS

    def _why(self, domain: str, before: Basis, now: Basis, new: Arm, old: Arm, *, spent: bool) -> str:
        for event in reversed(self.events):
            meant = event.domain in (None, domain) and event.draft in (None, new[0], old[0])
            if meant and event.time >= before.time:
                return event.what
        if spent and new[0] == NO_DRAFT:
            return "its exploration budget was spent"
        return cause(before, now, new, old, domain)

    def tell(self, cell: Cell, reason: str, now: float, playing: Playing = EVERYBODY) -> str:
        """The sentence about a cell: the reason with its pin in front and its last change at the end. Where not all
        requests follow the policy it begins with what the others play, and with what that can tell.

        >>> mark = Mark(("d", 2), 50_700.0, Basis(0.0, {}, {}, 1.0, 1.0), why="mode on, before off")
        >>> causes = Causes(State([(("chat", "greedy", 1), mark)]))
        >>> causes.tell(("chat", "greedy", 1), "d at K = 2: 1.5x plain", now=60_000.0)
        'd at K = 2: 1.5x plain; last change 14:05 UTC: mode on, before off'
        """
        mark = self.marks.get(cell)
        pin = mark.pin if mark is not None else ""
        limits = honest(playing.mode, playing.static)
        if limits is not None:
            idle = f"{pin}, which mode {playing.mode} does not play; " if pin else ""
            sentence = f"{limits}; {idle}would choose {reason}"
        else:
            sentence = f"{f'{pin}; without that: ' if pin else ''}{reason}"
            others = 1.0 - followers(playing.mode, playing.share)
            if others > 0:
                static = arm_words(playing.static.draft, playing.static.k)
                sentence = f"mode {playing.mode}: {100 * others:.3g}% of requests play {static}, the others {sentence}"
        if mark is None:
            return sentence
        then, today = time.gmtime(mark.since), time.gmtime(now)
        clock = time.strftime("%H:%M" if then[:3] == today[:3] else "%Y-%m-%d %H:%M", then) + " UTC"
        last = f"last change {clock}: {mark.why}" if mark.why else f"no change since {clock}"
        return f"{sentence}; {last}"
