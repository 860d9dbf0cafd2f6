"""The ledger: cumulative frames of many engine incarnations in, each difference exactly once out. Pure.

A frame may be lost, repeated or late. Because cells are absolute since the incarnation's start, a frame whose sequence
number is not new is ignored, a gap is only counted, and the next value of a cell brings what the lost frame held. What
the ledger has given out so far is part of its state, and the state is saved together with the learner's.
"""

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple, cast

import msgspec

from controller.cells import Cell, CellError, Key, add, cells_of, key, subtract
from controller.learner.evidence import Delta
from controller.learner.schema import Migration, current
from controller.likeness import disagreement
from controller.reported import Sums
from engine.link.messages import (
    OTHER,
    AcceptanceCell,
    AccountCell,
    BreakerState,
    CostCell,
    EngineDescription,
    Frame,
    MomentCell,
    Version,
)

SCHEMA = 1
MIGRATIONS: Mapping[int, Migration] = {}  # from each older schema to the next
Verdict = Literal["learned", "ignored", "deferred", "rejected"]


class Limits(msgspec.Struct, frozen=True):
    """How much one pool may hold. `silent` and `tombstone` are seconds, the rest are numbers of things."""

    engines: int = 256
    domains: int = 64
    drafts: int = 16
    cells: int = 4096  # of one engine
    endings: int = 64  # replaced incarnations that stay in view; more are only remembered by id
    silent: float = 60.0  # not seen for so long: ended
    tombstone: float = 86_400.0  # an ended incarnation is remembered for so long


class Incarnation(msgspec.Struct):
    """One start of one engine: what it last reported. `seen`, `first`, `ended`: wall clock of the frames' arrival."""

    id: str
    engine: str
    describe: EngineDescription
    first: float
    seen: float
    seq: int = -1
    time: float = 0.0
    frames: int = 0
    missed: int = 0
    applied: Version | None = None
    breaker: BreakerState = "closed"
    running: int = 0
    waiting: int = 0
    steps: int = 0
    lost: int = 0
    ended: float | None = None
    final: bool = False
    policy_age: float | None = None


class Stranger(msgspec.Struct):
    """An engine whose frames are refused because it serves another target than the pool. `seen`: its newest frame."""

    incarnation: str
    describe: EngineDescription
    seen: float


class Counts(msgspec.Struct):
    """What happened to frames and cells so far. `missed`: sequence numbers that never arrived in order.

    `merged_cells`, `dropped_cells`: changes of cells (one cell in one frame) that came under domain `other` beyond the
    cap on domains, or were left out because their draft is beyond the cap on drafts.
    """

    learned: int = 0
    ignored: int = 0
    deferred: int = 0
    rejected: int = 0
    missed: int = 0
    merged_cells: int = 0
    dropped_cells: int = 0
    rebased: int = 0  # incarnations that came back after their cells had been let go


class Taken(NamedTuple):
    """What became of a frame. `delta` is None unless it brought something new; `reason` says why it did not count."""

    verdict: Verdict
    reason: str = ""
    delta: Delta | None = None


class _Cells(msgspec.Struct):
    acceptance: list[AcceptanceCell]
    moments: list[MomentCell]
    cost: list[CostCell]
    account: list[AccountCell]


class _State(msgspec.Struct):
    """The ledger as saved; cells carry their keys."""

    schema: int
    target: str
    incarnations: list[tuple[Incarnation, _Cells]]
    tombstones: dict[str, tuple[float, int]]
    domains: list[str]
    drafts: list[str]
    counts: Counts
    totals: tuple[list[AcceptanceCell], list[AccountCell]]
    strangers: dict[str, Stranger] = {}


