"""Redis as the controller's memory: lease, frames, and the one script that commits checkpoint and policy together.

Only the holder of a pool's lease can commit: the script fails when the lease key is absent or holds another token. The
token is the epoch of the policies, at least the wall clock in ms and one more than any epoch seen before.
"""

import ssl
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from controller.learner.schema import CheckpointError, Migration, migrate
from engine.link.address import sentinels
from engine.link.messages import Keys, Offer, Version
from engine.link.router import readable

SCHEMA = 1  # of the checkpoint's hash
MIGRATIONS: Mapping[int, Migration] = {}  # from each older schema to the next; values are bytes or None
NEWER = "Start the newer controller, or put a file in its place: akc state load FILE --replace"
START = "0-0"
DEAD_LETTERS = 1_000
AUDIT_ENTRIES = 10_000  # changes of policy
ACTS = 10_000  # of operators, in a stream of their own: however often the policy changes, these stay
LARGEST_FRAME = 4 << 20  # bytes; a longer one is not even parsed
KEPT_OF_A_DEAD_FRAME = 64 << 10

# Errors that pass by waiting: the server is away, loading, failing over, or over its memory limit.
UNAVAILABLE = (RedisConnectionError, RedisTimeoutError, ResponseError, OSError)


class LeaseLostError(RuntimeError):
    """Another controller owns the pool now, or the lease ran out; nothing was written."""


class Entry(NamedTuple):
    """One entry of a frames stream: its id and the bytes of its field `frame` (empty when it has none)."""

    id: str
    frame: bytes


class DeadLetter(NamedTuple):
    """A frame that could not be used, and why."""

    entry: Entry
    reason: str


class Checkpoint(NamedTuple):
    """What a controller goes on from. `state` is opaque here; `version` is of the policy committed with it."""

    state: bytes
    last_id: str
    version: Version
    saved: float


class Commit(msgspec.Struct, frozen=True):
    """Everything that must be written together. `number` grows with every commit of one epoch (repeats are harmless).

    `policy` None: only the checkpoint. `audit`: one JSON object or None. `dead`: frames refused since the last commit.
    `offer` None: the one that lies there is left to its expiry; else it holds for `offer_seconds`, and 0 removes it.
    """

    state: bytes
    last_id: str
    version: Version
    number: int
    saved: float
    policy: bytes | None = None
    audit: bytes | None = None
    dead: Sequence[DeadLetter] = ()
    offer: bytes | None = None
    offer_seconds: float = 0.0


# KEYS lease, checkpoint; ARGV clock in ms, floor, ttl in ms. Returns the token as a string, or false when it is taken.
_ACQUIRE = """
if redis.call('EXISTS', KEYS[1]) == 1 then return false end
local fence = tonumber(redis.call('HGET', KEYS[2], 'fence') or '0')
local epoch = string.format('%.0f', math.max(tonumber(ARGV[1]), tonumber(ARGV[2]) + 1, fence + 1))
redis.call('SET', KEYS[1], epoch, 'PX', ARGV[3])
redis.call('HSET', KEYS[2], 'fence', epoch)
return epoch
"""

# KEYS lease, checkpoint; ARGV token, new token, ttl in ms. The holder moves to a higher epoch without letting go.
_RAISE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
redis.call('HSET', KEYS[2], 'fence', ARGV[2])
return 1
"""

# KEYS orders, acts; ARGV revision read, new revision, orders, entry, limit.
_STEER = """
if (redis.call('HGET', KEYS[1], 'revision') or '0') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'revision', ARGV[2], 'orders', ARGV[3])
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[5], '*', 'entry', ARGV[4])
return 1
"""

_RENEW = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0"
_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"

# KEYS lease, checkpoint, policy, audit, dead, frames, offer
# ARGV token, state, last_id, n, number, saved, schema, policy or '', audit or '', audit limit, dead limit, offer or '',
# its ttl in ms (0: remove it), then per dead letter: id, frame, reason. A commit that arrives twice (a retry after a
# lost answer) is written once.
_COMMIT = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local last = redis.call('HMGET', KEYS[2], 'epoch', 'number')
if last[1] == ARGV[1] and tonumber(last[2]) >= tonumber(ARGV[5]) then return 1 end
redis.call('HSET', KEYS[2], 'state', ARGV[2], 'last_id', ARGV[3], 'epoch', ARGV[1], 'n', ARGV[4], 'number', ARGV[5],
           'saved', ARGV[6], 'schema', ARGV[7])
if ARGV[8] ~= '' then redis.call('SET', KEYS[3], ARGV[8]) end
if ARGV[9] ~= '' then redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[10], '*', 'entry', ARGV[9]) end
for i = 14, #ARGV, 3 do
  redis.call('XADD', KEYS[5], 'MAXLEN', '~', ARGV[11], '*', 'id', ARGV[i], 'frame', ARGV[i + 1], 'reason', ARGV[i + 2])
end
if ARGV[12] ~= '' and tonumber(ARGV[13]) > 0 then redis.call('SET', KEYS[7], ARGV[12], 'PX', ARGV[13])
elseif ARGV[12] ~= '' then redis.call('DEL', KEYS[7]) end
redis.call('XTRIM', KEYS[6], 'MINID', ARGV[3])
return 1
"""


