"""The clairvoyant against brute force written another way, and the ascent against enumeration."""

from itertools import product

import numpy as np
import pytest

from simulations.clairvoyant import Clairvoyant, _Problem, climbed, enumerated
from simulations.policy import Ints
from simulations.scenario import Domain, Draft, Falling, Scenario, Target
from simulations.timeline import Phase, Timeline


def random_timeline(seed: int, domains: int, drafts: int = 2, spread: float | None = None) -> Timeline:
    rng = np.random.default_rng(seed)
    names = [f"draft{j}" for j in range(drafts)]
    return Timeline(
        Scenario(
            name="r",
            steps=10,
            k_values=(0, 1, 2, 4),
            target=Target(memory_seconds=0.018, seconds_per_token=0.018 / rng.uniform(4, 40), overhead=0.002),
            drafts={
                name: Draft(
                    seconds_per_pass=float(rng.uniform(1e-4, 3e-3)), seconds_per_token=float(rng.uniform(0, 1e-4))
                )
                for name in names
            },
            domains={
                f"d{d}": Domain(
                    acceptance={
                        name: Falling(first=float(rng.uniform(0.2, 0.95)), decay=float(rng.uniform(0.9, 1)))
                        for name in names
                    },
                    spread=spread,
                )
                for d in range(domains)
            },
        )
    )


def brute_force(timeline: Timeline, phase: Phase, rows: list[int]) -> float:
    """Best goodput, one choice after the other."""
    best = 0.0
    for choice in product(timeline.arms(phase), repeat=len(rows)):
        drafted, passes = np.zeros(len(timeline.drafts)), np.zeros(len(timeline.drafts))
        tokens = 0.0
        for d, (n, (draft, k)) in enumerate(zip(rows, choice, strict=True)):
            tokens += n
            if k and n:
                # Mean over the domain's requests of the running products, not the product of means.
                tokens += n * float(np.cumprod(phase.acceptance[d, draft, :, :k], axis=1).sum(axis=1).mean())
                drafted[draft] += n * k
                passes[draft] = max(passes[draft], k)
        best = max(best, tokens / phase.seconds(sum(rows), drafted, passes))
    return best


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("spread", [None, 6.0])
def test_the_best_choice_is_that_of_brute_force(seed: int, spread: float | None) -> None:
    timeline = random_timeline(seed, 3, spread=spread)
    rows = np.random.default_rng(seed).integers(0, 7, size=3)
    rows[0] = max(rows[0], 1)
    best = Clairvoyant(timeline).best(0, rows.astype(np.intp))
    assert best.goodput == pytest.approx(brute_force(timeline, timeline.phases[0], rows.tolist()), rel=1e-12)
    assert all(k == 0 for k, n in zip(best.k, rows, strict=True) if n == 0)


def test_ascent_reaches_what_enumeration_finds() -> None:
    """300 random batches of three domains: the ascent misses the optimum rarely and then hardly."""
    short: list[float] = []
    for seed in range(60):
        timeline = random_timeline(seed, 3)
        rng = np.random.default_rng(1000 + seed)
        for _ in range(5):
            n = rng.integers(1, 12, size=3).astype(np.float64)
            problem = _Problem(timeline, timeline.phases[0], np.arange(3), n)
            ideal = problem.value(enumerated(problem))[0]
            short.append(1.0 - problem.value(climbed(problem))[0] / ideal)
    assert min(short) > -1e-12
    assert np.mean(np.array(short) > 1e-9) <= 0.03
    assert max(short) < 0.01


def test_many_domains_are_decided_domain_by_domain_where_nothing_is_shared() -> None:
    """Free passes and a target bound by memory: every domain takes its own most tokens."""
    curves = {f"d{i}": Domain(acceptance={"a": (0.1 + 0.08 * i,)}) for i in range(10)}
    timeline = Timeline(
        Scenario(
            name="s",
            steps=1,
            k_values=(0, 1, 2, 4),
            target=Target(memory_seconds=0.02),
            drafts={"a": Draft()},
            domains=curves,
        )
    )
    best = Clairvoyant(timeline).best(0, np.ones(10, dtype=np.intp))
    assert best.k.tolist() == [4] * 10
    assert best.seconds == pytest.approx(0.02)


def test_answers_are_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clairvoyant = Clairvoyant(random_timeline(0, 2))
    rows: Ints = np.array([2, 1], dtype=np.intp)
    first = clairvoyant.best(0, rows)
    monkeypatch.setattr(clairvoyant, "_work_out", None)
    assert clairvoyant.best(0, rows.copy()) is first
