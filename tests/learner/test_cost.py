"""The cost model against direct normal equations, and on the shapes real machines show."""

from itertools import product
from typing import NamedTuple

import msgspec
import numpy as np
import pytest

from controller.learner import cost, verification
from controller.learner.config import PoolSpec
from controller.learner.prices import Prices, prices_at, repaired
from controller.learner.steps import StepEvidence, Sums
from engine.link.messages import CostCell, DraftInfo, prefill_bucket
from tests.learner.world import cost_cell

SPEC = PoolSpec((DraftInfo("ngram", "ngram", 8), DraftInfo("small", "model", 8)), tuple(range(9)), 8)
SDS = {kind: bounds[0] for kind, bounds in cost.EFFECT_SD.items()}


def steady(cells: list[CostCell]) -> list[Sums]:
    """Sums of these cells, of an engine whose speed is known: one interval alone would leave it in doubt."""
    store = StepEvidence(1e6, 1e7, share=0.1)
    store.observe("e", 0.0, cells)
    return [group._replace(doubt=np.zeros(len(group.n))) for group in store.gather(0.0, 1e9)]


def posterior(cells: list[CostCell], spec: PoolSpec = SPEC, fits: int = 3) -> cost.CostPosterior:
    groups, sds, found = steady(cells), SDS, None
    for _ in range(fits):
        found = cost.fit(groups, spec, sds)
        sds = found.effect_sd
    assert found is not None
    return found


def step(rows: int, k: int, draft: str | None, kv: float = 500.0) -> np.ndarray:
    own = [] if draft is None or not k else [rows * k, k]
    return np.array([rows * (k + 1), 0.0, kv, *own])


class Kind(NamedTuple):
    """Steps of one kind: seconds and features of each."""

    drafts: tuple[str, ...]
    batch: int
    passes: int
    prefill: int
    seconds: np.ndarray  # [n]
    x: np.ndarray  # [n, features]

    def cell(self) -> CostCell:
        steps = list(zip(self.seconds.tolist(), self.x, strict=True))
        return msgspec.structs.replace(cost_cell(self.drafts, self.batch, self.passes, steps), prefill=self.prefill)


def test_one_load_without_a_draft_is_solved_exactly_and_its_noise_is_the_scatter() -> None:
    spec = PoolSpec((), (), 1)
    rng = np.random.default_rng(0)
    kv = rng.uniform(100, 900, 50)
    y = 0.02 + 1e-5 * kv + rng.normal(0, 1e-3, 50)
    kind = Kind((), 1, 0, 0, y, np.column_stack([np.ones(50), np.zeros(50), kv]))
    found = posterior([kind.cell()], spec, 1)
    noise = np.sqrt((cost.NOISE[0] ** 2 * 20 + ((y - y.mean()) ** 2).sum() / y.mean() ** 2) / (20 + 49))
    assert found.noise == pytest.approx(noise)
    precision, rhs = dense([kind], found)
    covariance = np.linalg.inv(precision)
    np.testing.assert_allclose(found.mean, covariance @ rhs, rtol=1e-6)
    root = found.gaussian.coloured(np.eye(len(rhs)))
    np.testing.assert_allclose(root @ root.T, covariance, rtol=1e-5, atol=1e-14)


def test_solved_load_by_load_the_posterior_is_that_of_one_dense_matrix() -> None:
    """Three loads, two drafts, prefill in some steps, tokens that vary within a cell: the precision of all coefficients
    summed up step by step and inverted."""
    spec = PoolSpec(SPEC.drafts, SPEC.k_values, 4)
    rng = np.random.default_rng(1)
    kinds = []
    for rows, draft, k, prefill in product((1, 4), ("ngram", "small"), (0, 1, 3), (0, 100)):
        x = step(rows, k, draft)
        x[1] = prefill
        seconds = 0.02 + 1e-4 * prefill + 1e-3 * k + rng.normal(0, 1e-3, 20)
        steps = x + rng.uniform(0, 0.1, (20, len(x)))
        steps[:, 0] += rng.integers(0, 3, 20)
        kinds.append(Kind((draft,) if k else (), rows, k, 64 if prefill else 0, seconds, steps))
    found = cost.fit(steady([kind.cell() for kind in kinds]), spec, SDS)
    precision, rhs = dense(kinds, found)
    covariance = np.linalg.inv(precision)
    sd = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(found.mean / sd, covariance @ rhs / sd, atol=1e-6)
    root = found.gaussian.coloured(np.eye(len(sd)))
    np.testing.assert_allclose(root @ root.T / np.outer(sd, sd), covariance / np.outer(sd, sd), atol=1e-6)
    np.testing.assert_allclose(found.gaussian.variance(), sd**2, rtol=1e-6)


