"""What the last minute tells: speedup whatever was played, the static choice's beside it, and engines' steps."""

import math
import random
from typing import Any

import msgspec
import numpy as np
import pytest

from controller.history import sample
from controller.learner import Delta, Learner, LearnerConfig
from controller.learner.estimates import Estimates
from controller.metrics.pools import PoolCollector
from controller.offer import offer_of
from controller.recent import WINDOW_SECONDS, Recent, Sums, speedups, static_speedup
from controller.settings import ControllerSettings
from controller.store import Entry
from controller.tuner import Tuner
from controller.view import PoolView
from engine.link.messages import AccountCell, EngineDescription, Frame, StaticChoice, encode
from tests.controller.engines import CountingEngine
from tests.learner.world import Counters, Engine, Log, World, cost_cell

NOW = 1_764_500_700.0
SETTINGS = ControllerSettings(draws=64, seed=1)


def entry(frame: Frame, at: float = NOW) -> Entry:
    return Entry(f"{int(at * 1000)}-{frame.seq}", encode(frame))


def view_of(tuner: Tuner, now: float = NOW) -> PoolView:
    view = tuner.decide((5, 1), now).view
    assert view is not None
    return view


def as_static(frame: Frame) -> Frame:
    return msgspec.structs.replace(frame, account=[msgspec.structs.replace(c, variant="static") for c in frame.account])


@pytest.mark.parametrize("mode", ["off", "shadow"])
def test_tokens_served_by_the_static_choice_have_a_speedup_and_the_alert_its_series(mode: str) -> None:
    """Steps of 50 ms that bring 3 tokens each: as under the policy, for the price of plain does not depend on it."""
    views = []
    for static in (False, True):
        tuner, source = Tuner("p", msgspec.structs.replace(SETTINGS, mode=mode)), CountingEngine(started=NOW - 3_600)
        for _ in range(200):
            source.step("code", 2)
        frame = source.frame(full=True)
        tuner.consume([entry(as_static(frame) if static else frame)], NOW)
        views.append(view_of(tuner))
    adaptive, fixed = (view.traffic.speedup for view in views)
    assert fixed is not None
    assert fixed == adaptive
    assert views[1].domains[0].recent.speedup == fixed
    # All of it was the static choice: what that is estimated to bring is what it brought, as far as the model fits.
    assert views[1].traffic.static == pytest.approx(fixed.value, rel=0.05)

    class Loop:
        role, complaint = "leading", None

        def __init__(self) -> None:
            self.view = views[1]

    class Supervisor:
        pools = {"p": Loop()}  # noqa: RUF012  # as much of a supervisor as the collector reads

    samples = [s for family in PoolCollector(Supervisor(), "1").collect() for s in family.samples]  # type: ignore[arg-type]
    found = {s.labels["bound"]: s.value for s in samples if s.name == "akc_speedup_ratio"}
    assert found == {"low": fixed.low, "value": fixed.value, "high": fixed.high}
    (ratio,) = (s.value for s in samples if s.name == "akc_static_speedup_ratio")
    assert ratio == views[1].traffic.static


def test_nothing_timed_is_no_speedup() -> None:
    learner = Learner(LearnerConfig(), WORLD.spec)
    cells = {("code", "greedy", 1): Sums(10, 20, 1.0)}
    assert speedups(cells, learner.estimates(NOW)) == {}
    assert static_speedup(cells, learner.estimates(NOW)) is None


# Passes are dear and shared by the two rows: a row that leaves them to the other pays them all the same.
WORLD = World(
    {"code": {"ngram": [0.95] * 4}, "chat": {"ngram": [0.9] * 4}},
    {"ngram": 0.15},
    ks=(0, 2, 4),
    max_batch=2,
    noise=0.02,
)


def served() -> tuple[Counters, float]:
    """900 steps of two rows, code and chat: plain, both at K = 2, both at K = 4, in turns of 20."""
    engine, log, counters = Engine(WORLD, ["code", "chat"], np.random.default_rng(4), 16, 2), Log(), Counters(4)
    seconds = 0.0
    for turn in range(45):
        k = (0, 2, 4)[turn % 3]
        for domain in ("code", "chat"):
            engine.policy[domain, 2], engine.quantiles[domain, 2] = {"ngram": (1.0, [(k, 1.0)])}, 0.0
        for _ in range(20):
            seconds += engine.step(log, counters)
    return counters, seconds


