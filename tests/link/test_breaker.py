"""The guard: by hand on short sequences, and against noise on long ones."""

import math
import random

import pytest

from engine.link.breaker import Breaker, BreakerRules, ratio_interval

RULES = BreakerRules(batch=2, window=4, long=8, backoff=6, backoff_max=12, trial=4)


def plain(guard: Breaker, steps: int, seconds: float = 0.010, load: int = 1) -> None:
    for _ in range(steps):
        guard.observe(load, 0, plain=True, rows=load, tokens=load, seconds=seconds)


def spec(guard: Breaker, steps: int, tokens: int, seconds: float, load: int = 1) -> None:
    for _ in range(steps):
        guard.observe(load, 0, plain=False, rows=load, tokens=tokens * load, seconds=seconds)


def probed(guard: Breaker, tokens: int, seconds: float, probes: int = 3) -> None:
    """`probes` plain runs of 2 steps of 10 ms, one speculative step after each; that of the last probe counts."""
    for _ in range(probes):
        plain(guard, 2)
        spec(guard, 1, tokens, seconds)


def state(guard: Breaker) -> str:
    return guard.state


def test_a_lasting_loss_opens_at_the_first_test_that_shows_it() -> None:
    guard = Breaker(RULES)
    probed(guard, 1, 0.020)
    # Half of plain's goodput: every batch has ratio 1/2 exactly, so the spread is 0 and only the floor of the plain
    # price's error remains, .03 / sqrt(3); bound = .5 + 10.21 * .5 * .0173 = .588 < .99. The step after the third
    # probe counts already, and the first test is possible with 4 batches of 2.
    spec(guard, 6, 1, 0.020)
    assert state(guard) == "closed"
    spec(guard, 1, 1, 0.020)
    assert state(guard) == "open"
    assert guard.status()["1"] == {"state": "open", "trips": 1, "ratio": 0.5, "steps_left": 6}


def test_it_comes_back_on_trial_and_closes_when_speculation_pays_again() -> None:
    guard = Breaker(RULES)
    probed(guard, 1, 0.020)
    spec(guard, 7, 1, 0.020)
    plain(guard, 5)
    assert guard.blocks(1)
    plain(guard, 1)  # the back-off of 6 steps is over
    assert (state(guard), guard.blocks(1)) == ("half-open", False)
    spec(guard, 3, 2, 0.015)
    assert state(guard) == "half-open"
    spec(guard, 1, 2, 0.015)
    assert state(guard) == "closed"


def test_a_failed_trial_doubles_the_back_off_up_to_its_limit() -> None:
    guard = Breaker(RULES)
    probed(guard, 1, 0.020)
    spec(guard, 7, 1, 0.020)
    for left in (6, 12, 12):
        plain(guard, left - 1)
        assert state(guard) == "open"
        plain(guard, 1)
        assert state(guard) == "half-open"
        spec(guard, 4, 1, 0.020)
    assert state(guard) == "open"


def test_the_back_off_starts_small_again_after_good_conduct() -> None:
    guard = Breaker(RULES)
    probed(guard, 1, 0.020)
    spec(guard, 7, 1, 0.020)
    plain(guard, 6)
    spec(guard, 4, 1, 0.020)  # fails: 12 steps
    plain(guard, 12)
    spec(guard, 4, 2, 0.010)  # passes
    spec(guard, 12, 2, 0.010)  # 12 good steps: the back-off is forgotten
    spec(guard, 8, 1, 0.050)
    assert state(guard) == "open"
    plain(guard, 6)
    assert state(guard) == "half-open"


def test_it_never_opens_without_knowing_what_plain_steps_cost() -> None:
    guard = Breaker(RULES)
    spec(guard, 200, 1, 10.0)
    probed(guard, 1, 10.0, probes=2)  # two probes: one short
    spec(guard, 200, 1, 10.0)
    assert state(guard) == "closed"


