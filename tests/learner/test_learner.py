"""The learner as a whole: contract, state, determinism, degenerate evidence."""

import re

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.learner import Delta, Learner, LearnerConfig, PoolSpec
from controller.learner.learner import MAX_ENGINES
from controller.learner.policy import arm_name
from engine.link.messages import (
    AcceptanceCell,
    AccountCell,
    CostCell,
    DraftInfo,
    MomentCell,
    Policy,
    StaticChoice,
    decode_policy,
    encode,
    load_bucket,
)
from tests.learner.world import DIFFERENT_BEST, World, cost_cell, falling, play

QUICK = LearnerConfig(draws=64)
MIXED = World(
    {d: DIFFERENT_BEST.curves[d] for d in ("code", "chat")}, DIFFERENT_BEST.passes, ks=(0, 1, 2, 4, 8), max_batch=4
)


@pytest.fixture(scope="module")
def experienced() -> Learner:
    return play(MIXED, 5, 300, QUICK, slots=["code", "chat", "code"])[0]


def now_of(learner: Learner) -> float:
    return max(learner.engines.values()) + 1.0


def test_every_seen_context_and_other_get_a_cell_at_every_load(experienced: Learner) -> None:
    decision = experienced.decide(now_of(experienced), np.random.default_rng(0))
    keys = {(cell.domain, cell.regime, cell.load) for cell in decision.cells}
    contexts = {("other", "greedy"), ("other", "sampled"), ("code", "greedy"), ("chat", "greedy")}
    assert keys == {(*context, load) for context in contexts for load in (1, 2, 4)}


def test_the_policy_is_valid_on_the_wire_and_its_probabilities_sum_to_one(experienced: Learner) -> None:
    decision = experienced.decide(now_of(experienced), np.random.default_rng(0))
    policy = Policy("p", (1, 1), 0.0, 9.0, StaticChoice(), list(MIXED.ks), decision.cells, probe=decision.probe)
    assert decode_policy(encode(policy)).cells == decision.cells
    for cell in decision.cells:
        assert sum(choice.p for choice in cell.drafts) == pytest.approx(1.0, abs=1e-9)
        for choice in cell.drafts:
            assert sum(p for _, p in choice.k) == pytest.approx(1.0, abs=1e-9)
            assert [k for k, _ in choice.k] == sorted({k for k, _ in choice.k} & set(MIXED.ks))
        none, *drafts = cell.drafts
        assert (none.draft, none.k) == ("none", [(0, 1.0)])
        assert [choice.draft for choice in drafts] == list(MIXED.passes)
        for choice in drafts:
            assert len(choice.alpha) == len(choice.beta) == 8
            seconds = [s for _, s in choice.seconds]
            assert len(seconds) == 5
            assert min(seconds) > 0


def test_from_batch_two_on_the_true_probabilities_stand_beside_one_quantile_for_all(experienced: Learner) -> None:
    decision = experienced.decide(now_of(experienced), np.random.default_rng(0))
    arms: dict[tuple[str, str, int], dict[str, float]] = {}
    for arm in decision.arms():
        drafts = arms.setdefault((arm.domain, arm.regime, arm.load), {})
        drafts[arm.draft] = drafts.get(arm.draft, 0.0) + arm.probability
    for cell in decision.cells:
        assert (cell.draw is None) == (cell.load == 1)
        told = arms[cell.domain, cell.regime, cell.load]
        for choice in cell.drafts:
            assert choice.p == pytest.approx(told.get(choice.draft, 0.0), abs=3e-4)  # rounded to 4 digits
    assert any(0 < choice.p < 1 for cell in decision.cells if cell.load > 1 for choice in cell.drafts)
    assert len({cell.draw for cell in decision.cells if cell.load == 2}) == 1


def test_dump_and_load_go_on_exactly_where_they_were(experienced: Learner) -> None:
    data = experienced.dump()
    one, two = (Learner.load(data, QUICK, MIXED.spec) for _ in range(2))
    assert one.dump() == data
    more = play(MIXED, 6, 40, QUICK, slots=["code", "chat", "code"])[0]  # just to have some other state around
    assert more.dump() != data
    delta = Delta("e9", now_of(one), [AcceptanceCell("math", "sampled", "small", "policy", [9, 5], [5, 5])])
    for learner in (one, two):
        learner.observe(delta)
    first, second = (x.decide(now_of(one), np.random.default_rng(3)) for x in (one, two))
    assert first.cells == second.cells
    assert first.arms() == second.arms()
    assert one.dump() == two.dump()


def test_a_loaded_learner_decides_as_the_one_that_was_dumped(experienced: Learner) -> None:
    copy = Learner.load(experienced.dump(), QUICK, MIXED.spec)
    now = now_of(experienced)
    cells = [x.decide(now, np.random.default_rng(1), afresh=True).cells for x in (copy, experienced)]
    assert cells[0] == cells[1]


