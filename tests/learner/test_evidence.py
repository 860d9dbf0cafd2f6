"""Evidence on acceptance and on cost: padding, caps, inconsistent cells, design effects."""

from typing import Any

import msgspec
import numpy as np
import pytest

from controller.learner.acceptance import AcceptanceEvidence, engine_weights
from controller.learner.dispersion import CEILING, design_effect, shrunk_design_effects, spread
from controller.learner.evidence import Contexts
from controller.learner.steps import StepEvidence
from engine.link.messages import AcceptanceCell, CostCell, MomentCell
from tests.learner.world import cost_cell

DRAFTS = ("ngram", "small")
LIVES = (1e6, 1e7)


def evidence(positions: int = 4) -> tuple[AcceptanceEvidence, Contexts]:
    return AcceptanceEvidence(positions, *LIVES), Contexts(max_domains=8)


def cell(seen: list[int], accepted: list[int], origin: str = "policy", draft: str = "ngram") -> AcceptanceCell:
    return AcceptanceCell("code", "greedy", draft, origin, seen, accepted)  # type: ignore[arg-type]


def gathered(store: AcceptanceEvidence, contexts: Contexts, share: float = 0.1) -> np.ndarray:
    counts = store.gather(0.0, len(contexts), DRAFTS, share, memory=1e9)
    return np.stack([counts.seen, counts.accepted])[:, contexts.index("code", "greedy")]


def test_only_policy_and_probe_feed_the_curve_and_short_lists_are_padded() -> None:
    store, contexts = evidence()
    cells = [cell([5, 3], [3, 1]), cell([2], [1], "probe"), cell([9], [9], "request"), cell([9], [9], "limit")]
    assert store.observe("e", 0.0, cells, contexts, DRAFTS) == 0
    assert gathered(store, contexts)[:, 0].tolist() == [[7, 3, 0, 0], [4, 1, 0, 0]]


@pytest.mark.parametrize(
    ("seen", "accepted"), [([3], [4]), ([3, 3], [2, 1]), ([3], []), ([-1], [-1]), ([2, 1], [1, 2])], ids=str
)
def test_counts_that_no_prefix_can_give_are_left_out(seen: list[int], accepted: list[int]) -> None:
    store, contexts = evidence()
    assert store.observe("e", 0.0, [cell(seen, accepted), cell([2], [1])], contexts, DRAFTS) == 1
    assert gathered(store, contexts)[0, 0, 0] == 2


def test_positions_beyond_the_pool_are_cut_and_unknown_drafts_ignored() -> None:
    store, contexts = evidence(positions=2)
    store.observe("e", 0.0, [cell([5, 4, 3], [4, 3, 2]), cell([9], [9], draft="alien")], contexts, DRAFTS)
    assert gathered(store, contexts)[0].tolist() == [[5, 4], [0, 0]]


def test_a_single_engine_is_never_capped() -> None:
    assert engine_weights(np.array([[1e6]]), np.array([0]), 1, share=0.1).tolist() == [[1.0]]


def test_one_of_twenty_engines_cannot_own_the_deep_positions() -> None:
    """Honest engines reach position 8 in 10% of steps; a liar always. Its share there is capped at 10%, not 69%."""
    n = np.array([[1000.0, 100.0]] * 19 + [[1000.0, 1000.0]])
    w = engine_weights(n, np.zeros(20, dtype=np.intp), 1, share=0.1)
    kept = n * w
    assert kept[-1, 1] / kept[:, 1].sum() == pytest.approx(0.1)
    assert (w[:-1] == 1.0).all()


def test_two_engines_share_half_and_half_once_both_have_spoken() -> None:
    w = engine_weights(np.array([[10_000.0], [500.0]]), np.array([0, 0]), 1, share=0.1)
    assert (w * [[10_000], [500]]).ravel().tolist() == [500.0, 500.0]


def test_retired_engines_keep_their_evidence_as_one() -> None:
    store, contexts = evidence()
    for name in ("a", "b", "c"):
        store.observe(name, 0.0, [cell([10], [5])], contexts, DRAFTS)
    store.retire("a")
    store.retire("b")
    assert sorted({key[0] for key in store.rows}) == ["", "c"]
    assert gathered(store, contexts)[0, 0, 0] == 30


