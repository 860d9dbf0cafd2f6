"""Abrupt changes: the statistic against scipy's G test, changes found soon, and none seen where there is none."""

import numpy as np
import pytest
from scipy.stats import chi2_contingency

from controller.learner import Delta, Learner, LearnerConfig, PoolSpec
from controller.learner.changes import BLOCK, Changes, ratio, shift
from controller.learner.discount import Array
from engine.link.messages import AcceptanceCell, DraftInfo


def counts(rng: np.random.Generator, acceptance: list[float], steps: int) -> Array:
    """Seen and accepted by position of so many full-depth steps."""
    kept = np.logical_and.accumulate(rng.random((steps, len(acceptance))) < acceptance, axis=1).sum(axis=1)
    accepted = [int((kept > i).sum()) for i in range(len(acceptance))]
    return np.array([steps, *accepted[:-1], *accepted], dtype=np.float64)


def add(changes: Changes, context: int, draft: str, engine: str, one: Array) -> None:
    changes.add([(engine, context, draft)], one[None, :])


def test_the_ratio_is_the_g_test_of_every_position_added_up() -> None:
    before = np.array([[[50.0, 30.0, 5.0], [30.0, 20.0, 1.0]]])
    after = np.array([[[40.0, 36.0, 20.0], [36.0, 20.0, 19.0]]])
    g, freedom = ratio(before, after)
    tables = [[[30, 20], [36, 4]], [[20, 10], [20, 16]]]  # the third position has too few counts before
    expected = sum(chi2_contingency(t, correction=False, lambda_="log-likelihood").statistic for t in tables)
    assert g[0] == pytest.approx(expected)
    assert freedom[0] == 2


@pytest.mark.parametrize("seed", range(5))
def test_a_collapse_is_found_within_few_blocks_and_what_came_before_is_dropped(seed: int) -> None:
    rng = np.random.default_rng(seed)
    changes = Changes(4)
    for _ in range(60):
        add(changes, 0, "d", "e", counts(rng, [0.9, 0.9, 0.9, 0.9], 12))
        assert changes.found({}) == {}
    recent, block = None, 0
    while recent is None and block < 3:
        block += 1
        add(changes, 0, "d", "e", counts(rng, [0.3, 0.5, 0.5, 0.5], 12))
        recent = changes.found({}).get((0, "d"))
    assert recent is not None
    assert abs(recent["e"][0] - 12 * block) <= 12  # the split is where the change was, give or take a block


def test_no_change_is_seen_in_steady_requests_that_differ() -> None:
    """Requests of 24 steps whose acceptance differs; the design effect holds the false alarms down."""
    rng = np.random.default_rng(0)
    changes = Changes(3)
    shares = rng.beta(12, 6, size=800)
    segments = rng.binomial(24, shares)
    between = segments.var(ddof=1) / (24 * shares.mean() * (1 - shares.mean()))
    alarms = 0
    for share in shares:
        add(changes, 0, "d", "e", counts(rng, [share] * 3, 24))
        alarms += len(changes.found({(0, "d"): between}))
    assert alarms == 0


def test_evidence_of_engines_is_kept_apart_and_survives_a_dump() -> None:
    changes = Changes(1)
    for i in range(18):
        add(changes, 1, "d", f"e{i % 2}", np.array([BLOCK, BLOCK if i >= 16 else 0.0]))
    again = Changes(1)
    again.restore(changes.state())
    for one in (changes, again):
        add(one, 1, "d", "e0", np.array([BLOCK, BLOCK]))
        recent = one.found({})[1, "d"]
        assert {engine: x.tolist() for engine, x in recent.items()} == {"e0": [2 * BLOCK] * 2, "e1": [BLOCK] * 2}
    young = Changes(1)
    add(young, 1, "d", "e0", np.array([1.0, 1.0]))  # no block is full yet
    again = Changes(1)
    again.restore(young.state())
    assert again.found({}) == {}
    again.histories[1, "d"].blocks.appendleft([])  # a context's share of a pooled block may be nothing
    again.histories[1, "d"].due = True
    assert again.found({}) == {}
    other = Changes(2)
    other.restore(changes.state())
    assert other.found({}) == {}
    assert all(not h.older and not any(h.blocks) for h in other.histories.values())


def test_z_is_the_mantel_haenszel_statistic_of_all_strata() -> None:
    before = np.array([[[50.0, 30.0], [30.0, 20.0]]])
    after = np.array([[[40.0, 36.0], [36.0, 20.0]]])
    # By hand: a1 = 36, 20; e = 40 * 66 / 90, 36 * 40 / 66; v = 50*40*66*24 / (90^2*89), 30*36*40*26 / (66^2*65).
    excess = 36 - 40 * 66 / 90 + 20 - 36 * 40 / 66
    variance = 50 * 40 * 66 * 24 / (90**2 * 89) + 30 * 36 * 40 * 26 / (66**2 * 65)
    assert shift(before, after)[0] == pytest.approx(excess / variance**0.5)


