"""Intervals of a young pool: what they are, and how the reporter waits for an engine's first steps."""

import threading
from collections.abc import Iterator
from itertools import chain, pairwise, repeat

import pytest

from engine.link import EngineDescription, LinkSettings
from engine.link.counters import Counters
from engine.link.pace import pace
from engine.link.reporter import Live, Reporter


class Steps(Counters):
    """Counters that have come so far at each look, in order; the last number holds from then on."""

    def __init__(self, *looks: int) -> None:
        self._looks: Iterator[int] = chain(looks, repeat(looks[-1]))
        super().__init__()

    @property
    def steps(self) -> int:
        return next(self._looks)

    @steps.setter
    def steps(self, value: int) -> None:
        pass


class Naps(threading.Event):
    """An event that keeps how long it was waited for instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.taken.append(timeout)
        return self.is_set()


def reporter(describe: EngineDescription, counters: Counters, interval: float) -> tuple[Reporter, Naps]:
    settings = LinkSettings(redis_url="redis://127.0.0.1:1/0", report_interval=interval)  # nobody is called
    made = Reporter(settings, describe, "abc", counters, lambda: Live(None, "closed", 0, 0, 0))
    naps = made._stop = Naps()
    return made, naps


def test_intervals_grow_from_a_tenth_with_the_steps_until_160_of_them() -> None:
    steps = (0, 15, 16, 17, 80, 159, 160, 161, 10**9)
    assert [pace(n, 2.0) for n in steps] == pytest.approx([0.2, 0.2, 0.2, 0.2125, 1.0, 1.9875, 2.0, 2.0, 2.0])
    assert all(a <= b for a, b in pairwise(pace(n, 1.0) for n in range(400)))


@pytest.mark.parametrize(("steps", "wait"), [(1, 6.0), (16, 6.0), (40, 15.0), (120, 45.0), (160, 60.0), (9000, 60.0)])
def test_a_running_engine_waits_by_its_steps_without_naps(describe: EngineDescription, steps: int, wait: float) -> None:
    made, naps = reporter(describe, Steps(steps), 60.0)
    assert made._pause() == pytest.approx(wait, abs=0.1)
    assert naps.taken == []


def test_an_engine_that_has_not_begun_is_looked_at_every_tenth_and_its_first_steps_are_soon_sent(
    describe: EngineDescription,
) -> None:
    made, naps = reporter(describe, Steps(0, 0, 0, 4), 60.0)
    assert made._pause() == pytest.approx(6.0, abs=0.1)
    assert naps.taken == pytest.approx([6.0] * 3)


def test_an_idle_engine_still_reports_once_an_interval(describe: EngineDescription) -> None:
    made, _ = reporter(describe, Steps(0), 0.02)
    made._stop = threading.Event()  # it really naps: nine tenths of 20 ms
    assert made._pause() == pytest.approx(0.002)


def test_an_engine_that_went_idle_while_young_reports_once_an_interval_and_one_that_is_not_young_takes_no_naps(
    describe: EngineDescription,
) -> None:
    made, naps = reporter(describe, Steps(10, 10, 10, 14), 60.0)
    made._reported = 10
    assert made._pause() == pytest.approx(6.0, abs=0.1)
    assert naps.taken == pytest.approx([6.0] * 3)
    made, naps = reporter(describe, Steps(200), 60.0)
    made._reported = 200
    assert made._pause() == 60.0
    assert naps.taken == []


def test_closing_ends_the_naps(describe: EngineDescription) -> None:
    made, naps = reporter(describe, Steps(0), 60.0)
    naps.set()
    assert made._pause() == 0.0
    assert naps.taken == pytest.approx([6.0])
