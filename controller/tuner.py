"""Ledger and learner of one pool, joined: frames in, policies and checkpoints out. No I/O; one thread at a time."""

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import msgspec
import numpy as np

from controller.causes import Causes, Event, Playing, basis_of
from controller.causes import State as CausesState
from controller.learner.config import LearnerConfig, PoolSpec
from controller.learner.decision import Decision
from controller.learner.discount import Array
from controller.learner.estimates import Estimates
from controller.learner.learner import Learner
from controller.learner.policy import arm_name
from controller.learner.schema import CheckpointError, Migration, current
from controller.learner.whatif import Imagined
from controller.ledger import Ledger
from controller.offer import offer_of, present_load
from controller.portrait import Arms, Subject, portray
from controller.published import Arm, Cell, Published
from controller.recent import Recent
from controller.settings import ControllerSettings
from controller.steering import Orders, Pin, by_context, fixed, pinned
from controller.store import (
    DEAD_LETTERS,
    KEPT_OF_A_DEAD_FRAME,
    LARGEST_FRAME,
    NEWER,
    START,
    Checkpoint,
    DeadLetter,
    Entry,
    arrival,
)
from controller.switchback import State as SwitchbackState
from controller.switchback import Switchback
from controller.view import DecisionRecord, PoolView, Switch
from engine.link.messages import (
    NO_DRAFT,
    WIRE_VERSION,
    AccountCell,
    DraftInfo,
    EngineDescription,
    Frame,
    Mode,
    Policy,
    ProbePlan,
    StaticChoice,
    Version,
    decode_frame,
    encode,
)
from engine.link.pace import pace

log = logging.getLogger("controller")

# Of everything in `_Saved` but the ledger and the learner, which are encoded by themselves and have their own.
SCHEMA = 1
MIGRATIONS: Mapping[int, Migration] = {}  # from each older schema to the next
HISTORY = 200
DAY_MS = 86_400_000
OFFER_SECONDS = (
    30.0  # without a frame for so long a pool leaves the routers' hint; three decisions where they are slower
)


class Decided(NamedTuple):
    """What one decision wants written. `policy` is None while no engine has described itself; `offer`: see `Commit`."""

    state: bytes
    policy: bytes | None
    audit: bytes | None
    view: PoolView | None
    offer: bytes | None = None
    offer_seconds: float = 0.0


class _Saved(msgspec.Struct):
    schema: int
    ledger: bytes
    learner: bytes | None
    spec: PoolSpec | None
    arms: list[tuple[str, str, int, str, int]]
    decisions: int
    switches: int
    resets: int = 0  # number of the last reset carried out
    switchback: SwitchbackState | None = None
    causes: CausesState | None = None


def pool_spec(descriptions: Iterable[EngineDescription], retired: Sequence[str] = ()) -> PoolSpec | None:
    """What the engines of a pool can do between them, without retired drafts; None without engines.

    Engines replace a K they have not prepared by the next smaller one and leave out drafts they lack, so a pool may be
    changed engine by engine. A draft's largest K is the smallest that any of them allows.

    >>> from engine.link.messages import StaticChoice
    >>> one = EngineDescription("s", "t", "h", [DraftInfo("a", "ngram", 8)], [4, 8], StaticChoice(), 4)
    >>> both = [DraftInfo("a", "ngram", 4), DraftInfo("b", "model", 2)]
    >>> two = EngineDescription("s", "t", "h", both, [2], StaticChoice(), 8)
    >>> spec = pool_spec([one, two])
    >>> [(d.name, d.max_k) for d in spec.drafts], spec.k_values, spec.max_batch
    ([('a', 4), ('b', 2)], (2, 4, 8), 8)
    """
    described = list(descriptions)
    if not described:
        return None
    drafts: dict[str, DraftInfo] = {}
    for draft in (draft for description in described for draft in description.drafts if draft.name != NO_DRAFT):
        if draft.name in retired:
            continue
        known = drafts.get(draft.name, draft)
        drafts[draft.name] = msgspec.structs.replace(draft, max_k=min(draft.max_k, known.max_k))
    return PoolSpec(
        drafts=tuple(drafts[name] for name in sorted(drafts)),
        k_values=tuple(sorted({k for description in described for k in description.k_values})),
        max_batch=max(description.max_batch for description in described),
        static=described[-1].static,
    )


def check(state: bytes, pool: str = "") -> None:
    """Raise ValueError unless this version can go on from the state; `CheckpointError` for a newer one's."""
    try:
        Tuner._unpack(pool, ControllerSettings(), state)
    except msgspec.MsgspecError as error:
        raise ValueError(f"not a state of a pool: {error}") from error


