"""The bound on latency, and what a draft is worth: numbers worked out by hand, and a learner that knows its pool."""

import re

import numpy as np
import pytest

from controller.learner import Learner, LearnerConfig, PoolSpec
from controller.learner.decision import Decision
from controller.learner.latency import slowest_others, within
from controller.learner.worth import gains
from engine.link.messages import DraftInfo
from tests.learner.world import THREE_DOMAINS, play


def test_a_row_must_not_lengthen_the_step_beyond_what_the_slowest_other_row_may_wait() -> None:
    seconds = np.array([[[0.020, 0.030, 0.040]], [[0.020, 0.030, 0.040]]])
    tokens = np.array([[[1.0, 2.5, 3.2]], [[1.0, 1.4, 1.5]]])
    others = slowest_others(np.array([2.5, 1.4]), np.array([True, True]))
    assert others.tolist() == [1.4, 2.5]
    # Context 0 at 40 ms leaves context 1, which emits 1.4 tokens a step, at 28.6 ms a token.
    fine = within(seconds, tokens, np.zeros_like(seconds), others, 0.022)
    assert fine.tolist() == [[[True, True, False]], [[True, True, False]]]
    # A doubt of 10% asks for 18% of room: exp(1.645 * 0.1) = 1.179.
    fine = within(seconds, tokens, np.full_like(seconds, 0.1), others, 0.022)
    assert fine.tolist() == [[[False, False, False]], [[False, False, False]]]
    assert within(seconds, tokens, np.full_like(seconds, 0.1), others, 0.0253).tolist()[0][0] == [True, True, False]


def test_alone_nobody_else_has_to_wait() -> None:
    assert slowest_others(np.array([2.0, 3.0]), np.array([False, False])).tolist() == [np.inf, np.inf]


def test_worth_is_what_would_be_lost_and_two_alike_are_worth_nothing() -> None:
    gain = np.ones((2, 1, 2, 2))
    gain[0, 0, :, 1] = 1.5  # at the first load both drafts bring the same
    gain[1, 0, 0, 1] = 2.0  # at the second only the first does
    assert gains(gain, np.ones((2, 1)), np.array([100.0, 0.0])).tolist() == [0.0, 0.0]
    assert gains(gain, np.ones((2, 1)), np.array([0.0, 100.0])).tolist() == [1.0, 0.0]
    # Half the steps each: 1.75 with it, 1.25 without it.
    assert gains(gain, np.ones((2, 1)), np.array([50.0, 50.0])) == pytest.approx([0.4, 0.0])


@pytest.fixture(scope="module")
def informed() -> Learner:
    learner, _ = play(THREE_DOMAINS, 0, 3000, LearnerConfig(draws=64))
    return learner


def decide(learner: Learner, bound: float) -> Decision:
    again = Learner.load(learner.dump(), LearnerConfig(draws=64, max_tpot_p95=bound, dwell=0.0), learner.spec)
    return again.decide(1e9, np.random.default_rng(0))


def test_the_bound_rules_out_what_breaks_it_and_nothing_else(informed: Learner) -> None:
    free, loose = decide(informed, 0.0), decide(informed, 1000.0)
    assert [t.top.tolist() for t in free.tables] == [t.top.tolist() for t in loose.tables]
    tight = decide(informed, 1e-6)
    assert all((t.top == 0).all() for t in tight.tables)
    best = max(arm.goodput_row for arm in free.arms() if arm.domain == "code")
    bound = 1.02 / best  # just what the best arm of code reaches, its doubt included or not
    played = [arm for arm in decide(informed, bound).arms(least=0.2) if arm.k and arm.domain == "code"]
    assert all(1 / arm.goodput_row <= bound for arm in played)