def dense(kinds: list[Kind], found: cost.CostPosterior) -> tuple[np.ndarray, np.ndarray]:
    """Precision and right-hand side of the model, step by step, in the posterior's order of coefficients."""
    spec, p, block = found.spec, found.width, found.gaussian.chain.width
    sizes, knots = spec.loads, found.knots
    size, curve = len(found.mean), len(found.mean) - len(knots)
    precision, rhs = np.zeros((size, size)), np.zeros(size)
    mean, certainty, walk = cost._prior(spec, found.loads)
    at = np.arange(p)
    precision[at, at] += certainty
    rhs[at] += certainty * mean
    for load in range(1, len(sizes)):
        step_up = np.zeros((p, size))
        step_up[at, load * block + at], step_up[at, (load - 1) * block + at] = 1.0, -1.0
        precision += step_up.T @ (walk[load - 1][:, None] * step_up)
    for (kind, _, batch, _), place in found.effects.items():
        precision[place, place] += 1.0 / (SDS[kind] * found.loads.seconds[sizes.index(batch)]) ** 2
    usual = [found.loads.seconds[spec.load_index(int(min(t, spec.max_batch)))] for t in knots]
    precision[curve:, curve:], rhs[curve:] = verification.prior(knots, np.array(usual))
    names = [draft.name for draft in spec.drafts]
    merged: dict[tuple[object, ...], Kind] = {}  # plain steps of both drafts are one kind
    for one in kinds:
        other = merged.setdefault(one[:4], one)
        if other is not one:
            seconds, x = np.concatenate([other.seconds, one.seconds]), np.concatenate([other.x, one.x])
            merged[one[:4]] = one._replace(seconds=seconds, x=x)
    for drafts, batch, passes, prefill, seconds, steps in merged.values():
        law = [0, 1, 2, 3, *(4 + 2 * names.index(name) + part for name in drafts for part in (0, 1))]
        keys = [("shared", (), batch, passes), ("own", drafts, batch, passes), ("prefill", (), batch, prefill)]
        effects = [found.effects[k] for k in keys if k[3] or k[0] != "prefill"]
        n, tokens = len(seconds), steps[:, 0]
        half = max(float(tokens.std()), 0.25 + 0.01 * float(tokens.mean()))
        ends = tokens.mean() - half, tokens.mean() + half
        w = 1.0 / ((found.noise * seconds.mean()) ** 2 * (1.0 + n / cost.SATURATION))
        for y, x in zip(seconds, steps, strict=True):
            z = np.zeros(size)
            z[[spec.load_index(batch) * block + a for a in law]] = np.concatenate([[1.0], x])
            z[effects] = 1.0
            # Where the step lies on the secant, and the secant's ends between the knots.
            upper = (x[0] - ends[0]) / (ends[1] - ends[0])
            for share, end in ((1.0 - upper, ends[0]), (upper, ends[1])):
                nth = min(max(int((knots <= end).sum()) - 1, 0), len(knots) - 2)
                part = (end - knots[nth]) / (knots[nth + 1] - knots[nth])
                z[curve + nth] += share * (1.0 - part)
                z[curve + nth + 1] += share * part
            precision += w * np.outer(z, z)
            rhs += w * z * y
    unused = np.flatnonzero(np.diag(precision) == 0)  # columns of a block that its load has no use for
    precision[unused, unused] = 1.0
    return precision, rhs


