"""The policy on its way to the engine: a key that is read, a hint to read it now, a slow poll for lost hints."""

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable

import redis

from engine.link.logs import Told
from engine.link.messages import WIRE_VERSION, Keys, Policy, Version, decode_policy
from engine.link.settings import LinkSettings, masked
from engine.link.transport import Backoff, connect, trouble, words

_log = logging.getLogger(__name__)
DAY_MS = 86_400_000


class Judge:
    """Decides what to do with the bytes found under the policy key. No I/O.

    Versions (epoch, n) are ordered lexicographically and never go back. A policy that cannot be read, that contradicts
    itself or that has expired leaves the engine with its static choice, until a version that is not older arrives.
    `use` takes over a policy, or `None`; it may raise `ValueError` for one that contradicts itself.
    """

    def __init__(self, pool: str, use: Callable[[Policy | None, float], None], engine: str | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self.why = "no policy has been read yet"
        self.newest: Version | None = None
        self._pool = pool
        self._use = use
        self._current: Policy | None = None
        self.log = Told(_log, pool=pool, engine=engine, policy_version=self._version)

    def _version(self) -> Version | None:
        return None if self._current is None else self._current.version

    def judge(self, data: bytes | None, unix_now: float) -> str:
        """Take in the key's value (`None`: there is no such key). The verdict, which is also counted: `applied`,
        `prolonged`, `same`, `absent`, `unreadable`, `older`, `future` or `expired`.
        """
        followed = self._current is not None
        verdict, why = self._judge(data, unix_now)
        self.counts[verdict] += 1
        if why != self.why:
            self.why = why
            next_one = followed and verdict == "applied"  # one a second: no news
            wrong = verdict in ("unreadable", "future")
            self.log.log(logging.WARNING if wrong else logging.DEBUG if next_one else logging.INFO, "policy: %s", why)
        return verdict

    def _judge(self, data: bytes | None, now: float) -> tuple[str, str]:
        if data is None:
            self.expire(now)
            return "absent", "the key holds no policy" + (", the last one stays until it expires" * bool(self._current))
        try:
            policy = self._read(data)
        except ValueError as error:  # msgspec's errors are ValueErrors
            return self._drop("unreadable", f"unreadable, static choice in force: {error}")
        refused = self._refuse(policy, now)
        if refused is not None:
            return refused
        version = policy.version
        prolonged = self._current is not None and version == self._current.version
        try:
            self._use(policy, now)
        except ValueError as error:
            return self._drop("unreadable", f"version {version} contradicts itself, static choice in force: {error}")
        self.newest, self._current = version, policy
        return "prolonged" if prolonged else "applied", f"version {version} in force"

    def expire(self, now: float) -> None:
        """Say so, once, when the policy in force has expired unrenewed; the engine left it by itself."""
        if self._current is not None and now >= self._current.expires:
            self.log.warning(
                "policy: version %s has expired, static choice in force until a newer one comes", self._current.version
            )
            self._current = None

    def _read(self, data: bytes) -> Policy:
        policy = decode_policy(data)
        if policy.v > WIRE_VERSION:
            raise ValueError(f"wire version is {policy.v}, this engine reads up to {WIRE_VERSION}")
        if policy.pool != self._pool:
            raise ValueError(f"it is for pool {policy.pool!r}, this engine belongs to {self._pool!r}")
        return policy

    def _refuse(self, policy: Policy, now: float) -> tuple[str, str] | None:
        """Verdict on a readable policy that changes nothing or ends what is in force; `None` for one to be used."""
        version, current = policy.version, self._current
        if version[0] > now * 1000 + DAY_MS:
            return "future", f"version {version} is dated more than a day ahead of this clock; ignored"
        if self.newest is not None and version < self.newest:
            return "older", f"version {version} is older than {self.newest}, which has been seen; ignored"
        if now >= policy.expires:
            self.newest = version
            return self._drop("expired", f"version {version} has expired, static choice in force")
        if current is not None and version == current.version and policy.expires <= current.expires:
            return "same", f"version {version} in force"
        return None

    def _drop(self, verdict: str, why: str) -> tuple[str, str]:
        self._current = None
        self._use(None, 0.0)
        return verdict, why


class Follower:
    """A background thread that hands each policy to a `Judge`; survives a server that is down, restarted or deaf."""

    def __init__(self, settings: LinkSettings, judge: Judge) -> None:
        self.judge = judge
        self.connected = False
        self.reads = 0
        self.hints = 0
        self.why: str | None = None
        self._settings = settings
        self._keys = Keys(settings.pool)
        self._client = connect(settings.redis_url, settings.timeout)
        self._backoff = Backoff(min(0.25, settings.poll_interval), 10.0, random.Random())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="akc-follower", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def close(self, timeout: float) -> bool:
        """Stop; True when the thread has ended within `timeout` seconds."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        wait = 0.0
        while not self._stop.wait(wait):
            try:
                self._follow()
            except (redis.RedisError, OSError) as error:
                self._failure(f"{type(error).__name__}: {words(error)}", trouble(error))
            except Exception as error:
                if self.why != repr(error):  # once: it will be tried again and again
                    self.judge.log.exception("follower: unexpected error")
                self._failure(repr(error))
            self.judge.expire(time.time())
            wait = self._backoff.after_failure()

    def _follow(self) -> None:
        """Subscribe, then read at once, at every hint and at every poll, until stopped or the connection breaks."""
        with self._client.pubsub(ignore_subscribe_messages=True) as hints:  # type: ignore[no-untyped-call]  # redis-py
            hints.subscribe(self._keys.hint)
            while not self._stop.is_set():
                self._read()
                due = time.monotonic() + self._settings.poll_interval
                while not self._stop.is_set() and (left := due - time.monotonic()) > 0:
                    # Short waits, so that closing takes no longer than one of them.
                    if hints.get_message(timeout=min(left, 0.1)) is not None:
                        self.hints += 1
                        break
        self._client.close()

    def _read(self) -> None:
        data = self._client.get(self._keys.policy)
        self.reads += 1
        self._backoff.success()
        if not self.connected:
            self.connected, self.why = True, None
            self.judge.log.info(
                "follower: following %s, pool %s", masked(self._settings.redis_url), self._settings.pool
            )
        self.judge.judge(data if data is None or isinstance(data, bytes) else bytes(str(data), "utf-8"), time.time())

    def _failure(self, why: str, does: str = "cannot be used") -> None:
        if self.connected or self.why is None:
            url = masked(self._settings.redis_url)
            stays = "the policy in force stays until it expires"
            if self.judge.newest is None:
                stays = "there was no policy yet, so the static choice is in force; trying again"
            self.judge.log.warning("follower: %s %s (%s); %s", url, does, why, stays)
        self.connected, self.why = False, why
