"""A scenario in real time: virtual engines that report to a running controller and obey it.

One thread steps all engines, each when its step is over; their links have threads of their own, as in a real engine.
"""

import heapq
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
import redis
from rich.console import Console
from rich.live import Live

from engine.heartbeat import Heartbeat
from engine.link import EngineDescription, Link, LinkSettings, SettingsError, load
from engine.link.messages import Keys, decode_frame
from engine.link.settings import masked
from engine.link.transport import connect
from simulations.clairvoyant import Clairvoyant
from simulations.live_engine import VIRTUAL, VirtualEngine
from simulations.live_tally import Tally, line, summary, table
from simulations.scenario import Scenario
from simulations.timeline import Timeline
from simulations.world import Engine

LAG = 1.0  # seconds of delay that engines catch up with; what goes beyond is lost and makes them slower than asked
_SHOW, _SHOW_IN_LOG, _LOG_WIDTH = 0.5, 10.0, 130
_BEAT = 1.0  # seconds between heartbeats
_OFTEN = 0.1  # seconds between frames at least; else one a second of the scenario
_LOOKED_AT = 100  # newest frames of a pool, to see whether a real engine reports there


class LiveError(ValueError):
    """A live run that cannot start; the message says what to do."""


def pool_name(scenario: str) -> str:
    """The pool a scenario is played as unless told otherwise; controllers take letters, digits and ._- only.

    >>> pool_name("published-72b"), pool_name("my load/2")
    ('virtual-published-72b', 'virtual-my-load-2')
    """
    return f"{VIRTUAL}-{re.sub(r'[^A-Za-z0-9._-]', '-', scenario)}"[:64]


def address(env: Mapping[str, str] = os.environ) -> str:
    """The server's address as real engines take it from the environment: what is in there is in no list of processes.

    >>> address({"AKC_REDIS_URL": "redis://a", "REDIS_URL": "redis://b"}), address({"REDIS_URL": "redis://b"})
    ('redis://a', 'redis://b')
    >>> address({})
    Traceback (most recent call last):
    simulations.live.LiveError: --live is 'env' and neither AKC_REDIS_URL nor REDIS_URL is set; set one or give the URL
    """
    for name in ("AKC_REDIS_URL", "REDIS_URL"):
        if env.get(name):
            return env[name]
    raise LiveError("--live is 'env' and neither AKC_REDIS_URL nor REDIS_URL is set; set one or give the URL")


class Pool:
    """The scenario's engines. `connect` makes an engine's link from its number and its description."""

    def __init__(self, timeline: Timeline, connect: Callable[[int, EngineDescription], Link], seed: int = 0) -> None:
        self.timeline = timeline
        self.tally = Tally(timeline)
        self.played = 0.0  # seconds of the scenario, all engines
        clairvoyant = Clairvoyant(timeline)

        def engine(number: int) -> VirtualEngine:
            return VirtualEngine(Engine(timeline, clairvoyant, seed, number), lambda about: connect(number, about))

        self.engines = [engine(number) for number in range(timeline.scenario.engines)]

    def play(
        self,
        *,
        speed: float,
        seconds: float | None,
        stopped: Callable[[], bool],
        wait: Callable[[float], object],
        clock: Callable[[], float] = time.monotonic,
        show: Callable[[float], None] = lambda now: None,
        every: float = _SHOW,
    ) -> None:
        """Step the engines until `stopped`, or for so many seconds of the clock. A step of s seconds takes s / speed
        of the clock and is reported as s. `wait(t)` returns after t seconds or earlier; `show(now)` is called every
        `every` seconds.
        """
        start = clock()
        shown = start + every
        end = float("inf") if seconds is None else start + seconds
        queue = [(start + self._begin(number) / speed, number) for number in range(len(self.engines))]
        heapq.heapify(queue)
        while not stopped() and (now := clock()) < end:
            if now >= shown:
                show(now)
                shown = now + every
            due, number = queue[0]
            if due > now:
                wait(min(due, end, shown) - now)
            else:
                self._complete(number, now)
                heapq.heapreplace(queue, (max(due, now - LAG) + self._begin(number) / speed, number))

    def _begin(self, number: int) -> float:
        return self.engines[number].begin()

    def _complete(self, number: int, now: float) -> None:
        played = self.engines[number].complete()
        self.played += played.seconds
        if not self.engines[number].world.hostile:
            self.tally.take(played, now)

    def close(self) -> None:
        """Let every engine say goodbye."""
        with ThreadPoolExecutor(len(self.engines)) as threads:
            list(threads.map(VirtualEngine.close, self.engines))

    def reached(self) -> bool:
        """Whether the last report of every engine arrived."""
        return all(engine.link.status()["connected"] for engine in self.engines)

    def state(self) -> str:
        """Redis, policy and breakers in a sentence."""
        states: list[dict[str, Any]] = [engine.link.status() for engine in self.engines]
        n, reached = len(states), sum(bool(state["connected"]) for state in states)
        parts = [f"{n} engine{'s' * (n > 1)}"]
        if reached < n:
            why = next((state["why"] for state in states if state["why"]), None) or "not connected yet"
            parts.append(f"Redis is NOT reached by {n - reached} ({why}); engines go on, a policy until it expires")
        else:
            parts.append("Redis is reached")
        following = [state["version"] for state in states if state["version"] is not None]
        if following:
            parts.append(f"policy {max(following)[1]} of epoch {max(following)[0]}")
        if len(following) < n:
            parts.append(f"{n - len(following)} without a policy run the static choice (is a controller running?)")
        if open_ := sum(state["breaker"] != "closed" for state in states):
            parts.append(f"breaker not closed in {open_}")
        if lost := sum(state["lost"] for state in states):
            parts.append(f"{lost} steps not counted")
        return "; ".join(parts)


