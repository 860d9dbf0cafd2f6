import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from typer.testing import CliRunner

from controller import backup
from controller.cli.commands import app
from controller.settings import ControllerSettings
from controller.steering import Orders, Reset
from controller.store import Commit, Entry, PoolStore
from controller.tuner import Tuner
from engine.link.messages import Keys, encode
from tests.controller.engines import CountingEngine

if TYPE_CHECKING:
    from redis.asyncio import Redis

SETTINGS = ControllerSettings(draws=64, seed=1)


def learned(steps: int = 200) -> Tuner:
    source = CountingEngine(started=time.time() - 3_600)
    source.run(steps, random.Random(1))
    tuner = Tuner("p", SETTINGS)
    tuner.consume([Entry("1-0", encode(source.frame(full=True)))], time.time())
    return tuner


async def commit(client: "Redis", tuner: Tuner, pool: str = "p", last_id: str = "1-0") -> None:
    store = PoolStore(client, pool)
    epoch = await store.acquire(now=time.time())
    assert epoch is not None
    await store.commit(Commit(tuner.dump(), last_id, (epoch, 3), 1, time.time()))
    await store.release()


async def restored(client: "Redis", pool: str = "p") -> Tuner:
    tuner = Tuner.restore(pool, SETTINGS, await PoolStore(client, pool).load())
    assert not tuner.unread
    return tuner


def counted(tuner: Tuner) -> float:
    """Observations of acceptance that its learner holds."""
    assert tuner._learner is not None
    return float(tuner._learner.acceptance.counts.data.sum())


async def test_a_pool_whose_memory_was_wiped_goes_on_from_a_file_bit_for_bit(client: "Redis") -> None:
    tuner = learned()
    await commit(client, tuner)
    data = (await backup.dump(client, "p", "0.1")).encode()
    await client.flushall()
    assert await backup.load(client, data) == "p"
    assert (await restored(client)).dump() == tuner.dump()
    assert await client.smembers(Keys.POOLS) == {b"p"}
    assert await PoolStore(client, "p").acquire(now=time.time()) is not None  # the lease was given back


async def test_a_frame_that_the_state_has_seen_counts_nothing_when_it_is_read_again(client: "Redis") -> None:
    source = CountingEngine(started=time.time() - 3_600)
    source.run(50, random.Random(1))
    frame = encode(source.frame(full=True))
    tuner = Tuner("p", SETTINGS)
    tuner.consume([Entry("1-0", frame)], time.time())
    await commit(client, tuner)
    data = (await backup.dump(client, "p", "0.1")).encode()
    await client.flushall()
    await backup.load(client, data)
    again = await restored(client)
    again.consume([Entry("9-0", frame)], time.time())
    assert counted(again) == counted(tuner) > 0


async def test_a_pool_that_has_learned_something_is_not_overwritten_unless_told_and_is_kept_then(
    client: "Redis",
) -> None:
    old, new = learned(), learned(30)
    await commit(client, old)
    data = (await backup.dump(client, "p", "0.1")).encode()
    await commit(client, new, last_id="7-0")
    with pytest.raises(backup.BackupError, match="--replace"):
        await backup.load(client, data)
    assert (await restored(client)).dump() == new.dump()
    await backup.load(client, data, replace=True)
    assert (await restored(client)).dump() == old.dump()
    assert await client.get(Keys("p").unread) == new.dump()
    assert (await restored(client)).last_id == "7-0"


async def test_a_pool_that_is_led_is_refused(client: "Redis") -> None:
    await commit(client, learned())
    data = (await backup.dump(client, "p", "0.1")).encode()
    assert await PoolStore(client, "p").acquire(now=time.time()) is not None
    with pytest.raises(backup.BackupError, match="a controller leads pool 'p'"):
        await backup.load(client, data, replace=True)


async def test_orders_come_back_as_the_newest_and_no_reset_is_carried_out_twice(client: "Redis") -> None:
    await commit(client, learned())
    store = PoolStore(client, "p")
    first = Orders(revision=1, mode="shadow")
    assert await store.steer(0, 1, msgspec.json.encode(first), b"{}")
    data = (await backup.dump(client, "p", "0.1")).encode()
    later = Orders(revision=2, mode="off", resets=(Reset(1, "code"),))
    assert await store.steer(1, 2, msgspec.json.encode(later), b"{}")
    await backup.load(client, data, replace=True)
    orders = msgspec.json.decode(await store.orders() or b"", type=Orders)
    assert (orders.revision, orders.mode, orders.resets) == (3, "shadow", ())
    (entry,) = [e for _, e in await store.audit(10) if b"akc state load" in e]
    assert b"orders of" in entry


