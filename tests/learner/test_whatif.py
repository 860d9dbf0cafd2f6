"""The static choice for everybody, against sums worked out by hand."""

import numpy as np
import pytest

from controller.learner.config import PoolSpec
from controller.learner.prices import Prices
from controller.learner.whatif import everywhere
from engine.link.messages import DraftInfo, StaticChoice

SPEC = PoolSpec((DraftInfo("d", "model", 4),), (0, 2, 4), max_batch=4, static=StaticChoice("d", 4))
NONE, AT_2, AT_4 = 0, 1, 2


def single(values: object) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
    return np.array(values, dtype=np.float32)


# One draw. Plain 1 s; a drafted token costs 0.05 s, passes 0.1 s at K = 2 and 0.2 s at K = 4; verifying is free.
PRICES = Prices(single([1.0]), single([[0.05]]), single([[[0.0]], [[0.1]], [[0.2]]]), single([[0.0], [0.0]]), 1.0)
# Tokens of a row and step at K = 0, 2, 4: code gains much, chat little.
TOKENS = single([[1.0, 2.5, 3.0], [1.0, 1.1, 1.1]])[:, :, None, None]
TOP = np.array([AT_4, NONE])


def test_a_batch_at_the_static_choice_is_one_ratio_of_sums() -> None:
    """Three rows of code and one of chat: all at K = 4, 3 x 3 + 1.1 tokens in 1 + 16 x .05 + .2 s; learned, code at 4
    and chat at none, 3 x 3 + 1 tokens in 1 + 12 x .05 + .2 s."""
    fixed = everywhere(PRICES, 4, 4.0, np.array([0.75, 0.25]), TOKENS, SPEC, TOP)
    assert fixed is not None
    static, learned = 10.1 / 2.0, 10.0 / 1.8
    assert (fixed.draft, fixed.k) == ("d", 4)
    assert fixed.speedup == pytest.approx((static / 4.0,) * 3)
    assert fixed.learned == pytest.approx((learned / 4.0,) * 3)
    assert fixed.loss == pytest.approx((1 - static / learned,) * 3)


def test_at_batch_one_steps_are_shared_as_the_mix_is() -> None:
    """A step in four is chat's: its tokens and its seconds are a quarter."""
    fixed = everywhere(PRICES, 1, 1.0, np.array([0.75, 0.25]), TOKENS, SPEC, TOP)
    assert fixed is not None
    static = (0.75 * 3.0 + 0.25 * 1.1) / 1.4
    learned = (0.75 * 3.0 + 0.25 * 1.0) / (0.75 * 1.4 + 0.25 * 1.0)
    assert fixed.speedup == pytest.approx((static,) * 3)
    assert fixed.learned == pytest.approx((learned,) * 3)


def test_a_static_choice_that_is_better_than_what_is_played_gains() -> None:
    fixed = everywhere(PRICES, 4, 4.0, np.array([1.0, 0.0]), TOKENS, SPEC, np.array([-1, -1]))
    assert fixed is not None
    assert fixed.loss[0] == pytest.approx(1 - (12.0 / 2.0) / 4.0)


def test_a_static_k_between_the_prepared_ones_is_priced_as_it_is() -> None:
    """K = 3 of prepared 2 and 4; learned is code at 4, found among the K that run: 0, 2, 3, 4."""
    spec = PoolSpec(SPEC.drafts, SPEC.k_values, 4, StaticChoice("d", 3))
    fixed_seconds = single([[[0.0]], [[0.1]], [[0.15]], [[0.2]]])
    tokens = np.insert(TOKENS, 2, single([[[2.8]], [[1.1]]]), axis=1)
    fixed = everywhere(PRICES._replace(fixed=fixed_seconds), 4, 4.0, np.array([0.75, 0.25]), tokens, spec, TOP)
    assert fixed is not None
    static, learned = (3 * 2.8 + 1.1) / (1 + 12 * 0.05 + 0.15), 10.0 / 1.8
    assert (fixed.draft, fixed.k) == ("d", 3)
    assert fixed.speedup == pytest.approx((static / 4.0,) * 3)
    assert fixed.learned == pytest.approx((learned / 4.0,) * 3)


def test_a_draft_that_nobody_loaded_and_a_pool_without_rows_cannot_be_compared() -> None:
    gone = PoolSpec(SPEC.drafts, SPEC.k_values, 4, StaticChoice("big", 2))
    assert everywhere(PRICES, 4, 4.0, np.array([0.75, 0.25]), TOKENS, gone, TOP) is None
    assert everywhere(PRICES, 4, 4.0, np.zeros(2), TOKENS, SPEC, TOP) is None