class Ledger:
    """All incarnations of one pool. `totals`: the sum of everything given out, by cell, after the domain cap.

    `sums`: of each incarnation's cells, before it. `strangers`: engines with another target that report to this
    pool, by name.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.target = ""
        self.counts = Counts()
        self.incarnations: dict[str, Incarnation] = {}
        self.strangers: dict[str, Stranger] = {}
        self.totals: dict[Key, AcceptanceCell | AccountCell] = {}
        self.sums: dict[str, Sums] = {}
        self._cells: dict[str, dict[Key, Cell]] = {}  # by incarnation: the last value of each of its cells
        self._tombstones: dict[str, tuple[float, int]] = {}  # let go: when it ended, its last seq
        self._domains: dict[str, None] = {OTHER: None}
        self._drafts: dict[str, None] = {}

    def take(self, frame: Frame, arrived: float) -> Taken:
        """Take one frame that arrived at wall clock `arrived` (s). A rejected frame changes no cell, only a count."""
        taken = self._take(frame, arrived)
        setattr(self.counts, taken.verdict, getattr(self.counts, taken.verdict) + 1)
        stranger = self.strangers.get(frame.engine)
        if stranger is not None and (taken.verdict == "learned" or frame.final):
            del self.strangers[frame.engine]
        elif stranger is not None and stranger.incarnation == frame.incarnation:
            stranger.seen = max(stranger.seen, arrived)
        return taken

    def live(self) -> Iterator[Incarnation]:
        """Incarnations that have not ended."""
        return (i for i in self.incarnations.values() if i.ended is None)

    def disagreement(self) -> str | None:
        """Which engines are not like the pool's first live one, and how; None while all are alike."""
        live = [(i.engine, i.describe) for i in self.live()]
        return disagreement([*live, *((name, stranger.describe) for name, stranger in self.strangers.items())])

    def sweep(self, now: float) -> None:
        """End incarnations that have been silent; let go of old ones and, beyond the limits, of replaced ones."""
        self.strangers = {n: s for n, s in self.strangers.items() if now - s.seen <= self.limits.silent}
        newest = {i.engine: i.id for i in self.incarnations.values()}  # in order of arrival: the last one stands
        for incarnation in self.live():
            if now - incarnation.seen > self.limits.silent:
                incarnation.ended = now
        ended = sorted((i for i in self.incarnations.values() if i.ended is not None), key=lambda i: i.ended or 0.0)
        # A silent engine may only have lost its connection: its cells must be here when it comes back.
        silent = [i for i in ended if newest[i.engine] == i.id and not i.final]
        closed = [i for i in ended if newest[i.engine] != i.id or i.final]
        surplus = [*_before_last(silent, self.limits.engines), *_before_last(closed, self.limits.endings)]
        old = [i for i in ended if now - (i.ended or 0.0) > self.limits.tombstone]
        for incarnation in {i.id: i for i in surplus + old}.values():
            del self.incarnations[incarnation.id], self._cells[incarnation.id], self.sums[incarnation.id]
            self._tombstones[incarnation.id] = (incarnation.ended or 0.0, incarnation.seq)
        kept = sorted(
            (t for t in self._tombstones.items() if now - t[1][0] <= self.limits.tombstone), key=lambda t: t[1]
        )
        self._tombstones = dict(kept[-16 * self.limits.engines :])

    def _take(self, frame: Frame, arrived: float) -> Taken:
        incarnation = self.incarnations.get(frame.incarnation)
        refusal = self._refuse(frame, incarnation, arrived)
        if refusal is not None:
            return refusal
        new = incarnation is None
        let_go = frame.incarnation in self._tombstones
        if incarnation is None:
            # `_refuse` let no unknown incarnation pass without its description.
            describe = cast(EngineDescription, frame.describe)
            incarnation = Incarnation(frame.incarnation, frame.engine, describe, arrived, arrived)
        try:
            changes, cells = self._differences(frame, incarnation)
        except CellError as error:
            return Taken("rejected", str(error))
        if new:
            self._welcome(incarnation, arrived)
        interval = frame.time - incarnation.time
        self._advance(incarnation, frame, arrived, cells)
        for change in changes:
            self.sums[incarnation.id].add(change)
        if let_go:
            # What it had before was given out once; without its cells only what comes from now on can be told.
            del self._tombstones[frame.incarnation]
            self.counts.rebased += 1
            return Taken("learned", "came back after its cells had been let go: counted from here on")
        if not changes:
            return Taken("learned")
        # A frame is made when it is sent, and engines' wall clocks differ: its arrival is the better date.
        return Taken("learned", "", self._delta(frame.engine, arrived - interval / 2, changes))

    def _refuse(self, frame: Frame, known: Incarnation | None, arrived: float) -> Taken | None:
        """Why this frame does not count, or None when it may."""
        refusal = self._refuse_new(frame) if known is None else _refuse_next(frame, known)
        describe = frame.describe or (known.describe if known is not None else None)
        if refusal is not None or describe is None or describe.target == self.target:
            return refusal
        if any(other.engine != frame.engine for other in self.live()):
            if frame.engine in self.strangers or len(self.strangers) < self.limits.engines:
                self.strangers[frame.engine] = Stranger(frame.incarnation, describe, arrived)
            return Taken("rejected", f"engine serves target {describe.target!r}, the pool serves {self.target!r}")
        return None  # alone in the pool: the pool serves its target from now on

    def _refuse_new(self, frame: Frame) -> Taken | None:
        let_go = self._tombstones.get(frame.incarnation)
        if let_go is not None and frame.seq <= let_go[1]:
            return Taken("ignored", "its incarnation has ended and been let go")
        if frame.describe is None or (let_go is not None and not frame.full):
            # Counters are cumulative, so the next full frame brings what this one holds.
            return Taken("deferred", "an unknown incarnation's frame that is not full, with description")
        others = sum(other.engine != frame.engine for other in self.live())
        if others >= self.limits.engines:
            return Taken("rejected", f"the pool already has {others} engines, the limit")
        return None

    def _differences(self, frame: Frame, incarnation: Incarnation) -> tuple[list[Cell], dict[Key, Cell]]:
        """The cells that changed, as differences, and all cells of the frame by key. Raises `CellError`."""
        known = self._cells.get(incarnation.id, {})
        cells: dict[Key, Cell] = {}
        changes: list[Cell] = []
        for cell in cells_of(frame):
            name = key(cell)
            if name in cells:
                raise CellError(f"the frame holds {' '.join(map(str, name))} twice")
            cells[name] = cell
            change = subtract(cell, known.get(name))  # type: ignore[type-var]  # key() includes the type
            if change is not None:
                changes.append(change)
        if frame.full and (gone := known.keys() - cells.keys()):
            raise CellError(f"a full frame lacks {' '.join(map(str, min(gone, key=str)))}, reported before")
        if len(known.keys() | cells.keys()) > self.limits.cells:
            raise CellError(f"more than {self.limits.cells} cells of one engine")
        return changes, cells

    def _welcome(self, incarnation: Incarnation, arrived: float) -> None:
        for other in self.live():
            if other.engine == incarnation.engine:  # a restart: one name is one process
                other.ended = arrived
        self.incarnations[incarnation.id] = incarnation
        self._cells[incarnation.id] = {}
        self.sums[incarnation.id] = Sums()
        self.target = incarnation.describe.target

    def _advance(self, incarnation: Incarnation, frame: Frame, arrived: float, cells: dict[Key, Cell]) -> None:
        if incarnation.seq >= 0:
            gap = frame.seq - incarnation.seq - 1
            incarnation.missed += gap
            self.counts.missed += gap
        if frame.final:
            cells = self._cells[incarnation.id] = {}  # nothing comes after it
        self._cells[incarnation.id] |= cells
        incarnation.seq, incarnation.time = frame.seq, frame.time
        incarnation.seen = max(incarnation.seen, arrived)
        incarnation.frames += 1
        incarnation.describe = frame.describe or incarnation.describe
        incarnation.applied, incarnation.breaker = frame.applied, frame.breaker
        incarnation.running, incarnation.waiting = frame.running, frame.waiting
        incarnation.steps, incarnation.lost = frame.steps, frame.lost
        incarnation.policy_age = frame.policy_age
        incarnation.final = frame.final
        incarnation.ended = arrived if frame.final else None
        self.target = incarnation.describe.target
        for draft in incarnation.describe.drafts:
            self._known(draft.name)

    def _delta(self, engine: str, time: float, changes: list[Cell]) -> Delta:
        """The changes under the pool's caps, cells that fall together added up, and remembered in `totals`."""
        merged: dict[Key, Cell] = {}
        for change in changes:
            cell = self._capped(change)
            if cell is None:
                self.counts.dropped_cells += 1
                continue
            name = key(cell)
            merged[name] = add(merged[name], cell) if name in merged else cell  # type: ignore[type-var]  # same key
            if isinstance(cell, AcceptanceCell | AccountCell):
                total = self.totals.get(name)
                self.totals[name] = cell if total is None else add(total, cell)  # type: ignore[type-var]  # same key
        sorted_out = _packed(merged)
        return Delta(
            engine=engine,
            time=time,
            acceptance=sorted_out.acceptance,
            moments=sorted_out.moments,
            cost=sorted_out.cost,
            account=sorted_out.account,
        )

    def _capped(self, cell: Cell) -> Cell | None:
        if isinstance(cell, CostCell):
            return cell if all(self._known(draft) for draft in cell.drafts) else None
        if not isinstance(cell, AccountCell) and not self._known(cell.draft):
            return None
        if cell.domain not in self._domains:
            if len(self._domains) > self.limits.domains:  # OTHER is not counted
                self.counts.merged_cells += 1
                return msgspec.structs.replace(cell, domain=OTHER)
            self._domains[cell.domain] = None
        return cell

    def _known(self, draft: str) -> bool:
        if draft not in self._drafts and len(self._drafts) < self.limits.drafts:
            self._drafts[draft] = None
        return draft in self._drafts

    def dump(self) -> bytes:
        """The whole state, to be restored exactly by `load`."""
        totals = _packed(dict(self.totals))
        state = _State(
            schema=SCHEMA,
            target=self.target,
            incarnations=[(i, _packed(self._cells[i.id])) for i in self.incarnations.values()],
            tombstones=self._tombstones,
            domains=list(self._domains),
            drafts=list(self._drafts),
            counts=self.counts,
            totals=(totals.acceptance, totals.account),
            strangers=self.strangers,
        )
        return msgspec.msgpack.encode(state)

    @classmethod
    def load(cls, data: bytes, limits: Limits | None = None) -> "Ledger":
        """Restore a dump, of an older schema too. Raises `CheckpointError` for a newer one, `ValueError` for none."""
        try:
            state = msgspec.msgpack.decode(current(data, "the saved ledger", SCHEMA, MIGRATIONS), type=_State)
        except msgspec.MsgspecError as error:
            raise ValueError(f"the saved ledger cannot be read: {error}") from error
        ledger = cls(limits)
        ledger.target, ledger.counts, ledger._tombstones = state.target, state.counts, state.tombstones
        ledger.strangers = state.strangers
        for incarnation, kinds in state.incarnations:
            ledger.incarnations[incarnation.id] = incarnation
            cells: tuple[Cell, ...] = (*kinds.acceptance, *kinds.moments, *kinds.cost, *kinds.account)
            ledger._cells[incarnation.id] = {key(cell): cell for cell in cells}
            sums = ledger.sums[incarnation.id] = Sums()
            for cell in cells:
                sums.add(cell)
        totals: tuple[AcceptanceCell | AccountCell, ...] = (*state.totals[0], *state.totals[1])
        ledger.totals = {key(cell): cell for cell in totals}
        ledger._domains = dict.fromkeys(state.domains)
        ledger._drafts = dict.fromkeys(state.drafts)
        return ledger


def _packed(cells: dict[Key, Cell]) -> _Cells:
    packed = _Cells([], [], [], [])
    for cell in cells.values():
        match cell:
            case AcceptanceCell():
                packed.acceptance.append(cell)
            case MomentCell():
                packed.moments.append(cell)
            case CostCell():
                packed.cost.append(cell)
            case AccountCell():
                packed.account.append(cell)
    return packed


def _before_last(incarnations: list[Incarnation], kept: int) -> list[Incarnation]:
    return incarnations[: max(0, len(incarnations) - kept)]


def _refuse_next(frame: Frame, known: Incarnation) -> Taken | None:
    if frame.seq <= known.seq:
        return Taken("ignored", f"seq {frame.seq} is not after {known.seq}")
    if frame.engine != known.engine:
        return Taken("rejected", f"incarnation of engine {known.engine!r} sent as {frame.engine!r}")
    if frame.time < known.time:
        return Taken("rejected", f"engine time went backwards, from {known.time} to {frame.time}")
    if known.final:
        return Taken("rejected", "sent after the incarnation's final frame")
    return None
