"""The cost model against direct normal equations, and on the shapes real machines show."""

from itertools import product

import msgspec
import numpy as np
import pytest

from controller.learner import cost
from controller.learner.config import PoolSpec
from controller.learner.prices import prices_at, repaired
from controller.learner.steps import StepEvidence, Sums
from engine.link.messages import CostCell, DraftInfo
from tests.learner.world import cost_cell

SPEC = PoolSpec((DraftInfo("ngram", "ngram", 8), DraftInfo("small", "model", 8)), tuple(range(9)), 8)
SDS = {kind: bounds[0] for kind, bounds in cost.EFFECT_SD.items()}


def posterior(cells: list[CostCell], spec: PoolSpec = SPEC, fits: int = 3) -> cost.CostPosterior:
    store = StepEvidence(1e6, 1e7, share=0.1)
    store.observe("e", 0.0, cells)
    sds, found = SDS, None
    for _ in range(fits):
        found = cost.fit(store.gather(0.0, 1e9), spec, sds)
        sds = found.effect_sd
    assert found is not None
    return found


def step(rows: int, k: int, draft: str | None, kv: float = 500.0) -> np.ndarray:
    own = [] if draft is None or not k else [rows * k, k]
    return np.array([rows * (k + 1), 0.0, kv, *own])


def test_the_mean_solves_the_normal_equations_built_step_by_step() -> None:
    """One load, no draft: rebuild precision and right-hand side from the single steps with an explicit design."""
    spec = PoolSpec((), (), 1)
    rng = np.random.default_rng(0)
    kv = rng.uniform(100, 900, 50)
    y = 0.02 + 1e-5 * kv + rng.normal(0, 1e-3, 50)
    found = posterior(
        [cost_cell((), 1, 0, [(s, np.array([1.0, 0.0, v])) for s, v in zip(y, kv, strict=True)])], spec, 1
    )
    mean_y = y.mean()
    noise = np.sqrt((cost.NOISE[0] ** 2 * 20 + ((y - mean_y) ** 2).sum() / mean_y**2) / (20 + 49))
    assert found.noise == pytest.approx(noise)
    design = np.column_stack([np.ones(50), np.ones(50), np.zeros(50), kv, np.ones(50), np.ones(50)])  # law, 2 effects
    w = 1 / ((noise * mean_y) ** 2 * (1 + 50 / cost.SATURATION))
    scale = kv.mean()
    sd = np.array([0.5, 0.05, 0.02, 0.2 / scale, SDS["shared"], SDS["own"]]) * mean_y
    prior = np.array([0.92, 0.03, 0.01, 0.02 / scale, 0, 0]) * mean_y
    exact = np.linalg.solve(w * design.T @ design + np.diag(1 / sd**2), w * design.T @ y + prior / sd**2)
    np.testing.assert_allclose(found.mean, exact, rtol=1e-6)
    covariance = np.linalg.inv(w * design.T @ design + np.diag(1 / sd**2))
    root = found.chain.coloured(np.eye(6))
    np.testing.assert_allclose(root @ root.T, covariance, rtol=1e-5, atol=1e-18)


def test_solved_load_by_load_the_posterior_is_that_of_one_dense_matrix() -> None:
    """Three loads, two drafts, prefill in some steps: the precision of all coefficients written out and inverted."""
    spec = PoolSpec(SPEC.drafts, SPEC.k_values, 4)
    rng = np.random.default_rng(1)
    cells = []
    for rows, draft, k, prefill in product((1, 4), ("ngram", "small"), (0, 1, 3), (0, 100)):
        x = step(rows, k, draft)
        x[1] = prefill
        seconds = 0.02 + 1e-4 * prefill + 1e-3 * k + rng.normal(0, 1e-3, 20)
        cell = cost_cell((draft,) if k else (), rows, k, [(s, x + rng.uniform(0, 0.1, len(x))) for s in seconds])
        cells.append(msgspec.structs.replace(cell, prefill=64 if prefill else 0))
    store = StepEvidence(1e6, 1e7, share=0.1)
    store.observe("e", 0.0, cells)
    groups = store.gather(0.0, 1e9)
    found = cost.fit(groups, spec, SDS)
    precision, rhs = dense(groups, found)
    covariance = np.linalg.inv(precision)
    sd = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(found.mean / sd, covariance @ rhs / sd, atol=1e-6)
    root = found.chain.coloured(np.eye(len(sd)))
    np.testing.assert_allclose(root @ root.T / np.outer(sd, sd), covariance / np.outer(sd, sd), atol=1e-6)
    np.testing.assert_allclose(found.chain.variance(), sd**2, rtol=1e-6)