def described(static: StaticChoice) -> EngineDescription:
    spec = WORLD.spec
    return EngineDescription("s", "t", "h", list(spec.drafts), list(spec.ks), static, spec.max_batch)


@pytest.mark.parametrize(
    ("static", "tolerance"),
    # None is plain decoding by definition. The others are estimated, from 300 steps each with 2% of noise, all of one
    # interval: as long as nobody knows whether that was a slow one, the prior keeps some weight.
    [(StaticChoice(), 1e-12), (StaticChoice("ngram", 2), 0.04), (StaticChoice("ngram", 4), 0.04)],
)
def test_the_static_choice_is_priced_as_if_every_row_of_a_step_played_it(
    static: StaticChoice, tolerance: float
) -> None:
    counters, seconds = served()
    delta = counters.delta("e", NOW)
    frame = Frame(
        "e", "i", 1, min(seconds, 40.0), NOW, full=True, describe=described(static), steps=900,
        acceptance=delta.acceptance, moments=delta.moments, cost=delta.cost, account=delta.account,
    )  # fmt: skip
    tuner = Tuner("p", SETTINGS)
    tuner.consume([entry(frame)], NOW)
    k = static.k
    plain, step = WORLD.seconds(2, 0, {}), WORLD.seconds(2, 2 * k, {"ngram": k} if k else {})
    cells: list[AccountCell] = delta.account
    needed = sum(cell.tokens / WORLD.tokens(cell.domain, "ngram", k) * step for cell in cells)
    truth = sum(cell.tokens for cell in cells) * plain / needed
    assert sample(view_of(tuner)).static == pytest.approx(truth, rel=tolerance)


def estimated(**changes: Any) -> Estimates:
    tuner, source = Tuner("p", SETTINGS), CountingEngine(started=NOW - 3_600)
    source.run(50, random.Random(1), ("code",))
    tuner.consume([entry(source.frame(full=True))], NOW)
    assert tuner._learner is not None
    return tuner._learner.estimates(NOW)._replace(**changes)


def test_domains_and_loads_are_combined_as_a_ratio_of_sums() -> None:
    """code: 100 tokens at load 1, 2 a step of 30 ms; chat: 60 at load 2, 1.5 a step of 50 ms, a fifth of it prompts:
    (100 x 20 ms + 60 x 25 ms + 400 ms) / (50 x 30 ms + 40 x 50 ms + 400 ms)."""
    estimates = estimated(
        plain_seconds={1: (0.020, 0.0), 2: (0.025, 0.0)},
        static_seconds={1: 0.030, 2: 0.050},
        static_tokens={("code", "greedy"): 2.0, ("chat", "greedy"): 1.5},
        prefill={1: 0.0, 2: 0.2},
    )
    cells = {("code", "greedy", 1): Sums(60, 100, 1.9), ("chat", "greedy", 2): Sums(40, 60, 2.0)}
    assert static_speedup(cells, estimates) == pytest.approx((2.0 + 1.5 + 0.4) / (1.5 + 2.0 + 0.4))
    assert static_speedup({**cells, ("new", "greedy", 1): Sums(1, 1, 0.1)}, estimates) is None
    assert static_speedup({}, estimates) is None


def test_rows_of_one_step_are_one_observation_of_its_seconds() -> None:
    """6,400 row-steps of 64 rows, 30% noise: of 100 steps; three quarters of the rows are code's, 48 to a step. Every
    token is sure but for the design effect of 3: luck (1 - 1/2) / n for two tokens a step."""
    estimates = estimated(
        plain_seconds={64: (0.1, 0.0)}, prefill={64: 0.0}, rows={64: 64.0}, noise=0.3, deff={("code", "greedy"): 3.0}
    )
    cells = {("code", "greedy", 64): Sums(4800, 9600, 480.0), ("chat", "greedy", 64): Sums(1600, 1600, 160.0)}
    found = speedups(cells, estimates)
    half = 1.6449 * 2.0 * math.sqrt(3.0 * 0.5 / 4800 + 0.3**2 / 100)
    code = found["code", "greedy", 64]
    assert (code.value, code.high - code.value) == pytest.approx((2.0, half))
    chat = found["chat", "greedy", 64]
    assert chat.high - chat.value == pytest.approx(1.6449 * math.sqrt(0.3**2 / 100))


