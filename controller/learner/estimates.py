"""What the learner believes, in rows for people: curves, costs, and the speedup achieved."""

from typing import NamedTuple

import numpy as np
from scipy import special

from controller.learner.acceptance import Counts
from controller.learner.account import Earned, achieved_speedup, rows_of
from controller.learner.config import PoolSpec
from controller.learner.cost import CostPosterior
from controller.learner.curves import Curves
from controller.learner.discount import Array
from controller.learner.evidence import Context
from controller.learner.prices import prices_at
from controller.learner.steps import Sums

_DRAWS = 512  # of curves: a quantile is off by about a tenth of the standard deviation


class CurvePoint(NamedTuple):
    """Acceptance of one draft at one position (1 first) in one context: posterior mean, 90% interval, evidence."""

    domain: str
    regime: str
    draft: str
    position: int
    mean: float
    low: float
    high: float
    survival: float  # P(this and all before are kept), with its 90% interval
    survival_low: float
    survival_high: float
    effective: float  # observations after the design effect
    seen: float  # observations as faded
    accepted: float
    deff: float
    spread: float  # standard deviation of acceptance between segments, without chance; nan: not known
    segments: float  # as faded


class CostRow(NamedTuple):
    """One kind of step that ran: mean seconds, and what the model says at the same mean x, with its 90% interval."""

    drafts: tuple[str, ...]
    load: int
    passes: int
    prefill: int
    steps: float
    seconds: float
    predicted: float
    low: float
    high: float


class Achieved(NamedTuple):
    """Speedup over plain really achieved in one context and load, with its 90% interval, and what it rests on."""

    domain: str
    regime: str
    load: int
    speedup: float
    low: float
    high: float
    row_steps: float
    tokens: float
    row_seconds: float


class Estimates(NamedTuple):
    """Everything for the API. By load: `plain_seconds` price of a plain step, (mean, sd); `static_seconds` that of a
    step in which every row plays the operators' static choice; `prefill` share of a step's seconds spent on prompts;
    `rows` of a step. By context: `static_tokens` of a row's step at that choice; `deff` design effect of its tokens.
    What is of the static choice is empty where its draft is not loaded.
    """

    curves: list[CurvePoint]
    costs: list[CostRow]
    achieved: list[Achieved]
    plain_seconds: dict[int, tuple[float, float]]
    noise: float
    static_seconds: dict[int, float]
    static_tokens: dict[Context, float]
    prefill: dict[int, float]
    rows: dict[int, float]
    deff: dict[Context, float]


def survival_interval(curves: Curves, rng: np.random.Generator) -> tuple[Array, Array]:
    """5% and 95% quantiles of survival, [contexts, drafts, positions] each, over draws of whole curves.

    The positions of a draw share its shift, and else err each by itself: the product of the positions' own bounds would
    be a band that holds nearly everything."""
    draws = np.cumprod(curves.draws(rng, _DRAWS), axis=1)
    low, high = np.quantile(draws, (0.05, 0.95), axis=3)
    return low.transpose(0, 2, 1), high.transpose(0, 2, 1)


def curve_points(
    curves: Curves, counts: Counts, contexts: list[Context], spec: PoolSpec, rng: np.random.Generator
) -> list[CurvePoint]:
    """Rows for every position a draft can reach."""
    alpha, beta = curves.beta()
    mean = alpha / (alpha + beta)
    low, high = special.betaincinv(alpha, beta, 0.05), special.betaincinv(alpha, beta, 0.95)
    segments = np.broadcast_to(counts.segments[..., None], counts.deff.shape)
    arrays = (
        mean,
        low,
        high,
        curves.survival(),
        *survival_interval(curves, rng),
        counts.effective_seen,
        counts.seen,
        counts.accepted,
        counts.deff,
        counts.spread,
        segments,
    )
    return [
        CurvePoint(*context, draft.name, i + 1, *(float(array[c, j, i]) for array in arrays))
        for c, context in enumerate(contexts)
        for j, draft in enumerate(spec.drafts)
        for i in range(spec.reach(draft.name))
    ]


