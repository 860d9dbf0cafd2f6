"""The joint decision against enumeration of every combination."""

from itertools import product

import numpy as np
import pytest

from controller.learner.curves import expected_tokens
from controller.learner.decision import rows_at
from controller.learner.goodput import (
    Choice,
    alone,
    best_choice,
    best_single_draft,
    evaluate,
    joint_response,
)
from controller.learner.prices import Prices

Case = tuple[Prices, np.ndarray, np.ndarray, np.ndarray]


def case(seed: int, contexts: int, drafts: int, ks: tuple[int, ...], draws: int = 60) -> Case:
    rng = np.random.default_rng(seed)
    tokens = expected_tokens(rng.beta(4, 2, (draws, contexts, drafts, max(ks))), ks)
    k = np.array(ks, dtype=np.float64)
    fixed = rng.uniform(0, 0.15, (draws, drafts, 1)) * k + rng.normal(0, 0.02, (draws, drafts, len(ks)))
    fixed[..., 0] = 0.0
    prices = Prices(rng.uniform(0.8, 1.2, draws), rng.uniform(0, 0.02, (draws, drafts)), fixed)
    return prices, rng.uniform(0.5, 4, contexts), tokens, k


def goodput(one: Case, choice: Choice) -> np.ndarray:
    earned, spent = evaluate(*one, choice)
    return np.asarray(earned / spent)


def enumerated(one: Case, single: bool = False) -> np.ndarray:
    """Best goodput of every draw over all combinations of arms (with one draft at most, if `single`)."""
    _, _, tokens, _ = one
    s, c, j, count = tokens.shape
    best = np.zeros(s)
    for combination in product([(0, 0), *product(range(j), range(1, count))], repeat=c):
        if single and len({draft for draft, level in combination if level}) > 1:
            continue
        draft, level = (np.tile(part, (s, 1)) for part in zip(*combination, strict=True))
        best = np.maximum(best, goodput(one, Choice(draft, level)))
    return best


def everything(one: Case) -> np.ndarray:
    return np.ones(one[2].shape[1:], dtype=bool)


@pytest.mark.parametrize(("contexts", "drafts", "ks"), [(3, 1, (0, 1, 2, 4)), (3, 2, (0, 2, 4)), (2, 3, (0, 1, 3, 8))])
def test_with_one_draft_in_the_batch_dinkelbach_finds_the_optimum(
    contexts: int, drafts: int, ks: tuple[int, ...]
) -> None:
    one = case(1, contexts, drafts, ks)
    found = goodput(one, best_single_draft(*one, everything(one)))
    np.testing.assert_allclose(found, enumerated(one, single=True), rtol=1e-6)


@pytest.mark.parametrize(("contexts", "drafts", "ks"), [(3, 2, (0, 1, 2, 4)), (3, 3, (0, 1, 3)), (4, 2, (0, 2, 5))])
def test_mixed_batches_come_within_half_a_percent_of_enumeration_on_average(
    contexts: int, drafts: int, ks: tuple[int, ...]
) -> None:
    """Coordinate ascent may stop in a local optimum; it does so in few draws, and not far down."""
    one = case(2, contexts, drafts, ks)
    share = goodput(one, best_choice(*one, everything(one))) / enumerated(one)
    assert share.mean() > 0.995
    assert (share > 1 - 1e-5).mean() > 0.9


def test_rows_share_passes_so_a_crowd_affords_what_one_row_cannot() -> None:
    """A pass costs .5, a drafted token nothing, acceptance .6. Alone: 1.6 / 1.5 < 1.96 / 2: K = 1 or less pays.
    Four rows of one context: tokens count fourfold, passes once."""
    prices = Prices(np.array([1.0]), np.zeros((1, 1)), np.array([[[0.0, 0.5, 1.0, 2.0]]]))
    tokens = expected_tokens(np.full((1, 1, 1, 4), 0.6), (0, 1, 2, 4))
    k = np.array([0.0, 1, 2, 4])
    lone = alone(prices, tokens, k)
    assert lone.gain[0, 0, 0].round(3).tolist() == [1.0, round(1.6 / 1.5, 3), round(1.96 / 2, 3), round(2.3056 / 3, 3)]
    # Passes are shared, verified tokens are not: with a slope of .1 a row, four rows pay .4 per unit of K.
    priced = Prices(np.array([1.0]), np.full((1, 1), 0.1), np.array([[[0.0, 0.05, 0.1, 0.2]]]))
    choice = best_choice(priced, np.array([4.0]), tokens, k, np.ones((1, 1, 4), dtype=bool))
    assert choice.level.item() == 1  # 6.4/1.45 = 4.41, 7.84/1.9 = 4.13, 4/1 = 4
    choice = best_choice(priced, np.array([0.1]), tokens, k, np.ones((1, 1, 4), dtype=bool))
    assert choice.level.item() == 3  # 2.3056 / 1.24 beats 1.96 / 1.12 and 1.6 / 1.06


def test_forbidden_arms_are_never_chosen() -> None:
    one = case(3, 4, 2, (0, 1, 4))
    allowed = everything(one)
    allowed[:, 0, 2] = False
    allowed[1] = False
    choice = best_choice(*one, allowed)
    assert not ((choice.draft == 0) & (choice.level == 2)).any()
    assert (choice.level[:, 1] == 0).all()


def test_every_arms_gain_is_the_ratio_of_two_batches() -> None:
    """Change one context's arm in the joint choice by hand and compare."""
    one = case(4, 3, 2, (0, 2, 4), draws=5)
    prices, rows, tokens, k = one
    joint = best_choice(*one, everything(one))
    answer = joint_response(prices, rows, np.ones(3, dtype=bool), tokens, k, everything(one))
    for c, (d, level) in product(range(3), product(range(2), range(3))):
        draft, levels = joint.draft.copy(), joint.level.copy()
        draft[:, c], levels[:, c] = d, 0
        idle = goodput(one, Choice(draft, levels))
        levels[:, c] = level
        np.testing.assert_allclose(answer.gain[:, c, d, level], goodput(one, Choice(draft, levels)) / idle, rtol=1e-6)


def test_a_rare_context_answers_the_batch_without_moving_it() -> None:
    prices, _, tokens, k = case(5, 3, 2, (0, 2, 4), draws=20)
    allowed = np.ones(tokens.shape[1:], dtype=bool)
    core = np.array([True, True, False])
    with_it = joint_response(prices, np.array([4.0, 4.0, 1.0]), core, tokens, k, allowed)
    without = joint_response(prices, np.array([4.0, 4.0]), core[:2], tokens[:, :2], k, allowed[:2])
    np.testing.assert_allclose(with_it.goodput[:, :2], without.goodput)
    assert (with_it.seconds[:, 2].min(axis=(1, 2)) >= without.idle_seconds.min(axis=1) - 1e-9).all()


def test_the_typical_batch_holds_no_more_contexts_than_rows_and_not_the_rare_ones() -> None:
    rows, core = rows_at(2.8, np.full(10, 0.1))
    assert core.sum() == 3
    assert rows[core].sum() == pytest.approx(2.8)
    rows, core = rows_at(8.0, np.array([0.96, 0.03, 0.01]))
    assert core.tolist() == [True, False, False]
    assert rows.tolist() == [8.0, 1.0, 1.0]
    rows, core = rows_at(4.0, np.zeros(2))  # nothing has run yet: all alike
    assert rows[core].sum() == pytest.approx(4.0)
