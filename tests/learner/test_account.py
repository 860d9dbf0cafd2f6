"""Mix and achieved speedup from account cells."""

import numpy as np
import pytest

from controller.learner.account import Account, Earned, achieved_speedup, rows_of
from controller.learner.dispersion import design_effect
from controller.learner.evidence import Contexts
from engine.link.messages import AccountCell


def cell(domain: str, load: int, row_steps: int, tokens: int, seconds: float, variant: str = "adaptive") -> AccountCell:
    return AccountCell(domain, "greedy", load, variant, row_steps, tokens, seconds)  # type: ignore[arg-type]


def test_the_mix_of_a_load_is_shrunk_to_the_pools_and_sums_to_one() -> None:
    account, contexts = Account((1, 2), 1e6, 1e7), Contexts(8)
    cells = [cell("code", 1, 900, 2000, 9.0), cell("chat", 1, 100, 150, 1.0), cell("chat", 2, 64, 64, 1.0)]
    assert account.observe(0.0, cells, contexts) == 0
    mix = account.mix(0.0, len(contexts))
    code, chat = contexts.index("code", "greedy"), contexts.index("chat", "greedy")
    np.testing.assert_allclose(mix.sum(axis=1), 1.0)
    assert mix[0, code] == pytest.approx((900 + 64 * 900 / 1064) / 1064)
    assert 0.4 < mix[1, chat] < 0.6  # half its own 64 steps (all chat), half the pool's (15% chat)
    assert account.mix(0.0, len(contexts)).shape == (2, len(contexts))


def test_no_traffic_is_no_mix() -> None:
    assert Account((1,), 1e6, 1e7).mix(0.0, 2).tolist() == [[0.0, 0.0]]


def test_only_adaptive_steps_are_charged_and_only_once() -> None:
    account, contexts = Account((1, 2), 1e6, 1e7), Contexts(8)
    account.observe(0.0, [cell("code", 2, 10, 20, 1.0), cell("code", 2, 7, 7, 1.0, "static")], contexts)
    assert account.take_pending(len(contexts)).sum() == 10.0
    assert account.take_pending(len(contexts)).sum() == 0.0


def test_broken_cells_and_odd_loads_do_no_harm() -> None:
    account, contexts = Account((1, 2), 1e6, 1e7), Contexts(8)
    bad = [
        cell("code", 1, 10, 20, 0.0),
        cell("code", 1, -1, 0, 0.0),
        cell("code", 3, 5, 5, 1.0),
        cell("code", 999, 5, 5, 1.0),
    ]
    assert account.observe(0.0, bad, contexts) == 2
    assert account.earned(0.0, len(contexts)).row_steps[:, 1].sum() == 10.0


def test_the_speedup_is_tokens_at_the_plain_price_over_seconds_spent() -> None:
    """1,000 row-steps of 3 tokens in 40 s where a plain step takes 20 ms: 3,000 x .02 / 40 = 1.5."""
    earned = Earned(np.array([[1000.0, 0.0]]), np.array([[3000.0, 0.0]]), np.array([[40.0, 0.0]]))
    plain, sd, none = np.full(2, 0.02), np.full(2, 2e-4), np.zeros(2)
    value, low, high = achieved_speedup(earned, plain, sd, none, noise=0.05)
    assert value[0, 0] == pytest.approx(1.5)
    relative = np.sqrt((2 / 3) / 1000 + 0.05**2 / 1000 + 0.01**2)
    assert high[0, 0] - value[0, 0] == pytest.approx(1.6449 * relative * 1.5, rel=1e-3)
    assert np.isnan([value[0, 1], low[0, 1], high[0, 1]]).all()


def test_the_interval_covers_the_truth_about_nine_times_in_ten() -> None:
    """Geometric steps (acceptance .6 without limit), 300 row-steps, plain price known to 1%: the very model."""
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(2000):
        tokens = rng.geometric(0.4, 300).sum()
        plain = 0.02 * (1 + 0.01 * rng.normal())
        seconds = 0.03 * 300 * (1 + 0.05 / np.sqrt(300) * rng.normal())
        earned = Earned(np.full((1, 1), 300.0), np.full((1, 1), float(tokens)), np.full((1, 1), seconds))
        _, low, high = achieved_speedup(earned, np.array([plain]), np.array([2e-4]), np.zeros(1), 0.05)
        hits += bool(low[0, 0] <= 2.5 * 0.02 / 0.03 <= high[0, 0])
    assert 0.87 < hits / 2000 < 0.93


def test_a_step_of_64_rows_is_one_observation_of_its_seconds() -> None:
    """60 steps of 64 rows, 30% noise of a step: taking rows for steps, the interval would be eight times too narrow."""
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(2000):
        tokens = rng.geometric(0.4, 64 * 60).sum()
        seconds = 64 * 0.03 * (60 + 0.3 * np.sqrt(60) * rng.normal())
        earned = Earned(np.full((1, 1), 64.0 * 60), np.full((1, 1), float(tokens)), np.full((1, 1), seconds))
        rows = rows_of(earned.row_steps, np.array([64.0]))
        _, low, high = achieved_speedup(earned, np.array([0.02]), np.zeros(1), np.zeros(1), 0.3, rows)
        hits += bool(low[0, 0] <= 2.5 * 0.02 / 0.03 <= high[0, 0])
    assert 0.87 < hits / 2000 < 0.93


def test_a_domain_with_one_row_in_a_step_has_as_many_steps_as_row_steps() -> None:
    rows = rows_of(np.array([[630.0, 0.0], [10.0, 8.0]]), np.array([64.0, 4.0]))
    np.testing.assert_allclose(rows, [[63.0, 1.0], [1.0, 4.0]])


def test_tokens_of_one_request_resemble_each_other_and_the_interval_knows() -> None:
    """60 requests of 60 steps at K = 4, each with an acceptance of its own around .5 (sd .15), seconds without noise.
    The truth is that of all requests there are, 1 + E[p] + .. + E[p^4]; the design effect that of the first position,
    about 9. Without it the interval is a third as wide as it should be: it would hold less than half of the time."""
    rng = np.random.default_rng(2)
    a = 0.5 * (0.25 / 0.15**2 - 1)  # of the Beta with that mean and sd
    truth = 1 + sum(float(np.prod([(a + j) / (2 * a + j) for j in range(i)])) for i in range(1, 5))
    hits = np.zeros(2)
    for _ in range(1000):
        kept = np.minimum(rng.geometric(1 - rng.beta(a, a, 60)[:, None], (60, 60)) - 1, 4)
        s, first = np.full(60, 60.0), (kept > 0).sum(axis=1).astype(float)
        moments = (60.0, s.sum(), first.sum(), s @ s, s @ first, first @ first)
        effect = float(design_effect(*(np.array(m) for m in moments)))
        tokens = np.full((1, 1), float(kept.sum() + 3600))
        earned = Earned(np.full((1, 1), 3600.0), tokens, np.full((1, 1), 3600 * 0.03))
        for i, deff in enumerate((1.0, effect)):
            _, low, high = achieved_speedup(
                earned, np.array([0.02]), np.zeros(1), np.zeros(1), 0.0, deff=np.array([[deff]])
            )
            hits[i] += bool(low[0, 0] <= truth * 0.02 / 0.03 <= high[0, 0])
    assert hits[0] / 1000 < 0.5
    assert 0.8 < hits[1] / 1000 < 0.95  # deeper positions need a little more than the first, 9.8
