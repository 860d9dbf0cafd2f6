"""Gate, probabilities and calm."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.learner.gate import Gate, nonadaptive_share
from controller.learner.goodput import mark
from controller.learner.policy import conditional, frequencies, introduced, pruned, steadied, winners


def test_an_open_gate_lets_hope_through_and_a_closed_one_only_certainty() -> None:
    gate = Gate(budget=10.0, epsilon=0.005, margin=0.01)
    gate.grow(2)
    gate.closed[1] = True
    mean, sd = np.array([[1.2, 1.0, 0.8, 1.012]] * 2), np.array([[0.05, 0.1, 0.02, 0.008]] * 2)
    # sure; open; hopeless; known to be near the margin: nothing left to learn, and not sure
    assert gate.admitted(mean, sd).tolist() == [[True, True, False, False], [True, False, False, False]]


def test_the_reserve_never_exceeds_the_budget_and_refills_by_epsilon() -> None:
    gate = Gate(budget=10.0, epsilon=0.005, margin=0.01)
    gate.grow(1)
    one = np.array([1.0])
    gate.charge(1000 * one, -500 * one)  # a thousand good steps buy no licence to waste
    assert gate.reserve[0] == 10.0
    gate.charge(20 * one, 10.1 * one)
    assert gate.reserve[0] == pytest.approx(0.0)
    assert gate.closed[0]
    gate.charge(900 * one, 0 * one)  # plain from now on: epsilon a step
    assert gate.closed[0]
    gate.charge(101 * one, 0 * one)
    assert gate.reserve[0] == pytest.approx(5.005)
    assert not gate.closed[0]


def test_new_contexts_get_a_budget_and_old_ones_keep_theirs() -> None:
    gate = Gate(budget=10.0, epsilon=0.0, margin=0.0)
    gate.grow(1)
    gate.charge(np.array([4.0]), np.array([4.0]))
    gate.grow(3)
    assert gate.reserve.tolist() == [6.0, 10.0, 10.0]


def test_a_draw_is_won_by_plain_unless_an_arm_clears_the_hurdle() -> None:
    values = np.zeros((1, 3, 2, 3), dtype=np.float32)  # one context, three levels, two drafts, three draws
    values[0, 2, 1, 0] = 1.3
    values[0, 1, :, 1] = 1.2, 1.1
    values[0, 2, 0, 2] = 1.005
    mark(values)
    winner, level = winners(values.max(axis=1), 3, 1.01)
    assert winner.ravel().tolist() == [4, 1, 0]
    assert level[0].T.tolist() == [[0, 2], [1, 1], [0, 0]]
    assert frequencies(winner, 5)[0].tolist() == pytest.approx([1 / 3, 1 / 3, 0, 0, 1 / 3])


def settled(
    top: int, since: float, shares: list[float], beats: float, mean: list[float], now: float, young: bool = False
) -> tuple[list[float], int]:
    got, new, _ = steadied(
        np.array([shares]),
        np.array([mean]),
        lambda *_: beats,
        np.array([top]),
        np.array([since]),
        np.array([young]),
        now,
        10.0,
        0.005,
    )
    return got[0].tolist(), int(new[0])


def test_a_near_tie_does_not_switch_and_the_old_arm_keeps_the_lead() -> None:
    assert settled(0, 0.0, [0.45, 0.55], 0.55, [1.20, 1.201], 100.0) == ([0.55, 0.45], 0)


def test_a_young_context_follows_its_leader_at_once() -> None:
    assert settled(0, 0.0, [0.45, 0.55], 0.55, [1.20, 1.201], 0.1, young=True) == ([0.45, 0.55], 1)


def test_a_clear_gain_switches_after_the_dwell_and_a_certain_one_at_once() -> None:
    assert settled(0, 0.0, [0.2, 0.8], 0.8, [1.2, 1.3], now=5.0)[1] == 0
    assert settled(0, 0.0, [0.2, 0.8], 0.8, [1.2, 1.3], now=15.0)[1] == 1
    assert settled(0, 0.0, [0.01, 0.99], 0.99, [1.2, 1.3], now=0.1)[1] == 1


def test_an_arm_no_longer_admitted_is_left_at_once() -> None:
    assert settled(1, 0.0, [1.0, 0.0], 0.5, [1.01, 0.0], now=0.1) == ([1.0, 0.0], 0)


@given(st.lists(st.floats(0, 1), min_size=6, max_size=6).filter(lambda x: sum(x) > 0.1), st.floats(0, 0.1))
@settings(deadline=None)
def test_pruned_and_introduced_shares_stay_probabilities(raw: list[float], least: float) -> None:
    shares = pruned(np.array([raw[:5]]) / max(sum(raw[:5]), 1e-9) if sum(raw[:5]) > 0 else np.full((1, 5), 0.2), least)
    within = np.array([[[0.0, 0.5, 0.5], [1.0, 0.0, 0.0]]])
    mixed = introduced(shares, within, np.array([[raw[5], 0.25]]))
    for p in (shares, mixed):
        assert p.sum() == pytest.approx(1.0)
        assert (p >= -1e-12).all()
    assert shares.argmax() == np.argmax(pruned(shares, 0.0))


def test_a_drafts_k_follows_the_draws_it_won_and_else_its_own_best() -> None:
    within = np.array([[[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]])
    joint = np.array([[[0.0, 0.0, 0.9], [0.0, 0.0, 0.0]]])
    given_draft = conditional(joint, within, draws=256, least=0.0)
    assert given_draft[0, 0, 2] == pytest.approx(0.9 * 256 / (0.9 * 256 + 8))
    assert given_draft[0, 1].tolist() == [0.0, 0.0, 1.0]


def test_young_domains_feed_their_curve_with_everybody() -> None:
    shares = nonadaptive_share(np.array([0.0, 50.0, 1e3, 1e6]), 0.2).tolist()
    assert shares[0] == 1.0
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] == pytest.approx(0.2, abs=1e-3)