def test_idle_loads_keep_their_decision_until_the_evidence_behind_it_has_moved(experienced: Learner) -> None:
    learner, now = Learner.load(experienced.dump(), QUICK, MIXED.spec), now_of(experienced)
    first = learner.decide(now, np.random.default_rng(1))
    idle = learner.decide(now, np.random.default_rng(2))
    assert [a is b for a, b in zip(first.tables, idle.tables, strict=True)] == [True] * len(first.tables)
    assert idle.cells == first.cells
    # Rows ran at batch 1 alone, too few to move anybody's curve.
    ran = AccountCell("code", "greedy", 1, "adaptive", 3, 6, 0.06)
    learner.observe(Delta("e0", now, account=[ran]))
    second = learner.decide(now, np.random.default_rng(3))
    assert second.tables[0] is not first.tables[0]
    assert [a is b for a, b in zip(first.tables[1:], second.tables[1:], strict=True)] == [True] * len(first.tables[1:])
    # A tenth more observations of one draft concern every load.
    seen = round(0.1 * max(p.seen for p in learner.estimates(now).curves)) + 20
    learner.observe(Delta("e0", now, [AcceptanceCell("code", "greedy", "small", "policy", [seen], [seen // 2])]))
    third = learner.decide(now, np.random.default_rng(4))
    assert not any(a is b for a, b in zip(first.tables, third.tables, strict=True))
    fourth = learner.decide(now, np.random.default_rng(5), afresh=True)
    assert not any(a is b for a, b in zip(third.tables, fourth.tables, strict=True))


def test_an_unknown_schema_and_garbage_are_refused_in_words() -> None:
    data = msgspec.msgpack.decode(Learner(QUICK, MIXED.spec).dump())
    with pytest.raises(ValueError, match=r"the learner.s state has schema 99; this version reads up to 1"):
        Learner.load(msgspec.msgpack.encode({**data, "schema": 99}), QUICK, MIXED.spec)
    with pytest.raises(ValueError, match="not a learner's state"):
        Learner.load(b"\xc1 nonsense", QUICK, MIXED.spec)
    del data["engines"]
    with pytest.raises(ValueError, match="damaged"):
        Learner.load(msgspec.msgpack.encode(data), QUICK, MIXED.spec)


def test_what_gates_judge_anew_survives_a_dump_and_a_dump_without_it_still_loads(experienced: Learner) -> None:
    kept = ("recent", "exploring")
    loaded = Learner.load(experienced.dump(), QUICK, MIXED.spec)
    assert loaded.gate.settled.tolist() == experienced.gate.settled.tolist()
    assert loaded.gate.pool_settled == experienced.gate.pool_settled
    for name in kept:
        before, after = getattr(experienced, name), getattr(loaded, name)
        assert np.array_equal(before, after)
        assert before.any()
    assert experienced.exploring.max() <= 1.0
    assert experienced.exploring.min() >= QUICK.nonadaptive
    older = msgspec.msgpack.decode(experienced.dump())
    for name in (*kept, "settled", "pool_settled"):
        del older[name]
    learner = Learner.load(msgspec.msgpack.encode(older), QUICK, MIXED.spec)
    assert not learner.recent.any()
    assert learner.gate.settled.tolist() == experienced.gate.reserve.tolist()
    assert (learner.exploring == 1.0).all()
    assert learner.recent.shape == experienced.played.shape
    assert learner.decide(now_of(experienced), np.random.default_rng(0)).cells
    assert (learner.exploring < 1.0).any()


@given(st.integers(1, 600), st.integers(-3, 700))
def test_a_batch_belongs_to_its_bucket_or_to_the_nearest_of_the_pool(max_batch: int, batch: int) -> None:
    spec = PoolSpec((), (), max_batch=max_batch)
    assert spec.loads[spec.load_index(batch)] == load_bucket(min(max(batch, 1), max_batch))


def test_another_pool_keeps_what_it_can_use(experienced: Learner) -> None:
    """A draft went, one came, K grew to 12 and the largest batch shrank: evidence on what stayed is still there."""
    drafts = (DraftInfo("medium", "model", 12), DraftInfo("new", "eagle", 4))
    spec = PoolSpec(drafts, (0, 2, 4, 12), max_batch=2)
    learner = Learner.load(experienced.dump(), QUICK, spec)
    now = now_of(experienced)
    before = {(p.domain, p.draft, p.position): p.seen for p in experienced.estimates(now).curves}
    after = {(p.domain, p.draft, p.position): p.seen for p in learner.estimates(now).curves}
    assert after["code", "medium", 2] == pytest.approx(before["code", "medium", 2])
    assert after["code", "new", 1] == 0
    decision = learner.decide(now, np.random.default_rng(0))
    assert {choice.draft for cell in decision.cells for choice in cell.drafts} == {"none", "medium", "new"}
    assert Learner.load(learner.dump(), QUICK, spec).dump() == learner.dump()


def test_the_same_generator_gives_the_same_decision_and_another_one_a_close_one(experienced: Learner) -> None:
    data, now = experienced.dump(), now_of(experienced)
    spread = []
    for seed in (7, 7, 8):
        decision = Learner.load(data, LearnerConfig(draws=512), MIXED.spec).decide(now, np.random.default_rng(seed))
        spread.append(decision.tables[0].probability)
    assert np.array_equal(spread[0], spread[1])
    assert abs(spread[0] - spread[2]).max() < 0.2  # two samples of 512: sd at most .03, the lead may swap


def test_no_evidence_and_no_draft_are_no_errors() -> None:
    rng = np.random.default_rng(0)
    blank = Learner(QUICK, MIXED.spec)
    assert blank.decide(0.0, rng).cells
    estimates = blank.estimates(0.0)
    assert not estimates.achieved
    assert all(np.isfinite([*p[4:14], p.segments]).all() and np.isnan(p.spread) for p in estimates.curves)
    for spec in (PoolSpec((), (0, 4), 4), PoolSpec(MIXED.spec.drafts, (0,), 4)):
        empty = Learner(QUICK, spec)
        empty.observe(Delta("e", 0.0, account=[AccountCell("code", "greedy", 1, "adaptive", 5, 5, 1.0)]))
        assert empty.decide(1.0, rng).cells == []
        empty.estimates(1.0)


def test_reasons_and_arms_speak_of_the_most_probable_arm(experienced: Learner) -> None:
    decision = experienced.decide(now_of(experienced), np.random.default_rng(0))
    arms = [a for a in decision.arms() if (a.domain, a.regime, a.load) == ("code", "greedy", 2)]
    assert sum(a.probability for a in arms) == pytest.approx(1.0)
    assert arms == sorted(arms, key=lambda a: -a.probability)
    assert all(a.speedup_low <= a.speedup <= a.speedup_high for a in arms)
    assert sum(a.played for a in arms) == pytest.approx(1.0, abs=1e-6)
    reason = decision.reasons()["code", "greedy", 2]
    assert arms[0].draft in reason
    assert f"K = {arms[0].k}" in reason
    # The runner-up by what the batch gains, and how far it is behind.
    (table,) = (table for table in decision.tables if table.load == 2)
    names, ks = tuple(draft.name for draft in MIXED.spec.drafts), MIXED.spec.ks
    gains = {arm_name(a, names, ks): g for a, g in enumerate(table.gain[decision.contexts.index(("code", "greedy"))])}
    best = gains.pop((arms[0].draft, arms[0].k))
    (draft, k), second = max(gains.items(), key=lambda item: item[1])
    told = re.search(r"; (?:(\w+) at )?K = (\d+) is ([\d.]+)% worse at this load$", reason)
    assert told is not None
    assert (told[1] or arms[0].draft, int(told[2])) == (draft, k)
    assert float(told[3]) == pytest.approx(100 * (1 - second / best), abs=0.051)


def test_estimates_bring_the_truth_into_their_intervals(experienced: Learner) -> None:
    estimates = experienced.estimates(now_of(experienced))
    truth = [
        p.low <= MIXED.curves[p.domain][p.draft][p.position - 1] <= p.high
        for p in estimates.curves
        if p.domain in MIXED.curves and p.regime == "greedy" and p.effective > 20
    ]
    assert len(truth) >= 8
    assert np.mean(truth) >= 0.7  # 90% intervals of correlated positions
    assert {row.load for row in estimates.costs} == {2}
    assert all(row.low <= row.predicted <= row.high for row in estimates.costs)
    assert {(a.domain, a.load) for a in estimates.achieved} == {("code", 2), ("chat", 2)}
    assert all(a.low < a.speedup < a.high for a in estimates.achieved)


def test_lies_are_left_out_and_counted() -> None:
    learner = Learner(QUICK, MIXED.spec)
    learner.observe(
        Delta(
            "e",
            1.0,
            [AcceptanceCell("code", "greedy", "small", "policy", [1], [2])],
            [MomentCell("code", "greedy", "small", 1, [1], [1], [1], [1], [], 1, 1, 1, 1, 1)],
            [CostCell(["small"], 1, 1, 0, 1, 1.0, 1.0, [1.0], [1.0], [1.0])],
            [AccountCell("code", "greedy", 1, "adaptive", 5, 5, 0.0)],
        )
    )
    assert learner.rejected == {"acceptance": 1, "moments": 1, "cost": 1, "account": 1}
    with pytest.raises(ValueError, match="inf"):
        learner.observe(Delta("e", float("inf")))


def test_engines_and_domains_without_end_do_not_grow_the_state_without_end() -> None:
    learner = Learner(LearnerConfig(draws=64, max_domains=4), MIXED.spec)
    for i in range(3 * MAX_ENGINES):
        cells = [AcceptanceCell(f"domain{i}", "greedy", "small", "policy", [4, 2], [2, 1])]
        learner.observe(
            Delta(f"engine{i}", float(i), cells, cost=[cost_cell((), 1, 0, [(0.02, np.array([1.0, 0, 9]))])])
        )
    assert len(learner.engines) == MAX_ENGINES
    assert len(learner.contexts) == 2 + 4
    assert len(learner.acceptance.rows) <= (MAX_ENGINES + 1) * 6
    counts = learner.acceptance.gather(1e3, len(learner.contexts), ["small"], 1.0, 1e9)
    assert counts.seen[:, 0, 0].sum() == pytest.approx(4 * 3 * MAX_ENGINES, rel=0.1)  # nothing lost but what faded


sizes = st.integers(0, 10**6)


@st.composite
def deltas(draw: st.DrawFn) -> Delta:
    domain, regime = draw(st.sampled_from(["code", "a b"])), draw(st.sampled_from(["greedy", "sampled"]))
    draft = draw(st.sampled_from(["ngram", "small", "alien"]))
    seen = sorted(draw(st.lists(sizes, max_size=12)), reverse=True)
    accepted = [*seen[1:], 0][: len(seen)]
    k = draw(st.integers(0, 8))
    seconds = draw(st.floats(1e-6, 1e3))
    rows = draw(st.integers(1, 9))
    x = np.array([rows * (k + 1), draw(sizes), draw(sizes), rows * k, k], dtype=np.float64)
    cost = cost_cell((draft,) if k else (), rows, k, [(seconds, x if k else x[:3])] * draw(st.integers(1, 5)))
    account = AccountCell(domain, regime, rows, "adaptive", rows, rows, seconds)  # type: ignore[arg-type]
    cell = AcceptanceCell(domain, regime, draft, "policy", seen, accepted)  # type: ignore[arg-type]
    return Delta(draw(st.sampled_from("ab")), draw(st.floats(0, 1e7)), [cell], [], [cost], [account])


@given(st.lists(deltas(), max_size=6))
@settings(max_examples=40, deadline=None)
def test_any_valid_evidence_gives_a_valid_policy(evidence: list[Delta]) -> None:
    learner = Learner(LearnerConfig(draws=32), MIXED.spec)
    for delta in evidence:
        learner.observe(delta)
    decision = learner.decide(2e7, np.random.default_rng(0))
    for cell in decision.cells:
        assert sum(choice.p for choice in cell.drafts) == pytest.approx(1.0, abs=1e-6)
        assert cell.expected_speedup is not None
        assert np.isfinite(cell.expected_speedup)
        for choice in cell.drafts:
            assert all(np.isfinite(v) and v > 0 for v in (*choice.alpha, *choice.beta, *(s for _, s in choice.seconds)))
    assert decision.allowance >= 0
    assert Learner.load(learner.dump(), learner.config, learner.spec).dump() == learner.dump()


@pytest.mark.parametrize(
    ("change", "words"),
    [({"margin": 0.5}, "margin is 0.5"), ({"draws": 8}, "draws is 8"), ({"dwell": float("nan")}, "dwell is nan"),
     ({"fast_half_life": 7200.0, "slow_half_life": 60.0}, "slow_half_life is 60.0")],
)  # fmt: skip
def test_a_bad_setting_names_itself_and_what_is_allowed(change: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LearnerConfig(**change)  # type: ignore[arg-type]


def test_a_bad_pool_names_what_is_wrong() -> None:
    one = DraftInfo("x", "ngram", 4)
    with pytest.raises(ValueError, match="k_values has 99"):
        PoolSpec((one,), (99,), 1)
    with pytest.raises(ValueError, match="names must differ"):
        PoolSpec((one, one), (4,), 1)
    with pytest.raises(ValueError, match="max_batch is 0"):
        PoolSpec((one,), (4,), 0)


def test_a_draft_prepared_for_few_k_is_never_asked_for_more() -> None:
    spec = PoolSpec((DraftInfo("small", "model", 2), DraftInfo("ngram", "ngram", 8)), (0, 2, 4, 8), 2)
    learner = Learner(QUICK, spec)
    cells = [AcceptanceCell("code", "greedy", "small", "policy", [900, 890], [890, 885])]
    learner.observe(Delta("e", 0.0, cells))
    for cell in learner.decide(1.0, np.random.default_rng(0)).cells:
        assert max(k for k, _ in cell.drafts[1].k) <= 2
        assert len(cell.drafts[1].alpha) == 2


def test_falling_curves_of_the_world_are_what_they_say() -> None:
    assert falling(0.8, 0.5, 3) == [0.8, 0.4, 0.2]