class _Primary(Redis):
    """A client that closes those of its Sentinels, too."""

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Close all connections; the next command opens new ones."""
        await super().aclose(close_connection_pool)
        for sentinel in self.connection_pool.sentinel_manager.sentinels:  # type: ignore[attr-defined]
            await sentinel.aclose()


def connect(url: str, *, timeout: float = 5.0, ca_file: str | None = None) -> "Redis":
    """A client for a URL of `engine.link.address`. `timeout`: seconds for one answer.

    Through Sentinels it finds the primary at every new connection, so that it follows a failover. Raises `ValueError`
    for a URL it cannot read. Blocking reads must block for less than `timeout`.
    """
    patience: dict[str, Any] = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "health_check_interval": 15,
        # One retry heals a connection that died while idle; waiting for a server that is away is the loop's business.
        "retry": Retry(NoBackoff(), 1),
    }
    trust: dict[str, Any] = {}
    if url.startswith("rediss") and ca_file:
        trust = {"ssl_ca_certs": ca_file, "ssl_cert_reqs": ssl.CERT_REQUIRED}
    found = sentinels(url)
    if found is None:
        return Redis.from_url(url, **patience, **trust)
    own, server = {**patience, **found.sentinel, **trust}, {**patience, **found.server, **trust}
    asked = Sentinel(found.nodes, sentinel_kwargs=own, **server)  # type: ignore[no-untyped-call]  # redis-py's
    return cast(Redis, asked.master_for(found.service, redis_class=_Primary))


async def pools(client: "Redis") -> list[str]:
    """Names of the pools whose engines have announced themselves, sorted."""
    names = cast(set[bytes], await client.smembers(Keys.POOLS))
    return sorted(name.decode(errors="replace") for name in names)


async def offers(client: "Redis") -> list[Offer]:
    """The offers of all live pools, by the pool's name, for `engine.link.router.compose`."""
    return readable([cast(bytes | None, await client.get(Keys(pool).offer)) for pool in await pools(client)])


