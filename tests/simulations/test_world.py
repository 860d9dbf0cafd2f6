"""The simulated engine: batches, luck, prices and what is logged, against numbers worked out by hand."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from simulations.clairvoyant import Clairvoyant
from simulations.play import play
from simulations.policy import NO_DRAFT, Choice, Outcome, PoolFacts, View
from simulations.rivals.fixed import fixed, plain
from simulations.scenario import Alternating, Constant, Disappears, Domain, Draft, Load, Noise, Scenario, Target
from simulations.timeline import Timeline
from simulations.world import ChoiceError, Engine


def scenario(**changes: Any) -> Scenario:
    values: dict[str, Any] = {
        "name": "w",
        "steps": 300,
        "k_values": (0, 1, 2, 4),
        "target": Target(memory_seconds=0.010, seconds_per_token=0.001, overhead=0.002),
        "drafts": {
            "a": Draft(seconds_per_pass=0.001, max_k=4),
            "b": Draft(kind="ngram", seconds_per_pass=0.0001, max_k=2),
        },
        "domains": {
            "x": Domain(acceptance={"a": (0.8,), "b": (0.3,)}, output=20, prompt=7),
            "y": Domain(acceptance={"a": (0.5,), "b": (0.6,)}, output=10, prompt=3),
        },
        "load": (Constant(batch=4),),
        "noise": Noise(sigma=0.0),
    }
    return Scenario(**{**values, **changes})


def engine(**changes: Any) -> Engine:
    timeline = Timeline(scenario(**changes))
    return Engine(timeline, Clairvoyant(timeline), seed=3, number=0)


def rows(draft: list[int], k: list[int], **more: Any) -> Choice:
    return Choice(np.array(draft, dtype=np.intp), np.array(k, dtype=np.intp), **more)


class Watcher:
    """Always the same arm, and keeps every outcome."""

    def __init__(self, draft: int, k: int) -> None:
        self.name, self.draft, self.k = "watcher", draft, k
        self.outcomes: list[Outcome] = []

    def choose(self, view: View) -> Choice:
        n = len(view.domain)
        return rows([self.draft] * n, [self.k] * n)

    def observe(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


def watched(timeline: Timeline, draft: int, k: int, seed: int = 0) -> list[Outcome]:
    watcher = Watcher(draft, k)
    play(timeline, lambda pool, rng: watcher, seed)
    return watcher.outcomes


def test_a_step_costs_what_the_law_says_prompts_and_pauses_included() -> None:
    one = engine(noise=Noise(sigma=0.0, prefill_seconds_per_token=0.0005, pause_rate=1.0, pause_seconds=0.1))
    view = one.view()
    outcome = one.settle(view, rows([0, 0, 1, NO_DRAFT], [4, 2, 4, 4]))
    # b is prepared for 2 tokens, no draft means no tokens; 4 + 4 + 2 + 2 tokens verified are 12 ms, above the memory's.
    assert outcome.k.tolist() == [4, 2, 2, 0]
    decode = 0.012 + 0.002 + 4 * 0.001 + 2 * 0.0001
    assert one.log.expected[0] == pytest.approx(decode)
    assert outcome.prefill == sum(7 if domain == 0 else 3 for domain in view.domain)
    assert outcome.seconds == pytest.approx(decode + outcome.prefill * 0.0005 + 0.1)
    assert one.log.plain[0] == pytest.approx(0.012)
    assert one.time == pytest.approx(outcome.seconds)
    assert one.view().time == one.time


def test_k_that_is_not_prepared_becomes_the_next_smaller_one() -> None:
    one = engine()
    assert one.settle(one.view(), rows([0] * 4, [3, 1, 9, 0])).k.tolist() == [2, 1, 4, 0]


def test_every_policy_meets_the_same_requests_and_the_same_luck() -> None:
    timeline = Timeline(scenario(load=(Constant(batch=1),), noise=Noise(sigma=0.2)))
    deep, shallow = watched(timeline, 0, 4), watched(timeline, 0, 2)

    def by_request(outcomes: list[Outcome]) -> dict[tuple[int, int], tuple[int, int]]:
        """(request, its step) -> (label, accepted)."""
        found: dict[tuple[int, int], tuple[int, int]] = {}
        age: dict[int, int] = {}
        for o in outcomes:
            request = int(o.view.request[0])
            found[request, age.get(request, 0)] = (int(o.view.domain[0]), int(o.accepted[0]))
            age[request] = age.get(request, 0) + 1
        return found

    one, other = by_request(deep), by_request(shallow)
    both = one.keys() & other.keys()
    assert len(both) > 200
    for at in both:
        assert other[at] == (one[at][0], min(one[at][1], 2))
    # Noise belongs to the step's number: the ratio of seconds is that of the laws, at every step.
    ratio = np.array([a.seconds / b.seconds for a, b in zip(deep, shallow, strict=True)])
    assert ratio == pytest.approx((0.012 + 0.004) / (0.012 + 0.002))


def test_other_seeds_and_engines_have_other_luck() -> None:
    timeline = Timeline(scenario(engines=2))
    outcomes = watched(timeline, 0, 4)
    first, second = outcomes[::2], outcomes[1::2]
    assert [o.accepted.tolist() for o in first] != [o.accepted.tolist() for o in second]
    assert [o.accepted.tolist() for o in first] != [o.accepted.tolist() for o in watched(timeline, 0, 4, seed=1)[::2]]


def test_acceptance_and_lengths_have_the_scenarios_means() -> None:
    timeline = Timeline(scenario(steps=4000))
    outcomes = watched(timeline, 0, 4)
    domain = np.concatenate([o.view.domain for o in outcomes])
    accepted = np.concatenate([o.accepted for o in outcomes])
    for d, a in ((0, 0.8), (1, 0.5)):
        mine = accepted[domain == d]
        mean = sum(a**i for i in range(1, 5))
        # Standard error of a mean of n steps with at most 4 accepted tokens is below 1.8 / sqrt(n).
        assert mine.mean() == pytest.approx(mean, abs=4 * 1.8 / np.sqrt(len(mine)))
    # Plain decoding takes a step a token, so a request lives as long as its answer: 20 and 10 on average.
    requests = watched(timeline, NO_DRAFT, 0)
    ended = [int(d) for o in requests for d in o.view.domain[o.finished]]
    steps = np.bincount(np.concatenate([o.view.domain for o in requests]), minlength=2)
    for d, length in ((0, 20), (1, 10)):
        n = ended.count(d)
        assert steps[d] / n == pytest.approx(length, abs=4 * length / np.sqrt(n))


def test_shares_of_traffic_hold_in_every_stretch_of_requests() -> None:
    domains = {
        "x": Domain(acceptance={"a": (0.5,), "b": (0.5,)}, share=0.9, output=1),
        "y": Domain(acceptance={"a": (0.5,), "b": (0.5,)}, share=0.1, output=1),
    }
    outcomes = watched(Timeline(scenario(domains=domains, load=(Constant(batch=1),))), NO_DRAFT, 0)
    labels = np.array([int(o.view.domain[0]) for o in outcomes])
    assert [int(labels[i : i + 50].sum()) for i in range(0, 300, 50)] == pytest.approx([5] * 6, abs=1)


def test_a_draft_that_takes_over_reads_what_it_missed_in_its_first_step() -> None:
    one = engine(
        load=(Constant(batch=2),),
        domains={"x": Domain(acceptance={"a": (0.0,), "b": (0.0,)}, output=500, prompt=7)},
        drafts={
            "a": Draft(seconds_per_pass=0.001, seconds_per_token=0.0001, max_k=4),
            "b": Draft(kind="ngram", seconds_per_pass=0.0001, max_k=2),
        },
    )

    def step(draft: list[int], k: list[int]) -> tuple[object, int, list[int]]:
        view = one.view()
        outcome = one.settle(view, rows(draft, k))
        return one.log.expected[one.step - 1], outcome.prefill, outcome.draft.tolist()

    target = 0.010 + 0.002
    assert step([0, 1], [1, 1])[1:] == (14, [0, 1])  # two prompts; nothing is accepted, so KV grows by 1 a step
    assert step([1, 0], [1, 0]) == (pytest.approx(target + 0.0001), 0, [1, 0])  # ngram reads nothing, K = 0 waits
    # The second row: prompt 7 and two tokens are unread by draft a: one pass and 9 tokens on top of the step's own.
    assert step([1, 0], [0, 2]) == (pytest.approx(target + 2 * 0.001 + 2 * 0.0001 + 0.001 + 9 * 0.0001), 9, [1, 0])
    assert step([1, 0], [0, 2]) == (pytest.approx(target + 2 * 0.001 + 2 * 0.0001), 0, [1, 0])
    # The first row comes back to draft a, which had read 8 of its 11 tokens.
    assert step([0, 0], [1, 0]) == (pytest.approx(target + 0.001 + 0.0001 + 0.001 + 3 * 0.0001), 3, [0, 0])
    view = one.view()
    with pytest.raises(ChoiceError, match="draft 5; allowed: -1"):
        one.settle(view, rows([5, 0], [0, 0]))


def test_requests_join_and_wait_as_the_load_says_and_keep_their_draft() -> None:
    one = engine(
        load=(Alternating(batches=(2, 4)),),
        domains={"x": Domain(acceptance={"a": (0.5,), "b": (0.5,)}, output=500)},
        draft_switching=False,
    )
    first = one.view()
    assert (first.request.tolist(), first.new.tolist()) == ([0, 1], [True, True])
    one.settle(first, rows([0, 1], [0, 0]))
    second = one.view()
    assert (second.request.tolist(), second.new.tolist()) == ([0, 1, 2, 3], [False, False, True, True])
    one.settle(second, rows([1, 0, 1, 0], [0] * 4))  # only new rows obey
    one.settle(one.view(), rows([0, 0], [0, 0]))
    fourth = one.view()
    assert (fourth.request.tolist(), fourth.new.tolist()) == ([0, 1, 2, 3], [False] * 4)
    assert fourth.draft.tolist() == [0, 1, 1, 0]


def test_rows_whose_draft_disappears_go_on_plainly() -> None:
    domains = {"x": Domain(acceptance={"a": (0.5,), "b": (0.5,)}, output=1000)}
    timeline = Timeline(scenario(domains=domains, events=(Disappears(step=100, draft="a"),)))
    outcomes = watched(timeline, 0, 4)
    assert outcomes[99].k.tolist() == [4] * 4
    assert outcomes[100].k.tolist() == [0] * 4
    late = [o for o in outcomes[100:] if o.view.new.any()]
    assert all((o.draft[o.view.new] == NO_DRAFT).all() for o in late)


def test_the_clairvoyants_own_arm_earns_exactly_its_due_whatever_the_requests_are_like() -> None:
    domains = {"x": Domain(acceptance={"a": (0.7,), "b": (0.3,)}, spread=3.0, output=30)}
    timeline = Timeline(scenario(domains=domains))
    clairvoyant = Clairvoyant(timeline)
    best = clairvoyant.best(0, np.array([4], dtype=np.intp))
    run = play(timeline, fixed(int(best.draft[0]), int(best.k[0])), 0, clairvoyant)
    log = run.logs[0]
    assert log.earned == pytest.approx(log.due)
    assert log.best == pytest.approx(log.due.sum(axis=1) / log.expected)
    # And plain decoding earns a token a row in every step.
    assert play(timeline, plain, 0, clairvoyant).logs[0].earned.ravel() == pytest.approx(4.0)


def test_an_evaluated_draft_costs_one_pass_over_the_tokens_that_others_had_verified() -> None:
    drafts = {
        "a": Draft(seconds_per_pass=0.001, seconds_per_token=0.00001, max_k=4),
        "b": Draft(kind="ngram", seconds_per_pass=0.0001, seconds_per_token=0.00002, max_k=2),
    }
    one = engine(drafts=drafts)
    outcome = one.settle(one.view(), rows([0, 0, 0, 1], [4, 2, 0, 2], evaluated=np.array([True, True])))
    # Drafting: 4 passes and 6 tokens of a, 2 and 2 of b; the target verifies 4 + 8 tokens in 12 ms.
    drafting = 4 * 0.001 + 6 * 0.00001 + 2 * 0.0001 + 2 * 0.00002
    # Judging: two rows did not draft with a, 5 tokens each; three not with b, which is prepared for 2: 3 tokens each.
    judging = 0.001 + 2 * 5 * 0.00001 + 0.0001 + 3 * 3 * 0.00002
    assert one.log.expected[0] == pytest.approx(0.012 + 0.002 + drafting + judging)
    assert outcome.would_accept is not None
    assert (outcome.would_accept[1] <= 2).all()


def test_judging_a_draft_that_every_row_used_is_free() -> None:
    one = engine()
    one.settle(one.view(), rows([0] * 4, [4, 4, 2, 2], evaluated=np.array([True, False])))
    assert one.log.expected[0] == pytest.approx(0.016 + 0.002 + 4 * 0.001)


def test_evaluated_drafts_show_what_they_would_have_got() -> None:
    one = engine()
    outcome = one.settle(one.view(), rows([0] * 4, [4, 4, 2, 2], evaluated=np.array([True, True])))
    assert outcome.would_accept is not None
    assert outcome.would_accept.shape == (2, 4)
    # On the draft that a row holds, the evaluation sees the same luck.
    assert np.minimum(outcome.would_accept[0], outcome.k).tolist() == outcome.accepted.tolist()
    assert (outcome.would_accept[1] <= 2).all()


def test_wrong_labels_are_as_frequent_as_asked_and_never_right() -> None:
    domains = {
        name: Domain(acceptance={"a": (0.5,), "b": (0.5,)}, output=1, share=float(name == "x"))
        for name in ("x", "y", "z")
    }
    outcomes = watched(
        Timeline(scenario(steps=4000, mislabelled=0.25, domains=domains, load=(Constant(batch=1),))), NO_DRAFT, 0
    )
    labels = np.array([int(o.view.domain[0]) for o in outcomes])
    share = np.bincount(labels, minlength=3) / len(labels)
    assert share == pytest.approx([0.75, 0.125, 0.125], abs=4 * np.sqrt(0.25 * 0.75 / 4000))


def test_a_hostile_engine_reports_everything_accepted_and_decodes_as_the_others() -> None:
    timeline = Timeline(scenario(engines=2, hostile=1))
    outcomes = watched(timeline, 0, 4)
    liar = outcomes[1::2]
    assert all(o.accepted.tolist() == o.k.tolist() for o in liar)
    run = play(timeline, fixed(0, 4), 0)
    assert run.logs[1].tokens.sum() < sum(o.k.sum() + len(o.k) for o in liar)


def test_noise_has_mean_one() -> None:
    one = engine(steps=20_000, noise=Noise(sigma=0.3))
    assert one.noise.mean() == pytest.approx(1.0, abs=4 * 0.3 / np.sqrt(20_000))
    assert one.noise.std() == pytest.approx(0.3, rel=0.05)


def test_an_engine_whose_speed_wanders() -> None:
    """Every second of a step is multiplied, prompts and pauses included; correlation falls to 1/e over the length."""
    noise = Noise(sigma=0.0, prefill_seconds_per_token=0.0005, pause_rate=1.0, pause_seconds=0.1)
    steady = engine(noise=noise)
    one = engine(noise=replace(noise, wander=0.2, wander_steps=50), steps=40_000)
    before = steady.settle(steady.view(), rows([0] * 4, [1] * 4)).seconds
    assert one.settle(one.view(), rows([0] * 4, [1] * 4)).seconds == pytest.approx(before * one.speed[0])
    u = np.log(one.speed)
    assert u.std() == pytest.approx(0.2, rel=0.1)
    assert np.corrcoef(u[:-50], u[50:])[0, 1] == pytest.approx(np.exp(-1), abs=0.1)
    assert (steady.speed == 1.0).all()


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (rows([0], [1]), r"a batch of 4 rows was answered with draft \(1,\), k \(1,\)"),
        (rows([0, 1, 2, 0], [1] * 4), r"draft \[0, 1, 2, 0\]; allowed: -1 \(none\) to 1"),
        (rows([0] * 4, [1, 1, 1, -1]), r"K is -1; allowed: 0 or more"),
    ],
)
def test_a_policy_that_answers_nonsense_is_told_so(choice: Choice, message: str) -> None:
    one = engine()
    with pytest.raises(ChoiceError, match=message):
        one.settle(one.view(), choice)


def test_policies_are_told_the_pool() -> None:
    load: tuple[Load, ...] = (Alternating(batches=(2, 9)),)
    facts: list[PoolFacts] = []

    def make(pool: PoolFacts, rng: np.random.Generator) -> Watcher:
        facts.append(pool)
        return Watcher(NO_DRAFT, 0)

    play(Timeline(scenario(load=load, engines=3, steps=5)), make, 0)
    assert facts[0].domains == ("x", "y")
    assert [(d.name, d.kind, d.max_k) for d in facts[0].drafts] == [("a", "model", 4), ("b", "ngram", 2)]
    assert (facts[0].ks, facts[0].static, facts[0].max_batch, facts[0].engines) == ((0, 1, 2, 4), (NO_DRAFT, 0), 9, 3)
