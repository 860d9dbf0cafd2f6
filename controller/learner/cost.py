"""Seconds of a step: a curve of the tokens verified, a linear law per load, and an effect for every kind of step.

    seconds = curve(verified) + x . beta[load] + shared[load, passes] + own[drafts, load, passes]
              + prefill[load, bucket] + noise

x = (1, verified, prefill, kv, then per draft: drafted, passes). The curve is one for all loads (`verification`); the
laws, tied from load to load by a random walk, say how a load departs from it and what drafting costs there; real costs
have stairs, so every kind of step that ran gets its own offset, shrunk to the law. All of it is one Gaussian: with Z
the design (curve, law, effects),

    precision = prior + sum_key w Z^T Z,   mean = precision^-1 (prior . prior mean + sum_key w Z^T y)

(Bishop, Pattern Recognition and Machine Learning, eqs. 3.50-3.51, from sufficient sums). Noise is relative: w = 1 /
(sigma * the key's mean seconds)^2, sigma from the scatter of keys around their own lines in the tokens. A machine
wanders, so a key's weight saturates. The sd of each kind of effect is estimated by one EM step a fit, bounded. How that
Gaussian is solved: `chain`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from controller.learner import verification
from controller.learner.chain import Bordered
from controller.learner.config import PoolSpec
from controller.learner.discount import Array, Index
from controller.learner.normal import EffectKey, Equations, Layout
from controller.learner.steps import SHARED, Sums
from engine.link.messages import passes_bucket, prefill_bucket

# Prior mean and sd of a drafting pass, by the draft's kind, in plain steps of a batch of one.
PASS_PRICE = {"ngram": (0.01, 0.02), "eagle": (0.06, 0.05), "model": (0.12, 0.10), "other": (0.08, 0.10)}
EFFECT_SD = {"shared": (0.05, 0.01, 0.25), "own": (0.03, 0.005, 0.2), "prefill": (0.05, 0.01, 0.3)}  # of a step
_EFFECT_PRIOR = 4.0  # weight of those, in effects
NOISE = (0.05, 20.0, 0.003)  # prior relative noise, its weight in steps, lowest
_SHORTEST = 1e-3  # of the pool's longest usual step
# Prior sd at the lowest load, and of the change from load to load, by octave; shares of a step. Tokens' change: of what
# _BEND allows, see `_prior`; KV tokens': for as many as have ever been held. A draft's tokens beside their verification
# cost little, since it is much smaller than its target.
_LEVEL, _LEVEL_MOVES = 0.01, 0.05
_TOKEN, _TOKEN_MOVES, _BEND = 0.001, 0.1, (0.05, 0.3)
_DRAFTED, _DRAFTED_MOVES = 0.0005, 0.001
_PREFILL, _PREFILL_MOVES = 0.02, 0.02
_KV, _KV_MOVES = 0.2, 0.02
_PASS_MOVES = 0.01
TRIED = 6.0  # steps at a depth (or deeper) that make it known
SATURATION = 1000.0  # steps of one key beyond which more of them say little: its mean wanders


@dataclass(frozen=True, slots=True)
class Loads:
    """What steps of each load look like; arrays are [loads]."""

    seconds: Array  # mean seconds of a step without prompts, from the nearest load where none ran
    rows: Array  # decode rows of a step
    kv: Array  # resident KV tokens
    prefill: Array  # prompt tokens a step
    steps: Array  # evidence
    spent: Array  # mean seconds of all steps, those that carry prompts among them


@dataclass(slots=True)
class CostPosterior:
    """The Gaussian over all coefficients; `effects` says where an effect stands among them."""

    spec: PoolSpec
    loads: Loads
    gaussian: Bordered
    knots: Array  # tokens at which the curve's variables stand
    mean: Array  # [dim]: by load the law and its shared and prefill effects, then all own effects, then the curve
    effects: dict[EffectKey, int]
    effect_sd: dict[str, float]
    noise: float
    passes_per_k: Array  # [drafts]
    deepest: Array  # [drafts]: passes that at least TRIED steps of the draft reached
    tried: Array  # [drafts]: steps in which the draft ran

    @property
    def width(self) -> int:
        """Features of a law: 1 + 3 + 2 per draft."""
        return 1 + SHARED + 2 * len(self.spec.drafts)

    def sample(self, rng: np.random.Generator, size: int) -> "CostDraws":
        """`size` draws of the whole model."""
        draws = self.gaussian.coloured(rng.standard_normal((len(self.mean), size)))
        draws += self.mean[:, None]
        return CostDraws(self, draws, rng)

    def slopes(self) -> dict[int, tuple[float, float]]:
        """By load: seconds that one more verified and one more resident KV token cost, by the mean."""
        draws, rows = self.centre(), self.loads.rows
        rise = (draws.curve(2.0 * rows) - draws.curve(rows))[:, 0] / rows
        laws = draws.laws[..., 0]
        both = zip((rise + laws[:, 1]).tolist(), laws[:, 3].tolist(), strict=True)
        return dict(zip(self.spec.loads, both, strict=True))

    def centre(self) -> "CostDraws":
        """The posterior mean as a single draw."""
        return CostDraws(self, self.mean[:, None], None)


class CostDraws:
    """Draws of the cost model; kinds of steps that never ran get effects from their prior, drawn once each."""

    def __init__(self, posterior: CostPosterior, draws: Array, rng: np.random.Generator | None) -> None:
        self.posterior = posterior
        self._rng = rng
        self._draws = draws  # [dim, size]
        self._sizes = posterior.spec.loads
        loads, width = len(posterior.spec.loads), posterior.gaussian.chain.width
        self.laws = draws[: loads * width].reshape(loads, width, -1)[:, : posterior.width]  # [loads, features, size]
        self._fresh: dict[EffectKey, Array] = {}

    def curve(self, tokens: Array) -> Array:
        """Draws [n, size] of the curve at those numbers of verified tokens [n]."""
        knots = self.posterior.knots
        return verification.along(knots, tokens, self._draws[-len(knots) :])

    def effect(self, kind: str, drafts: tuple[str, ...], load: int, level: int) -> Array:
        """Draws [size] of one effect, seconds; `load` is an index."""
        posterior = self.posterior
        key = (kind, drafts, self._sizes[load], level)
        at = posterior.effects.get(key)
        if at is not None:
            return np.asarray(self._draws[at])
        if self._rng is None:
            return np.zeros(self._draws.shape[1])
        if key not in self._fresh:
            sd = posterior.effect_sd[kind] * posterior.loads.seconds[load]
            self._fresh[key] = sd * self._rng.standard_normal(self._draws.shape[1])
        return self._fresh[key]

    def step_effect(self, drafts: tuple[str, ...], load: int, passes: int) -> Array:
        """Shared plus own effect of steps in which `drafts` ran `passes` passes, [size]."""
        level = passes_bucket(passes)
        return self.effect("shared", (), load, level) + self.effect("own", drafts, load, level)

    def step_effects(self, drafts: Sequence[tuple[str, ...]], load: int, passes: Sequence[int]) -> Array:
        """`step_effect` for all those numbers of passes and drafts, [passes, drafts, size]."""
        levels = [passes_bucket(n) for n in passes]
        found = np.empty((len(levels), len(drafts), self._draws.shape[1]))
        for i, level in enumerate(levels):
            if i and level == levels[i - 1]:
                found[i] = found[i - 1]
                continue
            for j, names in enumerate(drafts):
                found[i, j] = self.effect("own", names, load, level)
            found[i] += self.effect("shared", (), load, level)
        return found

    def seconds(self, drafts: tuple[str, ...], batch: int, passes: int, x: Array) -> Array:
        """Draws [size] of the seconds of one step; x = (verified, prefill, kv, then per draft of the *pool*: drafted,
        passes)."""
        load = self.posterior.spec.load_index(batch)
        linear = np.concatenate([[1.0], x]) @ self.laws[load] + self.curve(x[:1])[0]
        bucket = prefill_bucket(int(x[1]))
        extra = self.effect("prefill", (), load, bucket) if bucket else 0.0
        floor = 0.2 * self.posterior.loads.seconds[load]
        total = linear + self.step_effect(drafts, load, passes) + extra
        return np.asarray(np.maximum(total, floor), dtype=np.float64)


def describe_loads(groups: list[Sums], spec: PoolSpec) -> Loads:
    """Means by load; rows = verified - drafted tokens, kept inside the bucket.

    A step that carries a long prompt takes as long as a hundred that only decode. So it is no measure of those; only
    where no step came without a prompt, at any load, all of them are.
    """
    loads = np.array(spec.loads, dtype=np.float64)
    steps, seconds, rows, kv, prefill, bare, bare_seconds = np.zeros((7, len(loads)))
    for group in groups:
        at = np.array([spec.load_index(key[1]) for key in group.keys])
        drafted = group.x[:, SHARED::2].sum(axis=1)
        decodes = np.array([not key[3] for key in group.keys])
        sums = group.n, group.seconds, group.x[:, 0] - drafted, group.x[:, 2], group.x[:, 1]
        for total, value in zip(
            (steps, seconds, rows, kv, prefill, bare, bare_seconds),
            (*sums, group.n * decodes, group.seconds * decodes),
            strict=True,
        ):
            np.add.at(total, at, value)
    known = steps > 0
    safe = np.where(known, steps, 1.0)
    above = np.append(loads[1:], 2.0 * loads[-1]) - 1.0  # largest batch of the bucket
    middle = np.minimum(np.sqrt(loads * above), max(spec.max_batch, 1))
    mean_rows = np.clip(np.where(known, rows / safe, middle), loads, above)
    if not known.any():
        one = np.ones(len(loads))
        return Loads(one, mean_rows, 0.0 * one, 0.0 * one, steps, one)
    distance = np.abs(np.log2(loads)[:, None] - np.log2(loads)[None, :])

    def nearest(there: NDArray[np.bool_]) -> Index:
        return np.asarray(np.where(there[None, :], distance, np.inf).argmin(axis=1), dtype=np.intp)

    if not bare.any():
        bare, bare_seconds = steps, seconds
    usual = (bare_seconds / np.where(bare > 0, bare, 1.0))[nearest(bare > 0)]
    near = nearest(known)
    per_row = (kv / safe / mean_rows)[near]
    kv_here = np.where(known, kv / safe, per_row * mean_rows)
    return Loads(usual, mean_rows, kv_here, prefill / safe, steps, (seconds / safe)[near])


def _prior(spec: PoolSpec, loads: Loads) -> tuple[Array, Array, Array]:
    """Prior of the laws, a random walk upwards from the lowest load: mean [p] and precision [p] of the first one,
    precision [loads - 1, p] of each one's step to the next.

    The curve prices a step by its verified tokens; a law only says how a load departs from that, so it moves little.
    """
    p, count = 1 + SHARED + 2 * len(spec.drafts), len(spec.loads)
    step = float(loads.seconds[0])
    kv_scale = max(float(loads.kv.max(initial=0.0)), 1.0)
    mean, sd = np.zeros(p), np.zeros(p)
    mean[2:4] = 0.01 * step, 0.02 * step / kv_scale
    sd[:4] = _LEVEL * step, _TOKEN * step, _PREFILL * step, _KV * step / kv_scale
    for j, draft in enumerate(spec.drafts):
        price, doubt = PASS_PRICE[draft.kind]
        mean[5 + 2 * j] = price * step
        sd[4 + 2 * j : 6 + 2 * j] = _DRAFTED * step, doubt * step
    sizes = np.array(spec.loads[1:], dtype=np.float64)
    here = loads.seconds[1:]
    far = np.sqrt(np.log2(sizes / np.array(spec.loads[:-1])))  # octaves, as a random walk goes
    walk = np.empty((count - 1, p))
    walk[:, 0] = _LEVEL_MOVES * here
    walk[:, 1] = _TOKEN_MOVES * np.minimum(_BEND[0] * sizes**0.5, _BEND[1]) * here / sizes
    walk[:, 2] = _PREFILL_MOVES * here / sizes
    walk[:, 3] = _KV_MOVES * here / kv_scale
    walk[:, 4::2], walk[:, 5::2] = (_DRAFTED_MOVES * here / sizes)[:, None], (_PASS_MOVES * here)[:, None]
    return mean, 1.0 / sd**2, 1.0 / (walk * far[:, None]) ** 2


def relative_noise(groups: list[Sums]) -> float:
    """Standard deviation of a step's seconds around its key's plane in the verified and the prompt tokens, relative to
    the key's mean.

    Pooled over keys. Rows and prompts differ within a key: what that does to the seconds is no noise.
    """
    variance, weight = NOISE[0] ** 2 * NOISE[1], NOISE[1]
    for group in groups:
        mean = group.seconds / group.n
        x = group.x[:, :2]
        about = group.xx[:, :2, :2] - x[:, :, None] * x[:, None, :] / group.n[:, None, None]
        along = group.xy[:, :2] - x * mean[:, None]
        left = np.maximum(group.seconds_sq - group.seconds * mean, 0.0)
        freedom = group.n - 1.0
        # The tokens first, then what the prompts add (Gram and Schmidt).
        sloped = about[:, 0, 0] > 1e-6 * group.xx[:, 0, 0]
        shared = np.where(sloped, about[:, 0, 1] / np.where(sloped, about[:, 0, 0], 1.0), 0.0)
        rest, rest_along = about[:, 1, 1] - shared * about[:, 0, 1], along[:, 1] - shared * along[:, 0]
        for square, product, least in (
            (about[:, 0, 0], along[:, 0], group.xx[:, 0, 0]),
            (rest, rest_along, group.xx[:, 1, 1]),
        ):
            varies = square > 1e-6 * least
            left -= np.where(varies, product**2 / np.where(varies, square, 1.0), 0.0)
            freedom -= varies
        more = freedom > 0
        variance += float((np.maximum(left, 0.0) / mean**2)[more].sum())
        weight += float(freedom[more].sum())
    return float(np.clip(np.sqrt(variance / weight), NOISE[2], 1.0))


def _known(group: Sums, spec: PoolSpec) -> Sums:
    """The rows whose drafts the pool has: a draft that was unloaded leaves steps behind."""
    names = {draft.name for draft in spec.drafts}
    rows = [i for i, key in enumerate(group.keys) if names.issuperset(key[0])]
    return group if len(rows) == len(group.keys) else Sums([group.keys[i] for i in rows], *(x[rows] for x in group[1:]))


def fit(groups: list[Sums], spec: PoolSpec, effect_sd: dict[str, float]) -> CostPosterior:
    """The posterior from blended sums. `effect_sd` is the last fit's, relative to a step; the result holds the new."""
    groups = [kept for group in groups if (kept := _known(group, spec)).keys]
    loads = describe_loads(groups, spec)
    layout = Layout(groups, spec)
    first, certainty, walk = _prior(spec, loads)
    count, p, m, owns = len(spec.loads), len(first), layout.width, len(layout.own_load)
    noise = relative_noise(groups)
    knots = verification.knots(spec.max_batch * (1 + spec.positions))
    at_knot = np.minimum(np.searchsorted(spec.loads, knots, side="right"), count) - 1
    equations = Equations(layout, count, knots, *verification.prior(knots, loads.seconds[at_knot]))
    for group, rows in zip(groups, layout.rows, strict=True):
        # A step a thousand times shorter than others is no step, and must not outweigh them by a million.
        mean = np.maximum(group.seconds / group.n, _SHORTEST * loads.seconds.max())
        # Steps of a few intervals share what was not known of the engine's speed then.
        shared = group.n * group.doubt
        equations.add(group, rows, 1.0 / (mean**2 * (noise**2 * (1.0 + group.n / SATURATION) + shared)))
    kinds = np.array([key[0] for key in layout.effects], dtype=object)
    where = np.array(list(layout.effects.values()), dtype=np.intp)
    scale = np.array([loads.seconds[spec.load_index(key[2])] for key in layout.effects])
    precision = np.ones(count * m + owns)  # columns that a load has no use for are left at 1: nothing touches them
    precision[where] = 1.0 / np.maximum(np.array([effect_sd[kind] for kind in kinds]) * scale, 1e-12) ** 2
    diagonal = precision[: count * m].reshape(count, m).copy()
    diagonal[:, :p] = 0.0
    diagonal[0, :p] = certainty
    diagonal[:-1, :p] += walk
    diagonal[1:, :p] += walk
    # The random walk's prior mean is the same at every load: its steps add nothing to the right-hand side.
    gaussian, rhs = equations.gaussian(diagonal, walk, precision[count * m :], certainty * first)
    mean = gaussian.mean(*rhs)
    new_sd = dict(effect_sd)
    if layout.effects:
        moment = (mean**2 + gaussian.variance())[where] / scale**2
        for kind, (prior, low, high) in EFFECT_SD.items():
            seen = moment[kinds == kind]
            variance = (_EFFECT_PRIOR * prior**2 + float(seen.sum())) / (_EFFECT_PRIOR + len(seen))
            new_sd[kind] = float(np.clip(np.sqrt(variance), low, high))
    return CostPosterior(spec, loads, gaussian, knots, mean, layout.effects, new_sd, noise, *_experience(groups, spec))


