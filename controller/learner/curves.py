"""Acceptance curves: what is believed about P(token i kept | i - 1 kept), for every context and draft.

Per (context c, draft j, position i), with evidence (n, a):

    p | u ~ Beta(kappa m + a, kappa (1 - m) + n - a),   m = expit(centre_i + u),   u ~ N(0, tau_u^2 + var(centre))

`centre` is the draft's curve in the *other* contexts (this one left out, contexts weighed equally), u this context's
shift of the whole curve, kappa the strength with which a position follows the shifted curve. So: position -> the
draft's curve here -> the draft's curves elsewhere. Both strengths are estimated from the measured variances (between
contexts for u, between positions for kappa) by the method of moments, shrunk to a prior and bounded: strong where
domains agree, weak where they do not. u's own posterior is a quasi-likelihood normal: binomial counts deflated for the
scatter kappa. A draw takes u first, then the positions given u: those nobody has seen move with the others.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from controller.learner.discount import Array
from controller.learner.goodput import blocks
from controller.learner.prices import Single

BASE_MEAN = 0.6  # acceptance of a draft nobody has seen
BASE_SD = 1.0  # its uncertainty, in logits
SHIFT_SD = (0.7, 0.1, 2.0)  # between contexts, in logits: prior, lowest, highest
SCATTER_SD = (0.6, 0.15, 1.6)  # between positions around the shifted curve, in logits: prior, lowest, highest
_PRIOR_CELLS = 4.0  # weight of those priors, in well-measured cells
_ENOUGH = 8.0  # observations at which a context's curve has half its full weight for the others
_OTHER_REGIME = 0.25  # weight of a context of the other regime
_PQ = 0.2  # p (1 - p) at which kappa and the scatter in logits are matched
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(7)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


def expit(x: Array) -> Array:
    """1 / (1 + exp(-x)), safe for any x."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * x)), dtype=np.float64)


def logit(p: Array) -> Array:
    """log(p / (1 - p))."""
    return np.asarray(np.log(p) - np.log1p(-p), dtype=np.float64)


def strength(scatter_sd: float) -> float:
    """Beta strength kappa that scatters like a logit standard deviation: 1 / (sd^2 pq) - 1, at least 1.

    >>> round(strength(0.6), 2)
    12.89
    """
    return max(1.0, 1.0 / (scatter_sd**2 * _PQ) - 1.0)


def left_out_mean(y: Array, weight: Array, kinship: Array) -> tuple[Array, Array]:
    """Weighted mean of y over the *other* contexts, and the weight behind it; y, weight: [C, ...], kinship [C, C].

    >>> mean, mass = left_out_mean(np.array([1.0, 2.0, 6.0]), np.ones(3), 1.0 - np.eye(3))
    >>> mean.tolist(), mass.tolist()
    ([4.0, 3.5, 1.5], [2.0, 2.0, 2.0])
    """
    mass = np.tensordot(kinship, weight, axes=1)
    total = np.tensordot(kinship, weight * y, axes=1)
    return total / np.maximum(mass, 1e-12), mass


def kinship(regimes: NDArray[np.intp]) -> Array:
    """[C, C]: 1 for contexts of the same regime, less for the other regime, 0 for a context with itself.

    >>> kinship(np.array([0, 0, 1])).tolist()
    [[0.0, 1.0, 0.25], [1.0, 0.0, 0.25], [0.25, 0.25, 0.0]]
    """
    same = regimes[:, None] == regimes[None, :]
    return np.asarray(np.where(same, 1.0, _OTHER_REGIME) * (1.0 - np.eye(len(regimes))), dtype=np.float64)


def between_variance(square: Array, noise: Array, weight: Array, bounds: tuple[float, float, float]) -> float:
    """Method of moments: mean of (squared residual - its noise), weighed by precision, shrunk to the prior, bounded.

    square, noise, weight: any one shape; weight 0 leaves an entry out. Returns a variance.

    >>> round(between_variance(np.array([1.0, 1.0]), np.zeros(2), np.ones(2), (0.5, 0.1, 2.0)), 3)
    0.5
    """
    prior = bounds[0] ** 2
    w = weight * (prior / (prior + noise)) ** 2
    estimate = (_PRIOR_CELLS * prior + float((w * (square - noise)).sum())) / (_PRIOR_CELLS + float(w.sum()))
    return float(np.clip(estimate, bounds[1] ** 2, bounds[2] ** 2))


