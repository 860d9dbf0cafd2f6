"""The learner's state as bytes: msgpack with raw arrays, a schema version, and an exact way back."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from controller.learner.changes import Saved
from controller.learner.discount import FadingRows
from controller.learner.evidence import Contexts
from controller.learner.schema import Migration, current
from controller.learner.steps import packed_width

if TYPE_CHECKING:
    from controller.learner.learner import Learner

SCHEMA = 1
MIGRATIONS: Mapping[int, Migration] = {}  # from each older schema to the next


class Packed(msgspec.Struct, array_like=True):
    """An array: dtype, shape, bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class Table(msgspec.Struct, array_like=True):
    """A FadingRows."""

    width: int
    rows: int
    free: list[int]
    origin: float | None
    latest: float
    data: Packed


class State(msgspec.Struct):
    """Everything a learner remembers. Keys are stored in the order of their rows' creation."""

    schema: int
    contexts: list[tuple[str, str]]
    drafts: list[str]
    ks: list[int]
    loads: list[int]
    positions: int
    engines: dict[str, float]
    rejected: dict[str, int]
    acceptance_rows: list[tuple[str, int, str, int]]
    acceptance: Table
    moment_rows: list[tuple[int, str, int]]
    moments: Table
    cost_rows: list[tuple[list[str], int, int, int, int]]
    cost_tables: dict[int, Table]
    engine_rows: list[tuple[str, list[str], int, int, int, int]]
    engine_counts: Table
    account_rows: list[tuple[int, int, str, int]]
    account: Table
    pending: list[tuple[int, int, float]]
    reserve: Packed
    closed: Packed
    effect_sd: dict[str, float]
    played: Packed
    probability: Packed
    top: Packed
    since: Packed
    quantiles: Packed
    held: Packed
    started: bool
    histories: list[Saved] = []
    changes: int = 0
    pool_reserve: float | None = None
    pool_closed: bool = False
    recent: Packed | None = None
    exploring: Packed | None = None
    settled: Packed | None = None
    pool_settled: float | None = None
    ordered: list[tuple[str, str]] = []
    speeds: dict[str, tuple[float | None, list[float], list[float], list[float]]] = {}
    noise: float | None = None
    slopes: dict[int, tuple[float, float]] = {}
    doubts: dict[int, Table] = {}


def pack(array: "np.ndarray[Any, Any]") -> Packed:
    """An array in little-endian order."""
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return Packed(array.dtype.str, array.shape, array.tobytes())


def unpack(packed: Packed) -> "np.ndarray[Any, Any]":
    """The array, writable, in the machine's own order."""
    array = np.frombuffer(packed.data, dtype=np.dtype(packed.dtype)).reshape(packed.shape)
    return array.astype(array.dtype.newbyteorder("="))


def _table(rows: FadingRows) -> Table:
    return Table(rows.width, rows.rows, list(rows.free), rows.origin, rows.latest, pack(rows.data[: rows.rows]))


def _fill(rows: FadingRows, table: Table, positions: tuple[int, int] | None = None, lead: int = 0) -> None:
    """Put a table into `rows`; `positions` (old, new) cuts or pads lists by position, after `lead` numbers."""
    data = unpack(table.data)
    if positions is not None and positions[0] != positions[1]:
        old, new = positions
        lists = data[..., lead:].reshape(*data.shape[:2], -1, old)[..., :new]
        lists = np.pad(lists, [(0, 0), (0, 0), (0, 0), (0, max(0, new - old))])
        data = np.concatenate([data[..., :lead], lists.reshape(*data.shape[:2], -1)], axis=2)
    rows.rows, rows.free, rows.origin, rows.latest = table.rows, list(table.free), table.origin, table.latest
    room = np.zeros((max(8, table.rows), 2, rows.width))
    room[: table.rows] = data
    rows.data = room


