"""Variants of scenarios: other numbers, the same kind, within the documented ranges."""

import math
from itertools import pairwise

import msgspec
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from controller.cli.simulate import register
from simulations.load import load, parse, shipped
from simulations.scenario import AcceptanceChange, CostChange, Falling, Scenario, ScenarioError, by_position
from simulations.timeline import Timeline
from simulations.variants import kind, shifted, variant

SEEDS = range(4)


def between(ratio: float, most: float) -> bool:
    return 1 / most - 1e-9 <= ratio <= most + 1e-9


def log_odds(p: float) -> float:
    return math.log(p / (1 - p))


@pytest.mark.parametrize("name", shipped())
def test_a_variant_is_the_same_every_time_and_another_for_another_seed(name: str) -> None:
    scenario = load(name)
    made = [variant(scenario, seed) for seed in SEEDS]
    assert made == [variant(scenario, seed) for seed in SEEDS]
    assert all(one.domains != other.domains for one, other in pairwise(made))
    assert [one.name for one in made] == [f"{name}-variant-{seed}" for seed in SEEDS]


@pytest.mark.parametrize("name", shipped())
def test_a_variant_keeps_the_kind_and_what_is_no_number(name: str) -> None:
    scenario = load(name)
    for seed in SEEDS:
        one = variant(scenario, seed)
        assert kind(one) == kind(scenario)
        assert (one.steps, one.ks, one.engines, one.hostile, one.static) == (
            scenario.steps, scenario.ks, scenario.engines, scenario.hostile, scenario.static
        )  # fmt: skip
        assert list(one.domains) == list(scenario.domains)
        assert [type(event) for event in one.events] == [type(event) for event in scenario.events]
        # It is a valid scenario: read back from plain values it is the same.
        assert msgspec.convert(msgspec.to_builtins(one), Scenario) == one


@pytest.mark.parametrize("name", shipped())
def test_numbers_stay_within_the_documented_ranges(name: str) -> None:
    scenario = load(name)
    for seed in SEEDS:
        one = variant(scenario, seed)
        assert between(one.target.memory_seconds / scenario.target.memory_seconds, 1.5)
        assert between(one.target.overhead / scenario.target.overhead, 1.5)
        for draft, before in scenario.drafts.items():
            assert between(one.drafts[draft].seconds_per_pass / before.seconds_per_pass, 1.5)
        for name_, domain in scenario.domains.items():
            new = one.domains[name_]
            assert between(new.output / domain.output, 1.5)
            assert new.share == domain.share == 0 or between(new.share / domain.share, 1.5)
            for draft, curve in domain.acceptance.items():
                other = new.acceptance[draft]
                assert abs(log_odds(by_position(other, 1)[0]) - log_odds(by_position(curve, 1)[0])) <= 0.8 + 1e-9
                if isinstance(curve, Falling):
                    assert isinstance(other, Falling)
                    assert curve.decay == other.decay == 1 or between((1 - other.decay) / (1 - curve.decay), 1.5)
        for event, changed in zip(scenario.events, one.events, strict=True):
            assert between(changed.step / event.step, 1.1 + 1 / event.step)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_helps_in_a_variant_of_a_scenario_in_which_nothing_helps(seed: int) -> None:
    """By another way than the clairvoyant's: tokens of every arm over its seconds, in plain steps, one row."""
    for name in ("all-drafts-bad", "expensive-draft"):
        one = variant(load(name), seed)
        phase = Timeline(one).phases[0]
        for d in range(len(one.domains)):
            for j in range(len(one.drafts)):
                for k in range(1, 9):
                    work = np.zeros(len(one.drafts))
                    work[j] = k
                    assert phase.mean_tokens[d, j, k] / phase.seconds(1, work, work) < 1 / phase.plain(1)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_dip_stays(seed: int) -> None:
    for domain in variant(load("dip"), seed).domains.values():
        for curve in domain.acceptance.values():
            first, second, third = by_position(curve, 3)
            assert second <= first  # .3, .3 is shipped for one draft
            assert second < third
    assert all(beyond for _, beyond in kind(variant(load("dip"), seed)))


def test_events_keep_their_direction_and_flapping_its_distance() -> None:
    for seed in SEEDS:
        retrained, drift = variant(load("draft-retrained"), seed), variant(load("drift"), seed)
        better, worse = retrained.events
        assert isinstance(better, AcceptanceChange)
        assert isinstance(worse, AcceptanceChange)
        assert all(
            by_position(better.acceptance, 1)[0] > by_position(domain.acceptance["medium"], 1)[0]
            for domain in retrained.domains.values()
        )
        assert by_position(worse.acceptance, 1)[0] < by_position(better.acceptance, 1)[0] / 2
        assert isinstance(drift.events[2], CostChange)
        assert 4 ** (1 / 1.5) <= drift.events[2].factor <= 4**1.5
        low, high = sorted(set(Timeline(variant(load("flapping"), seed)).rows.tolist()))
        assert high - low == 1


def test_kinds_of_scenarios_small_enough_to_see() -> None:
    """One domain, one row; a pass costs a tenth of a step of 10 ms and verification nothing. K = 1 at .5: 1.5 tokens in
    11 ms pay, at .05: 1.05 tokens do not. At (.9, .1, .9 ...) K = 4 gives 1 + .9 + .09 + .081 + .0729 = 2.14 in 14 ms,
    K = 1 1.9 in 11 ms: the dip is not worth crossing. At (.9, .8, .9 ...): 1 + .9 + .72 + .648 + .5832 = 3.85 in 14 ms
    against 1.9 in 11."""

    def of(*curve: float) -> tuple[tuple[int, bool], ...]:
        return kind(small(curve))

    assert of(0.5) == ((0, False),) * 2  # for the smallest and the largest number of rows, both 1 here
    assert of(0.05) == ((-1, False),) * 2
    assert of(0.9, 0.1, 0.9) == ((0, False),) * 2
    assert of(0.9, 0.8, 0.9) == ((0, True),) * 2


def small(curve: tuple[float, ...]) -> Scenario:
    return parse(
        {
            "name": "small",
            "steps": 100,
            "k_values": [0, 1, 2, 3, 4],
            "target": {"memory_seconds": 0.010},
            "drafts": {"a": {"kind": "model", "seconds_per_pass": 0.001}},
            "domains": {"code": {"acceptance": {"a": list(curve)}}},
        }
    )


def test_shifts_of_log_odds() -> None:
    # Odds 4 become 4 / e^0.4.
    assert shifted(0.8, -0.4) == pytest.approx(4 / (4 + math.exp(0.4)))
    assert (shifted(0.0, 0.4), shifted(1.0, -0.4)) == (0.0, 1.0)


def test_a_kind_that_cannot_be_kept_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = small((0.5,))
    answers = iter([((0, False),)])
    monkeypatch.setattr("simulations.variants.kind", lambda _: next(answers, None))
    with pytest.raises(ScenarioError, match="small: none of 240 draws for seed 3 is of the same kind"):
        variant(scenario, 3)


def test_variants_are_played_by_seed() -> None:
    app = typer.Typer()
    register(app)
    app.command("other")(lambda: None)
    arguments = ["simulate", "dip", "--variant", "1", "--variant", "2", "--steps", "40", "--seeds", "1"]
    result = CliRunner().invoke(app, [*arguments, "--rivals", "plain"])
    assert result.exit_code == 0, result.output
    assert "dip-variant-1" in result.output
    assert "dip-variant-2" in result.output
