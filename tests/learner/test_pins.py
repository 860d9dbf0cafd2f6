"""A pin is the operator's exploring, not the learner's: its gate pays nothing, and what it shows is learned."""

from dataclasses import replace

import numpy as np
import pytest

from controller.learner import Learner, LearnerConfig
from controller.learner.decision import Decision
from controller.learner.estimates import CurvePoint
from controller.learner.policy import arm_name
from controller.steering import Pin, by_context, pinned
from tests.learner.test_gate import ROWS, booked, shortfall, steps
from tests.learner.world import Counters, Engine, Log, World

# K = 8 of `small` is nearly always wrong: 1.11 tokens for 1.96 plain steps. K = 8 of the n-grams is what pays.
WORLD = World(
    {
        "code": {"ngram": [0.8] * 8, "small": [0.1] * 8},
        "chat": {"ngram": [0.7] * 8, "small": [0.1] * 8},
    },
    {"ngram": 0.02, "small": 0.1},
    ks=(0, 2, 4, 8),
)
BAD = Pin("chat", "small", 8, "greedy")
CONFIG = LearnerConfig(draws=64)


class Play:
    """One engine and its learner, one row, domains in turn; `pins` are carried out as the controller does it."""

    def __init__(self, seed: int) -> None:
        self.learner = Learner(CONFIG, WORLD.spec)
        self.engine, self.log = Engine(WORLD, None, np.random.default_rng([seed, 1]), 16, 8), Log()
        self.rng, self.now = np.random.default_rng([seed, 2]), 1e9
        self.decision = self.decide([])

    def decide(self, pins: list[Pin]) -> Decision:
        decision = self.learner.decide(self.now, self.rng, ordered=by_context(pins))
        self.engine.follow(replace(decision, cells=pinned(decision.cells, pins)))
        self.decision = decision
        return decision

    def run(self, count: int, pins: list[Pin]) -> None:
        for _ in range(count // 20):
            counters, began = Counters(max(WORLD.ks)), self.now
            for _ in range(20):
                self.now += self.engine.step(self.log, counters)
            self.learner.observe(counters.delta("e", (began + self.now) / 2))
            self.decide(pins)

    def curve(self, draft: str) -> CurvePoint:
        """What is known of a draft's first position in chat."""
        points = self.learner.estimates(self.now).curves
        return next(p for p in points if p[:4] == ("chat", "greedy", draft, 1))

    def of(self, domain: str) -> int:
        return self.learner.contexts.names.index((domain, "greedy"))


def test_two_thousand_steps_on_a_bad_arm_cost_the_gate_nothing_and_their_lesson_counts_at_once() -> None:
    play = Play(1)
    play.run(400, [])
    chat = play.of("chat")
    play.decide([BAD])
    reserve, pool, played = play.learner.gate.reserve[chat], play.learner.gate.pool_reserve, play.learner.played[chat]
    known = play.curve("small").effective
    play.run(4_000, [BAD])  # every other one is chat's
    assert sum(arm == ("small", 8) for arm in play.log.arms["chat"][-1900:]) == 1900
    assert play.learner.gate.reserve[chat] == reserve > 0
    assert not play.learner.gate.shut[chat]
    assert play.learner.gate.pool_reserve >= pool  # the other domain's gains go on
    assert play.learner.played[chat].tolist() == played.tolist()
    assert play.curve("small").effective > known + 100
    # The first decision without the pin is right, and knows the bad arm far better than before.
    decision = play.decide([])
    (at,) = (at for at, table in enumerate(decision.tables) if table.load == 1)
    chosen = arm_name(int(decision.tables[at].top[chat]), ("ngram", "small"), WORLD.ks)
    assert WORLD.goodput("chat", chosen) > 0.98 * WORLD.best("chat")[0]  # K = 4 and 8 of the n-grams are 1.4% apart
    assert play.curve("small").low < 0.1 < play.curve("small").high < 0.15
    play.run(400, [])
    assert play.learner.gate.reserve[chat] > 0
    assert np.mean([arm in (("ngram", 4), ("ngram", 8)) for arm in play.log.arms["chat"][-150:]]) > 0.9


def test_what_was_explored_before_a_pin_is_settled_as_it_looks_then() -> None:
    learner = booked()
    learner._book(steps(10.0), ROWS, shortfall(0.2))
    learner.ordered = frozenset([("other", "greedy")])
    learner._book(steps(10.0), ROWS, shortfall(0.2))  # played before the pin, judged as it comes
    assert learner.gate.reserve[0] == pytest.approx(6.0 - 2.0 + 10 * 0.005)
    for _ in range(3):
        learner._book(steps(1000.0), ROWS, shortfall(0.9), learner.ordered)
    assert learner.gate.reserve[0] == pytest.approx(4.05)
    assert learner.gate.pool_reserve == pytest.approx(4.05)
    assert learner.played[0].sum() == pytest.approx(20.0, rel=0.01)


def test_whoever_is_pinned_survives_a_restart() -> None:
    play = Play(2)
    play.run(40, [])
    play.decide([BAD])
    again = Learner.load(play.learner.dump(), CONFIG, WORLD.spec)
    assert again.ordered == {("chat", "greedy")}
    assert again.dump() == play.learner.dump()
