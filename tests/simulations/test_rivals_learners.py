"""The learning rivals' formulas against closed forms and histories worked out by hand."""

import math

import numpy as np
import pytest

from simulations.policy import NO_DRAFT, DraftFacts, Outcome, PoolFacts, View
from simulations.rivals.bandit import Bandit
from simulations.rivals.gaussian_ts import GaussianTs, ScaledTs
from simulations.rivals.hedgespec import HedgeSpec, normal_hedge
from simulations.rivals.turbospec import FEATURES, Profile, TurboSpec, expected_tokens, features
from simulations.rivals.ucb1 import Ucb1, ucb1_index
from simulations.rivals.ucbspec import DELTA, UcbSpec, UcbSpecReleased

POOL = PoolFacts(("code", "chat"), (DraftFacts("small", "model", 2, 1e9),), (0, 1, 2), (0, 2), 8, 1)
TWO = POOL._replace(drafts=(*POOL.drafts, DraftFacts("large", "model", 2, 2e9)))
RNG = np.random.default_rng(0)


def view(domain: list[int], draft: list[int], new: bool = False, drafts: int = 1) -> View:
    n = len(domain)
    return View(
        0, 0, 0.0, np.array(domain), np.array(draft), np.arange(n), np.full(n, new), np.ones(drafts, dtype=np.bool_)
    )


def outcome(v: View, k: list[int], accepted: list[int], seconds: float, would: np.ndarray | None = None) -> Outcome:
    return Outcome(v, v.draft, np.array(k), np.array(accepted), np.zeros(len(k), dtype=np.bool_), seconds, 0, 0, would)


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.95, 1.0])
def test_turbospec_expects_the_sum_of_the_survivals(acceptance: float) -> None:
    for k in range(9):
        assert expected_tokens(acceptance, k) == pytest.approx(sum(acceptance**i for i in range(k + 1)))


def test_turbospec_finds_the_times_it_was_shown() -> None:
    truth = np.array([1e-6, 0.002, 0.0005, 0.001, 0.003, 0.02])
    luck, profile = np.random.default_rng(1), Profile()
    for _ in range(300):
        rows, k = int(luck.integers(1, 64)), int(luck.integers(0, 5))
        x = features(float(luck.integers(1000, 9000)), rows * (k + 1), rows, k)
        profile.add(x, float(x @ truth))
    asked = features(5000.0, np.array([10, 30, 50]), 10, np.array([0, 2, 4]))
    assert asked.shape == (3, FEATURES)
    np.testing.assert_allclose(profile.seconds(asked), asked @ truth, rtol=1e-4)


def test_turbospec_plays_every_k_twice_and_then_the_best_predicted() -> None:
    """With acceptance 1/2 and 0.3 s a pass, K = 0, 1, 2 give 1, 1.5, 1.75 tokens in 1, 1.3, 1.6 s."""
    policy = TurboSpec(POOL, None)
    played = []
    for step in range(12):
        v = view([0], [0])
        k = int(policy.choose(v).k[0])
        kept = min(k, 1) if step % 2 else 0
        policy.observe(outcome(v, [k], [kept], 1 + 0.3 * k))
        played.append(k)
    assert played[:6] == [0, 1, 2, 0, 1, 2]
    engine = policy.engines[0]
    # rates 1/1, 0/1, 0/1, 1/2 of the four profiling steps that drafted
    v = view([0], [0])
    assert engine.profile.seconds(features(0.0, np.array([1, 2, 3]), 1, np.arange(3))) == pytest.approx([1, 1.3, 1.6])
    engine.acceptance = 0.5
    assert policy.choose(v).k.tolist() == [1]  # 1, 1.154, 1.094 tokens/s
    engine.acceptance = 0.2
    engine.steps = 13
    assert policy.choose(v).k.tolist() == [0]  # 1, .923, .775
    engine.steps = 400
    assert policy.choose(v).k.tolist() == [1]  # a refresh, so that acceptance is not frozen
    engine.acceptance = 0.9
    assert policy.choose(v).k.tolist() == [2]  # 1, 1.46, 1.69