def run(
    scenario: Scenario,
    redis_url: str,
    *,
    engines: int | None = None,
    pool: str | None = None,
    speed: float = 1.0,
    seconds: float | None = None,
    heartbeat: Path | None = None,
    console: Console | None = None,
) -> Pool:
    """Play until the seconds are over, or SIGINT or SIGTERM comes; then print what came of it.

    `heartbeat`: a file written anew every second in which steps were made and every engine's last report arrived.
    Raises `LiveError` when the server cannot be reached, the pool is a real one or the file cannot be written,
    `ScenarioError` for a number of engines that the scenario does not allow.
    """
    console = console or Console()
    if not console.is_terminal:  # rich takes a file for 80 columns wide
        console.width = max(console.width, _LOG_WIDTH)
    if engines is not None:
        scenario = msgspec.structs.replace(scenario, engines=engines)
    try:
        heart = Heartbeat(heartbeat) if heartbeat is not None else None
    except OSError as error:
        raise LiveError(f"--heartbeat is {str(heartbeat)!r}, which cannot be written: {error}") from None
    name = pool or pool_name(scenario.name)
    settings = _settings(redis_url, name, min(1.0, max(1.0 / speed, _OFTEN)))
    _look_at(settings)

    def link(number: int, about: EngineDescription) -> Link:
        static = {"static_draft": about.static.draft, "static_k": about.static.k}
        return Link.connect(msgspec.structs.replace(settings, engine=f"{VIRTUAL}-{number}", **static), about)

    timeline = Timeline(scenario)
    title = f"{scenario.name} as pool {name}, {speed:g} times real time"
    live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
    with _stopping() as stop:
        playing = Pool(timeline, link)
        start = shown = time.monotonic()
        every = _SHOW_IN_LOG if live is None else _SHOW
        beaten = 0.0

        def show(now: float) -> None:
            nonlocal shown, beaten
            if heart is not None and playing.played > beaten and playing.reached():
                beaten = playing.played
                heart.beat()
            if now - shown < every:
                return
            shown = now
            if live is not None:
                about = f"{now - start:.0f} s; the last minute. {playing.state()}"
                live.update(table(playing.tally, now, title, about), refresh=True)
            else:
                console.print(
                    f"{now - start:.0f} s: {line(playing.tally, now)}; {playing.state()}", soft_wrap=True, markup=False
                )

        often = every if heart is None else min(every, _BEAT)
        try:
            with live or nullcontext():
                playing.play(speed=speed, seconds=seconds, stopped=stop.is_set, wait=stop.wait, show=show, every=often)
            end, state = time.monotonic(), playing.state()
        finally:
            playing.close()
    reached = playing.played / len(playing.engines) / (end - start)
    about = f"{end - start:.0f} s; the last minute, and the whole run. {state}. Pace: {reached:.1f} times real time"
    if reached < 0.9 * speed:
        about += f", {speed:g} were asked for: this machine cannot step the engines so fast"
    console.print(summary(playing.tally, end, title, about))
    return playing


def _settings(redis_url: str, pool: str, interval: float) -> LinkSettings:
    """Settings of the engines' links, from nothing but the arguments: AKC_ variables are those of real engines."""
    try:
        given = {"redis_url": redis_url, "pool": pool, "report_interval": interval}
        return load(LinkSettings, env={}, flags=given, source="command line")
    except SettingsError as error:
        raise LiveError(str(error).replace("redis_url is", "--live is").replace("pool is", "--pool is")) from None


def _look_at(settings: LinkSettings) -> None:
    """Make sure that the server answers and that no real engine reports to the pool."""
    url = masked(settings.redis_url)
    try:
        with connect(settings.redis_url, settings.timeout) as client:
            client.ping()
            newest: Any = client.xrevrange(Keys(settings.pool).frames, count=_LOOKED_AT)
    except (redis.RedisError, OSError, ValueError) as error:
        raise LiveError(
            f"Redis at {url} cannot be reached ({error}); start it, or give another URL to --live"
        ) from None
    for _, entry in newest:
        try:
            about = decode_frame(entry.get(b"frame", b"")).describe
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue  # the controller says what is wrong with it
        if about is not None and not about.target.startswith(VIRTUAL):
            raise LiveError(
                f"pool {settings.pool!r} has engines of {about.target!r}: made-up counts would spoil what was learned "
                "of them; give another name to --pool"
            )


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set; a second SIGINT is the usual one."""
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def asked(*_: object) -> None:
        stop.set()
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in before:
        signal.signal(number, asked)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
