"""Fading counts: closed forms of two exponentials."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.learner.discount import FAST, SLOW, FadingRows, blend


def table(width: int = 1) -> FadingRows:
    rows = FadingRows(width, fast_half_life=100.0, slow_half_life=10_000.0)
    rows.new_row()
    return rows


def test_a_half_life_halves_and_late_evidence_is_dated_not_dropped() -> None:
    rows = table()
    rows.add([0], np.array([[8.0]]), time=1000.0)
    rows.add([0], np.array([[4.0]]), time=900.0)  # arrives later, happened earlier
    fast, slow = rows.read(1100.0)
    assert fast[0, 0] == pytest.approx(8 / 2 + 4 / 4)
    assert slow[0, 0] == pytest.approx(8 * 2**-0.01 + 4 * 2**-0.02)


def test_rows_may_repeat_within_one_addition() -> None:
    rows = table()
    rows.add([0, 0], np.array([[1.0], [2.0]]), time=5.0)
    assert rows.read(5.0)[FAST][0, 0] == 3.0


def test_reading_before_the_newest_evidence_does_not_unfade_it() -> None:
    rows = table()
    rows.add([0], np.array([[8.0]]), time=1000.0)
    assert rows.read(0.0)[FAST][0, 0] == 8.0


def test_years_of_evidence_neither_overflow_nor_lose_the_present() -> None:
    rows = table()
    for year in range(50):
        rows.add([0], np.array([[1.0]]), time=year * 3.15e7)
    fast, slow = rows.read(49 * 3.15e7)
    assert fast[0, 0] == pytest.approx(1.0)
    assert slow[0, 0] == pytest.approx(1.0)


def test_a_time_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="nan"):
        table().add([0], np.array([[1.0]]), time=float("nan"))


def test_a_freed_row_is_given_out_again_and_its_counts_went_to_the_heir() -> None:
    rows = table()
    other = rows.new_row()
    rows.add([0, other], np.array([[1.0], [2.0]]), time=0.0)
    rows.fold(other, into=0)
    assert rows.new_row() == other
    assert rows.read(0.0)[SLOW].ravel().tolist() == [3.0, 0.0]


def test_a_quiet_night_forgets_weight_but_not_what_was_learned() -> None:
    rows = table(2)
    rows.add([0], np.array([[4000.0, 3000.0]]), time=0.0)
    night = 30_000.0
    fast, slow = rows.read(night)
    kept = blend(fast, slow, slow[:, :1] - fast[:, :1], memory=500.0)[0]
    assert kept[0] == pytest.approx(500.0, rel=1e-6)  # 4000 / 8 = 500 left in the slow memory: just the cap
    assert kept[1] / kept[0] == pytest.approx(0.75)


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e4))
def test_blending_lies_between_the_fast_and_the_slow_counts(fast: float, more: float, memory: float) -> None:
    f, s = np.array([fast]), np.array([fast + more])
    kept = blend(f, s, s - f, memory)[0]
    assert fast - 1e-9 <= kept <= min(fast + more, fast + memory) * (1 + 1e-9) + 1e-6