def test_the_design_effect_is_that_of_equal_clusters_in_closed_form() -> None:
    """Clusters of n with intra-class correlation rho: deff = 1 + (n - 1) rho (Kish). Beta-binomial, rho = 1/(a+b+1)."""
    rng = np.random.default_rng(1)
    m, n, a, b = 200_000, 8, 3.0, 2.0
    hits = rng.binomial(n, rng.beta(a, b, m)).astype(float)
    s = np.full(m, float(n))
    moments = [np.array(x) for x in (float(m), s.sum(), hits.sum(), s @ s, s @ hits, hits @ hits)]
    expected = 1 + (n - 1) / (a + b + 1)
    assert float(design_effect(*moments)) == pytest.approx(expected, rel=0.02)  # 200,000 clusters: 0.5% is a sd


def test_independent_steps_have_a_design_effect_of_about_one_and_never_below() -> None:
    rng = np.random.default_rng(2)
    s = rng.integers(1, 20, 5000).astype(float)
    a = rng.binomial(s.astype(int), 0.7).astype(float)
    sums = np.array([s.sum(), a.sum(), s @ s, s @ a, a @ a])
    deff = shrunk_design_effects(sums[None, None, :, None], sums[None, None, :], np.array([[5000.0]]))
    assert 1.0 <= deff.item() < 1.1


def test_no_segments_or_nonsense_leave_the_design_effect_between_one_and_its_ceiling() -> None:
    nothing = shrunk_design_effects(np.zeros((1, 1, 5, 3)), np.zeros((1, 1, 5)), np.zeros((1, 1)))
    assert nothing.ravel().tolist() == [1.0] * 3
    wild = np.array([4.0, 2.0, 1e9, 0.0, 1e9])
    assert shrunk_design_effects(wild[None, None, :, None], wild[None, None], np.array([[1e6]])).max() == CEILING


def test_moments_widen_what_counts_as_independent() -> None:
    store, contexts = evidence(positions=1)
    store.observe("e", 0.0, [cell([800], [400])], contexts, DRAFTS)
    # 100 segments of 8: half accept all, half none. deff = 8, shrunk a little towards 1 by the priors.
    moments = MomentCell(
        "code", "greedy", "ngram", 100, [800], [400], [6400], [3200], [3200], 800, 400, 6400, 3200, 3200
    )
    assert store.observe_moments(0.0, [moments], contexts) == 0
    counts = store.gather(0.0, len(contexts), DRAFTS, 0.1, 1e9)
    c = contexts.index("code", "greedy")
    assert 7.0 < counts.deff[c, 0, 0] < 8.1
    assert counts.effective_seen[c, 0, 0] == pytest.approx(800 / counts.deff[c, 0, 0])


def steps(seconds: list[float], drafts: tuple[str, ...] = ("ngram",), passes: int = 2) -> CostCell:
    x = np.array([3.0, 0.0, 100.0, *([2.0, 2.0] * len(drafts))])
    return cost_cell(drafts, 1, passes, [(s, x) for s in seconds])


def test_cost_sums_come_back_as_they_went_in() -> None:
    store = StepEvidence(*LIVES, share=0.1)
    assert store.observe("e", 0.0, [steps([0.5, 0.7]), steps([0.2], ())]) == 0
    plain, drafted = store.gather(0.0, memory=1e9)
    assert plain.keys == [((), 1, 2, 0)]
    assert drafted.n.tolist() == [2.0]
    assert drafted.seconds.tolist() == [1.2]
    assert drafted.xx[0, 0].tolist() == [18.0, 0.0, 600.0, 12.0, 12.0]
    assert drafted.xx[0].T.tolist() == drafted.xx[0].tolist()
    assert drafted.xy[0].round(9).tolist() == [3.6, 0.0, 120.0, 2.4, 2.4]


def test_malformed_and_overflow_cost_cells_are_left_out() -> None:
    good = steps([0.5])
    short = CostCell(["ngram"], 1, 2, 0, 1, 0.5, 0.25, [1.0], [1.0], [1.0])
    overflow = CostCell([], 0, 0, 0, 5, 1.0, 1.0, [0.0] * 3, [0.0] * 6, [0.0] * 3, other=True)
    infinite = CostCell(["ngram"], 1, 4, 0, 1, 0.5, 0.25, [float("inf")] * 5, [1.0] * 15, [1.0] * 5)
    store = StepEvidence(*LIVES, share=0.1)
    assert store.observe("e", 0.0, [good, short, overflow, infinite]) == 2
    assert sum(group.n.sum() for group in store.gather(0.0, 1e9)) == 1.0