@pytest.mark.parametrize("seed", range(5))
def test_few_steps_in_each_of_three_contexts_show_a_retrained_draft(seed: int) -> None:
    rng = np.random.default_rng(seed)
    changes = Changes(6)
    for context, first in enumerate((0.7, 0.6, 0.5)):
        for _ in range(10):
            add(changes, context, "d", "e", counts(rng, [first] * 6, 3))
    assert changes.found({}) == {}
    steps = 0
    changed: dict[tuple[int, str], dict[str, Array]] = {}
    while not changed and steps < 16:
        steps += 1
        for context in range(3):
            add(changes, context, "d", "e", counts(rng, [0.97] * 6, 1))
        changed = changes.found({})
    assert len(changed) >= 2
    for recent in changed.values():
        assert recent["e"][6:].sum() / recent["e"][:6].sum() > 0.75  # it was .6


def test_one_engine_unlike_the_others_is_no_change_and_two_are() -> None:
    rng = np.random.default_rng(5)
    changes = Changes(3)

    def serve(acceptance: dict[str, float], rounds: int) -> bool:
        seen = False
        for _ in range(rounds):
            for engine, share in acceptance.items():
                add(changes, 0, "d", engine, counts(rng, [share] * 3, 12))  # a whole block of one engine
                seen |= bool(changes.found({}))
        return seen

    names = ["a", "b", "c", "liar"]
    assert not serve({**dict.fromkeys(names, 0.6), "liar": 1.0}, 40)
    assert not serve({**dict.fromkeys(names, 0.6), "liar": 0.0}, 8)  # it changes its mind: still one of four
    assert serve({"a": 0.1, "b": 0.1, "c": 0.6, "liar": 0.0}, 8)


def test_a_change_of_the_mix_is_no_change_of_acceptance() -> None:
    rng = np.random.default_rng(3)
    changes = Changes(4)
    for mix in ((9, 1), (1, 9), (9, 1)):
        for _ in range(60):
            for context, acceptance in enumerate((0.95, 0.3)):
                add(changes, context, "d", "e", counts(rng, [acceptance] * 4, mix[context]))
            assert changes.found({}) == {}


def test_the_learner_believes_a_collapsed_draft_s_new_acceptance_at_once() -> None:
    learner = Learner(LearnerConfig(draws=64), PoolSpec((DraftInfo("d", "model", 2),), (0, 1, 2), max_batch=1))
    rng = np.random.default_rng(0)

    def serve(acceptance: float, blocks: int, start: float) -> float:
        for i in range(blocks):
            seen = counts(rng, [acceptance] * 2, 24)
            cell = AcceptanceCell(
                "code", "greedy", "d", "policy", [int(x) for x in seen[:2]], [int(x) for x in seen[2:]]
            )
            learner.observe(Delta("e", start + i, [cell], [], [], []))
            learner.decide(start + i, rng)
        return start + blocks

    def believed(now: float) -> float:
        (point, *_) = [p for p in learner.estimates(now).curves if (p.domain, p.draft) == ("code", "d")]
        return point.mean

    now = serve(0.95, 100, 0.0)
    assert believed(now) == pytest.approx(0.95, abs=0.02)
    assert learner.changed == 0
    now = serve(0.2, 8, now)
    assert learner.changed == 1
    assert believed(now) == pytest.approx(0.2, abs=0.08)  # 2,400 steps of before would leave it at .89
    kept = Learner.load(learner.dump(), learner.config, learner.spec)
    assert kept.changed == 1
    assert kept.acceptance.changes.state() == learner.acceptance.changes.state()


def test_an_open_block_is_tested_at_every_fourth_step_and_counts_from_eight_on() -> None:
    """A draft hardly played: 40 blocks with 11 of 12 accepted, then nothing is. 8 counts on a side are the least."""
    changes, found = Changes(1), []
    for _ in range(40):
        add(changes, 0, "d", "e", np.array([BLOCK, BLOCK - 1.0]))
    assert changes.found({}) == {}
    for _ in range(3):
        add(changes, 0, "d", "e", np.array([4.0, 0.0]))
        found.append(changes.found({}).get((0, "d")))
    assert found[0] is None
    assert found[1] is not None
    assert found[1]["e"].tolist() == [8.0, 0.0]  # the block of 12 is open yet
    assert found[2] is None  # nothing is left to compare with


def test_fewer_than_four_new_steps_are_no_test() -> None:
    changes = Changes(1)
    for _ in range(40):
        add(changes, 0, "d", "e", np.array([BLOCK, BLOCK - 1.0]))
    assert changes.found({}) == {}
    seen = []
    for steps in (5.0, 3.0, 1.0):  # 5 are too few on a side, 8 would do but wait for the fourth since that test
        add(changes, 0, "d", "e", np.array([steps, 0.0]))
        seen.append(changes.found({}).get((0, "d")))
    assert seen[:2] == [None, None]
    assert seen[2] is not None
    assert seen[2]["e"].tolist() == [9.0, 0.0]
