"""The adapter: what our learner is told equals what was simulated, and what it decides is what is played."""

from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from controller.learner import Delta, Learner, LearnerConfig, PoolSpec
from engine.link.messages import AcceptanceCell, AccountCell, CostCell, MomentCell
from simulations.clairvoyant import Clairvoyant
from simulations.ours import Ours, Pace
from simulations.play import Run, play
from simulations.policy import NO_DRAFT, Choice, Outcome, PoolFacts, View
from simulations.result import summarise
from simulations.rivals.fixed import fixed, plain
from simulations.scenario import Appears, Constant, Disappears, Domain, Draft, Falling, Noise, Scenario, Target
from simulations.timeline import Timeline


def scenario(**changes: Any) -> Scenario:
    values: dict[str, Any] = {
        "name": "o",
        "steps": 400,
        "k_values": (0, 2, 4, 8),
        "target": Target(memory_seconds=0.018, seconds_per_token=0.0001, overhead=0.002),
        "drafts": {
            "good": Draft(seconds_per_pass=0.0008),
            "poor": Draft(kind="ngram", seconds_per_pass=0.0002),
        },
        "domains": {
            "x": Domain(acceptance={"good": Falling(first=0.9, decay=0.98), "poor": (0.2,)}, output=40),
            "y": Domain(acceptance={"good": (0.6,), "poor": (0.5,)}, output=30, spread=8.0),
        },
        "load": (Constant(batch=3),),
        "noise": Noise(sigma=0.05, prefill_seconds_per_token=0.00001),
    }
    return Scenario(**{**values, **changes})


