"""Acceptance posteriors against quadrature, and what sharing between domains must and must not do."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats

from controller.learner.curves import BASE_MEAN, Curves, beta_draws, expected_tokens, fit, strength
from controller.learner.estimates import survival_interval

G = np.zeros(3, dtype=np.intp)


def test_the_marginal_of_a_position_is_that_of_quadrature() -> None:
    """Two domains, one draft, one position: integrate Beta(kappa m(u) + a, ...) over u numerically."""
    n, a = np.array([[[12.0]], [[30.0]]]), np.array([[[9.0]], [[15.0]]])
    curves = fit(n, a, G[:2])
    mu, sd, c = curves.shift_mean[0, 0], curves.shift_sd[0, 0], curves.centre[0, 0, 0]

    def posterior_mean(u: float) -> float:
        m = special.expit(c + u)
        return float((curves.kappa * m + 9.0) / (curves.kappa + 12.0) * stats.norm.pdf(u, mu, sd))

    exact, _ = integrate.quad(posterior_mean, mu - 9 * sd, mu + 9 * sd)
    mean, _ = curves.marginal()
    assert mean[0, 0, 0] == pytest.approx(exact, abs=2e-4)  # 1e-3 pseudo-counts and 7 nodes


def test_the_shift_is_the_mode_of_its_quasi_likelihood() -> None:
    n = np.array([[[40.0, 30.0, 25.0]], [[50.0, 20.0, 8.0]]])
    a = np.array([[[36.0, 27.0, 22.0]], [[20.0, 8.0, 2.0]]])
    curves = fit(n, a, G[:2])
    prior_var = curves.shift_prior_sd**2 + 1 / (1 + (a.sum(2) > 0)[1, 0] * (78 / 86) / curves.shift_prior_sd**2)
    weight = n[0, 0] / (1 + (n[0, 0] - 1) / (curves.kappa + 1))
    grid = np.linspace(-4, 4, 80_001)
    eta = curves.centre[0, 0][:, None] + grid
    rate = (a / n)[0, 0][:, None]
    value = (weight[:, None] * (rate * eta - np.logaddexp(0, eta))).sum(0) - grid**2 / (2 * prior_var)
    assert curves.shift_mean[0, 0] == pytest.approx(grid[value.argmax()], abs=2e-3)


def test_draws_have_the_published_mean_and_spread() -> None:
    n = np.array([[[200.0, 100.0, 5.0]], [[100.0, 30.0, 0.0]]])
    a = np.array([[[160.0, 60.0, 4.0]], [[30.0, 5.0, 0.0]]])
    curves = fit(n, a, G[:2])
    draws = curves.draws(np.random.default_rng(0), 40_000).transpose(0, 2, 1, 3).astype(np.float64)
    mean, variance = curves.marginal()
    np.testing.assert_allclose(draws.mean(axis=3), mean, atol=0.01)
    np.testing.assert_allclose(draws.var(axis=3), variance, rtol=0.08)
    alpha, beta = curves.beta()
    np.testing.assert_allclose(alpha / (alpha + beta), mean, rtol=1e-12)


def survives_at_most(curves: Curves, at: int, bound: float) -> float:
    """P(first and second position are kept at most so often), by two nested integrals: over the shift, and over the
    first position given it."""
    mu, sd = curves.shift_mean[at, 0], curves.shift_sd[at, 0]

    def given(u: float) -> float:
        shift = np.zeros_like(curves.shift_mean)
        shift[at, 0] = u
        alpha, beta = (array[at, 0] for array in curves.given(shift))
        x = np.linspace(0, 1, 801)[1:-1]
        first = stats.beta(alpha[0], beta[0])
        weight = np.diff(first.cdf(np.concatenate([[0], (x[1:] + x[:-1]) / 2, [1]])))
        return float(weight @ special.betainc(alpha[1], beta[1], np.minimum(bound / x, 1.0)))

    u = np.linspace(mu - 5 * sd, mu + 5 * sd, 41)
    density = stats.norm.pdf(u, mu, sd)
    return float(np.average([given(one) for one in u], weights=density))


def test_survival_lies_in_its_interval_with_probability_nine_tenths() -> None:
    n = np.array([[[200.0, 100.0]], [[12.0, 4.0]], [[0.0, 0.0]]])
    a = np.array([[[160.0, 60.0]], [[9.0, 3.0]], [[0.0, 0.0]]])
    curves = fit(n, a, G)
    low, high = survival_interval(curves, np.random.default_rng(0))
    alpha, beta = curves.beta()
    for at in range(3):
        # A quantile of 512 draws is off by 0.0096 (sd) in probability; three of these.
        assert survives_at_most(curves, at, low[at, 0, 1]) == pytest.approx(0.05, abs=0.03)
        assert survives_at_most(curves, at, high[at, 0, 1]) == pytest.approx(0.95, abs=0.03)
        # The first position survives as often as it is accepted.
        for bound, q in ((low, 0.05), (high, 0.95)):
            assert special.betainc(alpha[at, 0, 0], beta[at, 0, 0], bound[at, 0, 0]) == pytest.approx(q, abs=0.04)


def test_mean_survival_is_that_of_quadrature_and_of_the_draws() -> None:
    n = np.array([[[200.0, 100.0, 5.0]], [[100.0, 30.0, 0.0]]])
    a = np.array([[[160.0, 60.0, 4.0]], [[30.0, 5.0, 0.0]]])
    curves = fit(n, a, G[:2])
    survival = curves.survival()
    np.testing.assert_allclose(survival[..., 0], curves.marginal()[0][..., 0], rtol=1e-12)
    draws = curves.draws(np.random.default_rng(0), 40_000).astype(np.float64)
    np.testing.assert_allclose(np.cumprod(draws, axis=1).mean(axis=3).transpose(0, 2, 1), survival, atol=0.004)
    mu, sd = curves.shift_mean[0, 0], curves.shift_sd[0, 0]

    def both_kept(u: float) -> float:
        kept = [(curves.kappa * special.expit(curves.centre[0, 0, i] + u) + a[0, 0, i]) / (curves.kappa + n[0, 0, i])
                for i in range(2)]  # fmt: skip
        return float(kept[0] * kept[1] * stats.norm.pdf(u, mu, sd))

    exact, _ = integrate.quad(both_kept, mu - 9 * sd, mu + 9 * sd)
    assert survival[0, 0, 1] == pytest.approx(exact, abs=2e-4)  # 1e-3 pseudo-counts and 7 nodes


def test_nobody_seen_is_the_base_and_wide() -> None:
    curves = fit(np.zeros((2, 1, 3)), np.zeros((2, 1, 3)), G[:2])
    mean, variance = curves.marginal()
    assert abs(mean - BASE_MEAN).max() < 0.05
    assert np.sqrt(variance).min() > 0.15


def test_much_evidence_overrules_every_prior() -> None:
    n = np.full((3, 2, 4), 20_000.0)
    p = np.array([0.9, 0.3, 0.6])[:, None, None] * np.array([1.0, 0.5])[None, :, None] * np.array([1.0, 0.9, 0.8, 0.7])
    mean, variance = fit(n, n * p, G).marginal()
    np.testing.assert_allclose(mean, p, atol=0.003)
    assert np.sqrt(variance).max() < 0.005


def test_a_new_domain_starts_where_the_others_stand_weighed_equally_not_by_traffic() -> None:
    n = np.zeros((3, 1, 1))
    n[0], n[1] = 100_000.0, 500.0
    a = n * np.array([0.9, 0.5, 0.0])[:, None, None]
    mean = fit(n, a, G).marginal()[0]
    assert (
        0.6 < mean[2, 0, 0] < 0.8
    )  # logits 2.2 and 0 average to 1.1 (.75), pulled a little to the base; by traffic: .9


def test_domains_that_agree_share_more_than_domains_that_do_not() -> None:
    def doubt(rates: list[float]) -> float:
        n = np.full((7, 1, 4), 2000.0)
        n[6] = 0.0
        a = n * np.array([*rates, 0.0])[:, None, None]
        curves = fit(n, a, np.zeros(7, dtype=np.intp))
        return float(np.sqrt(curves.marginal()[1][6, 0, 0]))

    assert doubt([0.70, 0.71, 0.69, 0.70, 0.72, 0.70]) < 0.7 * doubt([0.95, 0.2, 0.9, 0.3, 0.8, 0.1])


def test_a_domain_is_never_its_own_prior() -> None:
    """Leave one out: the centre of a domain does not move with that domain's own counts."""
    n = np.full((3, 1, 2), 100.0)
    a = n * 0.5
    before = fit(n, a, G).centre[0]
    a[0] = 99.0
    assert np.array_equal(fit(n, a, G).centre[0], before)


