"""A decision on several threads is the decision on one."""

import gc
import threading
from typing import Any

import numpy as np
import pytest

from controller.learner import Learner, LearnerConfig, parallel
from tests.learner.world import World, falling, play

WORLD = World(
    {
        "code": {"small": falling(0.9, 0.95), "ngram": falling(0.6, 0.9)},
        "chat": {"small": falling(0.7, 0.8), "ngram": falling(0.3, 0.7)},
    },
    {"small": 0.2, "ngram": 0.01},
    max_batch=8,
)


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = play(WORLD, 6, 40, LearnerConfig(draws=64), slots=["code", "chat", "code", "chat"])[0]
    decided, threads = [], set()
    monkeypatch.setattr(parallel, "_WORTH", 1)
    book = Learner._decided

    def noted(self: Learner, *given: Any) -> Any:
        threads.add(threading.get_ident())
        return book(self, *given)

    monkeypatch.setattr(Learner, "_decided", noted)
    for told in ("1", "3"):
        monkeypatch.setenv("OMP_NUM_THREADS", told)
        copy = Learner.load(learner.dump(), learner.config, WORLD.spec)
        decided.append(copy.decide(100.0, np.random.default_rng(0), afresh=True))
        assert (threading.get_ident() in threads) == (told == "1")
        threads.clear()
    assert decided[0].cells == decided[1].cells
    assert decided[0].arms() == decided[1].arms()


def test_numbers_of_threads_come_from_the_variable_or_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 3, 5})
    for told, threads in (("", 3), ("2", 2), ("0", 3), ("64", 8), ("4,1", 3)):
        monkeypatch.setenv("OMP_NUM_THREADS", told)
        assert parallel.workers() == threads


def test_collection_goes_on_after_an_error() -> None:
    def fail() -> None:
        with parallel.uncollected():
            assert not gc.isenabled()
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fail()
    assert gc.isenabled()
