"""What is shown as played is what the policy that was published has requests play: under pins, in every mode."""

import random
import time
from collections.abc import Callable

import msgspec
import pytest

from controller.api.domains import list_domains
from controller.api.pools import explored
from controller.causes import Causes, Playing
from controller.cli.screen import played
from controller.history import sample
from controller.metrics.pools import PoolCollector
from controller.published import Published
from controller.settings import ControllerSettings
from controller.steering import Measure, OrderError, Orders, Pin, with_measure, with_mode, with_pin, with_retired
from controller.store import Entry
from controller.tuner import Tuner
from controller.view import Choice, PoolView
from engine.link.chooser import Chooser
from engine.link.messages import (
    DraftChoice,
    DraftInfo,
    Mode,
    OfferCell,
    Policy,
    PolicyCell,
    StaticChoice,
    decode_offer,
    decode_policy,
    encode,
)
from tests.controller.engines import CountingEngine

NOW = 1_764_500_700.0
SETTINGS = ControllerSettings(draws=64, seed=1)
Order = Callable[[Orders], Orders]


def learned() -> Tuner:
    """A pool whose learner wants K = 4, after 400 steps at K = 2, which is the operators' choice."""
    tuner, source = Tuner("p", SETTINGS), CountingEngine(started=NOW - 3_600)
    for n in range(200):
        for domain in ("code", "chat"):
            source.step(domain, (2, 1, 1, 0)[n % 4])
    tuner.consume([Entry(f"{int(NOW * 1000)}-1", encode(source.frame(full=True)))], NOW)
    return tuner


def shown(tuner: Tuner, number: int, order: Order = lambda orders: orders) -> PoolView:
    tuner.steer(order(tuner.orders), NOW + number)
    decided = tuner.decide((5, number), NOW + number)
    tuner.committed(decided)
    assert decided.view is not None
    return decided.view


def choice(view: PoolView, domain: str) -> Choice:
    found = next(d for d in view.domains if d.domain == domain)
    return next(c for c in found.choices if c.load == 1)


def share_of(policy: Policy, domain: str, arm: tuple[str, int]) -> float:
    """Of requests that explore, at load 1, read off the policy as an engine reads it."""
    (cell,) = (c for c in policy.cells if (c.domain, c.regime, c.load) == (domain, "greedy", 1))
    return sum(c.p * p for c in cell.drafts for k, p in c.k if (c.draft, k) == arm)


async def test_a_pinned_domain_shows_its_pin_everywhere_and_explores_nothing() -> None:
    tuner = learned()
    free = shown(tuner, 1)
    wanted = choice(free, "code")
    assert (wanted.draft, wanted.k, wanted.held) == ("ngram", 4, None)
    assert 0 < (explored(free.domains) or 0.0) < 1
    view = shown(tuner, 2, lambda orders: with_pin(orders, Pin("code", "none", 0, by="ops"), tuner.spec, NOW))
    pinned = choice(view, "code")
    assert (pinned.draft, pinned.k, pinned.probability, pinned.held) == ("none", 0, 1.0, "pin")
    assert pinned.would_choose is not None
    assert (pinned.would_choose.draft, pinned.would_choose.k) == ("ngram", 4)
    assert pinned.explored == 0.0
    assert {(a.draft, a.k): a.probability for a in pinned.arms if a.probability} == {("none", 0): 1.0}
    assert (pinned.arms[0].draft, pinned.speedup) == ("none", pinned.arms[0].speedup)
    kept = {d.domain: d for d in sample(view).domains}
    assert (kept["code"].draft, kept["code"].k, kept["chat"].k) == ("none", 0, 4)
    listed = {d.domain: d for d in await list_domains(view)}
    now = listed["code"].now
    assert now is not None
    assert (now.draft, now.k, now.probability, now.held) == ("none", 0, 1.0, "pin")
    assert played(now) == "none (pin; would choose ngram K = 4)"
    arms = {(a.domain, a.draft, a.k): a for a in tuner.imagine(NOW + 3, 1, None).arms}
    assert (arms["code", "none", 0].in_force, arms["code", "none", 0].chosen) == (True, False)
    assert (arms["code", "ngram", 4].in_force, arms["code", "ngram", 4].chosen) == (False, True)
    both = shown(tuner, 3, lambda orders: with_pin(orders, Pin("chat", "ngram", 2), tuner.spec, NOW))
    assert explored(both.domains) == 0.0


