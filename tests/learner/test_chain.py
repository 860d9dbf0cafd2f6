"""The chain's roots where rounding has eaten a precision; its solution against a dense one is in test_cost.py."""

import numpy as np
import pytest

from controller.learner.chain import Bordered, Chain

NONE = np.zeros(0, dtype=np.intp)


def test_a_precision_that_rounding_has_eaten_leaves_finite_draws_that_know_the_rest() -> None:
    """Two variables seen only through their sum, with weight 1e20: less is left of their difference than of nothing,
    its prior of 1 is rounded off. The third has nothing to do with them."""
    block = np.array([[1e20, 1e20, 0.0], [1e20, 1e20, 0.0], [0.0, 0.0, 4.0]])
    chain = Chain(block[None], np.zeros((0, 1)), np.zeros((0, 3)), np.zeros(0), NONE)
    draws = chain.coloured(np.random.default_rng(0).standard_normal((3, 4000)))
    assert np.isfinite(draws).all()
    assert draws[2].std() == pytest.approx(0.5, rel=0.05)
    assert np.isfinite(chain.variance()).all()


@pytest.mark.parametrize("left", [0.0, -1e3])
def test_a_hanging_variable_that_takes_all_of_a_block_s_precision_is_no_error(left: float) -> None:
    """1e20 - 1e10 * 1e10 / 1 is 0, or a negative number after rounding."""
    chain = Chain(
        np.array([[[1e20 + left]]]), np.zeros((0, 1)), np.array([[1e10]]), np.ones(1), np.zeros(1, dtype=np.intp)
    )
    assert np.isfinite(chain.solve(np.ones((1, 1, 1)), np.ones((1, 1)))).all()
    assert (chain.variance() > 0).all()


def test_a_border_that_leaves_nothing_of_its_own_precision_is_no_error() -> None:
    """The border's variable is seen only with the chain's, with weight 1e20: of 1e20 - 1e20 nothing is left."""
    chain = Chain(np.array([[[1e20 + 1.0]]]), np.zeros((0, 1)), np.zeros((0, 1)), np.zeros(0), NONE)
    both = Bordered(chain, np.array([[[1e20]]]), np.zeros((0, 1)), np.array([[1e20]]))
    assert np.isfinite(both.mean(np.ones((1, 1)), np.zeros(0), np.ones(1))).all()
    assert (both.variance() > 0).all()
    assert np.isfinite(both.coloured(np.ones((2, 3)))).all()