def together(prices: Prices, rows: float, k: int, draft: int) -> np.ndarray:
    """Seconds of a step in which all rows draft K tokens with one draft, by draw."""
    drafted = np.full(len(prices.plain), rows * k, dtype=np.float32)
    return np.asarray(prices.plain + prices.verify(drafted) + drafted * prices.slope[draft] + prices.fixed[k, draft])


def under_a_roof(rng: np.random.Generator, roof: int, kinds: list[tuple[int, int]]) -> list[CostCell]:
    """40 steps each of kinds (rows, K): 20 ms up to `roof` verified tokens, in proportion to them beyond."""
    cells = []
    for rows, k in kinds:
        seconds = 0.02 * max(1.0, rows * (k + 1) / roof) * np.exp(rng.normal(0, 0.03, 40))
        steps = [(one, step(rows, k, "ngram", 50.0 * rows)) for one in seconds.tolist()]
        cells.append(cost_cell(("ngram",) if k else (), rows, k, steps))
    return cells


def test_what_was_seen_at_one_load_prices_another_by_its_tokens() -> None:
    """Batches of 32 have drafted up to 8 tokens a row, those of 64 and 128 none: yet it is known that K = 1 costs a
    batch of 64 nothing (128 tokens), and batches of 128 and 64 dear where that makes 256 tokens."""
    spec = PoolSpec(SPEC.drafts, SPEC.k_values, 128)
    kinds = [*((32, k) for k in range(9)), (64, 0), (128, 0)]
    found = posterior(under_a_roof(np.random.default_rng(11), 128, kinds), spec)
    for rows, k, expected in ((64, 1, 0.02), (128, 1, 0.04), (64, 3, 0.04)):
        prices = prices_at(found.centre(), spec.load_index(rows), spec.ks)
        assert together(prices, rows, k, 0)[0] == pytest.approx(expected, rel=0.1), (rows, k)


def test_verification_is_priced_along_its_curve_not_along_a_chord() -> None:
    """A batch of 64, with a roof at 256 tokens: a quarter of the rows at K = 8 draft 128 tokens, which are free. The
    chord from 0 to 512 drafted tokens would charge them 6 ms."""
    spec = PoolSpec(SPEC.drafts, SPEC.k_values, 64)
    cells = under_a_roof(np.random.default_rng(12), 256, [(64, k) for k in range(9)])
    prices = prices_at(posterior(cells, spec).centre(), spec.load_index(64), spec.ks)
    free, dear = (float(prices.verify(np.array([n], dtype=np.float32))[0]) for n in (128.0, 512.0))
    assert abs(free) < 0.002
    assert dear == pytest.approx(0.025, rel=0.15)  # the draft's passes get some of it
    assert float(prices.marginal(np.array([400.0], dtype=np.float32))[0]) == pytest.approx(0.02 / 256, rel=0.1)


@pytest.mark.parametrize(
    "stairs", [[50, 56, 56, 66, 63, 74, 75, 75, 83], [36, 61, 77, 57, 56, 83, 72, 70, 72]], ids=str
)
def test_stairs_and_dips_are_learned_as_they_are(stairs: list[int]) -> None:
    """Milliseconds by verified tokens as measured on CPUs; the law alone would be off by up to 30%."""
    rng = np.random.default_rng(3)
    cells = []
    for k, ms in enumerate(stairs):
        seconds = ms / 1e3 * np.exp(rng.normal(0, 0.05, 150))
        cells.append(cost_cell(("ngram",) if k else (), 1, k, [(s, step(1, k, "ngram")) for s in seconds]))
    found = posterior(cells)
    prices = prices_at(found.centre(), 0, SPEC.ks)
    got = [together(prices, 1, k, 0)[0] * 1e3 for k in range(9)]
    # A dip below 75% of a dearer smaller K is repaired upwards (77 -> 57.75 and 83 -> 62 here, which hides nothing).
    np.testing.assert_allclose(got, stairs, rtol=0.04)