def adopted(state: bytes, *, resets: int, engines: bool) -> bytes:
    """The state as another pool, or a later time of the same, goes on from it.

    resets: number of the last reset ordered there, none of which is to be carried out again. engines: whether the
    engines it was learned from are the pool's own; without them their counts are not counted on with, nor shown.
    """
    saved = msgspec.msgpack.decode(current(state, "the pool's state", SCHEMA, MIGRATIONS), type=_Saved)
    saved.resets = resets
    if not engines:
        saved.ledger = Ledger().dump()
    return msgspec.msgpack.encode(saved)


class Tuner:
    """`last_id`: of the newest frame taken; `pending`: frames since the last commit; `dead`: refused ones since then.

    `applied`: the highest policy version that an engine says it applies; those beyond the clock plus one day are not
    believed. `view`: what the last commit showed.
    """

    history = HISTORY

    def __init__(self, pool: str, settings: ControllerSettings, ledger: Ledger | None = None) -> None:
        self.pool = pool
        self.settings = settings
        self.ledger = ledger or Ledger()
        self.last_id = START
        self.pending = 0
        self.dead: deque[DeadLetter] = deque(maxlen=DEAD_LETTERS)
        self.applied: Version | None = None
        self.view: PoolView | None = None
        self._config = LearnerConfig(draws=settings.draws, max_tpot_p95=settings.max_tpot_p95)
        self._rng = np.random.default_rng(settings.seed)
        self._spec: PoolSpec | None = None
        self._learner: Learner | None = None
        self._decision: Decision | None = None
        self._published: Published | None = None  # the policy made of it
        self._lags: dict[str, float] = {}  # by incarnation: from its newest frame's arrival to its use
        self._arms: Arms = {}  # the most probable arm of every served cell
        self._recent = Recent()
        self._records: deque[DecisionRecord] = deque(maxlen=HISTORY)  # newest first
        self._notes: list[str] = []  # not yet committed
        self.unread = False  # the checkpoint it was restored from could not be read
        self._switches: list[Switch] = []  # not yet committed
        self.orders = Orders()
        self.switchback = Switchback(pool)
        self.causes = Causes()
        self._resets = 0  # number of the last reset carried out
        self._unlike: str | None = None  # what the log was told last
        self._decisions = 0
        self._switched = 0
        self._lag = 0.0
        self._last_frame: float | None = None

    @classmethod
    def restore(cls, pool: str, settings: ControllerSettings, checkpoint: Checkpoint | None) -> "Tuner":
        """Go on from a checkpoint. One that cannot be read is left behind with a note: engines' counts come again.

        `unread` is then True, and the caller is to keep the state before it is overwritten. Raises `CheckpointError`
        for one of a newer version.
        """
        if checkpoint is None:
            return cls(pool, settings)
        try:
            tuner = cls._unpack(pool, settings, checkpoint.state)
        except CheckpointError as error:
            raise CheckpointError(f"pool {pool!r}: {error}. {NEWER}") from None
        except (ValueError, msgspec.MsgspecError) as error:
            log.error("pool %s: the saved state cannot be read, learning anew: %s", pool, error)  # noqa: TRY400
            tuner = cls(pool, settings)
            tuner.unread = True
            tuner._notes.append(f"the saved state could not be read; learned anew: {error}")
        tuner.last_id = checkpoint.last_id
        return tuner

    @classmethod
    def _unpack(cls, pool: str, settings: ControllerSettings, state: bytes) -> "Tuner":
        saved = msgspec.msgpack.decode(current(state, "the pool's state", SCHEMA, MIGRATIONS), type=_Saved)
        tuner = cls(pool, settings, Ledger.load(saved.ledger))
        tuner._spec = saved.spec
        if saved.learner is not None and saved.spec is not None:
            tuner._learner = Learner.load(saved.learner, tuner._config, saved.spec)
        tuner._arms = {(domain, regime, load): (draft, k) for domain, regime, load, draft, k in saved.arms}
        tuner._decisions, tuner._switched, tuner._resets = saved.decisions, saved.switches, saved.resets
        tuner.switchback = Switchback(pool, saved.switchback)
        tuner.causes = Causes(saved.causes)
        return tuner

    @property
    def spec(self) -> PoolSpec | None:
        """What the pool can do, without retired drafts; None before any engine has described itself."""
        return self._spec

    @property
    def static(self) -> StaticChoice:
        """The operators' static choice, as engines play it."""
        return StaticChoice() if self._spec is None else StaticChoice(*self._spec.static_arm)

    @property
    def mode(self) -> Mode:
        """The mode in force: the operators' or the settings'."""
        return self.orders.mode or self.settings.mode

    @property
    def loaded(self) -> list[str]:
        """Names of the drafts that live engines have loaded, retired ones included."""
        spec = pool_spec(incarnation.describe for incarnation in self.ledger.live())
        return [] if spec is None else [draft.name for draft in spec.drafts]

    @property
    def learned(self) -> tuple[set[str], set[str]]:
        """Names of the domains and drafts that the learner knows, drafts that have gone among them."""
        if self._learner is None:
            return set(), set()
        return {domain for domain, _ in self._learner.contexts.names}, self._learner.drafts

    def steer(self, orders: Orders, now: float) -> None:
        """Obey these orders from the next decision on. `now`: wall clock, seconds."""
        self.orders = orders
        self._equip(self.ledger.target, now)
        self.switchback.obey(orders.measure, self.static, now)
        for reset in orders.resets:
            if reset.number > self._resets:
                self._resets = reset.number
                if self._learner is not None:
                    self._learner.forget(reset.domain, reset.draft)
                    what = " on ".join(name for name in (reset.domain, reset.draft) if name is not None)
                    self.causes.happened(Event(now, f"{what} was learned anew by order", reset.domain, reset.draft))

    def imagine(self, now: float, load: int, mix: Mapping[str, float] | None) -> Imagined:
        """What arms would bring (`Learner.imagine`), `in_force` being the one that most requests play there now. Raises
        ValueError, also while no engine has described a draft."""
        if self._learner is None or not self._learner.spec.drafts:
            raise ValueError("the pool has no draft yet: no engine has described one")
        made = self._learner.imagine(now, load, mix)
        top = self._in_force(made.load)
        arms = [
            arm._replace(in_force=top.get((arm.domain, arm.regime, made.load)) == (arm.draft, arm.k))
            for arm in made.arms
        ]
        return made._replace(arms=arms)

    def _in_force(self, load: int) -> dict[Cell, Arm]:
        """What most requests are given by the policy as published, in every cell of a load bucket."""
        if self._published is None or self._learner is None:
            return {}
        found = self._published.in_force(set(self._learner.contexts.names), load)
        return {cell: one.top for cell, one in found.items()}

    @property
    def ready(self) -> bool:
        """Whether engines have described themselves, so that there is something to decide."""
        return self._learner is not None

    def remember(self, entries: Sequence[tuple[str, bytes]]) -> None:
        """Take over earlier decisions from the audit stream, newest first; entries of other kinds are passed over."""
        for _, entry in entries:
            try:
                self._records.append(msgspec.json.decode(entry, type=DecisionRecord))
            except msgspec.MsgspecError:
                continue

    @property
    def decide_seconds(self) -> float:
        """Seconds between decisions: the settings', less while the engines have run few steps."""
        steps = [incarnation.steps for incarnation in self.ledger.live()]
        return pace(max(steps, default=0), self.settings.decide_seconds)

    def consume(self, entries: Sequence[Entry], now: float) -> None:
        """Learn from frames, in order. `now`: wall clock, seconds."""
        for entry in entries:
            reason = self._take(entry, now)
            if reason is not None:
                self.dead.append(DeadLetter(Entry(entry.id, entry.frame[:KEPT_OF_A_DEAD_FRAME]), reason))
            self.last_id = entry.id
            self.pending += 1
        if entries:
            self._lag = max(0.0, now - arrival(self.last_id))

    def _take(self, entry: Entry, now: float) -> str | None:
        """Why the frame is refused, or None."""
        frame, reason = _read(entry.frame)
        if frame is None:
            self.ledger.counts.rejected += 1
            return reason
        arrived = min(arrival(entry.id), now)
        target = self.ledger.target
        taken = self.ledger.take(frame, arrived)
        if taken.verdict == "rejected":
            return taken.reason
        if taken.verdict != "learned":
            return None
        self._last_frame = arrived
        self._lags[frame.incarnation] = now - arrived
        account = () if taken.delta is None else taken.delta.account
        self.switchback.take(frame.incarnation, frame.applied, frame.time, frame.steps, account)
        if frame.applied is not None and frame.applied[0] <= now * 1000 + DAY_MS:
            self.applied = max(frame.applied, self.applied or frame.applied)
        if frame.describe is not None or self._learner is None:
            self._equip(target, arrived)
        if taken.delta is not None and self._learner is not None:
            self._learner.observe(taken.delta)
            self._recent.add(taken.delta, self._learner.speed(frame.engine))
        return None

    def _equip(self, old_target: str, now: float) -> None:
        """Make the learner fit the engines that are there now."""
        described = [incarnation.describe for incarnation in self.ledger.live()]
        spec = pool_spec(described, self.orders.retired) or self._spec
        anew = bool(old_target) and old_target != self.ledger.target
        if spec is None or (spec == self._spec and not anew):
            return
        if self._learner is None or anew:
            rejected = {} if self._learner is None else self._learner.rejected
            self._learner = Learner(self._config, spec)
            self._learner.rejected.update(rejected)  # a count of the pool's life, not of what was learned
        else:
            self._learner = Learner.load(self._learner.dump(), self._config, spec)
        if anew:
            self._arms.clear()
            self.causes = Causes()
            self._notes.append(f"the target changed from {old_target!r} to {self.ledger.target!r}: learned anew")
        elif self._spec is not None:
            drafts = ", ".join(draft.name for draft in spec.drafts) or "none"
            self._notes.append(f"the engines changed: drafts {drafts}; K of {spec.ks}; batches up to {spec.max_batch}")
            self.causes.happened(Event(now, f"the drafts or their K changed: {drafts}; K of {spec.ks}"))
        self._spec = spec

    def decide(self, version: Version, now: float) -> Decided:
        """A policy with this version from everything learned so far, and the checkpoint that belongs to it."""
        self.ledger.sweep(now)
        self._recent.trim(now)
        self._lags = {one.id: self._lags[one.id] for one in self.ledger.live() if one.id in self._lags}
        if self._last_frame is not None:
            told = self.switchback.settle(self._last_frame, [incarnation.id for incarnation in self.ledger.live()])
            self._notes += [] if told is None else [told]
        policy = self._policy(version, now)
        self._warn()
        record = None
        if self._switches or self._notes:
            note = "; ".join(self._notes) or None
            record = DecisionRecord(now, version, note, list(self._switches))
        estimates = None if self._learner is None else self._learner.estimates(now)
        view = self._portrait(version if policy is not None else None, policy, now, record, estimates)
        audit = msgspec.json.encode(record) if record is not None else None
        return Decided(self.dump(), policy, audit, view, *self._offer(estimates, view, now))

    def committed(self, decided: Decided) -> None:
        """What `decide` gave has been written."""
        self.pending = 0
        self.dead.clear()
        self.view = decided.view
        if decided.audit is not None:
            self._records.appendleft(msgspec.json.decode(decided.audit, type=DecisionRecord))
            self._notes.clear()
            self._switches.clear()

    def _warn(self) -> None:
        """Log once that engines are unlike, and once that they are alike again."""
        unlike = self.ledger.disagreement()
        if unlike != self._unlike:
            said = unlike or "its engines are alike again"
            log.warning("pool %s: %s", self.pool, said, extra={"pool": self.pool})
            self._unlike = unlike

    def dump(self) -> bytes:
        """Everything that a restart needs."""
        saved = _Saved(
            schema=SCHEMA,
            ledger=self.ledger.dump(),
            learner=None if self._learner is None else self._learner.dump(),
            spec=self._spec,
            arms=[(*cell, *arm) for cell, arm in self._arms.items()],
            decisions=self._decisions,
            switches=self._switched,
            resets=self._resets,
            switchback=self.switchback.saved(),
            causes=self.causes.saved(),
        )
        return msgspec.msgpack.encode(saved)

    def _policy(self, version: Version, now: float) -> bytes | None:
        if self._learner is None or self._spec is None:
            return None
        pins = self.orders.standing(now)
        drafts = [draft.name for draft in self._spec.drafts]
        if self.switchback.state.choice[0] not in (NO_DRAFT, *drafts):
            self.switchback.stop(now)
        choice = self.switchback.turn(version, now)
        ordered = by_context(pins, drafts) if choice is None else self._learner.contexts.names
        decision = self._decision = self._learner.decide(now, self._rng, ordered=ordered)
        self._decisions += 1
        self._note_switches(decision, now, Playing(self.mode, self.static, self.orders.share))
        words = {context: _pinned_to(pin) for context, pin in by_context(pins, drafts).items()}
        self.causes.steered(self.mode, words, now)
        policy = Policy(
            pool=self.pool,
            version=version,
            issued=now,
            expires=now + self.settings.policy_seconds,
            static=self._spec.static,
            k_values=list(self._spec.ks),
            cells=pinned(decision.cells, pins) if choice is None else fixed(decision.cells, choice),
            mode=self.mode,
            share=self.orders.share,
            allowance=decision.allowance if choice is None else 0,
            probe=decision.probe if choice is None else ProbePlan(),
            window=self._learner.config.window,
        )
        held = frozenset(by_context(pins, drafts))
        self._published = Published(policy, self._spec.static_arm, held, choice is not None)
        return encode(policy)

    def _note_switches(self, decision: Decision, now: float, playing: Playing) -> None:
        """Compare the most probable arms of the cells that are served with those of the last decision."""
        served = {(c.domain, c.regime, c.load) for c in self.ledger.totals.values() if isinstance(c, AccountCell)}
        names, ks = tuple(draft.name for draft in decision.spec.drafts), decision.spec.ks
        reasons: dict[tuple[str, str, int], str] | None = None
        acceptance: Array | None = None
        for at, table in enumerate(decision.tables):
            for c, (domain, regime) in enumerate(decision.contexts):
                cell, top = (domain, regime, table.load), int(table.top[c])
                before, after = self._arms.get(cell), arm_name(top, names, ks)
                if cell not in served:
                    continue
                if self.causes.due(cell, after, now):
                    acceptance = decision.belief.marginal()[0] if acceptance is None else acceptance
                    basis = basis_of(decision, acceptance, at, c, now)
                    self.causes.see(cell, after, basis, spent=bool(table.closed[c]))
                if before == after:
                    continue
                self._arms[cell] = after
                reasons = reasons or decision.reasons()
                probability = float(table.probability[c, top])
                told = self.causes.tell(cell, reasons[cell], now, playing)
                self._switches.append(Switch(*cell, before, after, probability, told))
                self._switched += before is not None

    def _offer(self, estimates: Estimates | None, view: PoolView, now: float) -> tuple[bytes | None, float]:
        """What the pool offers routers, and for how many seconds from now: none without engines or frames."""
        if estimates is None or self._decision is None or self._last_frame is None:
            return None, 0.0
        live = sum(engine.ended is None for engine in view.engines)
        mean_rows = view.traffic.mean_rows
        top = self._in_force(self._decision.spec.loads[present_load(self._decision.spec, mean_rows)])
        slow = 1.0 if self._learner is None else fmean(self._learner.speeds())
        offer = offer_of(self.pool, self.ledger.target, self._decision, estimates, top, mean_rows, live, now, slow)
        lasts = max(OFFER_SECONDS, 3 * self.settings.decide_seconds)
        return encode(offer), self._last_frame + lasts - now if live else 0.0

    def _portrait(
        self,
        version: Version | None,
        policy: bytes | None,
        now: float,
        record: DecisionRecord | None,
        estimates: Estimates | None,
    ) -> PoolView:
        subject = Subject(
            pool=self.pool,
            mode=self.mode,
            ledger=self.ledger,
            recent=self._recent,
            spec=self._spec,
            decision=self._decision,
            estimates=estimates,
            rejected={} if self._learner is None else self._learner.rejected,
            changes=0 if self._learner is None else self._learner.changed,
            lag=self._lag,
            last_frame=self._last_frame,
            decisions=self._decisions,
            switches=self._switched,
            records=[*([record] if record is not None else []), *self._records],
            measured=self.switchback.measured(now),
            gains=self.switchback.gains(),
            causes=self.causes,
            published=self._published,
            lags=self._lags,
            speed=(lambda _: 1.0) if self._learner is None else self._learner.speed,
            gate=None if self._learner is None else self._learner.gate,
        )
        return portray(subject, version, policy, now, now + self.settings.policy_seconds)


def _pinned_to(pin: Pin) -> str:
    arm = "no speculation" if pin.draft == NO_DRAFT else f"{pin.draft} at K = {pin.k}"
    return f"pinned to {arm}{f' by {pin.by}' if pin.by else ''}"


def _read(data: bytes) -> tuple[Frame | None, str]:
    """The frame, or why there is none."""
    if not data:
        return None, "the entry has no field 'frame'"
    if len(data) > LARGEST_FRAME:
        return None, f"{len(data)} bytes; at most {LARGEST_FRAME} are read"
    try:
        frame = decode_frame(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return None, f"not a frame: {error}"
    if frame.v > WIRE_VERSION:
        return None, f"wire version {frame.v}; this controller reads up to {WIRE_VERSION}"
    return frame, ""