def test_loads_and_prefill_are_judged_apart() -> None:
    guard = Breaker(RULES)
    probed(guard, 1, 0.020)
    spec(guard, 100, 1, 0.020, load=8)  # no plain price at load 8
    for _ in range(100):  # nor for steps that carry prefill
        guard.observe(1, 256, plain=False, rows=1, tokens=1, seconds=0.5)
    assert state(guard) == "closed"
    spec(guard, 7, 1, 0.020)
    assert guard.blocks(1)
    assert not guard.blocks(8)


def test_steps_without_decode_rows_say_nothing() -> None:
    guard = Breaker(RULES)
    guard.observe(0, 256, plain=True, rows=0, tokens=0, seconds=1.0)
    assert guard.status() == {}


def test_ratio_interval_against_its_definition() -> None:
    ratio, error = ratio_interval([(3.0, 2.0), (4.0, 4.0), (5.0, 4.0)])
    assert ratio == pytest.approx(12 / 10)
    residuals = [3 - 2.4, 4 - 4.8, 5 - 4.8]  # neighbours disagree: no widening
    assert error == pytest.approx(math.sqrt(sum(r * r for r in residuals) / (3 * 2)) / (10 / 3))
    ratio, error = ratio_interval([(3.0, 2.0), (5.0, 4.0), (4.0, 4.0)])
    lag = (0.6 * 0.2 - 0.2 * 0.8) / (0.36 + 0.04 + 0.64)  # negative: taken as none
    assert lag < 0
    assert error == pytest.approx(math.sqrt(1.04 / 6) / (10 / 3))
    _, drifting = ratio_interval([(1.0, 1.0), (1.0, 1.0), (3.0, 1.0), (3.0, 1.0)])
    lag = (1 - 1 + 1) / 4
    assert drifting == pytest.approx(math.sqrt(4 / 12 * (1 + lag) / (1 - lag)))


def run(seed: int, speedup: float, steps: int, rows: int = 2) -> int | None:
    """Speculative steps until the guard opens, with K = 4, log-normal step times (10%), requests of differing luck.

    A probe of 4 plain steps after every 200. Plain steps take 10 ms; those with speculation as long as makes their
    expected goodput `speedup` times plain's.
    """
    rng = random.Random(seed)
    guard = Breaker()
    chances = (0.5, 0.9)
    mean = sum(1 + sum(c**i for i in range(1, 5)) for c in chances) / 2
    lucks = [rng.choice(chances) for _ in range(rows)]
    count = 0
    for number in range(steps):
        if number % 204 >= 200:
            seconds = 0.010 * rng.lognormvariate(-0.005, 0.1)
            guard.observe(rows, 0, plain=True, rows=rows, tokens=rows, seconds=seconds)
            continue
        if number % 40 == 0:  # another request
            lucks[rng.randrange(rows)] = rng.choice(chances)
        tokens = 0
        for luck in lucks:
            accepted = 0
            while accepted < 4 and rng.random() < luck:
                accepted += 1
            tokens += accepted + 1
        seconds = 0.010 * mean / speedup * rng.lognormvariate(-0.005, 0.1)
        guard.observe(rows, 0, plain=False, rows=rows, tokens=tokens, seconds=seconds)
        count += 1
        if guard.state == "open":
            return count
    return None


def test_noise_does_not_trip_it_where_speculation_pays_a_little() -> None:
    """60 engines x 5,000 steps at a true gain of 5%: at most one false trip (1.7%)."""
    trips = [seed for seed in range(60) if run(seed, 1.05, 5_000) is not None]
    assert len(trips) <= 1, trips


@pytest.mark.parametrize(("speedup", "limit"), [(0.6, 1_400), (0.8, 5_000)])
def test_real_losses_trip_it_within_a_bounded_number_of_steps(speedup: float, limit: int) -> None:
    """The first probes cost 600 steps; then the larger the loss, the sooner. 18 of 20 engines within the limit."""
    found = [run(seed, speedup, 5_500) for seed in range(20)]
    assert sum(steps is not None and steps <= limit for steps in found) >= 18, found
