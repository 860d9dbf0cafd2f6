"""Connections to the Redis-protocol server, made so that a background thread always comes back in bounded time."""

import random
import re
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from engine.link.address import sentinels


class _Primary(redis.Redis):
    """A client that closes those of its Sentinels, too."""

    def close(self) -> None:
        """Close all connections; the next command opens new ones."""
        super().close()
        for sentinel in self.connection_pool.sentinel_manager.sentinels:  # type: ignore[attr-defined]
            sentinel.close()


def connect(url: str, timeout: float) -> redis.Redis:
    """A client that waits at most `timeout` seconds to connect and for each answer, and does not retry by itself.

    Through Sentinels it finds the primary at every new connection, so that it follows a failover. It connects at its
    first command. Raises `ValueError` for a URL it cannot read.
    """
    patience: dict[str, Any] = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }
    found = sentinels(url)
    if found is None:
        return redis.Redis.from_url(url, **patience)
    own = {**patience, **found.sentinel}
    asked = Sentinel(found.nodes, sentinel_kwargs=own, **patience, **found.server)  # type: ignore[no-untyped-call]
    primary: redis.Redis = asked.master_for(found.service, redis_class=_Primary)  # type: ignore[no-untyped-call]
    return primary


def trouble(error: Exception, away: str = "is not reachable") -> str:
    """What a server does that could not be used: it refuses, holds what is not ours, or (`away`) cannot be asked.

    >>> trouble(redis.ConnectionError("refused")), trouble(redis.ResponseError("NOPERM no permission"))
    ('is not reachable', 'refuses')
    >>> trouble(redis.ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"))
    'holds something of another type under one of our keys, which others must have written'
    """
    if isinstance(error, redis.ResponseError) and "WRONGTYPE" in str(error):
        return "holds something of another type under one of our keys, which others must have written"
    refused = isinstance(error, redis.ResponseError | redis.AuthenticationError | redis.exceptions.AuthorizationError)
    return "refuses" if refused else away


# How redis-py shows a Sentinel that it asked: with all settings of its pool.
_ASKED = re.compile(r"<redis\..*?\bhost=([^,]*),port=(\d+),.*?\)>\)>\)> - (?:network:)?")


def words(error: Exception) -> str:
    """What an error says, short enough for people: of Sentinels that were asked in vain the addresses.

    >>> words(redis.ConnectionError("refused"))
    'refused'
    """
    return _ASKED.sub(r"\1:\2 ", str(error)).replace(" : ", ": ", 1) if "<redis." in str(error) else str(error)


def complaint(error: Exception) -> str:
    """What a server does that could not be used, and what the error says, to go on behind its name.

    >>> complaint(redis.ConnectionError("refused")), complaint(redis.ResponseError("NOPERM no permission"))
    ('does not answer: refused', 'refuses: NOPERM no permission')
    """
    return f"{trouble(error, 'does not answer')}: {words(error)}"


class Backoff:
    """Seconds to wait after a failure: doubling from `first` to `last`, each time a random half to whole of it.

    >>> backoff = Backoff(0.5, 4.0, random.Random(1))
    >>> waits = [backoff.after_failure() for _ in range(5)]
    >>> all(w / 2 <= wait <= w for wait, w in zip(waits, (0.5, 1.0, 2.0, 4.0, 4.0)))
    True
    """

    def __init__(self, first: float, last: float, rng: random.Random) -> None:
        self._first = first
        self._last = last
        self._rng = rng
        self.failures = 0

    def after_failure(self) -> float:
        """The wait after one more failure in a row."""
        wait = min(self._last, self._first * 2.0 ** min(self.failures, 30))
        self.failures += 1
        return wait * self._rng.uniform(0.5, 1.0)

    def success(self) -> None:
        """The next failure is a first one again."""
        self.failures = 0