def test_turbospec_acceptance_is_the_mean_of_the_rates() -> None:
    policy = TurboSpec(POOL, None)
    policy.observe(outcome(view([0, 0], [0, 0]), [2, 2], [2, 0], 1.0))  # 2 of 3 examined
    assert policy.engines[0].acceptance == pytest.approx(2 / 3)
    policy.observe(outcome(view([0, 0], [0, 0]), [0, 0], [0, 0], 1.0))  # nothing drafted
    policy.observe(outcome(view([0, 0], [0, 0]), [2, 1], [1, 0], 1.0))  # 1 of 3
    assert policy.engines[0].acceptance == pytest.approx(1 / 2)


def history(policy: Bandit) -> None:
    """Domain 0, two rows a step: plain 1 token/s; K = 1: 2 and 1 tokens in 1.25 s; K = 2: 3 and 1 in 1 s."""
    policy.observe(outcome(view([0, 0], [NO_DRAFT, NO_DRAFT]), [0, 0], [0, 0], 1.0))
    policy.observe(outcome(view([0, 0], [0, 0]), [1, 1], [1, 0], 1.25))
    policy.observe(outcome(view([0, 0], [0, 0]), [2, 2], [2, 0], 1.0))


def test_bandits_count_rows_and_measure_speed_in_plain_steps() -> None:
    policy = UcbSpec("ucbspec", POOL, RNG)
    history(policy)
    assert list(zip(policy.drafts.tolist(), policy.ks.tolist(), strict=True)) == [(-1, 0), (0, 0), (0, 1), (0, 2)]
    assert policy.pulls.tolist() == [[2, 0, 2, 2], [0, 0, 0, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(policy.means()[0], [1, 0, 1.2, 2])


def test_ucbspec_index_on_that_history() -> None:
    policy = UcbSpec("ucbspec", POOL, RNG)
    history(policy)
    # L = 2, n = 2, t = 6, A = 4: radius = sqrt(3/4 (1 + 2 log(4 36 sqrt 3 / delta)))
    radius = math.sqrt(0.75 * (1 + 2 * math.log(4 * 36 * math.sqrt(3) / DELTA)))
    np.testing.assert_allclose(policy.scores()[0], [1 + radius, np.inf, 1.2 + radius, 2 + radius])
    assert np.isinf(policy.scores()[1:]).all()
    assert policy.choose(view([0], [0])).k.tolist() == [0]  # (small, 0) was never played


def test_ucb1_index_on_that_history() -> None:
    policy = Ucb1("ucb1", POOL, RNG)
    history(policy)
    bonus = math.sqrt(2 * math.log(6) / 2)  # rewards in [0, 1]: divided by 3 tokens
    np.testing.assert_allclose(policy.scores()[0], [1 / 3 + bonus, np.inf, 0.4 + bonus, 2 / 3 + bonus])


def test_ucb1_prefers_the_rarely_played_arm_when_the_means_are_close() -> None:
    index = ucb1_index(np.array([0.5, 0.45]), np.array([90.0, 10.0]), np.array([100.0]))
    np.testing.assert_allclose(index, [0.5 + math.sqrt(2 * math.log(100) / 90), 0.45 + math.sqrt(0.2 * math.log(100))])
    assert index.argmax() == 1


def test_released_ucbspec_plays_every_arm_twice_and_then_the_fastest() -> None:
    policy = UcbSpecReleased("ucbspec-released", POOL, RNG)
    history(policy)
    assert policy.choose(view([0], [0])).k.tolist() == [0]  # (small, 0) has no pull yet
    policy.observe(outcome(view([0, 0], [0, 0]), [0, 0], [0, 0], 1.1))
    assert policy.choose(view([0], [0])).k.tolist() == [2]


def test_new_rows_of_one_step_spread_over_unknown_arms() -> None:
    policy = Ucb1("ucb1", TWO, RNG)
    choice = policy.choose(view([0] * 7 + [1], [9] * 8, new=True, drafts=2))
    assert choice.draft.tolist() == [-1, 0, 0, 0, 1, 1, 1, -1]


def test_gaussian_posterior_is_the_published_one() -> None:
    policy = GaussianTs("gaussian-ts", POOL, RNG)
    history(policy)
    mean, sd = policy.posterior()
    np.testing.assert_allclose(mean[0], [2 / 9, 0, 2.4 / 9, 4 / 9])  # sum / (n + 1), rewards divided by 3
    np.testing.assert_allclose(sd[0], [3**-0.5, 1, 3**-0.5, 3**-0.5])


def test_scaled_posterior_uses_the_variance_within_arms() -> None:
    policy = ScaledTs("gaussian-ts-scaled", POOL, RNG)
    history(policy)
    mean, sd = policy.posterior()
    # rewards 1, 1 | 1.6, 0.8 | 3, 1: squares around the means 0 + 0.32 + 2, three degrees of freedom; overall mean 1.4
    np.testing.assert_allclose(mean[0], [(2 + 1.4) / 3, 1.4, (2.4 + 1.4) / 3, (4 + 1.4) / 3])
    np.testing.assert_allclose(sd[0] ** 2, np.array([1 / 3, 1, 1 / 3, 1 / 3]) * 2.32 / 3)


def test_normal_hedge_with_one_good_expert_and_with_two() -> None:
    every = np.ones(3, dtype=bool)
    assert normal_hedge(np.array([0.0, -4.0, -1.0]), every).tolist() == pytest.approx([1 / 3] * 3)
    assert normal_hedge(np.array([5.0, -4.0, -1.0]), every).tolist() == [1, 0, 0]
    # two equal positive regrets share; a third expert out of the game does not count
    assert normal_hedge(np.array([2.0, 2.0, 9.0]), np.array([True, True, False])).tolist() == pytest.approx(
        [0.5, 0.5, 0]
    )
    # R = (2, 1, -3): solve mean exp(R+^2 / 2c) = e for y = exp(1 / 2c): y^4 + y + 1 = 3 e
    y = max(r.real for r in np.roots([1, 0, 0, 1, 1 - 3 * math.e]) if abs(r.imag) < 1e-9)
    expected = np.array([2 * y**4, y, 0])
    np.testing.assert_allclose(normal_hedge(np.array([2.0, 1.0, -3.0]), every), expected / expected.sum(), rtol=1e-9)


def test_hedgespec_regrets_after_two_steps_worked_out_by_hand() -> None:
    policy = HedgeSpec(TWO, RNG)
    v = view([0, 0], [0, 0], drafts=2)
    choice = policy.choose(v)
    assert choice.k.tolist() == [2, 2]
    assert choice.evaluated is not None
    assert choice.evaluated.tolist() == [False, True]  # draft 0 runs anyway
    # lengths of draft 0: 1, 2 of 3; of draft 1: 3, 3. Losses 2/3, 1/3 and 0, 0; ours, with weights 1/2: 1/3, 1/6
    policy.observe(outcome(v, [2, 2], [0, 1], 1.0, np.array([[-1, -1], [2, 2]])))
    assert policy.regret.tolist() == [pytest.approx([-0.5, 0.5]), [0, 0], [0, 0]]
    assert policy.weights(np.ones(2, dtype=np.bool_))[0].tolist() == [0, 1]
    # now ours is draft 1's loss: 1/3 against draft 0's 0
    policy.observe(outcome(view([0], [0], drafts=2), [2], [2], 1.0, np.array([[-1], [1]])))
    np.testing.assert_allclose(policy.regret[0], [-0.5 + 1 / 3, 0.5])
    assert policy.choose(view([0] * 4, [9] * 4, new=True, drafts=2)).draft.tolist() == [1] * 4
    assert (policy.regret[1:] == 0).all()
