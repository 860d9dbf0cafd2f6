"""Tables of a scenario against numbers worked out by hand or by quadrature."""

import numpy as np
import pytest
from scipy.stats import beta

from simulations.luck import key, normals, uniforms
from simulations.scenario import (
    AcceptanceChange,
    Appears,
    CostChange,
    Disappears,
    Domain,
    Draft,
    Falling,
    Scenario,
    ShareChange,
    Target,
)
from simulations.timeline import TILTS, Timeline, context_of, tilted


def scenario(**changes: object) -> Scenario:
    values: dict[str, object] = {
        "name": "t",
        "steps": 400,
        "k_values": (0, 1, 2),
        "target": Target(memory_seconds=0.020, seconds_per_token=0.004, overhead=0.001),
        "drafts": {
            "a": Draft(seconds_per_pass=0.002, seconds_per_token=0.0001),
            "b": Draft(kind="ngram", seconds_per_pass=0.0005),
        },
        "domains": {
            "x": Domain(acceptance={"a": (0.5, 0.4), "b": (0.2,)}),
            "y": Domain(acceptance={"a": (0.8,), "b": (0.3,)}, share=3.0),
        },
    }
    return Scenario(**{**values, **changes})  # type: ignore[arg-type]  # a table of fields


def test_seconds_of_a_step_follow_the_roofline_and_add_the_drafts_work() -> None:
    phase = Timeline(scenario()).phases[0]
    nothing = np.zeros(2)
    assert phase.plain(5) == pytest.approx(0.020 + 0.001)  # 5 * 4 ms = 20 ms: still the memory's
    assert phase.plain(6) == pytest.approx(0.024 + 0.001)
    assert phase.seconds(6, nothing, nothing) == pytest.approx(phase.plain(6))
    # 3 rows, of which two draft 2 tokens on a and one 1 on b: 8 tokens verified, 2 passes of a, 1 of b.
    seconds = phase.seconds(3, np.array([4.0, 1.0]), np.array([2.0, 1.0]))
    assert seconds == pytest.approx(8 * 0.004 + 0.001 + 2 * 0.002 + 0.0005 + 4 * 0.0001)


def test_expected_tokens_are_one_and_the_running_survival() -> None:
    phase = Timeline(scenario()).phases[0]
    assert phase.mean_tokens[0, 0] == pytest.approx([1.0, 1.5, 1.5 + 0.5 * 0.4])
    assert phase.mean_tokens[1, 1] == pytest.approx([1.0, 1.3, 1.3 + 0.09])


def test_requests_own_acceptance_has_the_curves_mean_and_the_betas_spread() -> None:
    own = tilted(0.7, 5.0)
    assert own.mean() == pytest.approx(0.7, abs=1e-12)
    assert (np.diff(own) > 0).all()
    # Each kind stands for its part of the distribution: the mean of the beta over it, by quadrature.
    edges = beta.ppf([3 / TILTS, 4 / TILTS], 3.5, 1.5)
    p = np.linspace(float(edges[0]), float(edges[1]), 20_001)
    part = np.trapezoid(p * beta.pdf(p, 3.5, 1.5), p) / np.trapezoid(beta.pdf(p, 3.5, 1.5), p)
    assert own[3] == pytest.approx(part, rel=1e-6)
    # Parts lose the variance inside them, little of the whole: m (1 - m) / (c + 1).
    assert own.var() == pytest.approx(0.7 * 0.3 / 6.0, rel=0.01)


def test_the_mean_of_the_survivals_is_above_the_survival_of_the_mean() -> None:
    alike = Timeline(scenario(domains={"x": Domain(acceptance={"a": (0.6,), "b": (0.2,)})})).phases[0]
    differing = Timeline(scenario(domains={"x": Domain(acceptance={"a": (0.6,), "b": (0.2,)}, spread=4.0)})).phases[0]
    assert differing.mean_tokens[0, 0, 1] == pytest.approx(alike.mean_tokens[0, 0, 1])  # position 1 shows the curve
    # Perfectly correlated positions: E[p^2] = m^2 + m (1 - m) / (c + 1), less the little that the parts lose.
    second = differing.mean_tokens[0, 0, 2] - differing.mean_tokens[0, 0, 1]
    assert second == pytest.approx(0.36 + 0.24 / 5.0, rel=0.005)


