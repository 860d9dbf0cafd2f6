"""Checkpoints of other versions: older ones are read, newer ones refused, by every part that has a schema number."""

import time
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from controller import backup, ledger, store, tuner
from controller.learner import state
from controller.learner.schema import CheckpointError
from controller.steering import Orders
from controller.store import START, PoolStore
from controller.tuner import Tuner
from engine.link.messages import AcceptanceCell, Keys
from tests.controller import golden
from tests.controller.test_backup import commit, counted, learned, restored

if TYPE_CHECKING:
    from redis.asyncio import Redis

INNER = ("state", "ledger", "learner")


def numbered(data: bytes, part: str, schema: int) -> bytes:
    """A pool's state of which one part has this schema number."""
    saved: dict[str, Any] = msgspec.msgpack.decode(data)
    if part == "state":
        saved["schema"] = schema
    else:
        saved[part] = msgspec.msgpack.encode({**msgspec.msgpack.decode(saved[part]), "schema": schema})
    return msgspec.msgpack.encode(saved)


async def newer(client: "Redis", part: str) -> bytes:
    """Pool `p` with a checkpoint of which one part is of schema 99; its state."""
    await commit(client, learned(), last_id="7-0")
    key = Keys("p").checkpoint
    if part == "checkpoint":
        await client.hset(key, "schema", "99")
    else:
        await client.hset(key, "state", numbered(learned().dump(), part, 99))
    there = await client.hget(key, "state")
    assert isinstance(there, bytes)
    return there


def test_the_file_of_the_first_version_has_the_counts_that_its_engine_made() -> None:
    told = golden.engine()
    old = msgspec.msgpack.decode(golden.FILE.read_bytes(), type=backup.Backup)
    pool = Tuner._unpack(golden.POOL, golden.SETTINGS, old.state)
    cells = [cell for cell in pool.ledger.totals.values() if isinstance(cell, AcceptanceCell)]
    assert {cell.domain: (cell.seen, cell.accepted) for cell in cells} == told.totals()
    # As many as were judged: nothing had faded yet, and one date has no history to fade towards.
    assert counted(pool) == pytest.approx(counted(golden.tuner()))
    assert counted(pool) > 0


async def test_the_file_of_the_first_version_is_loaded_and_decided_from(client: "Redis") -> None:
    assert await backup.load(client, golden.FILE.read_bytes()) == golden.POOL
    pool = await restored(client, golden.POOL)
    orders = msgspec.json.decode(await PoolStore(client, golden.POOL).orders() or b"", type=Orders)
    assert (orders.mode, orders.pins, orders.share) == ("canary", golden.ORDERS.pins, 0.25)
    pool.steer(orders, golden.NOW + 60)
    decided = pool.decide((int(golden.NOW * 1000) + 60_000, 1), golden.NOW + 60)
    assert decided.policy is not None
    assert decided.view is not None
    assert {engine.engine for engine in decided.view.engines} == {"golden-0"}


@pytest.mark.parametrize("part", INNER)
async def test_a_part_of_a_newer_schema_is_no_damage(client: "Redis", part: str) -> None:
    await newer(client, part)
    checkpoint = await PoolStore(client, "p").load()
    with pytest.raises(CheckpointError, match=r"has schema 99; this version reads up to 1\. .* akc state load"):
        Tuner.restore("p", golden.SETTINGS, checkpoint)


@pytest.mark.parametrize("part", ["checkpoint", *INNER])
async def test_a_file_takes_the_place_of_a_newer_checkpoint_which_is_kept(client: "Redis", part: str) -> None:
    await commit(client, learned(30))
    file = (await backup.dump(client, "p", "0.1")).encode()
    there = await newer(client, part)
    with pytest.raises(backup.BackupError, match="--replace"):
        await backup.load(client, file)
    assert await client.hget(Keys("p").checkpoint, "state") == there
    assert await backup.load(client, file, replace=True) == "p"
    assert await client.get(Keys("p").unread) == there
    back = await restored(client)
    assert back.dump() == learned(30).dump()
    assert back.last_id == (START if part == "checkpoint" else "7-0")
    assert await PoolStore(client, "p").acquire(now=time.time()) is not None


@pytest.mark.parametrize("part", INNER)
def test_a_file_of_a_newer_version_is_refused_in_words(part: str) -> None:
    new = backup.Backup(backup.FORMAT, "p", 1.0, numbered(learned().dump(), part, 99), None, "9")
    with pytest.raises(backup.BackupError, match="schema 99; this version reads up to 1"):
        backup.read(msgspec.msgpack.encode(new))


Renamed = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.mark.parametrize(
    ("module", "field"), [(tuner, "decisions"), (ledger, "target"), (state, "changes"), (store, "last_id")]
)
async def test_every_part_of_an_older_schema_goes_through_its_migrations(
    client: "Redis", monkeypatch: pytest.MonkeyPatch, module: ModuleType, field: str
) -> None:
    """As if the next version counted otherwise: the field's old value, as it lay there, is what is migrated."""
    await backup.load(client, golden.FILE.read_bytes())
    seen: list[Any] = []

    def migration(fields: dict[str, Any]) -> dict[str, Any]:
        seen.append(fields[field])
        return fields

    monkeypatch.setattr(module, "SCHEMA", 2)
    monkeypatch.setattr(module, "MIGRATIONS", {1: migration})
    pool = await restored(client, golden.POOL)
    expected = {"decisions": 1, "target": "smol", "changes": 0, "last_id": b"0-0"}
    assert seen == [expected[field]]
    assert pool.ledger.counts.learned == 1


def test_an_older_schema_that_nothing_leads_on_from_is_an_error_in_words() -> None:
    with pytest.raises(ValueError, match="the pool's state has schema 0, and nothing leads from 0 on to 1"):
        tuner.check(numbered(learned().dump(), "state", 0))
