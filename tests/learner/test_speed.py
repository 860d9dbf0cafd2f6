"""The factor of an engine's speed: against a dense Gaussian posterior, on steady machines, and in what costs become."""

import numpy as np
import pytest

from controller.learner import Delta, Learner, LearnerConfig, PoolSpec
from controller.learner.speed import WANDERS, Speeds, _Filter, against
from controller.learner.steps import StepEvidence
from engine.link.messages import DraftInfo
from tests.learner.world import cost_cell


def test_each_filter_is_the_posterior_of_its_process() -> None:
    """Kalman's recursion against the conditional mean and variance of the joint Gaussian, solved densely."""
    rng = np.random.default_rng(3)
    times = np.cumsum(rng.uniform(0.2, 20.0, 12))
    apart, variance = np.abs(times[:, None] - times[None, :]), 0.02**2
    values = np.linalg.cholesky(0.1**2 * np.exp(-apart / 60.0) + variance * np.eye(12)) @ rng.standard_normal(12)
    one = _Filter()
    for time, value in zip(times.tolist(), values.tolist(), strict=True):
        one.advance(time)
        one.measure(value, variance)
    for at, (spread, length) in enumerate(WANDERS):
        if spread < 0.1:
            continue  # the values are beyond three of its standard deviations, where a measurement counts less
        prior = spread**2 * np.exp(-apart / length)
        solved = np.linalg.solve(prior + variance * np.eye(12), np.column_stack([values, prior[:, -1]]))
        assert one.mean[at] == pytest.approx(prior[-1] @ solved[:, 0], rel=1e-9)
        assert one.variance[at] == pytest.approx(prior[-1, -1] - prior[-1] @ solved[:, 1], rel=1e-9)


def test_a_steady_machine_keeps_the_factor_one() -> None:
    rng, speeds = np.random.default_rng(5), Speeds()
    factors = [speeds.update("engine", float(t), rng.normal(0.0, 0.03, 2), np.full(2, 0.03**2))[0] for t in range(400)]
    assert np.abs(np.array(factors) - 1.0).max() < 0.015


def test_a_wandering_machine_is_followed() -> None:
    rng, speeds = np.random.default_rng(6), Speeds()
    true, found, kept = 0.0, [], np.exp(-1.0 / 20.0)
    for t in range(600):
        true = kept * true + np.sqrt(1.0 - kept**2) * 0.15 * rng.standard_normal()
        found.append(
            (true, np.log(speeds.update("engine", float(t), rng.normal(true, 0.03, 1), np.array([0.03**2]))[0]))
        )
    truth, followed = np.array(found[50:]).T
    assert np.std(truth - followed) < 0.3 * np.std(truth)


def test_one_absurd_interval_moves_it_little() -> None:
    speeds = Speeds()
    for t in range(100):
        speeds.update("engine", float(t), np.array([0.0]), np.array([0.03**2]))
    assert speeds.update("engine", 100.0, np.array([3.0]), np.array([0.03**2]))[0] < 1.05


def test_rows_are_compared_at_the_same_tokens() -> None:
    """Ten steps of 60 ms with 4 tokens, before twenty of 50 ms with 2: at 2.5 ms a token 55 ms were due, of which the 5
    for the tokens are known to half of themselves."""
    now = np.zeros((2, 15))
    before = np.zeros((2, 15))
    now[:, [0, 1, 3]] = 10, 0.6, 40
    before[0, [0, 1, 3]] = 20, 1.0, 40
    before[1, [0, 1, 3]] = 1, 0.05, 2  # too few to be compared with
    ratio, variance = against(now, before, np.array([[0.0025, 0.0]] * 2), noise=0.1)
    assert ratio.tolist() == pytest.approx([np.log(60 / 55)])
    assert variance.tolist() == pytest.approx([0.01 * (1 / 10 + 1 / 20) + 0.02**2 + (0.5 * 5 / 55) ** 2])