def test_an_engine_that_floods_a_key_is_thinned_to_its_share() -> None:
    store = StepEvidence(*LIVES, share=0.1)
    for _ in range(50):
        for name in "abcdefghij":
            store.observe(name, 0.0, [steps([1.0] * 10)])
        store.observe("liar", 0.0, [steps([0.001] * 1000)])
    (group,) = store.gather(0.0, 1e9)
    honest = 10 * 50 * 10
    assert group.n[0] - honest < 0.2 * honest  # 50,000 lies enter as fewer than 1,000
    assert group.seconds[0] / group.n[0] > 0.8


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"sxx": [450.0, 0, 0, 0, 0, 0]}, "10 numbers of sum 100 have squares of sum 1000 or more"),
        ({"sx": [-100.0, 0, 0]}, "no step verifies less than nothing"),
        ({"sxy": [30.0, 0, 0]}, "seconds and tokens that never vary have a product that does not"),
        ({"sx": [1e300, 0, 0]}, "no count of tokens"),
        ({"seconds": 1e-200, "seconds_sq": 0.0, "sxy": [0.0, 0, 0]}, "no time a step takes"),
        ({"batch": 5}, "buckets start at 4 and 8"),
        ({"passes": 10}, "buckets start at 9 and 12"),
        ({"passes": 10**9}, "beyond all buckets"),
        ({"prefill": 65}, "buckets start at 64 and 256"),
    ],
    ids=str,
)
def test_sums_that_no_steps_have_are_left_out(wrong: dict[str, Any], why: str) -> None:
    """10 steps of .2 s that verified 10 tokens each, and what cannot be."""
    fair = CostCell([], 4, 0, 0, 10, 2.0, 0.4, [100.0, 0, 0], [1000.0, 0, 0, 0, 0, 0], [20.0, 0, 0])
    store = StepEvidence(*LIVES, share=0.1)
    assert store.observe("e", 0.0, [fair, msgspec.structs.replace(fair, **wrong)]) == 1, why
    (sums,) = store.gather(0.0, 1e9)
    assert len(sums.keys) == 1
    assert sums.n.tolist() == [10.0]


def test_steps_that_are_alike_or_have_all_kinds_of_features_are_possible() -> None:
    """Few steps leave a matrix of low rank; rounding makes its least eigenvalues slightly negative."""
    rng = np.random.default_rng(0)
    for n in (1, 2, 30):
        x = np.column_stack(
            [np.full(n, 4096.0), rng.integers(1, 9000, n), rng.integers(0, 10**6, n), np.full((n, 2), 3.0)]
        )
        cells = [cost_cell(("small",), 512, 3, list(zip(rng.uniform(1e-4, 10, n).tolist(), x, strict=True)))]
        assert StepEvidence(*LIVES, share=0.1).observe("e", 0.0, cells) == 0


def test_the_spread_of_requests_is_found_through_the_luck_of_their_tokens() -> None:
    """Requests of 2 to 40 steps whose acceptance is Beta(6, 2): sd sqrt(6 * 2 / (8**2 * 9)) = 0.144, and 0 when all
    have 0.75. 20,000 requests: the estimate's own error is about 0.001."""
    rng = np.random.default_rng(3)
    s = rng.integers(2, 41, size=20_000).astype(float)
    for p, sd in ((rng.beta(6, 2, size=len(s)), 0.1443), (np.full(len(s), 0.75), 0.0)):
        a = rng.binomial(s.astype(int), p).astype(float)
        sums = [np.array(float(total)) for total in (s.sum(), a.sum(), s @ s, s @ a, a @ a)]
        assert float(spread(np.array(float(len(s))), *sums)) == pytest.approx(sd, abs=0.01)


def test_requests_of_one_step_tell_nothing_of_their_spread() -> None:
    assert np.isnan(spread(*map(np.array, (9.0, 9.0, 6.0, 9.0, 6.0, 6.0))))


def test_how_requests_differ_stands_beside_the_counts() -> None:
    """The three requests of `spread`'s example at position 1: half of 12 kept, by 4, 2 and 0."""
    store, contexts = evidence(positions=2)
    store.observe("e", 0.0, [cell([12, 6], [6, 3])], contexts, DRAFTS)
    moments = MomentCell(
        "code", "greedy", "ngram", 3, [12, 6], [6, 3], [48, 20], [24, 10], [20, 5], 18, 9, 116, 58, 37
    )  # fmt: skip
    assert store.observe_moments(0.0, [moments], contexts) == 0
    counts = store.gather(0.0, len(contexts), DRAFTS, 0.1, memory=1e9)
    at = contexts.index("code", "greedy")
    assert (counts.segments[at].tolist(), counts.spread[at, 0, 0]) == ([3.0, 0.0], 0.5)
    assert np.isnan(counts.spread[at, 1]).all()