def dense(groups: list[Sums], found: cost.CostPosterior) -> tuple[np.ndarray, np.ndarray]:
    """Precision and right-hand side of the model, row by row, in the posterior's order of coefficients."""
    spec, p, block = found.spec, found.width, found.chain.width
    sizes = spec.loads
    precision, rhs = np.zeros((len(found.mean), len(found.mean))), np.zeros(len(found.mean))
    mean, certainty, walk = cost._prior(spec, found.loads)
    at = np.arange(p)
    precision[at, at] += certainty
    rhs[at] += certainty * mean
    for load in range(1, len(sizes)):
        step_up = np.zeros((p, len(rhs)))
        step_up[at, load * block + at], step_up[at, (load - 1) * block + at] = 1.0, -1.0
        precision += step_up.T @ (walk[load - 1][:, None] * step_up)
    for (kind, _, size, _), place in found.effects.items():
        precision[place, place] += 1.0 / (SDS[kind] * found.loads.seconds[sizes.index(size)]) ** 2
    names = [draft.name for draft in spec.drafts]
    for group in groups:
        for i, (drafts, batch, passes, prefill) in enumerate(group.keys):
            law = [0, 1, 2, 3, *(4 + 2 * names.index(name) + part for name in drafts for part in (0, 1))]
            keys = [("shared", (), batch, passes), ("own", drafts, batch, passes), ("prefill", (), batch, prefill)]
            places = [spec.load_index(batch) * block + a for a in law] + [
                found.effects[k] for k in keys if k[3] or k[0] != "prefill"
            ]
            n, ones = group.n[i], len(places) - len(law)
            sums = np.concatenate([[n], group.x[i], [n] * ones])
            square = np.zeros((len(places), len(places)))
            square[1 : len(law), 1 : len(law)] = group.xx[i]
            for one in (0, *range(len(law), len(places))):
                square[one] = square[:, one] = sums
            w = 1.0 / ((found.noise * group.seconds[i] / n) ** 2 * (1.0 + n / cost.SATURATION))
            precision[np.ix_(places, places)] += w * square
            rhs[places] += w * np.concatenate([[group.seconds[i]], group.xy[i], [group.seconds[i]] * ones])
    unused = np.flatnonzero(np.diag(precision) == 0)  # columns of a block that its load has no use for
    precision[unused, unused] = 1.0
    return precision, rhs


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
    got = (prices.plain + prices.slope[0] * np.arange(9)[:, None] + prices.fixed[:, 0])[:, 0] * 1e3
    # A dip below 75% of a dearer smaller K is repaired upwards (77 -> 57.75 and 83 -> 62 here, which hides nothing).
    np.testing.assert_allclose(got, stairs, rtol=0.04)


def test_unmeasured_arms_are_unsure_but_never_absurd() -> None:
    rng = np.random.default_rng(4)
    plain = [(0.05 * np.exp(rng.normal(0, 0.05)), step(1, 0, None)) for _ in range(100)]
    draws = posterior([cost_cell((), 1, 0, plain)]).sample(rng, 2000)
    prices = prices_at(draws, 0, SPEC.ks)
    seconds = prices.plain + prices.slope * np.arange(9)[:, None, None] + prices.fixed
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
    at_one = one.plain + one.slope[1] * 4 + one.fixed[4, 1]
    at_eight = eight.plain + 8 * eight.slope[1] * 4 + eight.fixed[4, 1]
    assert at_one[0] == pytest.approx(0.02 + 0.004, rel=0.05)
    assert at_eight[0] == pytest.approx(0.02 * 40 / 16 + 0.004, rel=0.05)
    assert 8 * eight.slope[1, 0] > 5 * one.slope[1, 0]


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
    assert (prices.plain + 4 * prices.slope[1] + prices.fixed[4, 1])[0] == pytest.approx(0.032, rel=0.06)


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
        assert all(np.isfinite(array).all() for array in prices)
        assert (prices.plain > 0).all()


def test_repair_leaves_plausible_stairs_alone() -> None:
    stairs = np.array([50.0, 56, 56, 66, 63, 74, 75])
    assert repaired(stairs[:, None], np.array([50.0]))[:, 0].tolist() == stairs.tolist()


def test_cells_of_drafts_the_pool_does_not_have_are_skipped() -> None:
    alien = cost_cell(("alien",), 1, 4, [(99.0, np.array([5.0, 0, 100, 4.0, 4.0]))] * 20)
    plain = cost_cell((), 1, 0, [(0.02, step(1, 0, None))] * 20)
    prices = prices_at(posterior([plain, alien]).centre(), 0, SPEC.ks)
    assert prices.plain[0] == pytest.approx(0.02, rel=0.05)