def test_positions_nobody_saw_move_with_those_that_were_seen() -> None:
    n, high, low = np.zeros((1, 1, 8)), np.zeros((1, 1, 8)), np.zeros((1, 1, 8))
    n[0, 0, :2], high[0, 0, :2], low[0, 0, :2] = 200.0, 190.0, 40.0
    assert fit(n, high, G[:1]).marginal()[0][0, 0, 7] > fit(n, low, G[:1]).marginal()[0][0, 0, 7] + 0.3


def test_a_dip_at_one_position_does_not_hide_what_lies_behind_it() -> None:
    n = np.array([[[400.0, 320.0, 110.0, 100.0, 0, 0]]])
    a = np.array([[[320.0, 110.0, 103.0, 95.0, 0, 0]]])
    mean = fit(n, a, G[:1]).marginal()[0][0, 0]
    assert mean[1] < 0.4 < 0.9 < mean[2]
    assert mean[4] > 0.6


counts = st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1)), min_size=12, max_size=12)


@given(counts)
@settings(max_examples=60, deadline=None)
def test_any_evidence_gives_finite_probabilities(raw: list[tuple[float, float]]) -> None:
    n = np.array([x for x, _ in raw]).reshape(2, 2, 3)
    a = n * np.array([x for _, x in raw]).reshape(2, 2, 3)
    curves = fit(n, a, np.array([0, 1]))
    mean, variance = curves.marginal()
    draws = curves.draws(np.random.default_rng(0), 8)
    alpha, beta = curves.beta()
    assert np.isfinite(draws).all()
    assert (draws >= 0).all()
    assert (draws <= 1).all()
    assert (alpha > 0).all()
    assert (beta > 0).all()
    assert np.isfinite(variance).all()
    assert (mean > 0).all()
    assert (mean < 1).all()