def cost_rows(groups: list[Sums], posterior: CostPosterior, rng: np.random.Generator) -> list[CostRow]:
    """Rows for every kind of step that ran, by the model's draws."""
    names = [draft.name for draft in posterior.spec.drafts]
    draws = posterior.sample(rng, 256)
    rows = []
    for group in groups:
        for i, (drafts, load, passes, prefill) in enumerate(group.keys):
            if not set(drafts) <= set(names):
                continue
            n = float(group.n[i])
            x = np.zeros(posterior.width - 1)
            own = [at for name in drafts for at in (3 + 2 * names.index(name), 4 + 2 * names.index(name))]
            x[[0, 1, 2, *own]] = group.x[i] / n
            predicted = draws.seconds(drafts, max(load, 1), passes, x)
            low, high = np.quantile(predicted, [0.05, 0.95]).tolist()
            mean = float(group.seconds[i]) / n
            rows.append(CostRow(drafts, load, passes, prefill, n, mean, float(predicted.mean()), low, high))
    return rows


def _static(spec: PoolSpec) -> tuple[int, int] | None:
    """The static choice as (draft's index, K); None where the pool has no such draft: nothing is known of it."""
    name, k = spec.static_arm
    names = [draft.name for draft in spec.drafts]
    return (0, 0) if not k else (names.index(name), k) if name in names else None


def step_prices(posterior: CostPosterior, rng: np.random.Generator) -> tuple[Array, Array, Array | None]:
    """Mean and sd of a plain step's seconds, and the mean of those of a step whose rows all play the static choice,
    [loads] each; the last is None where its draft is not loaded."""
    arm = _static(posterior.spec)
    draft, k = arm or (0, 0)
    draws = posterior.sample(rng, 256)
    plain, static = np.empty((2, len(posterior.spec.loads), 256))
    for at, rows in enumerate(posterior.loads.rows.tolist()):
        prices = prices_at(draws, at, (0, k) if k else (0,))
        plain[at] = static[at] = prices.plain
        if k:
            drafted = np.full_like(prices.plain, rows * k)
            static[at] += prices.fixed[1, draft] + drafted * prices.slope[draft] + prices.verify(drafted[None])[0]
    return plain.mean(axis=1), plain.std(axis=1), None if arm is None else static.mean(axis=1)


def static_yield(curves: Curves, contexts: list[Context], spec: PoolSpec) -> dict[Context, float]:
    """Expected tokens of a row's step at the static choice, from the means of acceptance, by context; empty where its
    draft is not loaded."""
    arm = _static(spec)
    if arm is None:
        return {}
    draft, k = arm
    if not k:
        return dict.fromkeys(contexts, 1.0)
    alpha, beta = curves.beta()
    mean = (alpha / (alpha + beta))[:, draft, :k]
    return dict(zip(contexts, (1.0 + np.cumprod(mean, axis=1).sum(axis=1)).tolist(), strict=True))


def design_effects(counts: Counts, contexts: list[Context]) -> dict[Context, float]:
    """Design effect of a context's tokens: that of its drafts' first positions, weighed by what they were seen."""
    if not counts.seen.shape[1]:
        return dict.fromkeys(contexts, 1.0)
    seen = counts.seen[:, :, 0] + 1e-9
    return dict(zip(contexts, ((seen * counts.deff[:, :, 0]).sum(1) / seen.sum(1)).tolist(), strict=True))


def prefill_shares(posterior: CostPosterior) -> Array:
    """Share of a step's seconds spent on prompts, [loads]."""
    loads = posterior.loads
    laws = posterior.centre().laws[..., 0]
    return np.asarray(np.clip(laws[:, 2] * loads.prefill / loads.spent, 0.0, 0.95), dtype=np.float64)


def achieved_rows(
    earned: Earned,
    contexts: list[Context],
    posterior: CostPosterior,
    plain: Array,
    plain_sd: Array,
    prefill: Array,
    deff: Array,
) -> list[Achieved]:
    """Rows for every context and load that ran; deff [contexts]."""
    rows = rows_of(earned.row_steps, posterior.loads.rows)
    speedup, low, high = achieved_speedup(earned, plain, plain_sd, prefill, posterior.noise, rows, deff[:, None])
    numbers = (speedup, low, high, *earned)
    return [
        Achieved._make((*contexts[c], posterior.spec.loads[at], *(float(array[c, at]) for array in numbers)))
        for c, at in np.argwhere(earned.row_steps > 0).tolist()
    ]