def dump(learner: "Learner") -> bytes:
    """The whole state as msgpack."""
    a, s, account, spec = learner.acceptance, learner.steps, learner.account, learner.spec
    return msgspec.msgpack.encode(
        State(
            schema=SCHEMA,
            contexts=learner.contexts.names,
            drafts=[draft.name for draft in spec.drafts],
            ks=list(spec.ks),
            loads=list(spec.loads),
            positions=a.positions,
            engines=learner.engines,
            rejected=learner.rejected,
            acceptance_rows=[(*key, row) for key, row in a.rows.items()],
            acceptance=_table(a.counts),
            moment_rows=[(*key, row) for key, row in a.moment_rows.items()],
            moments=_table(a.moments),
            cost_rows=[(list(key[0]), *key[1:], row) for key, (_, row) in s.rows.items()],
            cost_tables={width: _table(table) for width, table in s.tables.items()},
            engine_rows=[
                (name, list(key[0]), *key[1:], row) for name, held in s.engine_rows.items() for key, row in held.items()
            ],
            engine_counts=_table(s.engine_counts),
            account_rows=[(*key, row) for key, row in account.rows.items()],
            account=_table(account.sums),
            pending=[(*key, steps) for key, steps in account.pending.items()],
            reserve=pack(learner.gate.reserve),
            closed=pack(learner.gate.closed),
            effect_sd=learner.effect_sd,
            played=pack(learner.played),
            probability=pack(learner.probability),
            top=pack(learner.stay.top),
            since=pack(learner.stay.since),
            quantiles=pack(learner.quantiles),
            held=pack(learner.held),
            started=learner.started,
            histories=a.changes.state(),
            changes=learner.changed,
            pool_reserve=learner.gate.pool_reserve,
            pool_closed=learner.gate.pool_closed,
            recent=pack(learner.recent),
            exploring=pack(learner.exploring),
            settled=pack(learner.gate.settled),
            pool_settled=learner.gate.pool_settled,
            ordered=sorted(learner.ordered),
            speeds=s.speeds.state(),
            noise=s.noise,
            slopes=s.slopes,
            doubts={width: _table(table) for width, table in s.doubts.items()},
        )
    )


def read(data: bytes) -> State:
    """Parse a dump, of an older schema too. Raises `CheckpointError` for a newer one, ValueError for what is none."""
    try:
        data = current(data, "the learner's state", SCHEMA, MIGRATIONS)
    except msgspec.MsgspecError as error:
        raise ValueError(f"the checkpoint is not a learner's state: {error}") from error
    try:
        return msgspec.msgpack.decode(data, type=State)
    except msgspec.ValidationError as error:
        raise ValueError(f"the checkpoint of schema {SCHEMA} is damaged: {error}") from error


def restore(learner: "Learner", data: bytes) -> None:
    """Fill a fresh learner from a dump."""
    state = read(data)
    a, s, account, spec = learner.acceptance, learner.steps, learner.account, learner.spec
    learner.contexts = Contexts(learner.config.max_domains, state.contexts)
    learner.engines, learner.rejected, learner.changed = state.engines, state.rejected, state.changes
    a.changes.restore(state.histories)
    sizes = (state.positions, a.positions)
    a.rows = {(engine, context, draft): row for engine, context, draft, row in state.acceptance_rows}
    _fill(a.counts, state.acceptance, sizes)
    a.moment_rows = {(context, draft): row for context, draft, row in state.moment_rows}
    _fill(a.moments, state.moments, sizes, lead=6)
    for width, table in state.cost_tables.items():
        s.tables[width] = FadingRows(packed_width(width), *s.half_lives)
        _fill(s.tables[width], table)
        doubts = s.doubts[width] = FadingRows(1, *s.half_lives)
        if width in state.doubts:
            _fill(doubts, state.doubts[width])
        else:  # of a version that took all engines for steady
            for _ in range(table.rows):
                doubts.new_row()
    s.rows = {(tuple(names), b, k, f): (len(names), row) for names, b, k, f, row in state.cost_rows}
    for name, drafts, b, k, f, row in state.engine_rows:
        s.engine_rows.setdefault(name, {})[tuple(drafts), b, k, f] = row
    _fill(s.engine_counts, state.engine_counts)
    s.speeds.restore(state.speeds)
    s.noise, s.slopes = s.noise if state.noise is None else state.noise, state.slopes
    _fill(account.sums, state.account)
    for c, load, variant, row in state.account_rows:
        kept = account.rows.setdefault((c, spec.loads[spec.load_index(load)], variant), row)
        if kept != row:  # the pool's largest batch shrank: its highest bucket takes in those above
            account.sums.fold(row, kept)
    gate = learner.gate
    gate.reserve, gate.closed = unpack(state.reserve), unpack(state.closed)
    gate.settled = gate.reserve.copy()  # of a version that knew nothing pending
    if state.pool_reserve is not None:
        gate.pool_settled = gate.pool_reserve = state.pool_reserve
        gate.pool_closed = state.pool_closed
    learner.effect_sd = state.effect_sd
    learner.ordered = frozenset(state.ordered)
    same = (state.drafts, state.ks, state.loads) == ([d.name for d in spec.drafts], list(spec.ks), list(spec.loads))
    if same:
        account.pending = {(c, load): steps for c, load, steps in state.pending}
        learner.played, learner.probability = unpack(state.played), unpack(state.probability)
        if state.recent is not None and state.settled is not None and state.pool_settled is not None:
            learner.recent = unpack(state.recent)
            gate.settled, gate.pool_settled = unpack(state.settled), state.pool_settled
        else:
            learner.recent = np.zeros_like(learner.played)
        learner.exploring = unpack(state.exploring) if state.exploring is not None else np.ones(len(learner.played))
        learner.quantiles, learner.held, learner.started = unpack(state.quantiles), unpack(state.held), state.started
        learner.stay = type(learner.stay)(unpack(state.top), unpack(state.since))
