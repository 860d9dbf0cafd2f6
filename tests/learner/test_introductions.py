"""Where drafts are tried and revisited, and how often plain steps are probed."""

from dataclasses import replace

import numpy as np
import pytest

from controller.learner import Learner, LearnerConfig, PoolSpec, cost
from controller.learner.decision import LoadTable, best_levels, trials
from engine.link.messages import DraftInfo, ProbePlan

ALL = np.ones((1, 1, 4), dtype=bool)


def levels(shares: np.ndarray) -> list[int]:
    """The one level of every draft that has a share, of shape [C, J, Kn]."""
    assert (shares.sum(axis=2) == 1.0).all()
    return [int(at) for at in shares.argmax(axis=2).ravel()]


@pytest.mark.parametrize(
    ("price", "reached", "level"),
    [
        ([1.0, 1.1, 1.2, 1.29], 4, 3),  # all within three tenths of a plain step: the deepest
        ([1.0, 1.1, 1.2, 1.29], 2, 1),  # the ladder ends at K's second value
        ([1.0, 1.1, 1.31, 1.29], 4, 3),  # a dip: depth counts, not the way to it
        ([1.0, 1.5, 2.0, 2.5], 4, 1),  # all too dear: the shallowest
        ([1.0, 0.9, 1.4, 1.5], 4, 1),
        ([1.0, 1.1, 1.2, 1.3], 1, 0),  # nothing but plain may be played
    ],
)
def test_a_draft_is_tried_at_the_deepest_k_that_is_cheap(price: list[float], reached: int, level: int) -> None:
    playable = np.arange(4) < reached
    assert levels(trials(np.array([[price]]), playable[None, None])) == [level]


def test_every_draft_of_every_context_is_tried_at_its_own_k() -> None:
    price = np.array([[[1.0, 1.1, 1.5], [1.0, 1.1, 1.2]], [[1.0, 1.4, 1.5], [1.0, 1.2, 1.4]]])
    assert levels(trials(price, np.ones((2, 2, 3), dtype=bool))) == [1, 2, 1, 1]
    assert trials(np.ones((2, 2, 1)), np.ones((2, 2, 1), dtype=bool)).tolist() == [[[1.0], [1.0]]] * 2


def test_a_draft_is_revisited_at_its_best_k_though_it_loses() -> None:
    assert levels(best_levels(np.array([[[1.0, 0.7, 0.9, 0.8]]]), ALL)) == [2]
    assert levels(best_levels(np.array([[[1.0, 0.7, 0.9, 0.8]]]), np.arange(4)[None, None] != 2)) == [3]
    assert levels(best_levels(np.array([[[1.0, 1.2, 1.1, 0.8]]]), ALL)) == [1]


def table(gain: list[list[float]], top: list[int]) -> LoadTable:
    """What a decision leaves about one load, all but gains [contexts, arms] and the most probable arms left empty."""
    none = np.zeros(0)
    return LoadTable(
        load=1, probability=none, best=none, goodput_row=none, goodput_batch=none, gain=np.array(gain), shortfall=none,
        speedup=none, speedup_sd=none, closed=none.astype(bool), seconds=none, given_draft=none,
        in_time=none.astype(bool), top=np.array(top, dtype=np.intp), since=none,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("gain", "top", "plain_sd", "every"),
    [
        ([[1.0, 1.5]], [1], 0.051, 1000),  # more than a tenth of what drafting gains
        ([[1.0, 1.5]], [1], 0.049, 4000),
        ([[1.0, 1.05]], [1], 0.011, 1000),  # a hundredth at least
        ([[1.0, 1.05]], [1], 0.009, 4000),
        ([[1.0, 1.5], [1.0, 1.2]], [1, 1], 0.03, 1000),  # the least gain of two contexts is .2
        ([[1.0, 1.5], [1.0, 1.2]], [1, 0], 0.03, 4000),  # which does not count where nothing is drafted
        ([[1.0, 1.5]], [0], 0.5, 0),  # plain steps come by themselves
    ],
)
def test_plain_steps_are_probed_rarely_where_their_price_leaves_no_doubt(
    gain: list[list[float]], top: list[int], plain_sd: float, every: int
) -> None:
    spec = PoolSpec((DraftInfo("x", "model", 2),), (0, 2), max_batch=1)
    prices = cost.fit([], spec, Learner(LearnerConfig(), spec).effect_sd)
    served = replace(prices, loads=replace(prices.loads, steps=np.array([100.0])))
    assert Learner._probe([table(gain, top)], served, [plain_sd]) == ProbePlan(every, 4 if every else ProbePlan().steps)
    assert Learner._probe([table(gain, top)], prices, [plain_sd]) == ProbePlan()  # a load without steps asks for none
