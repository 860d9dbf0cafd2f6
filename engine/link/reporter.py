"""Frames on their way to Redis: a background thread reads the counters and ships them; the decode loop never waits.

A frame holds absolute values, so one that could not be delivered is simply superseded by the next, which carries all
cells changed since the last frame that *was* delivered.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import redis

from engine.link.counters import Counters
from engine.link.logs import Told
from engine.link.messages import BreakerState, EngineDescription, Frame, Keys, Version, encode
from engine.link.pace import LEAST, YOUNG_STEPS, pace
from engine.link.settings import LinkSettings, masked
from engine.link.transport import Backoff, connect, trouble, words

_log = logging.getLogger(__name__)


class Live(NamedTuple):
    """What a frame says beside its cells, read at the moment the frame is made."""

    applied: Version | None
    breaker: BreakerState
    running: int
    waiting: int
    lost: int
    policy_age: float | None = None


class Reporter:
    """Ships one engine incarnation's counters, `report_interval` seconds apart (at first less: `pace`), until closed.

    `live` is asked for each frame; `chores` run on the same thread before each frame (writing the trace). Every
    `full_every`-th frame, the first one, and the first after a failure hold all cells and the engine's description.
    """

    def __init__(
        self,
        settings: LinkSettings,
        describe: EngineDescription,
        incarnation: str,
        counters: Counters,
        live: Callable[[], Live],
        chores: Sequence[Callable[[], None]] = (),
    ) -> None:
        self.connected = False
        self.delivered = 0
        self.failed = 0
        self.why: str | None = None
        self._settings = settings
        self._describe = describe
        self._incarnation = incarnation
        self._counters = counters
        self._live = live
        self._chores = chores
        self._keys = Keys(settings.pool)
        self._client = connect(settings.redis_url, settings.timeout)
        self._backoff = Backoff(min(0.25, settings.report_interval), 10.0, random.Random())
        self._log = Told(_log, pool=settings.pool, engine=settings.engine_id)
        self._started = time.monotonic()
        self._seq = 0
        self._reported = 0  # steps in the last frame
        self._delivered_steps = 0  # steps in the last frame that was delivered
        self._since = 0
        self._until_full = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="akc-reporter", daemon=True)

    @property
    def unreported(self) -> int:
        """Steps that no delivered frame holds yet: what would be lost if the engine died now."""
        return max(0, self._counters.steps - self._delivered_steps)

    def start(self) -> None:
        """Begin to report."""
        self._thread.start()

    def close(self, timeout: float) -> bool:
        """Send a last, full frame and stop; True when the thread has ended within `timeout` seconds."""
        self._stop.set()
        if self._thread.ident is None:
            self._ship(final=True)
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def frame(self, *, final: bool = False) -> tuple[Frame, int]:
        """The next frame, and the counters' generation that counts as delivered once it is."""
        full = final or self._until_full <= 0
        snapshot = self._counters.snapshot(0 if full else self._since)
        live = self._live()
        self._seq += 1
        self._reported = snapshot.steps
        frame = Frame(
            self._settings.engine_id,
            self._incarnation,
            self._seq,
            time.monotonic() - self._started,
            time.time(),
            full=full,
            describe=self._describe if full else None,
            applied=live.applied,
            breaker=live.breaker,
            running=live.running,
            waiting=live.waiting,
            steps=snapshot.steps,
            lost=live.lost,
            acceptance=snapshot.acceptance,
            moments=snapshot.moments,
            cost=snapshot.cost,
            account=snapshot.account,
            final=final,
            policy_age=live.policy_age,
        )
        return frame, snapshot.generation

    def _run(self) -> None:
        wait = 0.0
        while not self._stop.wait(wait):
            wait = self._pause() if self._ship() else self._backoff.after_failure()
        self._ship(final=True)
        self._client.close()

    def _pause(self) -> float:
        """Seconds to the next frame. A young engine that runs no step is looked at in short naps: idle, it reports no
        more often than any other, and what it does first is soon known."""
        usual, start, sent = self._settings.report_interval, time.monotonic(), self._reported
        if sent >= YOUNG_STEPS:
            return usual
        nap = LEAST * usual
        while self._counters.steps == sent and time.monotonic() < start + usual - nap:
            if self._stop.wait(nap):
                return 0.0
        if self._counters.steps == sent:
            return nap
        return max(0.0, start + pace(self._counters.steps, usual) - time.monotonic())

    def _ship(self, *, final: bool = False) -> bool:
        """Make and send one frame; False when it could not be delivered."""
        try:
            for chore in self._chores:
                chore()
            frame, generation = self.frame(final=final)
            if frame.full:
                self._client.sadd(Keys.POOLS, self._settings.pool)
            self._client.xadd(
                self._keys.frames, {"frame": encode(frame)}, maxlen=self._settings.stream_length, approximate=True
            )
        except (redis.RedisError, OSError) as error:
            self._failure(f"{type(error).__name__}: {words(error)}", trouble(error))
            return False
        except Exception as error:  # the thread must live on: the next frame starts from the counters again
            if self.why != repr(error):  # once: it will be tried again and again
                self._log.exception("reporter: a frame could not be made")
            self._failure(repr(error))
            return False
        self._since = generation
        self._until_full = self._settings.full_every - 1 if frame.full else self._until_full - 1
        self._delivered_steps = frame.steps
        self.delivered += 1
        self._backoff.success()
        if not self.connected:
            self.connected, self.why = True, None
            self._log.info("reporter: reporting to %s, pool %s", masked(self._settings.redis_url), self._settings.pool)
        return True

    def _failure(self, why: str, does: str = "cannot be used") -> None:
        self.failed += 1
        self._until_full = 0  # a server that comes back may have forgotten everything
        if self.connected or self.failed == 1:
            url = masked(self._settings.redis_url)
            self._log.warning("reporter: %s %s (%s); decoding goes on, trying again", url, does, why)
        self.connected, self.why = False, why