def test_the_metric_of_k_is_that_of_the_arm_in_force() -> None:
    tuner = learned()
    view = shown(tuner, 1, lambda orders: with_pin(orders, Pin("code", "none", 0), tuner.spec, NOW))

    class Loop:
        role, complaint = "leading", None

        def __init__(self) -> None:
            self.view = view

    class Supervisor:
        pools = {"p": Loop()}  # noqa: RUF012  # as much of a supervisor as the collector reads

    samples = [s for family in PoolCollector(Supervisor(), "1").collect() for s in family.samples]  # type: ignore[arg-type]
    found = {(s.labels["domain"], s.labels["draft"]): s.value for s in samples if s.name == "akc_choice_k"}
    assert found == {("code", "none"): 0.0, ("chat", "ngram"): 4.0}


@pytest.mark.parametrize("mode", ["off", "shadow"])
def test_where_all_play_the_static_choice_it_is_what_is_shown(mode: Mode) -> None:
    tuner = learned()
    view = shown(tuner, 1, lambda orders: with_mode(orders, mode, None))
    for domain in ("code", "chat"):
        one = choice(view, domain)
        assert (one.draft, one.k, one.probability, one.held) == ("ngram", 2, 1.0, "mode")
        assert one.would_choose is not None
        assert one.would_choose.k == 4
        assert {(a.draft, a.k): a.identified for a in one.arms} == {
            ("none", 0): True, ("ngram", 2): True, ("ngram", 4): False,
        }  # fmt: skip
        assert one.reason.startswith(
            f"in mode {mode} all play ngram at K = 2, which shows its acceptance up to position 2; deeper positions, "
            "other drafts and what any other step costs, a plain one too, are prior or known from before; "
            "would choose ngram at K = 4: "
        )
    assert explored(view.domains) == 0.0
    assert view.note is not None
    assert choice(view, "code").reason.startswith(view.note)
    assert {d.k for d in sample(view).domains} == {2}
    # The learned change is told with the same proviso.
    (switch,) = (s for s in view.records[0].switches if (s.domain, s.load) == ("code", 1))
    assert switch.reason.startswith(view.note)


@pytest.mark.parametrize(("mode", "share"), [("canary", 0.25), ("shadow+probe", 0.01)])
def test_a_share_of_requests_explores_that_share_and_the_rest_is_static(mode: Mode, share: float) -> None:
    tuner = learned()
    view = shown(tuner, 1, lambda orders: with_mode(orders, mode, share))
    assert view.policy is not None
    policy = decode_policy(view.policy)
    one = choice(view, "code")
    arms = {(a.draft, a.k): a.probability for a in one.arms}
    assert (one.draft, one.k, one.held) == ("ngram", 2, "mode")
    assert one.probability == arms["ngram", 2] >= 1.0 - share
    assert sum(arms.values()) == pytest.approx(1.0)
    (cell,) = (c for c in policy.cells if (c.domain, c.regime, c.load) == ("code", "greedy", 1))
    drawing = 1.0 if mode == "shadow+probe" else cell.nonadaptive
    best = share_of(policy, "code", ("ngram", 4))
    assert one.explored == pytest.approx(share * drawing * (1.0 - best), abs=1e-9)
    assert arms["ngram", 4] == pytest.approx(share * (drawing * best + 1.0 - drawing))
    assert all(arm.identified for arm in one.arms)
    assert view.note is None
    assert f"mode {mode}: {100 - 100 * share:g}% of requests play ngram at K = 2, the others ngram at" in one.reason


