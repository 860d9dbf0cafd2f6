"""The safety gate's reserves: of a context, and of the pool, in steps worked out by hand."""

import numpy as np
import pytest

from controller.learner import Learner, LearnerConfig, PoolSpec
from controller.learner.decision import Stay
from controller.learner.discount import Array
from controller.learner.gate import Gate
from engine.link.messages import DraftInfo


def gate(contexts: int) -> Gate:
    made = Gate(budget=10.0, epsilon=0.005, margin=0.01)
    made.grow(contexts)
    return made


def test_contexts_that_lose_a_little_each_close_the_pool_together() -> None:
    one = gate(4)
    one.charge(np.full(4, 10.0), np.full(4, 3.05))  # 3 steps each: 12 of the pool's 10
    assert one.reserve.tolist() == pytest.approx([7.0] * 4)
    assert one.pool_reserve == pytest.approx(-2.0)
    assert not one.closed.any()
    assert one.shut.all()


def test_the_gains_of_one_context_pay_for_looking_in_the_others() -> None:
    one = gate(3)
    loss = np.array([-5.0, 3.05, 3.05])  # the first gains half a step a step
    for _ in range(3):
        one.charge(np.full(3, 10.0), loss)
    assert one.pool_reserve == pytest.approx(10.0 - 3 * 0.95)  # a charge is 5.05 - 2 * 3
    assert not one.shut.any()
    one.charge(np.full(3, 10.0), loss)
    assert one.shut.tolist() == [False, True, True]  # their own reserves: 10 - 4 * 3 < 0


def test_the_pool_opens_again_when_half_its_reserve_is_back() -> None:
    one = gate(2)
    one.charge(np.full(2, 20.0), np.full(2, 5.1))
    assert one.shut.all()
    one.charge(np.full(2, 400.0), np.zeros(2))  # 2 * 400 * 0.005 = 4 steps
    assert one.pool_reserve == pytest.approx(4.0)
    assert one.shut.all()
    one.charge(np.full(2, 100.0), np.zeros(2))
    assert one.pool_reserve == pytest.approx(5.0)
    assert not one.shut.any()


def test_a_shut_gate_admits_sure_arms_only() -> None:
    one = gate(1)
    mean, sd = np.array([[0.95, 1.05, 1.2]]), np.array([[0.2, 0.2, 0.05]])
    # Upper bounds .95 e^.33 = 1.32 and so on: all are open. Lower bounds 1.05 e^-.256 = .81, 1.2 e^-.064 = 1.13.
    assert one.admitted(mean, sd).tolist() == [[True, True, True]]
    one.charge(np.array([100.0]), np.array([20.0]))
    assert one.admitted(mean, sd).tolist() == [[False, False, True]]


def booked(exploring: float = 1.0) -> Learner:
    """A learner of one draft at K = 2 and loads 1 and 2 that played it half of the time in `other`, greedy, where it is
    the most probable arm."""
    learner = Learner(LearnerConfig(), PoolSpec((DraftInfo("x", "model", 2),), (0, 2), max_batch=2))
    learner._grow()
    learner.probability = np.full((2, 2, 2), 0.5)
    learner.exploring = np.full(2, exploring)
    learner.stay = Stay(np.ones((2, 2), dtype=np.intp), np.zeros((2, 2)))
    return learner


def steps(first: float, second: float = 0.0) -> Array:
    """Row-steps of the first context at loads 1 and 2; none of the other context."""
    return np.array([[first, second], [0.0, 0.0]])


def shortfall(loss: float) -> Array:
    """Plain steps lost per step by the draft, and by plain decoding none, [contexts, loads, arms]."""
    return np.broadcast_to(np.array([0.0, loss]), (2, 2, 2))


ROWS = np.array([1.0, 2.0])


def test_what_was_played_is_charged_by_batch_steps_and_probability() -> None:
    learner = booked()
    learner._book(steps(10.0, 8.0), ROWS, shortfall(0.2))
    # 10 steps of one row and 4 of two, half of them drafting: 14 * .5 * .2. A full reserve takes in no epsilon.
    assert learner.gate.reserve.tolist() == pytest.approx([6.0 - 1.4, 6.0])
    assert learner.recent[0].tolist() == [[5.0, 5.0], [2.0, 2.0]]
    assert learner.played[0].tolist() == [[5.0, 5.0], [4.0, 4.0]]  # in row-steps


def test_only_the_share_that_explores_plays_by_the_probabilities() -> None:
    learner = booked(exploring=0.2)
    learner._book(steps(10.0), ROWS, shortfall(0.2))
    # The others all drafted: .2 * .5 + .8 = .9 of 10 steps.
    assert learner.recent[0, 0].tolist() == pytest.approx([1.0, 9.0])
    assert learner.gate.reserve[0] == pytest.approx(6.0 - 9 * 0.2)


