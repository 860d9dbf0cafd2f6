"""How much less the evidence is worth because tokens of one request resemble each other: the design effect.

For segments g with counts (s_g, a_g) the ratio p = sum(a) / sum(s) has the linearised variance of survey sampling
(Cochran, Sampling Techniques, 3rd ed., eq. 6.13; Kish's design effect is its ratio to the binomial one):

    var(p) = m / (m - 1) * sum((a_g - p s_g)^2) / (sum s)^2,     deff = var(p) / (p (1 - p) / sum s)

and sum((a - p s)^2) = aa - 2 p sa + p^2 ss needs only the wire's moments. Effective counts are counts / deff.
"""

import numpy as np

from controller.learner.discount import Array

CEILING = 16.0  # a design effect above this is a broken engine, not a crowd
PRIOR_SEGMENTS = 10.0  # weight, in segments, of the level above in each shrinking step


def design_effect(m: Array, s: Array, a: Array, ss: Array, sa: Array, aa: Array) -> Array:
    """Unbounded design effect from summed moments, elementwise; 1 where there is nothing to say (m < 2, p of 0 or 1).

    Two segments of 4 tokens, all accepted in one and none in the other: p = 1/2, sum((a - p s)^2) = 8, times
    m/(m-1) = 2, over 8 tokens of binomial variance 1/4 each: 16 / 2 = 8.

    >>> float(design_effect(*map(np.array, (2.0, 8.0, 4.0, 32.0, 16.0, 16.0))))
    8.0
    """
    p = a / np.maximum(s, 1e-12)
    spread = np.maximum(aa - 2 * p * sa + p * p * ss, 0.0) * m / np.maximum(m - 1, 1e-12)
    binomial = s * p * (1 - p)
    known = (m >= 2) & (binomial > 1e-9)
    return np.where(known, spread / np.where(known, binomial, 1.0), 1.0)


def spread(m: Array, s: Array, a: Array, ss: Array, sa: Array, aa: Array) -> Array:
    """Standard deviation of acceptance *between* segments, chance within them taken out, elementwise, 0..1/2; nan where
    nothing tells (m < 2, or no segment with two tokens).

    If a segment's tokens are kept with p_g of mean p and variance v, then E[(a - p s)^2] = s p (1 - p) + s (s - 1) v:
    the moment estimator of the beta-binomial (Kleinman, JASA 68, 1973, with weights s_g). No v is above p (1 - p).

    Three segments of 4 tokens, of which 4, 2 and 0 are kept: p = 1/2, sum((a - p s)^2) = 8, times m/(m-1) = 3/2 is 12,
    less 12 / 4 of chance, over 48 - 12: v = 1/4. With 3, 2 and 1 kept: 2 times 3/2 is 3, and chance alone gives 3.

    >>> float(spread(*map(np.array, (3.0, 12.0, 6.0, 48.0, 24.0, 20.0))))
    0.5
    >>> float(spread(*map(np.array, (3.0, 12.0, 6.0, 48.0, 24.0, 14.0))))
    0.0
    """
    p = a / np.maximum(s, 1e-12)
    square = np.maximum(aa - 2 * p * sa + p * p * ss, 0.0) * m / np.maximum(m - 1, 1e-12)
    pairs = ss - s
    known = (m >= 2) & (pairs > 1e-9)
    between = (square - s * p * (1 - p)) / np.where(known, pairs, 1.0)
    return np.where(known, np.sqrt(np.clip(between, 0.0, p * (1 - p))), np.nan)


def shrunk_design_effects(positions: Array, totals: Array, segments: Array) -> Array:
    """Design effects [C, J, P] in 1..CEILING, from moments by position and in total.

    positions: [C, J, 5, P] (s, a, ss, sa, aa); totals: [C, J, 5]; segments: [C, J]. A position's own estimate is noisy
    and blind to correlation *between* positions; the total one sees it. So: pool -> (context, draft) total -> position,
    each estimate weighed by its segments against PRIOR_SEGMENTS of the level above, the top level against 1.
    """
    s, a, ss, sa, aa = np.moveaxis(totals, 2, 0)
    own = design_effect(segments, s, a, ss, sa, aa)
    n = segments.sum()
    pool = (PRIOR_SEGMENTS + float((own * segments).sum())) / (PRIOR_SEGMENTS + n)
    cell = (PRIOR_SEGMENTS * pool + segments * own) / (PRIOR_SEGMENTS + segments)
    ps, pa, pss, psa, paa = np.moveaxis(positions, 2, 0)
    at = design_effect(segments[..., None], ps, pa, pss, psa, paa)
    # Segments that never reached a position say nothing about it: weigh by those that did (s of them at most).
    reach = np.minimum(segments[..., None], ps)
    shrunk = (3 * PRIOR_SEGMENTS * cell[..., None] + reach * at) / (3 * PRIOR_SEGMENTS + reach)
    return np.asarray(np.clip(shrunk, 1.0, CEILING), dtype=np.float64)