async def test_in_another_pool_a_state_has_what_was_learned_but_neither_engines_nor_orders(client: "Redis") -> None:
    tuner = learned()
    await commit(client, tuner)
    assert await PoolStore(client, "p").steer(0, 1, msgspec.json.encode(Orders(1, "off")), b"{}")
    there = Orders(revision=4, resets=(Reset(2, "code"),))
    assert await PoolStore(client, "q").steer(0, 4, msgspec.json.encode(there), b"{}")
    await backup.load(client, (await backup.dump(client, "p", "0.1")).encode(), "q")
    moved = await restored(client, "q")
    assert msgspec.json.decode(await PoolStore(client, "q").orders() or b"", type=Orders) == there
    moved.steer(there, time.time())
    assert list(moved.ledger.live()) == []
    assert counted(moved) == counted(tuner) > 0


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"nonsense", "not a file of `akc state dump`"),
        (msgspec.msgpack.encode(backup.Backup("akc-state/9", "p", 1.0, b"", None, "2")), "format is 'akc-state/9'"),
        (msgspec.msgpack.encode(backup.Backup(backup.FORMAT, "p", 1.0, b"x", None, "2")), "not a file of"),
    ],
)
async def test_a_file_that_cannot_be_used_is_refused_before_anything_is_written(
    client: "Redis", data: bytes, said: str
) -> None:
    with pytest.raises(backup.BackupError, match=said):
        await backup.load(client, data)
    assert await client.keys("*") == []


async def test_the_commands(client: "Redis", server: str, tmp_path: Path) -> None:
    await commit(client, learned())
    file = tmp_path / "p.akc"
    url = f"--redis-url={server}"

    def akc(*arguments: str) -> tuple[int, str]:
        with ThreadPoolExecutor(1) as other:  # the command has an event loop of its own
            result = other.submit(CliRunner().invoke, app, list(arguments)).result()
        return result.exit_code, result.output

    code, said = akc("state", "dump", "p", str(file), url)
    assert (code, "pool p as of" in said) == (0, True)
    assert akc("state", "load", str(file), url)[0] == 1
    code, said = akc("state", "load", str(file), "--replace", url)
    assert (code, "goes on from" in said) == (0, True)
    code, said = akc("state", "dump", "nobody", str(file), url)
    assert (code, "has learned nothing yet" in said) == (1, True)
    code, said = akc("state", "load", str(tmp_path / "no"), url)
    assert (code, "cannot be read" in said) == (1, True)
    code, said = akc("state", "dump", "p", str(file), "--redis-url=redis://127.0.0.1:1/0")
    assert (code, "does not answer" in said) == (5, True)
    for words in (("state", "dump", "p", str(file)), ("state", "load", str(file)), ("route",)):
        assert akc(*words, "--redis-url=redis://127.0.0.1:1/0")[0] == 5
        code, said = akc(*words, "--redis-url=http://127.0.0.1:1/0")
        assert (code, "--redis-url is 'http://127.0.0.1:1/0'" in said) == (2, True)


async def test_a_dash_is_standard_output_and_input_and_the_address_may_be_in_the_environment(
    client: "Redis", server: str
) -> None:
    """As in a container whose file system is read-only: the file is the shell's."""
    tuner = learned()
    await commit(client, tuner)

    def akc(*arguments: str, given: bytes = b"") -> tuple[int, bytes, str]:
        environment = {"AKC_REDIS_URL": server, "REDIS_URL": "redis://127.0.0.1:1/0"}
        with ThreadPoolExecutor(1) as other:
            result = other.submit(CliRunner().invoke, app, list(arguments), input=given, env=environment).result()
        return result.exit_code, result.stdout_bytes, result.stderr

    code, data, said = akc("state", "dump", "p", "-")
    assert (code, "pool p as of" in said) == (0, True)
    assert backup.read(data).pool == "p"
    await client.flushall()
    code, said_out, _ = akc("state", "load", "-", given=data)
    assert (code, b"goes on from" in said_out) == (0, True)
    assert (await restored(client)).dump() == tuner.dump()
    assert akc("state", "load", "-", given=b"")[0] == 1
    assert akc("route")[0] == 1  # it asked a server that answers, and has no pool to offer