def test_a_canary_of_most_requests_shows_what_most_play() -> None:
    tuner = learned()
    view = shown(tuner, 1, lambda orders: with_mode(orders, "canary", 0.9))
    one = choice(view, "code")
    assert (one.draft, one.k, one.held) == ("ngram", 4, None)


def test_a_measurement_s_fixed_window_is_told_and_ends() -> None:
    tuner = learned()
    order = Measure(number=0, at=NOW, minutes=2.0, windows=6, against="none")
    views = [shown(tuner, 1, lambda orders: with_measure(orders, order, "on", tuner.static, tuner.spec))]
    views += [shown(tuner, n) for n in range(2, 126, 2)]
    kept = [(one.measuring, one.fixed) for one in map(sample, views)]
    running = [view.measured is not None and view.measured.running for view in views]
    assert kept == [(run, choice(view, "code").held == "measurement") for run, view in zip(running, views, strict=True)]
    assert {*kept} == {(True, True), (True, False), (False, False)}
    seen = {(c.held, c.draft, c.k, c.explored) for c in (choice(view, "code") for view in views)}
    assert ("measurement", "none", 0, 0.0) in seen
    assert {held for held, draft, *_ in seen if draft == "ngram"} == {None}
    told = {c.reason for c in (choice(view, "code") for view in views) if c.held}
    assert all(reason.startswith("a measurement has no speculation played now; would choose ngram") for reason in told)


def test_a_measurement_s_fixed_windows_are_told_in_canary_too() -> None:
    tuner = learned()
    shown(tuner, 1, lambda orders: with_mode(orders, "canary", 0.3))
    order = Measure(number=0, at=NOW, minutes=2.0, windows=6, against="static")
    views = [shown(tuner, 2, lambda orders: with_measure(orders, order, "canary", tuner.static, tuner.spec))]
    views += [shown(tuner, n) for n in range(4, 128, 2)]
    kept = [(one.measuring, one.fixed) for one in map(sample, views)]
    assert {*kept} == {(True, True), (True, False), (False, False)}
    told = {choice(view, "code").reason for view, (_, fixed) in zip(views, kept, strict=True) if fixed}
    assert told
    assert all(reason.startswith("a measurement has ngram at K = 2 played now; would choose ") for reason in told)


def test_in_mode_on_adaptive_requests_start_from_the_best_arm() -> None:
    """40% explore: .4 x .7 + .6 start on K = 4; K = 0 of a draft is no speculation; .4 x .3 explore."""
    drafts = [DraftChoice("none", 0.1, [(0, 1.0)]), DraftChoice("d", 0.9, [(0, 0.0), (2, 2 / 9), (4, 7 / 9)])]
    cell = PolicyCell("code", "greedy", 1, drafts, nonadaptive=0.4)
    policy = Policy("p", (1, 1), 0.0, 60.0, StaticChoice("d", 9), [2, 4], [cell])
    (found,) = Published(policy, ("d", 4)).in_force([("code", "greedy")]).values()
    assert found.shares == pytest.approx({("none", 0): 0.04, ("d", 2): 0.08, ("d", 4): 0.88})
    assert (found.top, found.held) == (("d", 4), None)
    assert found.explored == pytest.approx(0.12)
    off = Published(msgspec.structs.replace(policy, mode="off"), ("d", 4)).in_force([("code", "greedy")])
    assert off["code", "greedy", 1].shares == {("d", 4): 1.0}
    assert Published(policy, ("d", 4)).in_force([("chat", "greedy")]) == {}