@dataclass(frozen=True, slots=True)
class Curves:
    """Posterior of all curves. Arrays are [contexts, drafts, positions] unless said otherwise."""

    centre: Array
    shift_mean: Array  # [contexts, drafts]
    shift_sd: Array  # [contexts, drafts]
    kappa: float
    shift_prior_sd: float
    n: Array
    a: Array

    def given(self, shift: Array) -> tuple[Array, Array]:
        """Beta parameters of every position given shifts [..., contexts, drafts]."""
        m = expit(self.centre + shift[..., None])
        return self.kappa * m + self.a + 1e-3, self.kappa * (1.0 - m) + (self.n - self.a) + 1e-3

    def draws(self, rng: np.random.Generator, size: int) -> Single:
        """Draws of acceptance by position, [contexts, positions, drafts, size]: draws last, as `goodput` wants them."""
        contexts, drafts, positions = self.n.shape
        white = rng.standard_normal((contexts, drafts, size), dtype=np.float32)
        shift = self.shift_mean.astype(np.float32)[..., None] + self.shift_sd.astype(np.float32)[..., None] * white
        centre, kept, lost = (
            np.ascontiguousarray(array.transpose(0, 2, 1), dtype=np.float32)[..., None]
            for array in (self.centre, self.a + 1e-3, self.n - self.a + 1e-3)
        )
        kappa = np.float32(self.kappa)
        found = np.empty((contexts, positions, drafts, size), dtype=np.float32)
        for block in blocks(contexts, positions * drafts * size):
            alpha = centre[block] + shift[block, None]
            alpha *= np.float32(0.5)
            np.tanh(alpha, out=alpha)
            alpha += np.float32(1)
            alpha *= np.float32(0.5) * kappa
            beta = kappa - alpha
            alpha += kept[block]
            beta += lost[block]
            found[block] = beta_draws(rng, alpha, beta)
        return found

    def marginal(self) -> tuple[Array, Array]:
        """Mean and variance of every position, the shift integrated out by 7-point Gauss-Hermite quadrature."""
        shift = self.shift_mean + self.shift_sd * _NODES[:, None, None]
        alpha, beta = self.given(shift)
        total = alpha + beta
        mean_given = alpha / total
        second_given = mean_given * (alpha + 1.0) / (total + 1.0)
        mean = np.tensordot(_WEIGHTS, mean_given, axes=1)
        second = np.tensordot(_WEIGHTS, second_given, axes=1)
        return mean, np.maximum(second - mean**2, 1e-12)

    def survival(self) -> Array:
        """Mean of P(this position and all before are kept): positions are independent given the shift, which is
        integrated out as in `marginal`."""
        alpha, beta = self.given(self.shift_mean + self.shift_sd * _NODES[:, None, None])
        kept = np.cumprod(alpha / (alpha + beta), axis=-1)
        return np.asarray(np.tensordot(_WEIGHTS, kept, axes=1), dtype=np.float64)

    def beta(self) -> tuple[Array, Array]:
        """(alpha, beta) of the Beta with each position's marginal mean and variance."""
        mean, variance = self.marginal()
        total = np.maximum(mean * (1.0 - mean) / variance - 1.0, 1e-3)
        return mean * total, (1.0 - mean) * total


def _shift(centre: Array, variance: Array, kappa: float, n: Array, a: Array) -> tuple[Array, Array]:
    """Mode and curvature sd of u, [C, J]: Newton, counts deflated to n / (1 + (n - 1) / (kappa + 1))."""
    weight = n / (1.0 + np.maximum(n - 1.0, 0.0) / (kappa + 1.0))
    rate = (a + 1e-9) / (n + 2e-9)
    u = np.zeros(variance.shape)
    for _ in range(8):
        m = expit(centre + u[..., None])
        slope = (weight * (rate - m)).sum(axis=-1) - u / variance
        curve = (weight * m * (1.0 - m)).sum(axis=-1) + 1.0 / variance
        u = u + np.clip(slope / curve, -1.5, 1.5)
    m = expit(centre + u[..., None])
    return u, 1.0 / np.sqrt((weight * m * (1.0 - m)).sum(axis=-1) + 1.0 / variance)