class PoolStore:
    """One pool's keys. Knows the lease's token while it holds it; every method may raise one of `UNAVAILABLE`."""

    def __init__(self, client: "Redis", pool: str, *, lease_seconds: float = 10.0) -> None:
        self.client = client
        self.pool = pool
        self.keys = Keys(pool)
        self.epoch: int | None = None
        self._ttl_ms = int(lease_seconds * 1000)
        self._acquire = client.register_script(_ACQUIRE)
        self._raise = client.register_script(_RAISE)
        self._renew = client.register_script(_RENEW)
        self._release = client.register_script(_RELEASE)
        self._commit = client.register_script(_COMMIT)
        self._steer = client.register_script(_STEER)

    async def announce(self) -> None:
        """Add the pool to the registry."""
        await cast(Any, self.client.sadd(Keys.POOLS, self.pool))

    async def acquire(self, *, now: float, floor: int = 0) -> int | None:
        """Take the lease if it is free: its epoch, at least `now` (s) in ms and above `floor`; None when it is held."""
        seen = max(floor, await self._published_epoch())
        answer = await self._acquire(
            keys=[self.keys.lease, self.keys.checkpoint], args=[int(now * 1000), seen, self._ttl_ms]
        )
        self.epoch = None if answer is None else int(answer)
        return self.epoch

    async def raise_epoch(self, epoch: int) -> None:
        """Exchange the held lease for a higher epoch. Raises `LeaseLostError`."""
        done = await self._raise(
            keys=[self.keys.lease, self.keys.checkpoint], args=[str(self.epoch), str(epoch), self._ttl_ms]
        )
        if not done:
            self._lost()
        self.epoch = epoch

    async def renew(self) -> None:
        """Extend the lease by its full time. Raises `LeaseLostError`."""
        if not await self._renew(keys=[self.keys.lease], args=[str(self.epoch), self._ttl_ms]):
            self._lost()

    async def release(self) -> None:
        """Give the lease back, so that another replica need not wait for its end. Harmless when it is not ours."""
        epoch, self.epoch = self.epoch, None
        if epoch is not None:
            await self._release(keys=[self.keys.lease], args=[str(epoch)])

    async def set_aside(self, state: bytes) -> None:
        """Keep a state that could not be read: what another version wrote, or what a person can still repair."""
        await self.client.set(self.keys.unread, state)

    async def load(self) -> Checkpoint | None:
        """The last commit, or None for a pool that has none. Raises `CheckpointError` for a schema from the future."""
        names = ("schema", "state", "last_id", "epoch", "n", "saved")
        values = await cast(Any, self.client.hmget(self.keys.checkpoint, *names))
        fields: dict[str, bytes | None] = dict(zip(names, values, strict=True))
        if fields["state"] is None:
            return None
        what = f"the checkpoint of pool {self.pool!r}"
        try:
            fields = migrate(fields, int(fields["schema"] or SCHEMA), what, SCHEMA, MIGRATIONS)
        except CheckpointError as error:
            raise CheckpointError(f"{error}. {NEWER}") from None
        number = {name: float(fields[name] or 0) for name in ("epoch", "n", "saved")}
        version = (int(number["epoch"]), int(number["n"]))
        assert fields["state"] is not None
        return Checkpoint(fields["state"], (fields["last_id"] or START.encode()).decode(), version, number["saved"])

    async def state(self) -> bytes | None:
        """The last commit's state as it lies there, of whatever schema."""
        return cast(bytes | None, await cast(Any, self.client.hget(self.keys.checkpoint, "state")))

    async def resume_id(self, last_id: str) -> str:
        """Where to read on: `last_id`, or the start when the stream's newest id lies before it (Redis lost writes)."""
        newest = cast(list[tuple[bytes, Any]], await self.client.xrevrange(self.keys.frames, count=1))
        return START if not newest or _order(newest[0][0].decode()) < _order(last_id) else last_id

    async def read(self, after: str, *, count: int, block: float) -> list[Entry]:
        """Up to `count` entries after id `after`, waiting up to `block` seconds for the first."""
        block_ms = max(1, int(block * 1000))  # 0 would wait for ever
        answer = cast(Any, await self.client.xread({self.keys.frames: after}, count=count, block=block_ms))
        if not answer:
            return []
        rows = next(iter(answer.values()))[0] if isinstance(answer, dict) else answer[0][1]
        return [Entry(id_.decode(), fields.get(b"frame", b"")) for id_, fields in rows]

    async def commit(self, commit: Commit) -> None:
        """Write checkpoint, policy, audit entry and dead letters, and trim what was read. Raises `LeaseLostError`."""
        keys = self.keys
        letters = [
            part
            for letter in commit.dead
            for part in (letter.entry.id, letter.entry.frame[:KEPT_OF_A_DEAD_FRAME], letter.reason)
        ]
        done = await self._commit(
            keys=[keys.lease, keys.checkpoint, keys.policy, keys.audit, keys.dead, keys.frames, keys.offer],
            args=[
                str(self.epoch), commit.state, commit.last_id, commit.version[1], commit.number, repr(commit.saved),
                SCHEMA, commit.policy or b"", commit.audit or b"", AUDIT_ENTRIES, DEAD_LETTERS,
                commit.offer or b"", max(0, int(commit.offer_seconds * 1000)), *letters,
            ],
        )  # fmt: skip
        if not done:
            self._lost()
        if commit.policy is not None:
            await self.client.publish(self.keys.hint, f"{commit.version[0]}.{commit.version[1]}")

    async def orders(self) -> bytes | None:
        """What operators have ordered, as JSON; None: nothing yet."""
        return cast(bytes | None, await cast(Any, self.client.hget(self.keys.orders, "orders")))

    async def steer(self, read: int, revision: int, orders: bytes, act: bytes) -> bool:
        """Write orders with their audit entry, unless somebody has written since revision `read`: then False."""
        return bool(
            await self._steer(
                keys=[self.keys.orders, self.keys.acts],
                args=[str(read), str(revision), orders, act, ACTS],
            )
        )

    async def keep(self, sample: bytes, kept: int) -> None:
        """Append a sample to the pool's history, of which about `kept` stay."""
        await self.client.xadd(self.keys.history, {"sample": sample}, maxlen=kept, approximate=True)

    async def history(self, count: int) -> list[bytes]:
        """The newest `count` samples, oldest first."""
        rows = cast(Any, await self.client.xrevrange(self.keys.history, count=count))
        return [fields[b"sample"] for _, fields in reversed(rows) if b"sample" in fields]

    async def policy(self) -> bytes | None:
        """The published policy as it lies in Redis."""
        return cast(bytes | None, await self.client.get(self.keys.policy))

    async def changes(self, count: int) -> list[tuple[str, bytes]]:
        """The newest `count` changes of policy, newest first: id and JSON object."""
        return await self._newest(self.keys.audit, count, "+")

    async def audit(self, count: int, before: str | None = None) -> list[tuple[str, bytes]]:
        """The newest `count` acts and changes of policy (of which older than id `before`), newest first: id and JSON
        object. One more where the last two have one id: nothing is missed by going on before the last."""
        if before is not None and _order(before) == (0, 0):
            return []  # nothing is older than the first id there can be; the server calls such a range an error
        end = "+" if before is None else f"({before}"
        both = [*await self._newest(self.keys.acts, count, end), *await self._newest(self.keys.audit, count, end)]
        both.sort(key=lambda row: _order(row[0]), reverse=True)
        return both[: page(both, count)]

    async def _newest(self, stream: str, count: int, end: str) -> list[tuple[str, bytes]]:
        rows = cast(Any, await self.client.xrevrange(stream, max=end, count=count))
        return [(id_.decode(), fields[b"entry"]) for id_, fields in rows if b"entry" in fields]

    async def dead_letters(self, count: int) -> list[DeadLetter]:
        """The newest `count` refused frames, newest first."""
        rows = cast(Any, await self.client.xrevrange(self.keys.dead, count=count))
        return [DeadLetter(Entry(f[b"id"].decode(), f[b"frame"]), f[b"reason"].decode()) for _, f in rows]

    async def _published_epoch(self) -> int:
        policy = await self.policy()
        try:
            return int(msgspec.json.decode(policy)["version"][0]) if policy else 0
        except (msgspec.MsgspecError, KeyError, IndexError, TypeError, ValueError):
            return 0  # an unreadable policy claims no epoch; the next commit replaces it

    def _lost(self) -> None:
        epoch, self.epoch = self.epoch, None
        raise LeaseLostError(
            f"the lease of pool {self.pool!r} (epoch {epoch}) ran out or belongs to another controller"
        )


def arrival(id_: str) -> float:
    """Wall clock, seconds, at which Redis took the entry with this id.

    >>> arrival("1700000000500-3")
    1700000000.5
    """
    return int(id_.partition("-")[0]) / 1000


def page(rows: Sequence[tuple[str, Any]], count: int) -> int:
    """How many rows make a page of `count` whose end does not part two of one id.

    >>> page([("3-0", "a"), ("2-0", "b"), ("2-0", "c"), ("1-0", "d")], 2)
    3
    """
    end = min(count, len(rows))
    while 0 < end < len(rows) and rows[end][0] == rows[end - 1][0]:
        end += 1
    return end


def _order(id_: str) -> tuple[int, int]:
    milliseconds, _, number = id_.partition("-")
    return int(milliseconds), int(number or 0)
