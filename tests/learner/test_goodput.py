"""The joint decision against enumeration of every combination."""

from itertools import product

import numpy as np
import pytest

from controller.learner.curves import expected_tokens
from controller.learner.goodput import Choice, Passes, best_choice, best_single_draft, evaluate, mark, marked
from controller.learner.outlook import Outlook, outlook, rows_at
from controller.learner.prices import Prices

Case = tuple[Prices, np.ndarray, np.ndarray, np.ndarray]
SINGLE = 2e-5  # single precision, and the bits in which `mark` writes


def case(seed: int, contexts: int, drafts: int, ks: tuple[int, ...], draws: int = 60, *, roof: bool = False) -> Case:
    """Draws of tokens and prices; `roof`: verification is free up to a point that differs by draw, dear beyond."""
    rng = np.random.default_rng(seed)
    tokens = expected_tokens(rng.beta(4, 2, (contexts, max(ks), drafts, draws)).astype(np.float32), ks)
    k = np.array(ks, dtype=np.float64)[:, None, None]
    fixed = rng.uniform(0, 0.15, (drafts, draws)) * k + rng.normal(0, 0.02, (len(ks), drafts, draws))
    fixed[0] = 0.0
    prices = priced(rng.uniform(0.8, 1.2, draws), rng.uniform(0, 0.02, (drafts, draws)), fixed)
    rows = rng.uniform(0.5, 4, contexts).astype(np.float32)
    if roof:
        most = float(rows.sum()) * max(ks)
        grid = np.linspace(0, most, 17)[:, None]
        bend, price = rng.uniform(0.1, 0.9, draws) * most, rng.uniform(0.02, 0.3, draws)
        curve = price * np.maximum(grid - bend, 0.0)
        prices = prices._replace(curve=curve.astype(np.float32), grain=most / 16)
    return prices, rows, tokens, np.array(ks, dtype=np.float32)


def priced(plain: np.ndarray, slope: np.ndarray, fixed: np.ndarray) -> Prices:
    """Prices under which verification costs nothing."""
    plain, slope, fixed = (array.astype(np.float32) for array in (plain, slope, fixed))
    return Prices(plain, slope, fixed, np.zeros((2, len(plain)), dtype=np.float32), 1.0)


def goodput(one: Case, choice: Choice) -> np.ndarray:
    """Draw by draw, context by context, from the definition."""
    prices, rows, tokens, k = one
    found = []
    for s in range(tokens.shape[3]):
        earned, seconds, most, drafted = 0.0, float(prices.plain[s]), [0] * tokens.shape[2], 0.0
        for c, n in enumerate(rows.tolist()):
            draft, level = int(choice.draft[c, s]), int(choice.level[c, s])
            earned += n * float(tokens[c, level, draft, s])
            seconds += n * float(prices.slope[draft, s]) * float(k[level])
            drafted += n * float(k[level])
            most[draft] = max(most[draft], level)
        grid = prices.grain * np.arange(len(prices.curve))
        seconds += float(np.interp(drafted, grid, prices.curve[:, s]))
        seconds += sum(float(prices.fixed[level, j, s]) for j, level in enumerate(most))
        found.append(earned / max(seconds, 0.9 * float(prices.plain[s])))
    return np.array(found)


def enumerated(one: Case, single: bool = False) -> np.ndarray:
    """Best goodput of every draw over all combinations of arms (with one draft at most, if `single`)."""
    _, _, tokens, _ = one
    c, count, j, s = tokens.shape
    best = np.zeros(s)
    for combination in product([(0, 0), *product(range(j), range(1, count))], repeat=c):
        if single and len({draft for draft, level in combination if level}) > 1:
            continue
        draft, level = (np.tile(np.array(part)[:, None], s) for part in zip(*combination, strict=True))
        best = np.maximum(best, np.divide(*evaluate(*one, Choice(draft, level))))
    return best


def everything(one: Case) -> np.ndarray:
    return np.ones(one[2].shape[:3], dtype=bool)


@pytest.mark.parametrize(("contexts", "drafts", "ks"), [(3, 1, (0, 1, 2, 4)), (3, 2, (0, 2, 4)), (2, 3, (0, 1, 3, 8))])
def test_with_one_draft_in_the_batch_dinkelbach_finds_the_optimum(
    contexts: int, drafts: int, ks: tuple[int, ...]
) -> None:
    one = case(1, contexts, drafts, ks)
    found = goodput(one, best_single_draft(*one, everything(one)))
    np.testing.assert_allclose(found, enumerated(one, single=True), rtol=SINGLE)


@pytest.mark.parametrize("ks", [(0, 1, 2, 4), (0, 2, 3, 6)])
def test_under_a_roof_one_draft_s_optimum_is_found_but_for_corners(ks: tuple[int, ...]) -> None:
    """A price by token reaches every choice but those that fill up the roof with tokens of unequal worth; the ascent
    that follows finds most of them."""
    one = case(8, 3, 2, ks, 200, roof=True)
    share = goodput(one, best_single_draft(*one, everything(one))) / enumerated(one, single=True)
    assert share.mean() > 0.96