def fit(n: Array, a: Array, regimes: NDArray[np.intp]) -> Curves:
    """The posterior from effective counts n, a [contexts, drafts, positions] (0 <= a <= n) and regimes [contexts]."""
    kin = kinship(regimes)
    base = float(logit(np.array(BASE_MEAN)))
    rate = (a + 0.5) / (n + 1.0)
    y, noise, weight = logit(rate), 1.0 / ((n + 1.0) * rate * (1.0 - rate)), n / (n + _ENOUGH)
    total_n, total_a = n.sum(axis=2), a.sum(axis=2)
    # Where the draft stands elsewhere: its level first (the base weighs half a context), then position by position.
    level, level_mass = left_out_mean(logit((total_a + 0.5) / (total_n + 1.0)), total_n / (total_n + _ENOUGH), kin)
    level = (0.5 * base + level_mass * level) / (0.5 + level_mass)
    there, mass = left_out_mean(y, weight, kin)
    centre = (0.5 * level[..., None] + mass * there) / (0.5 + mass)
    shift_var, scatter_var = SHIFT_SD[0] ** 2, SCATTER_SD[0] ** 2
    elsewhere = np.maximum(level_mass, 1e-9)
    for _ in range(2):
        precision = 1.0 / (scatter_var + noise) * (n > 0)
        behind = precision.sum(axis=2)
        raw = (precision * (y - centre)).sum(axis=2) / np.maximum(behind, 1e-9)
        own_noise = 1.0 / np.maximum(behind, 1e-9)
        spread = 1.0 + 1.0 / elsewhere  # the mean over m others varies, too
        compared = (behind > 0) * np.minimum(level_mass, 1.0) * (level_mass > 0.4)
        shift_var = between_variance(raw**2 / spread, own_noise / spread, compared, SHIFT_SD)
        prior_var = shift_var + 1.0 / (1.0 / BASE_SD**2 + level_mass / shift_var)
        kappa = strength(float(np.sqrt(scatter_var)))
        u, sd = _shift(centre, prior_var, kappa, n, a)
        residual = y - centre - u[..., None]
        scatter_var = between_variance(residual**2, noise, weight, SCATTER_SD)
    kappa = strength(float(np.sqrt(scatter_var)))
    u, sd = _shift(centre, prior_var, kappa, n, a)
    return Curves(centre, u, sd, kappa, float(np.sqrt(shift_var)), n, a)


def expected_tokens(acceptance: Single, ks: tuple[int, ...]) -> Single:
    """Tokens per step 1 + survival(1) + ... + survival(K) for each K of `ks`, ascending: [contexts, K, ...] from
    acceptance by position [contexts, positions, ...].

    >>> expected_tokens(np.array([[0.5, 0.5, 1.0]], dtype=np.float32), (0, 1, 3)).tolist()
    [[1.0, 1.5, 2.0]]
    """
    found = np.empty((len(acceptance), len(ks), *acceptance.shape[2:]), dtype=np.float32)
    survival, total = np.ones((2, len(acceptance), *acceptance.shape[2:]), dtype=np.float32)
    reached = 0
    for level, k in enumerate(ks):
        while reached < k:
            survival *= acceptance[:, reached]
            total += survival
            reached += 1
        found[:, level] = total
    return found


def beta_draws(rng: np.random.Generator, alpha: Single, beta: Single) -> Single:
    """Draws of Beta(alpha, beta), close to exact: X / (X + Y) of Gamma draws by Wilson and Hilferty's cube,

        X = alpha (1 - 1 / (9 alpha) + z / (3 sqrt(alpha)))^3,  z standard normal

    (The distribution of chi-square, 1931): mean and variance within 0.5% from alpha = 1 on, in half the time of exact
    draws. A Beta with a parameter below 1 is drawn exactly.
    """
    small = np.flatnonzero(np.minimum(alpha, beta) < 1.0)
    x = _cube(rng, alpha)
    y = _cube(rng, beta)
    y += x
    x /= y
    if len(small):
        x.reshape(-1)[small] = rng.beta(alpha.reshape(-1)[small], beta.reshape(-1)[small])
    return x


def _cube(rng: np.random.Generator, shape: Single) -> Single:
    spread = np.sqrt(shape)
    np.divide(np.float32(1 / 3), spread, out=spread)
    root = rng.standard_normal(shape.shape, dtype=np.float32)
    root -= spread
    root *= spread
    root += np.float32(1)
    np.maximum(root, np.float32(1e-3), out=root)  # three in a thousand draws at alpha = 1 would be below 0
    np.multiply(root, root, out=spread)
    spread *= root
    spread *= shape
    return spread