def _experience(groups: list[Sums], spec: PoolSpec) -> tuple[Array, Array, Array]:
    """By draft: passes counted per K where it ran alone (else 1), the deepest it ran TRIED times, steps it ran.

    A draft that proposes all its tokens in one pass, or needs no model at all, shows in the first.
    """
    counted, planned, tried = np.zeros((3, len(spec.drafts)))
    by_depth: list[dict[int, float]] = [{} for _ in spec.drafts]
    order = {draft.name: j for j, draft in enumerate(spec.drafts)}
    for group in groups:
        for i, (drafts, _, depth, _) in enumerate(group.keys):
            for name in drafts:
                if name in order:
                    j, n = order[name], float(group.n[i])
                    tried[j] += n
                    by_depth[j][depth] = by_depth[j].get(depth, 0.0) + n
                    if len(drafts) == 1 and depth:
                        planned[j] += n * depth
                        counted[j] += float(group.x[i, SHARED + 1])
    deepest = np.zeros(len(spec.drafts))
    for j, steps in enumerate(by_depth):
        total = 0.0
        for depth in sorted(steps, reverse=True):
            total += steps[depth]
            if total >= TRIED:
                deepest[j] = depth
                break
    return np.where(planned > 0, counted / np.maximum(planned, 1e-9), 1.0), deepest, tried