def test_unmeasured_arms_are_unsure_but_never_absurd() -> None:
    rng = np.random.default_rng(4)
    plain = [(0.05 * np.exp(rng.normal(0, 0.05)), step(1, 0, None)) for _ in range(100)]
    draws = posterior([cost_cell((), 1, 0, plain)]).sample(rng, 2000)
    prices = prices_at(draws, 0, SPEC.ks)
    seconds = np.array([[together(prices, 1, k, j) for j in range(2)] for k in range(9)])
    assert (seconds >= 0.9 * prices.plain - 1e-8).all()
    assert prices.plain.mean() == pytest.approx(0.05, rel=0.02)
    deep = seconds[8, 1]
    assert 0.05 * 1.3 < np.median(deep) < 0.05 * 4  # model draft, 8 passes: prior .12 of a step each
    assert deep.std() > 0.2 * 0.05


def test_the_slope_may_differ_by_load_as_under_a_roofline() -> None:
    """Flat up to 16 tokens, then proportional: batch 1 must see free verification, batch 8 a dear one."""
    rng = np.random.default_rng(5)
    cells = []
    for rows in (1, 8):
        for k in (0, 1, 2, 4, 8):
            tokens = rows * (k + 1)
            truth = 0.02 * max(1.0, tokens / 16) + 0.001 * k
            steps = [(truth * np.exp(rng.normal(0, 0.03)), step(rows, k, "small", kv=300.0 * rows)) for _ in range(60)]
            cells.append(cost_cell(("small",) if k else (), rows, k, steps))
    found = posterior(cells)
    one, eight = prices_at(found.centre(), 0, SPEC.ks), prices_at(found.centre(), 3, SPEC.ks)
    assert together(one, 1, 4, 1)[0] == pytest.approx(0.02 + 0.004, rel=0.05)
    assert together(eight, 8, 4, 1)[0] == pytest.approx(0.02 * 40 / 16 + 0.004, rel=0.05)
    four = np.array([4.0], dtype=np.float32)
    assert eight.verify(8 * four) > 5 * one.verify(four)


def test_prefill_tokens_do_not_leak_into_the_price_of_decoding() -> None:
    rng = np.random.default_rng(6)
    cells = []
    for k in (0, 4):
        for prefill, bucket in ((0, 0), (100, 64), (200, 64)):
            steps = []
            for _ in range(80):
                x = step(1, k, "small")
                x[1] = prefill
                steps.append(((0.02 + 0.003 * k + 1e-4 * prefill) * np.exp(rng.normal(0, 0.03)), x))
            cell = cost_cell(("small",) if k else (), 1, k, steps)
            cells.append(msgspec.structs.replace(cell, prefill=bucket))
    prices = prices_at(posterior(cells).centre(), 0, SPEC.ks)
    assert prices.plain[0] == pytest.approx(0.02, rel=0.06)
    assert together(prices, 1, 4, 1)[0] == pytest.approx(0.032, rel=0.06)


def test_steps_with_long_prompts_are_no_measure_of_those_without() -> None:
    """Half of the steps carry 2000 tokens of prompt at .5 ms each and take 1.02 s instead of .02; prompts on their own
    fall under a batch of nobody. A fifth of the mean step, .1 s, is no least price of a plain one."""
    rng = np.random.default_rng(13)
    cells = []
    for batch, k, prefill in ((1, 0, 0), (1, 4, 0), (1, 0, 2000), (1, 4, 2000), (0, 0, 2000)):
        x = step(batch, k, "small")
        x[1] = prefill
        steps = [((0.02 + 0.001 * k + 5e-4 * prefill) * np.exp(rng.normal(0, 0.03)), x) for _ in range(60)]
        cell = cost_cell(("small",) if k else (), batch, k, steps)
        cells.append(msgspec.structs.replace(cell, prefill=prefill_bucket(prefill)))
    found = posterior(cells)
    assert found.loads.seconds == pytest.approx(0.022, rel=0.02)  # (.020 + .024) / 2
    assert found.loads.spent == pytest.approx((0.02 + 0.024 + 3 * 1.02 + 0.004) / 5, rel=0.02)
    prices = prices_at(found.centre(), 0, SPEC.ks)
    assert prices.plain[0] == pytest.approx(0.02, rel=0.03)
    assert together(prices, 1, 4, 1)[0] == pytest.approx(0.024, rel=0.03)