def test_expected_tokens_are_one_plus_the_sum_of_survivals() -> None:
    p = np.array([[0.8, 0.5, 0.5]], dtype=np.float32)
    assert expected_tokens(p, (0, 1, 2, 3))[0].tolist() == pytest.approx([1.0, 1.8, 2.2, 2.4])


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (1.5, 12.0), (9.0, 4.0), (300.0, 40.0), (0.3, 2.0)])
def test_draws_of_a_beta_follow_its_distribution(alpha: float, beta: float) -> None:
    """The cube misses the distribution function by up to .011 where a parameter is 1, and by less above."""
    shape = np.full(200_000, 1.0, dtype=np.float32)
    draws = beta_draws(np.random.default_rng(0), alpha * shape, beta * shape).astype(np.float64)
    assert stats.kstest(draws, stats.beta(alpha, beta).cdf).statistic < 0.012
    assert draws.mean() == pytest.approx(alpha / (alpha + beta), abs=0.003)
    assert draws.std() == pytest.approx(stats.beta(alpha, beta).std(), rel=0.02)


def test_strength_matches_a_scatter_in_logits() -> None:
    """A Beta of strength kappa and mean .7 (pq = .21) scatters by about sd in logits for small sd."""
    kappa = strength(0.2)
    draws = stats.beta.rvs(kappa * 0.7, kappa * 0.3, size=200_000, random_state=0)
    assert np.std(special.logit(draws)) == pytest.approx(0.2, rel=0.06)