@pytest.mark.parametrize("roof", [False, True])
@pytest.mark.parametrize(("contexts", "drafts", "ks"), [(3, 2, (0, 1, 2, 4)), (3, 3, (0, 1, 3)), (4, 2, (0, 2, 5))])
def test_mixed_batches_come_within_half_a_percent_of_enumeration_on_average(
    contexts: int, drafts: int, ks: tuple[int, ...], roof: bool
) -> None:
    """Coordinate ascent may stop in a local optimum; it does so in few draws, and not far down."""
    one = case(2, contexts, drafts, ks, roof=roof)
    share = goodput(one, best_choice(*one, everything(one))) / enumerated(one)
    assert share.mean() > (0.99 if roof else 0.995)
    assert (share > 1 - 1e-5).mean() > (0.75 if roof else 0.9)


@pytest.mark.parametrize("roof", [False, True])
def test_tokens_and_seconds_of_a_choice_are_those_of_the_definition(roof: bool) -> None:
    one, rng = case(6, 4, 3, (0, 1, 3, 8), roof=roof), np.random.default_rng(0)
    choice = Choice(rng.integers(0, 3, (4, 60)), rng.integers(0, 4, (4, 60)))
    np.testing.assert_allclose(np.divide(*evaluate(*one, choice)), goodput(one, choice), rtol=SINGLE)


def test_rows_share_passes_so_a_crowd_affords_what_one_row_cannot() -> None:
    """A pass costs .5, a drafted token nothing, acceptance .6. Alone: 1.6 / 1.5 < 1.96 / 2: K = 1 or less pays.
    Four rows of one context: tokens count fourfold, passes once."""
    steps = np.array([0.0, 0.5, 1.0, 2.0])[:, None, None]
    tokens = expected_tokens(np.full((1, 4, 1, 1), 0.6, dtype=np.float32), (0, 1, 2, 4))
    k = np.array([0.0, 1, 2, 4], dtype=np.float32)
    everywhere = np.ones((1, 1, 4), dtype=bool)
    prices = priced(np.array([1.0]), np.zeros((1, 1)), steps)
    lone = outlook(prices, 1, 1.0, np.ones(1), tokens, (0, 1, 2, 4), everywhere)
    assert lone.gain[0, :, 0, 0].round(3).tolist() == pytest.approx([1.0, 1.6 / 1.5, 1.96 / 2, 2.3056 / 3], abs=6e-4)
    # Passes are shared, verified tokens are not: with a slope of .1 a row, four rows pay .4 per unit of K.
    cheaper = priced(np.array([1.0]), np.full((1, 1), 0.1), 0.1 * steps)
    allowed = everywhere.transpose(0, 2, 1)
    choice = best_choice(cheaper, np.array([4.0], dtype=np.float32), tokens, k, allowed)
    assert choice.level.item() == 1  # 6.4/1.45 = 4.41, 7.84/1.9 = 4.13, 4/1 = 4
    choice = best_choice(cheaper, np.array([0.1], dtype=np.float32), tokens, k, allowed)
    assert choice.level.item() == 3  # 2.3056 / 1.24 beats 1.96 / 1.12 and 1.6 / 1.06


def test_forbidden_arms_are_never_chosen() -> None:
    one = case(3, 4, 2, (0, 1, 4))
    allowed = everything(one)
    allowed[:, 2, 0] = False
    allowed[1] = False
    choice = best_choice(*one, allowed)
    assert not ((choice.draft == 0) & (choice.level == 2)).any()
    assert (choice.level[1] == 0).all()
    assert (choice.level[0] > 0).any()


def test_more_draws_than_one_portion_are_priced_alike() -> None:
    one = case(7, 3, 2, (0, 2, 4), draws=300)
    both = outlook(one[0], 8, 8.0, np.full(3, 1 / 3), one[2], (0, 2, 4), np.ones((3, 2, 3), dtype=bool))
    last = one[0].some(slice(256, None))
    part = outlook(last, 8, 8.0, np.full(3, 1 / 3), one[2][..., 256:].copy(), (0, 2, 4), np.ones((3, 2, 3), dtype=bool))
    np.testing.assert_allclose(both.gain[..., 256:], part.gain, rtol=SINGLE)
    np.testing.assert_allclose(both.gain_mean, both.gain.mean(axis=3).transpose(0, 2, 1), rtol=SINGLE)


def seen(one: Case, load_rows: float, mix: list[float]) -> Outlook:
    prices, _, tokens, k = one
    allowed = np.ones((len(tokens), tokens.shape[2], len(k)), dtype=bool)
    return outlook(prices, 8, load_rows, np.array(mix), tokens, tuple(int(x) for x in k), allowed)