def test_events_change_what_they_name_from_their_step_on() -> None:
    timeline = Timeline(
        scenario(
            events=(
                AcceptanceChange(step=100, draft="a", domain="x", acceptance=Falling(first=0.9)),
                CostChange(step=100, of="target", factor=2.0),
                CostChange(step=200, of="a", factor=3.0),
                ShareChange(step=200, domain="x", share=0.0),
                Disappears(step=300, draft="a"),
            )
        )
    )
    assert timeline.begins.tolist() == [0, 100, 200, 300]
    assert [timeline.phase_at(step) for step in (0, 99, 100, 299, 399)] == [0, 0, 1, 2, 3]
    first, second, third, fourth = timeline.phases
    assert first.acceptance[0, 0, 0].tolist() == [0.5, 0.4]
    assert second.acceptance[0, 0, 0].tolist() == [0.9, 0.9]
    assert second.acceptance[1, 0, 0].tolist() == first.acceptance[1, 0, 0].tolist()
    assert second.plain(1) == pytest.approx(2 * first.plain(1))
    assert second.pass_seconds.tolist() == [0.002, 0.0005]
    assert third.pass_seconds == pytest.approx([0.006, 0.0005])
    assert (first.reach.tolist(), third.reach.tolist()) == ([0.25, 1.0], [0.0, 1.0])
    assert (third.available.tolist(), fourth.available.tolist()) == ([True, True], [False, True])
    assert timeline.arms(fourth) == [(-1, 0), (1, 1), (1, 2)]


def test_a_draft_that_appears_was_not_there_before() -> None:
    timeline = Timeline(scenario(events=(Appears(step=50, draft="b"),)))
    assert [phase.available.tolist() for phase in timeline.phases] == [[True, False], [True, True]]


def test_slow_change_arrives_in_equal_jumps() -> None:
    change = AcceptanceChange(step=100, draft="a", domain="y", acceptance=(0.4,), over=160)
    timeline = Timeline(scenario(events=(change,)))
    assert timeline.begins.tolist() == [0, *range(100, 260, 10)]
    means = [float(phase.acceptance[1, 0, 0, 0]) for phase in timeline.phases]
    assert means == pytest.approx(np.linspace(0.8, 0.4, 17).tolist())


def test_domains_of_one_label_and_regime_are_one_context() -> None:
    curves = {"a": (0.5,), "b": (0.2,)}
    timeline = Timeline(
        scenario(
            domains={
                "chat": Domain(acceptance=curves),
                "story": Domain(acceptance=curves, label="chat"),
                "hot": Domain(acceptance=curves, label="chat", regime="sampled"),
            }
        )
    )
    assert timeline.facts.domains == ("chat", "chat (sampled)")
    assert timeline.context.tolist() == [0, 0, 1]
    assert [context_of(name) for name in timeline.contexts] == [("chat", "greedy"), ("chat", "sampled")]


def test_luck_is_uniform_normal_and_independent_of_its_neighbours() -> None:
    n = 1 << 16
    counters = np.arange(n, dtype=np.uint64)
    u, z = uniforms(key(1, 2), counters), normals(key(1, 3), counters)
    # Standard errors of 65,536 independent draws; four of them.
    assert abs(u.mean() - 0.5) < 4 * np.sqrt(1 / 12 / n)
    assert abs(z.mean()) < 4 / np.sqrt(n)
    assert abs(z.std() - 1) < 4 / np.sqrt(2 * n)
    assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 4 / np.sqrt(n)
    assert abs(np.corrcoef(u, uniforms(key(1, 4), counters))[0, 1]) < 4 / np.sqrt(n)
    counts = np.histogram(u, bins=64, range=(0, 1))[0]
    assert ((counts - n / 64) ** 2 / (n / 64)).sum() < 63 + 4 * np.sqrt(2 * 63)
