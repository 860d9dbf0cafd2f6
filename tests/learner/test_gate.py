"""The safety gate's reserves: of a context, and of the pool, in steps worked out by hand."""

import numpy as np
import pytest

from controller.learner.gate import Gate


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