def test_what_turned_out_worse_is_charged_anew_and_what_turned_out_better_given_back() -> None:
    learner = booked()
    learner._book(steps(20.0), ROWS, shortfall(0.0))  # thought to cost nothing
    assert learner.gate.reserve[0] == 6.0
    learner._book(steps(0.0, 0.0), ROWS, shortfall(0.3))
    assert learner.gate.reserve[0] == pytest.approx(6.0 - 10 * 0.3)
    learner._book(steps(0.0), ROWS, shortfall(0.3))  # once
    assert learner.gate.reserve[0] == pytest.approx(3.0)
    learner._book(steps(0.0), ROWS, shortfall(0.1))
    assert learner.gate.reserve[0] == pytest.approx(5.0)


def test_hindsight_reaches_back_a_hundred_steps_at_half_weight() -> None:
    learner = booked()
    learner._book(steps(20.0), ROWS, shortfall(0.0))
    learner.probability = np.broadcast_to(np.array([1.0, 0.0]), (2, 2, 2))  # plain from now on
    learner._book(steps(100.0), ROWS, shortfall(0.0))
    assert learner.recent[0, 0].tolist() == pytest.approx([105.0, 5.0])
    learner._book(steps(0.0), ROWS, shortfall(0.4))
    assert learner.gate.reserve[0] == pytest.approx(6.0 - 5 * 0.4)


def test_a_gate_shuts_by_hindsight_alone() -> None:
    learner = booked()
    learner._book(steps(40.0), ROWS, shortfall(-0.5))  # a prior that hopes
    learner._book(steps(0.0), ROWS, shortfall(0.4))
    assert learner.gate.reserve[0] == pytest.approx(6.0 - 20 * 0.4)
    assert learner.gate.closed.tolist() == [True, False]


def test_hope_forgives_nothing() -> None:
    """10 drafting steps lost 3 for good; 20 later ones, hoped to gain 10, turn out to have lost another 1."""
    learner = booked()
    learner.gate.charge(np.array([10.0, 0.0]), np.array([3.05, 0.0]))
    assert learner.gate.reserve[0] == pytest.approx(3.0)
    learner._book(steps(40.0), ROWS, shortfall(-0.5))
    assert learner.gate.reserve[0] == 6.0
    learner._book(steps(0.0), ROWS, shortfall(0.05))
    assert learner.gate.reserve[0] == pytest.approx(3.0 + 40 * 0.005 - 20 * 0.05)


def test_what_has_faded_is_settled() -> None:
    learner = booked()
    learner._book(steps(20.0), ROWS, shortfall(0.2))
    learner.probability = np.broadcast_to(np.array([1.0, 0.0]), (2, 2, 2))  # plain from now on
    learner._book(steps(100.0), ROWS, shortfall(0.2))
    # 10 drafting steps: half of them are settled at .2 each (and 100 * .005 came in), half still pending.
    assert learner.gate.settled[0] == pytest.approx(6.0 + 0.5 - 5 * 0.2)
    assert learner.gate.reserve[0] == pytest.approx(6.0 + 0.5 - 10 * 0.2)


def test_a_debt_ends_at_the_budget() -> None:
    """A machine that becomes slow makes losses of the last hundred steps that no exploring caused."""
    learner = booked()
    learner._book(steps(200.0), ROWS, shortfall(3.0))
    assert learner.gate.reserve.tolist() == [-6.0, 6.0]
    assert learner.gate.pool_reserve == -6.0


def test_a_gain_that_turns_out_smaller_is_no_loss() -> None:
    """20 steps at 2.5 times plain, then believed to be 1.5 times plain: nothing was lost against plain."""
    learner = booked()
    learner._book(steps(40.0), ROWS, shortfall(-1.5))
    learner._book(steps(0.0), ROWS, shortfall(-0.5))
    assert learner.gate.reserve[0] == 6.0


def test_steps_at_one_load_fade_while_others_run() -> None:
    """A load that has been left is not charged for ever for what its neighbours teach about it."""
    learner = booked()
    learner._book(steps(20.0), ROWS, shortfall(0.0))
    elsewhere = np.zeros_like(steps(0.0))
    elsewhere[0, 1] = 200.0 * ROWS[1]
    before = learner.recent[0, 0].sum()
    learner._book(elsewhere, ROWS, shortfall(0.0))
    assert learner.recent[0, 0].sum() == pytest.approx(before / 4)