def test_the_reason_tells_what_the_bound_rules_out(informed: Learner) -> None:
    """Nothing within it is not the same as no draft; and where a better arm is beyond it, that arm is named."""
    nothing = decide(informed, 1e-6).reasons()
    assert set(nothing.values()) == {
        "no speculation: at this load no draft and K is within the bound on latency, max_tpot_p95"
    }
    assert not any("max_tpot_p95" in reason for reason in decide(informed, 0.0).reasons().values())
    drafts, ks = tuple(draft.name for draft in informed.spec.drafts), informed.spec.ks
    free, told = decide(informed, 0.0), 0
    best = 1.0 / max(arm.goodput_row for arm in free.arms() if arm.domain == "code")
    for tight in (decide(informed, times * best) for times in (1.5, 2.0, 3.0)):
        reasons = tight.reasons()
        for table in tight.tables:
            for c, name in enumerate(tight.contexts):
                found = re.search(r"; (\w+) at K = (\d+) would be ([\d.]+)% better and is", reasons[*name, table.load])
                if found is not None:
                    told += 1
                    draft, level = drafts.index(found[1]), ks.index(int(found[2]))
                    assert not table.in_time[c, draft, level]
                    gain = table.gain[c, draft * (len(ks) - 1) + level] / table.gain[c, table.top[c]]
                    assert float(found[3]) == pytest.approx(100 * (gain - 1), abs=0.051)
    assert told


def test_untried_drafts_that_the_bound_rules_out_leave_the_others_their_share(informed: Learner) -> None:
    """Nothing of them can be tried, so their least share is nobody's: once it went to plain decoding, for ever."""
    spec = informed.spec
    new = tuple(DraftInfo(name, "model", max(spec.ks)) for name in ("big", "bigger"))
    bound = 1.3 / max(arm.goodput_row for arm in decide(informed, 0.0).arms() if arm.domain == "code")
    config = LearnerConfig(draws=64, max_tpot_p95=bound, dwell=0.0)
    wider = Learner.load(informed.dump(), config, PoolSpec((*spec.drafts, *new), spec.ks, max_batch=1))
    (table,) = (decision := wider.decide(1e9, np.random.default_rng(0))).tables
    code = decision.contexts.index(("code", "greedy"))
    assert not table.in_time[code, -2:, 1:].any()
    assert table.in_time[code, :-2, 1:].any()
    assert table.top[code] > 0
    assert table.probability[code, 0] < 0.1


def test_the_bound_is_on_the_clock_of_the_slowest_engine(informed: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one takes twice the usual seconds, a bound rules out what half of it does elsewhere."""
    bound = 1.0 / max(arm.goodput_row for arm in decide(informed, 0.0).arms() if arm.domain == "code")
    usual, tight = decide(informed, 1.5 * bound), decide(informed, 0.75 * bound)
    monkeypatch.setattr(Learner, "speeds", lambda _: [1.0, 2.0])
    slow = decide(informed, 1.5 * bound)
    assert [t.in_time.tolist() for t in slow.tables] == [t.in_time.tolist() for t in tight.tables]
    assert [t.in_time.tolist() for t in slow.tables] != [t.in_time.tolist() for t in usual.tables]


def test_the_draft_in_use_is_worth_the_most(informed: Learner) -> None:
    decision = decide(informed, 0.0)
    worth = {w.draft: w.gain for w in decision.worth}
    used = max(decision.arms(), key=lambda arm: arm.played * (arm.domain == "code")).draft
    assert max(worth, key=lambda name: worth[name]) == used
    assert worth[used] > 0.1


def test_k_beyond_the_bound_has_no_price_in_the_policy(informed: Learner) -> None:
    """Requests move K by their own luck to what has a price: the bound must hold there, too."""
    free = {c.load: c for c in decide(informed, 0.0).cells if (c.domain, c.regime) == ("chat", "greedy")}
    (plain,) = [s for k, s in free[1].drafts[0].seconds if k == 0]
    bound = 0.7 * plain  # an arm has to bring a token in 0.7 plain steps: bad drafts and a short K do not
    tight = {c.load: c for c in decide(informed, bound).cells if (c.domain, c.regime) == ("chat", "greedy")}
    kept = {(d.draft, k) for d in tight[1].drafts for k, _ in d.seconds}
    assert len(kept) < sum(len(d.seconds) for d in free[1].drafts)
    assert {(d.draft, 0) for d in tight[1].drafts} <= kept
    drawn = {(d.draft, k) for d in tight[1].drafts if d.p for k, p in d.k if p}
    assert drawn <= kept | {("none", 0)}
