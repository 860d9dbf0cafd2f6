"""Distributions and draws, against numbers worked out by hand."""

import pytest
import torch

from engine.core.sampling import Filters, best, distribution, draw


def probabilities(*p: float) -> torch.Tensor:
    return torch.tensor([p], dtype=torch.float64).log()


def test_temperature_sharpens_and_flattens() -> None:
    # p^(1/T) normalised: for T = 1/2 the squares .64 and .04, for T = 2 the roots.
    p = distribution(probabilities(0.8, 0.2).repeat(2, 1), Filters([0.5, 2.0], [0, 0], [1.0, 1.0]))
    torch.testing.assert_close(p[0], torch.tensor([0.64, 0.04], dtype=torch.float64) / 0.68)
    torch.testing.assert_close(p[1], torch.tensor([2 / 3, 1 / 3], dtype=torch.float64))


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    logits = probabilities(0.1, 0.4, 0.3, 0.2).repeat(4, 1)
    p = distribution(logits, Filters([1.0] * 4, [0] * 4, [0.4, 0.41, 0.7001, 1.0]))
    kept = [[round(v, 4) for v in row] for row in p.tolist()]
    assert kept == [[0, 1, 0, 0], [0, 0.5714, 0.4286, 0], [0, 0.4444, 0.3333, 0.2222], [0.1, 0.4, 0.3, 0.2]]


def test_top_p_counts_what_top_k_has_left() -> None:
    # Of .4 .3 .2 .1 the top 2 become .571 and .429; .55 of that mass is reached by the first alone.
    p = distribution(probabilities(0.1, 0.4, 0.3, 0.2), Filters([1.0], [2], [0.55]))
    assert p.tolist() == [[0, 1, 0, 0]]


def test_rows_of_one_batch_keep_their_own_filters() -> None:
    p = distribution(probabilities(0.1, 0.4, 0.3, 0.2).repeat(3, 1), Filters([0.0, 1.0, 1.0], [0, 1, 9], [1, 1, 1]))
    torch.testing.assert_close(p[:2], torch.tensor([[0, 1, 0, 0], [0, 1, 0, 0]], dtype=torch.float64))
    torch.testing.assert_close(p[2], torch.tensor([0.1, 0.4, 0.3, 0.2], dtype=torch.float64))


def test_a_wide_nucleus_is_found_past_the_first_candidates() -> None:
    # 5,000 equal tokens: p = 0.9 is a tie of all of them, so all stay; with one heavy token only that one is needed.
    flat = torch.zeros(1, 5000, dtype=torch.float64)
    assert int((distribution(flat, Filters([1.0], [0], [0.9])) > 0).sum()) == 5000
    ramp = torch.arange(5000, dtype=torch.float64)[None] * 1e-3
    kept = int((distribution(ramp, Filters([1.0], [0], [0.5])) > 0).sum())
    # Mass above rank n of weights e^(-n/1000): 1 - e^(-n/1000) over 1 - e^-5; half of it is reached at n = 687.
    assert kept == 687


def test_half_precision_is_sampled_in_float32() -> None:
    assert distribution(torch.zeros(1, 3, dtype=torch.bfloat16), Filters([1.0], [0], [1.0])).dtype == torch.float32


@pytest.mark.parametrize("size", [7, 1024, 4096])
def test_best_is_argmax_with_the_first_of_equals(size: int) -> None:
    torch.manual_seed(size)
    logits = torch.randint(40, (8, size)).float()
    assert torch.equal(best(logits), torch.tensor([row.index(max(row)) for row in logits.tolist()]))


def test_draw_gives_every_token_the_length_of_its_probability() -> None:
    p = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]], dtype=torch.float64)
    uniforms = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75, 0.9999], dtype=torch.float64)
    assert draw(p.repeat(6, 1), uniforms).tolist() == [1, 1, 3, 3, 4, 4]


def test_draw_never_leaves_the_support_at_the_edge() -> None:
    # The largest float64 below 1 rounds to 1 in float32: the quantile is then the whole mass.
    p = torch.tensor([[0.1, 0.2, 0.3, 0.0, 0.0]])
    edge = torch.tensor([1 - 2**-53], dtype=torch.float64)
    assert draw(p, edge).tolist() == [2]


def test_draws_follow_the_distribution() -> None:
    torch.manual_seed(0)
    p = torch.tensor([0.5, 0.0, 0.3, 0.2])
    n = 20_000
    counts = draw(p.repeat(n, 1), torch.rand(n, dtype=torch.float64)).bincount(minlength=4) / n
    # Five standard deviations of a share: 5 sqrt(.25 / n) = 0.018.
    assert (counts - p).abs().max() < 0.018
    assert counts[1] == 0