class Spied(Ours):
    """Keeps what the learner is told and what really happened."""

    def __init__(self, pool: PoolFacts, rng: np.random.Generator) -> None:
        self.deltas: list[Delta] = []
        self.outcomes: list[Outcome] = []
        super().__init__(pool, rng)
        observe = self.learner.observe

        def spy(delta: Delta) -> None:
            self.deltas.append(delta)
            observe(delta)

        self.learner.observe = spy  # type: ignore[method-assign]

    def observe(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        super().observe(outcome)


def spied(**changes: Any) -> Spied:
    policies: list[Spied] = []

    def make(pool: PoolFacts, rng: np.random.Generator) -> Spied:
        policies.append(Spied(pool, rng))
        return policies[-1]

    play(Timeline(scenario(**changes)), make, 0)
    return policies[0]


def total(deltas: list[Delta], kind: str) -> dict[tuple[Any, ...], Any]:
    cells: dict[tuple[Any, ...], Any] = defaultdict(list)
    for delta in deltas:
        for cell in getattr(delta, kind):
            match cell:
                case AcceptanceCell():
                    cells[cell.domain, cell.draft].append((sum(cell.seen), sum(cell.accepted)))
                case AccountCell():
                    cells[(cell.domain,)].append((cell.row_steps, cell.tokens, cell.row_seconds))
                case CostCell():
                    cells[()].append((cell.count + cell.stalls, cell.seconds + cell.stall_seconds))
                case MomentCell():
                    cells[cell.domain, cell.draft].append((cell.total_s, cell.total_a))
    return {key: np.sum(np.array(values), axis=0) for key, values in cells.items()}


def test_the_learner_is_told_exactly_what_happened() -> None:
    policy = spied()
    seen = policy.outcomes[:-1]  # 400 steps; the last decision falls on a multiple of 20
    told = policy.deltas
    count = int(total(told, "cost")[()][0])
    assert count >= 380
    seen = policy.outcomes[:count]
    steps, seconds = total(told, "cost")[()]
    assert steps == len(seen)
    assert seconds == pytest.approx(sum(o.seconds for o in seen))
    names, drafts = ("x", "y"), ("good", "poor")
    expected: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    earned: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for o in seen:
        for domain, draft, k, accepted in zip(o.view.domain, o.draft, o.k, o.accepted, strict=True):
            account = earned[names[domain]]
            account[0] += 1
            account[1] += accepted + 1
            account[2] += o.seconds
            if k:
                expected[names[domain], drafts[draft]][0] += min(accepted + 1, k)
                expected[names[domain], drafts[draft]][1] += accepted
    acceptance = total(told, "acceptance")
    assert {key: list(map(int, sums)) for key, sums in acceptance.items()} == dict(expected)
    accounts = total(told, "account")
    for name, sums in earned.items():
        assert accounts[(name,)] == pytest.approx(sums)
    # Moments hold closed segments of rows that feed the curve: never more than the acceptance cells.
    for key, (s, a) in total(told, "moments").items():
        assert s <= acceptance[key][0]
        assert a <= acceptance[key][1]


def test_cost_cells_carry_the_step_as_it_ran() -> None:
    policy = spied(load=(Constant(batch=1),))
    first = policy.outcomes[0]
    cells = [cell for delta in policy.deltas for cell in delta.cost]
    assert {cell.batch for cell in cells} == {1}
    verified = sum(cell.sx[0] for cell in cells)
    count = sum(cell.count for cell in cells)
    seen = policy.outcomes[:count]
    assert verified == sum(1 + int(o.k.sum()) for o in seen)
    assert sum(cell.sx[1] for cell in cells) == sum(o.prefill for o in seen)
    assert sum(cell.sx[2] for cell in cells) == sum(o.kv for o in seen)
    assert first.prefill > 0


def test_deltas_are_dated_in_the_middle_of_their_interval() -> None:
    policy = spied()
    first = policy.deltas[0]
    took = sum(o.seconds for o in policy.outcomes[:4])
    assert first.time - 1e9 == pytest.approx(took / 2, abs=1e-6)  # doubles near 1e9 are 1.2e-7 apart


def test_it_decides_at_its_pace() -> None:
    policy = spied()
    # Every 4 of the 400 steps up to 40; then done / 8 more, rounded down, while that is below 20 (45, 50, 56, 63, 70,
    # 78, 87, 97, 109, 122, 137, 154, 173); then 193, 213, ..., 393.
    assert len(policy.deltas) == 10 + 13 + 11
    assert [Pace().steps(n) for n in (40, 78, 154, 173)] == [5, 9, 19, 20]
    assert Pace(every=10, growth=0.0).steps(10_000) == 10
    assert Pace(first=7).steps(0) == 7
    assert Pace(first=30).steps(0) == 20
    assert [Pace(every=100, most=80).steps(n) for n in (0, 160)] == [10, 100]


def test_it_finds_the_best_arms_and_beats_every_fixed_one() -> None:
    domains = {
        "x": Domain(acceptance={"good": Falling(first=0.9, decay=0.98), "poor": (0.2,)}, output=40),
        "y": Domain(acceptance={"good": (0.3,), "poor": (0.85,)}, output=30, spread=8.0),
    }
    timeline = Timeline(scenario(steps=2500, load=(Constant(batch=1),), domains=domains))
    clairvoyant = Clairvoyant(timeline)

    def share(run: Run) -> float:
        log = run.logs[0]
        return float(log.earned[1000:].sum() / log.due[1000:].sum())

    mine = share(play(timeline, Ours, 1, clairvoyant))
    others = [share(play(timeline, fixed(j, k), 1, clairvoyant)) for j in (0, 1) for k in (2, 4, 8)]
    assert mine > 0.97
    assert mine > max(others)


def test_a_draft_that_is_loaded_later_is_taken_up_and_one_that_is_lost_is_let_go() -> None:
    events = (Appears(step=600, draft="good"), Disappears(step=1600, draft="good"))
    timeline = Timeline(scenario(steps=2200, events=events, load=(Constant(batch=1),)))
    outcomes: list[Outcome] = []

    class Kept(Ours):
        def observe(self, outcome: Outcome) -> None:
            outcomes.append(outcome)
            super().observe(outcome)

    play(timeline, Kept, 0)
    drafts = np.array([int(o.draft[0]) for o in outcomes])
    ks = np.array([int(o.k[0]) for o in outcomes])
    assert not (drafts[:600] == 0).any()
    assert (drafts[1200:1600] == 0).mean() > 0.7
    assert (ks[1600:][drafts[1600:] == 0] == 0).all()
    assert (drafts[1700:] != 0).all()


def test_one_engine_that_lies_hardly_moves_the_others() -> None:
    honest = Timeline(scenario(engines=8, steps=400, load=(Constant(batch=1),)))
    lied_to = Timeline(scenario(engines=8, hostile=1, steps=400, load=(Constant(batch=1),)))
    lying = play(lied_to, Ours, 0)
    with_liar = summarise(lied_to, lying, "ours", 0)
    assert isinstance(lying.policy, Ours)
    assert lying.policy.learner.changed == 0  # the liar's turn is no change of acceptance
    run = play(honest, Ours, 0)
    without = summarise(honest, Run(run.policy, run.logs[:7], run.decided), "ours", 0)
    # An eighth of the evidence, of a young pool: more than the twentieth that is promised to cost at most 1%.
    assert with_liar.share > without.share - 0.03


def test_labels_and_regimes_reach_the_learner_apart() -> None:
    curves = {"good": (0.8,), "poor": (0.3,)}
    domains = {
        "x": Domain(acceptance=curves, output=10),
        "x-hot": Domain(acceptance=curves, output=10, label="x", regime="sampled"),
    }
    policy = spied(domains=domains, mislabelled=0.0)
    contexts = {(cell.domain, cell.regime) for delta in policy.deltas for cell in delta.account}
    assert contexts == {("x", "greedy"), ("x", "sampled")}


def test_a_single_domain_mislabelled_counts_as_other() -> None:
    curves = {"good": (0.8,), "poor": (0.3,)}
    policy = spied(domains={"x": Domain(acceptance=curves, output=10)}, mislabelled=0.5)
    assert {cell.domain for delta in policy.deltas for cell in delta.account} == {"x", "other"}


def test_it_is_the_learner_that_decides() -> None:
    """Fed with the same differences, a learner of its own arrives at the same decision."""
    policy = spied()
    drafts = policy.learner.spec.drafts
    again = Learner(LearnerConfig(), PoolSpec(drafts, (0, 2, 4, 8), 3))
    for delta in policy.deltas:
        again.observe(delta)
    now = policy.deltas[-1].time
    one = again.estimates(now).curves
    other = policy.learner.estimates(now).curves
    assert [(c.domain, c.draft, c.position) for c in one] == [(c.domain, c.draft, c.position) for c in other]
    assert [c.mean for c in one] == pytest.approx([c.mean for c in other], abs=1e-9)


def test_where_nothing_helps_it_stays_plain() -> None:
    curves = {"good": (0.1,), "poor": (0.05,)}
    drafts = {"good": Draft(seconds_per_pass=0.006), "poor": Draft(kind="ngram", seconds_per_pass=0.002)}
    timeline = Timeline(
        scenario(
            steps=1500, drafts=drafts, domains={"x": Domain(acceptance=curves, output=20)}, load=(Constant(batch=1),)
        )
    )
    run = play(timeline, Ours, 0)
    played = run.logs[0].played[-12:].sum(axis=0)[0]
    assert played[NO_DRAFT, 0] / played.sum() > 0.9
    assert play(timeline, plain, 0).decided is None
    assert run.decided is not None


def test_a_view_is_answered_with_arrays_of_its_size() -> None:
    timeline = Timeline(scenario())
    policy = Ours(timeline.facts, np.random.default_rng(0))
    rows = np.arange(3)
    view = View(0, 0, 0.0, np.array([0, 1, 2]), np.full(3, -1), rows, np.full(3, True), np.full(2, True))
    choice: Choice = policy.choose(view)
    assert choice.draft.shape == choice.k.shape == (3,)