@pytest.mark.parametrize("roof", [False, True])
def test_every_arms_gain_is_the_ratio_of_two_batches(roof: bool) -> None:
    """Change one context's arm in the joint choice by hand and compare."""
    mix = [0.5, 0.3, 0.2]
    prices, _, tokens, k = case(4, 3, 2, (0, 2, 4), draws=5, roof=roof)
    rows = rows_at(8.0, np.array(mix))[0].astype(np.float32)
    one = prices, rows, tokens, k
    joint = best_choice(*one, everything(one))
    answer = seen(one, 8.0, mix)
    changed = np.empty((3, 2, 3, 5))
    for c, (d, level) in product(range(3), product(range(2), range(3))):
        draft, levels = joint.draft.copy(), joint.level.copy()
        draft[c], levels[c] = d, 0
        idle = goodput(one, Choice(draft, levels))
        levels[c] = level
        changed[c, d, level] = goodput(one, Choice(draft, levels))
        np.testing.assert_allclose(answer.gain[c, level, d], changed[c, d, level] / idle, rtol=SINGLE)
        assert answer.idle_goodput[c] == pytest.approx(idle.mean(), rel=SINGLE)
    np.testing.assert_allclose(answer.goodput, changed.mean(axis=3), rtol=SINGLE)
    gains = answer.gain.transpose(0, 2, 1, 3).astype(np.float64)
    np.testing.assert_allclose(answer.gain_mean, gains.mean(axis=3), rtol=SINGLE)
    np.testing.assert_allclose(answer.gain_sd, gains.std(axis=3) / gains.mean(axis=3), atol=2e-3)
    # A row's speedup is its tokens x plain / seconds of the batch.
    speedup = (tokens * prices.plain).transpose(0, 2, 1, 3) / (1 / (changed / earned_at(one, joint)))
    np.testing.assert_allclose(answer.speedup, speedup.mean(axis=3), rtol=SINGLE)
    np.testing.assert_allclose(answer.seconds, (earned_at(one, joint) / changed).mean(axis=3), rtol=SINGLE)


def earned_at(one: Case, joint: Choice) -> np.ndarray:
    """Tokens of the batch by the arm of one context, the others as in the joint choice: [C, J, Kn, S]."""
    _, rows, tokens, _ = one
    c, _, _, s = tokens.shape
    own = rows[:, None] * tokens[np.arange(c)[:, None], joint.level, joint.draft, np.arange(s)]
    rest = own.sum(axis=0) - own
    return np.asarray(rest[:, None, None] + rows[:, None, None, None] * tokens.transpose(0, 2, 1, 3))


def test_a_rare_context_answers_the_batch_without_moving_it() -> None:
    one = case(5, 3, 2, (0, 2, 4), draws=20)
    with_it = seen(one, 8.0, [0.5, 0.495, 0.005])
    without = seen((one[0], one[1][:2], one[2][:2], one[3]), 8.0, [0.5, 0.495])
    np.testing.assert_allclose(with_it.goodput[:2], without.goodput, rtol=SINGLE)
    assert (with_it.seconds[2] >= without.idle_seconds.min() - 1e-6).all()


def test_the_excess_of_passes_is_that_over_the_rest() -> None:
    """Passes of 0, 3, 2 seconds at K = 0, 1, 2: joining rows at level 1 adds nothing up to there, and -1 beyond."""
    passes = Passes(np.array([0.0, 3.0, 2.0], dtype=np.float32).reshape(3, 1, 1))
    assert passes.excess.ravel().tolist() == [0.0, 3.0, 2.0]
    for level, held, excess in ((1, 3.0, [0.0, 0.0, -1.0]), (2, 2.0, [0.0, 0.0, 0.0]), (0, 0.0, [0.0, 3.0, 2.0])):
        passes.show(np.array([[level]], dtype=np.uint8))
        assert passes.passed.item() == held
        assert passes.excess.ravel().tolist() == excess


def test_a_marked_maximum_tells_its_level() -> None:
    values = np.random.default_rng(0).uniform(0.5, 2.0, (4, 17, 3, 50)).astype(np.float32)
    kept = values.copy()
    mark(values)
    np.testing.assert_allclose(values, kept, rtol=1e-5)
    assert (marked(values.max(axis=1), 17) == kept.argmax(axis=1)).mean() > 0.999


def test_the_typical_batch_holds_no_more_contexts_than_rows_and_not_the_rare_ones() -> None:
    rows, core = rows_at(2.8, np.full(10, 0.1))
    assert core.sum() == 3
    assert rows[core].sum() == pytest.approx(2.8)
    rows, core = rows_at(8.0, np.array([0.96, 0.03, 0.01]))
    assert core.tolist() == [True, False, False]
    assert rows.tolist() == [8.0, 1.0, 1.0]
    rows, core = rows_at(4.0, np.zeros(2))  # nothing has run yet: all alike
    assert rows[core].sum() == pytest.approx(4.0)