def test_quantiles_of_steps_are_the_last_minute_s_and_engines_tell_policy_age_and_lag() -> None:
    """A thousand steps of half a second long ago, fifty of 32 ms now: half and 95% of *those*, within their half octave
    from 2 ** 14.5 to 2 ** 15 microseconds."""
    tuner, source = Tuner("p", SETTINGS), CountingEngine(started=NOW - 3_600)
    for _ in range(1000):
        source.step("code", 1)
    tuner.consume([entry(source.frame(full=True))], NOW - 200.0)
    cost = source.cells["cost"]["all"]
    for _ in range(50):
        source.step("code", 1, seconds=0.032)
    now = source.cells["cost"]["all"]
    source.cells["cost"]["all"] = msgspec.structs.replace(now, hist={**cost.hist, "119": 50})
    frame = msgspec.structs.replace(source.frame(applied=(5, 1)), policy_age=4.0)
    tuner.consume([entry(frame, NOW)], NOW + 2.5)
    (engine,) = view_of(tuner, NOW + 3.0).engines
    assert (engine.step_p50, engine.step_p95) == pytest.approx((2**14.75 / 1e6, 2**14.975 / 1e6))
    assert engine.lag_seconds == pytest.approx(2.5)
    assert engine.policy_age == pytest.approx(7.0)
    (later,) = view_of(tuner, NOW + 58.0).engines
    assert later.step_p50 is not None
    tuner.consume([entry(msgspec.structs.replace(source.frame(), policy_age=None), NOW + 100.0)], NOW + 100.0)
    (idle,) = view_of(tuner, NOW + 101.0).engines
    assert (idle.step_p50, idle.step_p95, idle.policy_age) == (None, None, None)


def test_a_sample_keeps_the_draft_s_own_acceptance_and_the_load() -> None:
    tuner, source = Tuner("p", SETTINGS), CountingEngine(started=NOW - 3_600)
    for n in range(300):
        source.step("code", 2 if n % 3 else 1)
    tuner.consume([entry(source.frame(full=True))], NOW)
    view = view_of(tuner)
    (kept,) = sample(view).domains
    (curve,) = view.domains[0].curves
    assert (kept.draft, kept.load) == ("ngram", 1)
    assert kept.acceptance == pytest.approx([p.acceptance.value for p in curve.positions[:3]], abs=1e-4)
    assert kept.acceptance[0] > 0.98
    assert kept.acceptance[1] == pytest.approx(2 / 3, abs=0.03)


def test_a_slow_minute_of_the_machine_is_no_loss() -> None:
    """The same tokens at the same choice, the last of them by an engine whose steps all take half as long again."""
    learner = Learner(LearnerConfig(), WORLD.spec)
    recent = Recent()
    plain, drafted = np.array([2.0, 0, 100]), np.array([6.0, 0, 100, 4, 2])
    for t in range(90):
        slow = 1.5 if t >= 60 else 1.0
        cost = [
            cost_cell((), 2, 0, [(0.02 * slow, plain)] * 5),
            cost_cell(("ngram",), 2, 2, [(0.025 * slow, drafted)] * 20),
        ]
        ran = AccountCell("code", "greedy", 2, "adaptive", 40, 80, 40 * 0.025 * slow)
        delta = Delta("e", float(t), cost=cost, account=[ran])
        learner.observe(delta)
        recent.add(delta, learner.speed("e"))
        if t % 5 == 4:
            learner.decide(float(t), np.random.default_rng(t))
    assert learner.speed("e") == pytest.approx(1.5, rel=0.03)
    recent.trim(75.0 + WINDOW_SECONDS)  # the slow ones only
    estimates = learner.estimates(90.0)
    (found,) = speedups(recent.cells(), estimates).values()
    assert found.value == pytest.approx(2 * 0.02 / 0.025, rel=0.05)
    # What routers are offered is what a request gets now.
    assert learner.speeds() == [learner.speed("e")]
    decision = learner.decide(90.0, np.random.default_rng(90))
    usual, now = (offer_of("p", "t", decision, estimates, {}, 2.0, 1, 90.0, slow) for slow in (1.0, 1.5))
    assert [a.goodput / b.goodput for a, b in zip(usual.cells, now.cells, strict=True)] == pytest.approx(
        [1.5] * len(usual.cells), rel=1e-3
    )