def test_prompts_that_differ_within_a_key_are_no_noise() -> None:
    """Four steps of 70 to 110 tokens of prompt and 2 or 3 verified tokens. Seconds are .1 + .001 prompt + .01 verified,
    and (-1, 1, 1, -1) ms, which is at right angles to 1, to the prompts (-20, -10, 10, 20) and to the tokens
    (-.5, -.5, .5, .5). So 4 (ms)^2 are left with one degree of freedom, beside the prior's 20."""
    off = np.array([-1.0, 1.0, 1.0, -1.0]) * 1e-3
    prompts, tokens = np.array([70.0, 80.0, 100.0, 110.0]), np.array([2.0, 2.0, 3.0, 3.0])
    seconds = 0.1 + 0.001 * prompts + 0.01 * tokens + off
    cell = Kind((), 1, 0, 64, seconds, np.column_stack([tokens, prompts, np.full(4, 100.0)])).cell()
    store = StepEvidence(1e6, 1e7, share=0.1)
    store.observe("e", 0.0, [cell])
    expected = np.sqrt((0.05**2 * 20 + 4e-6 / 0.215**2) / 21)  # the mean step: .1 + .09 + .025
    assert cost.relative_noise(store.gather(0.0, 1e9)) == pytest.approx(expected, rel=1e-6)


def test_a_draft_that_guesses_all_in_one_pass_shows_in_its_passes() -> None:
    cells = [cost_cell(("small",), 1, 4, [(0.03, np.array([5.0, 0, 100, 4.0, 1.0]))] * 20)]
    found = posterior(cells)
    assert found.passes_per_k.tolist() == [1.0, 0.25]
    assert found.deepest.tolist() == [0.0, 4.0]
    assert found.tried.tolist() == [0.0, 20.0]


def test_no_evidence_at_all_still_prices_every_arm() -> None:
    found = posterior([], fits=1)
    for at in range(len(SPEC.loads)):
        prices = prices_at(found.sample(np.random.default_rng(0), 64), at, SPEC.ks)
        assert all(np.isfinite(array).all() for array in prices[:4])
        assert (prices.plain > 0).all()


def test_repair_leaves_plausible_stairs_alone() -> None:
    stairs = np.array([50.0, 56, 56, 66, 63, 74, 75])
    assert repaired(stairs[:, None], np.array([50.0]))[:, 0].tolist() == stairs.tolist()


def test_cells_of_drafts_the_pool_does_not_have_are_skipped() -> None:
    alien = cost_cell(("alien",), 1, 4, [(99.0, np.array([5.0, 0, 100, 4.0, 4.0]))] * 20)
    plain = cost_cell((), 1, 0, [(0.02, step(1, 0, None))] * 20)
    prices = prices_at(posterior([plain, alien]).centre(), 0, SPEC.ks)
    assert prices.plain[0] == pytest.approx(0.02, rel=0.05)


def test_what_is_not_known_of_the_speed_is_not_made_good_by_more_steps() -> None:
    """A million steps at 20 ms whose mean is in doubt by 5%: the plain price is, too, whatever its steps' noise."""
    (group,) = steady([cost_cell((), 1, 0, [(0.02, step(1, 0, None))] * 100)])
    many = group._replace(
        **{name: 1e4 * getattr(group, name) for name in ("n", "seconds", "seconds_sq", "x", "xx", "xy")}
    )
    rng = np.random.default_rng(2)
    for doubt, relative in ((0.0, 0.002), (0.05**2, 0.05)):
        found = cost.fit([many._replace(doubt=np.array([doubt]))], PoolSpec((), (), 1), SDS)
        plain = prices_at(found.sample(rng, 4000), 0, (0,)).plain
        assert float(plain.std() / 0.02) == pytest.approx(relative, rel=0.15 if doubt else 1.0)