@pytest.mark.parametrize(("ordered", "played"), [(3, 3), (9, 6)])
def test_a_static_k_that_is_not_prepared_is_shown_priced_and_imagined_as_engines_play_it(
    ordered: int, played: int
) -> None:
    """Prepared are 2 and 4, the draft was made for 6: engines cut a static K to 6 and to nothing else."""
    tuner, source = Tuner("p", SETTINGS), CountingEngine(started=NOW - 3_600)
    drafts = [DraftInfo("ngram", "ngram", 6)]
    source.describe = msgspec.structs.replace(source.describe, drafts=drafts, static=StaticChoice("ngram", ordered))
    engine = Chooser(source.describe, clock=time.monotonic, rng=random.Random(0))
    ticket = engine.admit("code", "greedy", 1)
    assert (ticket.draft, engine.plan([ticket], 1)) == ("ngram", [played])
    for n in range(200):
        source.step("code", (2, 1, 1, 0)[n % 4])
    tuner.consume([Entry(f"{int(NOW * 1000)}-1", encode(source.frame(full=True)))], NOW)
    view = shown(tuner, 1, lambda orders: with_mode(orders, "off", None))
    one = choice(view, "code")
    assert (one.draft, one.k) == ("ngram", played)
    assert one.reason.startswith(f"in mode off all play ngram at K = {played}, which shows")
    assert tuner.static == StaticChoice("ngram", played)
    assert tuner._learner is not None
    fixed, estimates = tuner.imagine(NOW, 1, None).fixed, tuner._learner.estimates(NOW)
    assert fixed is not None
    assert (fixed.draft, fixed.k) == ("ngram", played)
    # Two ways to the same speedup at batch 1: sums over draws of curves, and the means of acceptance and prices.
    tokens = estimates.static_tokens["code", "greedy"]
    speedup = tokens * estimates.plain_seconds[1][0] / estimates.static_seconds[1]
    assert fixed.speedup[0] == pytest.approx(speedup, rel=0.1)
    # A policy can order prepared K alone: what would be measured is another choice than the static one.
    with pytest.raises(OrderError, match=rf"the static K {played} is none that engines have prepared .* \(0, 2, 4\)"):
        with_measure(Orders(), Measure(0, NOW, 10.0, 20), "on", tuner.static, tuner.spec)


def test_what_a_retired_static_draft_would_bring_is_not_told() -> None:
    tuner = learned()
    assert shown(tuner, 1, lambda orders: with_mode(orders, "off", None)).traffic.static is not None
    assert tuner.spec is not None
    view = shown(tuner, 2, lambda orders: with_retired(orders, "ngram", True, ["ngram"], 1.0))
    assert view.traffic.static is None
    assert {c.held for d in view.domains for c in d.choices} <= {"mode"}


def test_a_pin_in_a_mode_that_does_not_play_it_says_so() -> None:
    tuner = learned()
    shown(tuner, 1, lambda orders: with_mode(orders, "shadow", None))
    view = shown(tuner, 2, lambda orders: with_pin(orders, Pin("code", "none", 0, by="ops"), tuner.spec, NOW))
    one = choice(view, "code")
    assert (one.draft, one.k, one.held) == ("ngram", 2, "mode")
    assert "; pinned to no speculation by ops, which mode shadow does not play; would choose ngram" in one.reason


def test_a_router_is_offered_what_is_played() -> None:
    """Pinned to no speculation a request gets one token a plain step."""
    tuner = learned()

    def offered(number: int, order: Order = lambda orders: orders) -> OfferCell:
        tuner.steer(order(tuner.orders), NOW + number)
        offer = tuner.decide((5, number), NOW + number).offer
        assert offer is not None
        return next(c for c in decode_offer(offer).cells if (c.domain, c.regime) == ("code", "greedy"))

    assert (offered(1).draft, offered(2).k) == ("ngram", 4)
    cell = offered(3, lambda orders: with_pin(orders, Pin("code", "none", 0), tuner.spec, NOW))
    assert (cell.draft, cell.k, cell.effective) == ("none", 0, 0.0)
    assert cell.speedup == pytest.approx(1.0, rel=0.02)


def test_a_static_choice_of_none_shows_no_draft() -> None:
    told = Causes().tell(("code", "greedy", 1), "R", time.time(), Playing("off", StaticChoice(), 1.0))
    assert told == (
        "in mode off all play no speculation, which shows what a plain step costs; drafts' acceptance and prices are "
        "prior or known from before; would choose R"
    )