def test_a_slow_engine_of_the_pool_does_not_change_what_steps_cost() -> None:
    """Two engines, the second takes half as long again: the sums are those of the first."""
    evidence = StepEvidence(1e9, 1e9, share=1.0)
    x = np.array([4.0, 0, 100, 0, 0])
    for t in range(40):
        evidence.observe("one", float(t), [cost_cell((), 4, 0, [(0.02, x[:3])] * 10)])
    for t in range(40, 200):
        evidence.observe("two", float(t), [cost_cell((), 4, 0, [(0.03, x[:3])] * 10)])
    (group,) = evidence.gather(200.0, 1e9)
    assert float(group.seconds[0] / group.n[0]) == pytest.approx(0.02, rel=0.02)
    assert evidence.speeds.factor("two") == pytest.approx(1.5, rel=0.02)
    evidence.retire("two")
    assert evidence.speeds.factor("two") == 1.0


def test_an_arm_that_ran_in_a_slow_minute_is_not_dear() -> None:
    """Plain steps throughout, a draft's steps only while all take 40% longer: its price is told without these 40%.

    They begin three intervals after that: a kind of step that is new in the very interval of a jump is dearer for it.
    """
    learner = Learner(LearnerConfig(), PoolSpec((DraftInfo("ngram", "ngram", 4),), (0, 2, 4), max_batch=1))
    rng = np.random.default_rng(0)
    plain, drafted = np.array([1.0, 0, 100]), np.array([3.0, 0, 100, 2, 2])
    for t in range(60):
        slow = 1.4 if 30 <= t < 48 else 1.0
        cells = [cost_cell((), 1, 0, [(0.02 * slow, plain)] * 10)]
        if 33 <= t < 48:
            cells.append(cost_cell(("ngram",), 1, 2, [(0.022 * slow, drafted)] * 10))
        learner.observe(Delta("engine", float(t), cost=cells))
        if t % 5 == 4:
            learner.decide(float(t), rng)
    rows = {row.drafts: row for row in learner.estimates(60.0).costs}
    assert rows["ngram",].seconds / rows[()].seconds == pytest.approx(1.1, rel=0.05)


def test_the_factor_survives_a_checkpoint() -> None:
    speeds = Speeds()
    for t in range(30):
        speeds.update("engine", float(t), np.array([0.2]), np.array([0.001]))
    again = Speeds()
    again.restore(speeds.state())
    following = (31.0, np.array([0.1]), np.array([0.001]))
    assert again.update("engine", *following) == speeds.update("engine", *following)


def test_a_liar_does_not_make_the_others_slow() -> None:
    """Four engines alike and one that tells of steps of half the time: the others stay what is usual."""
    evidence = StepEvidence(1e9, 1e9, share=0.1)
    x = np.array([4.0, 0, 100])
    for t in range(300):
        for name in "abcd":
            evidence.observe(name, float(t), [cost_cell((), 4, 0, [(0.02, x)] * 10)])
        evidence.observe("liar", float(t), [cost_cell((), 4, 0, [(0.01, x)] * 10)])
    assert [evidence.speeds.factor(name) for name in "abcd"] == pytest.approx([1.0] * 4, rel=0.01)
    assert evidence.speeds.factor("liar") == pytest.approx(0.5, rel=0.1)


def test_a_new_pool_s_first_intervals_make_nobody_fast_or_slow() -> None:
    """Six engines alike, whose first few steps hold different numbers of KV tokens: before the first of them there is a
    decision, of a model without a single step, whose slopes say nothing."""
    learner = Learner(LearnerConfig(), PoolSpec((DraftInfo("ngram", "ngram", 4),), (0, 2, 4), max_batch=1))
    rng = np.random.default_rng(0)
    learner.decide(0.0, rng)
    for t in range(3):
        for nth in range(6):
            x = np.array([5.0, 0, 40.0 + 20 * nth, 4, 4])
            steps = [(0.02, x)] * (5 if t == nth == 0 else 3)
            learner.observe(Delta(f"engine-{nth}", 0.1 * t, cost=[cost_cell(("ngram",), 1, 4, steps)]))
        learner.decide(0.1 * t, rng)
        assert learner.speeds() == pytest.approx([1.0] * 6, rel=0.02)
