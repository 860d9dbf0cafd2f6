"""What a pool has learned, and what its operators have ordered, as one file: to keep, to move, to go back to."""

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from controller import tuner
from controller.audit import Act
from controller.learner.schema import CheckpointError
from controller.steering import Orders
from controller.store import START, Commit, PoolStore

if TYPE_CHECKING:
    from redis.asyncio import Redis

FORMAT = "akc-state/1"


class BackupError(ValueError):
    """A file or a pool that cannot be used; the message says what to do."""


class Backup(msgspec.Struct):
    """A pool as it was committed at `saved` (Unix seconds). `state`: what `Tuner.dump` made; `orders`: JSON, or None.

    `made_by`: version of this package, for people.
    """

    format: str
    pool: str
    saved: float
    state: bytes
    orders: bytes | None
    made_by: str

    def encode(self) -> bytes:
        """The file."""
        return msgspec.msgpack.encode(self)


def read(data: bytes) -> Backup:
    """Parse a file. Raises `BackupError` for what is none, or of a version that this one cannot go on from."""
    try:
        backup = msgspec.msgpack.decode(data, type=Backup)
        if backup.format == FORMAT:
            tuner.check(backup.state)
            if backup.orders is not None:
                msgspec.json.decode(backup.orders, type=Orders)
    except (msgspec.MsgspecError, ValueError) as error:
        raise BackupError(f"not a file of `akc state dump` that this version can read: {error}") from error
    if backup.format != FORMAT:
        raise BackupError(f"its format is {backup.format!r}; this version reads {FORMAT!r}")
    return backup


async def dump(client: "Redis", pool: str, made_by: str) -> Backup:
    """The pool's last commit. Nothing is locked: a controller may lead the pool meanwhile. Raises `BackupError`."""
    store = PoolStore(client, pool)
    checkpoint = await store.load()
    if checkpoint is None:
        raise BackupError(f"pool {pool!r} has learned nothing yet")
    try:
        tuner.check(checkpoint.state)
    except ValueError as error:
        raise BackupError(f"the checkpoint of pool {pool!r} cannot be read by this version: {error}") from error
    return Backup(FORMAT, pool, checkpoint.saved, checkpoint.state, await store.orders(), made_by)


async def load(client: "Redis", data: bytes, pool: str | None = None, *, replace: bool = False) -> str:
    """Put a file's state in the place of a pool's (`pool` None: the one it came from); returns the pool's name.

    The pool must have no leader now, and no state unless `replace`; a replaced one, of a newer version too, is kept
    beside it (`Keys.unread`).
    In another pool than its own a state has no engines, and the orders stay behind. Raises `BackupError`.
    """
    backup = read(data)
    name = pool or backup.pool
    store = PoolStore(client, name)
    epoch = await store.acquire(now=time.time())
    if epoch is None:
        raise BackupError(
            f"a controller leads pool {name!r}: stop all controllers, wait until the lease has run out (10 s, unless "
            "AKC_LEASE_SECONDS says otherwise), and load again"
        )
    try:
        present = await store.state()
        if present is not None and not replace:
            raise BackupError(f"pool {name!r} has learned something of its own; --replace puts the file in its place")
        if present is not None:
            await store.set_aside(present)
        own = name == backup.pool
        orders = await _orders(store)
        if own and backup.orders is not None:
            orders = await _ordered_anew(store, orders, backup)
        last = max((reset.number for reset in orders.resets), default=0)
        state = tuner.adopted(backup.state, resets=last, engines=own)
        # Engines report running totals: frames that the state has seen already count nothing when they are read again.
        last_id = await _read_up_to(store)
        await store.commit(Commit(state, last_id, (epoch, 0), 1, time.time()))
        await store.announce()
    finally:
        await store.release()
    return name


async def _read_up_to(store: PoolStore) -> str:
    """The id of the last frame in the present checkpoint; the start without one, or where a newer version wrote it."""
    try:
        present = await store.load()
    except CheckpointError:
        return START
    return START if present is None else present.last_id


async def _orders(store: PoolStore) -> Orders:
    data = await store.orders()
    return Orders() if data is None else msgspec.json.decode(data, type=Orders)


async def _ordered_anew(store: PoolStore, present: Orders, backup: Backup) -> Orders:
    """The file's orders, written as the newest ones."""
    assert backup.orders is not None
    orders = msgspec.json.decode(backup.orders, type=Orders)
    orders = msgspec.structs.replace(orders, revision=max(present.revision, orders.revision) + 1)
    act = Act(time.time(), "akc state load", f"orders of {iso(backup.saved)}", "", orders.revision)
    if not await store.steer(present.revision, orders.revision, msgspec.json.encode(orders), act.encode()):
        raise BackupError("somebody steered the pool just now; load again")
    return orders


def iso(seconds: float) -> str:
    """Unix seconds as UTC to the second.

    >>> iso(1.7e9)
    '2023-11-14T22:13:20Z'
    """
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
