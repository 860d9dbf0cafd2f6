import numpy as np
import pytest

from controller.cli.demo.verdict import Block, goodput, paired_ratio


def test_goodput_is_a_ratio_of_sums() -> None:
    # 30 tokens in 3 s is 10; the mean of the ratios (20/1 and 10/2) would be 12.5.
    assert goodput([Block(20, 1.0), Block(10, 2.0)]) == 10.0


def test_goodput_of_nothing_is_an_error_that_names_the_numbers() -> None:
    with pytest.raises(ValueError, match="0 blocks"):
        goodput([])


def test_pairs_must_match() -> None:
    with pytest.raises(ValueError, match="2 and 1"):
        paired_ratio([Block(1, 1.0)] * 2, [Block(1, 1.0)])


@pytest.mark.parametrize("pairs", [1, 5])
def test_few_pairs_have_no_interval(pairs: int) -> None:
    ratio = paired_ratio([Block(3, 1.0)] * pairs, [Block(2, 1.0)] * pairs)
    assert (ratio.value, ratio.low, ratio.high) == (1.5, 0.0, float("inf"))
    assert "too few pairs" in str(ratio)


def test_common_noise_cancels_in_pairs_and_the_interval_covers_the_truth() -> None:
    # 200 trials of 12 pairs: shared slowness of +-30%, own noise of 2%, true ratio 1.1. A 95% percentile bootstrap
    # with 12 pairs covers a little less than nominal: between 85% and 99% is what a correct one shows here.
    rng = np.random.default_rng(1)
    covered, widths = 0, []
    for trial in range(200):
        shared = rng.uniform(0.7, 1.3, 12)
        ours = [Block(100, float(s * rng.normal(1, 0.02) / 1.1)) for s in shared]
        theirs = [Block(100, float(s * rng.normal(1, 0.02))) for s in shared]
        ratio = paired_ratio(ours, theirs, resamples=400, seed=trial)
        covered += ratio.low <= 1.1 <= ratio.high
        widths.append(ratio.high - ratio.low)
    assert 170 <= covered <= 198
    assert np.median(widths) < 0.06  # unpaired, the shared noise alone would make it about 0.2
