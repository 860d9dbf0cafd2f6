"""Why a choice changed: which value moved most, in one unit; orders; and that a restart still knows."""

import msgspec
import pytest

from controller import steering
from controller.causes import MAX_MARKS, Basis, Causes, Event, Mark, State, cause
from controller.settings import ControllerSettings
from controller.steering import Orders, Pin
from controller.store import Checkpoint, Entry
from controller.tuner import Tuner
from controller.view import Choice
from engine.link.messages import encode
from tests.controller.engines import CountingEngine

T0 = 1_764_500_700.0  # 2025-11-30 11:05 UTC
CELL = ("chat", "greedy", 2)
BEFORE = Basis(
    T0,
    {"eagle": [0.8, 0.7, 0.7], "ngram": [0.5, 0.4]},
    {"none": {0: 0.040}, "eagle": {2: 0.050, 3: 0.054}, "ngram": {2: 0.042}},
    mix=0.5,
    rows=2.0,
)


def after(**changes: object) -> Basis:
    return msgspec.structs.replace(BEFORE, time=T0 + 60.0, **changes)


def curve(eagle: list[float]) -> Basis:
    return after(acceptance={**BEFORE.acceptance, "eagle": eagle})


def priced(k: int, seconds: float, **changes: object) -> Basis:
    return after(seconds={**BEFORE.seconds, "eagle": {**BEFORE.seconds["eagle"], k: seconds}}, **changes)


@pytest.mark.parametrize(
    ("now", "new", "old", "said"),
    [
        # Position 1 moves both arms alike, ln of 2.392 / 2.36 and so on; position 3 only the deeper one.
        (curve([0.82, 0.7, 0.5]), ("eagle", 2), ("eagle", 3), "acceptance at position 3 fell from 0.70 to 0.50"),
        (curve([0.8, 0.7, 0.9]), ("eagle", 3), ("eagle", 2), "acceptance at position 3 rose from 0.70 to 0.90"),
        (curve([0.5, 0.7, 0.6]), ("ngram", 2), ("eagle", 3),
         "acceptance of eagle at position 1 fell from 0.80 to 0.50"),
        (curve([0.3, 0.7, 0.7]), ("none", 0), ("eagle", 3), "acceptance at position 1 fell from 0.80 to 0.30"),
        (priced(3, 0.070), ("eagle", 2), ("eagle", 3), "a step at K = 3 on eagle takes 70 ms, before 54 ms"),
        (priced(3, 0.070, mix=0.8), ("eagle", 2), ("eagle", 3), "chat is 80% of the rows at this load, before 50%"),
        (priced(3, 0.070, rows=3.0), ("eagle", 2), ("eagle", 3), "a step at this load has 3.0 rows, before 2.0"),
        (after(), ("eagle", 2), ("eagle", 3), "the two are close, and nothing moved by much"),
        (after(seconds={"none": {0: 0.04}}), ("none", 0), ("eagle", 3), "the arms that can be played have changed"),
    ],
)  # fmt: skip
def test_the_cause_is_what_moved_the_lead_most(
    now: Basis, new: tuple[str, int], old: tuple[str, int], said: str
) -> None:
    assert cause(BEFORE, now, new, old, "chat") == said


def seen(causes: Causes, arm: tuple[str, int], basis: Basis, *, spent: bool = False) -> str:
    causes.see(CELL, arm, basis, spent=spent)
    return causes.tell(CELL, "R", basis.time)


def test_values_kept_five_minutes_apart_are_what_a_change_is_compared_with() -> None:
    causes = Causes()
    assert seen(causes, ("eagle", 3), BEFORE) == "R; no change since 11:05 UTC"
    slow = [msgspec.structs.replace(curve([0.8, 0.7, 0.7 - 0.02 * i]), time=T0 + 200.0 * i) for i in range(6)]
    for basis in slow:
        assert causes.due(CELL, ("eagle", 3), basis.time) == (basis.time in (T0 + 400.0, T0 + 800.0))
        seen(causes, ("eagle", 3), basis)
    # Kept are those of 400 and 800 s: 0.66 and 0.62.
    last = msgspec.structs.replace(curve([0.8, 0.7, 0.45]), time=T0 + 1000.0)
    assert seen(causes, ("eagle", 2), last) == (
        "R; last change 11:21 UTC: acceptance at position 3 fell from 0.66 to 0.45"
    )
    assert causes.tell(CELL, "R", T0 + 86_400.0).startswith("R; last change 2025-11-30 11:21 UTC: ")


def test_orders_and_budgets_are_causes() -> None:
    causes = Causes()
    causes.steered("on", {}, T0)
    seen(causes, ("eagle", 3), BEFORE)
    assert "exploration budget was spent" in seen(causes, ("none", 0), after(), spent=True)
    causes.happened(Event(T0 + 90.0, "chat was learned anew by order", "chat"))
    causes.happened(Event(T0 + 95.0, "code was learned anew by order", "code"))
    assert seen(causes, ("eagle", 2), msgspec.structs.replace(after(), time=T0 + 120.0)) == (
        "R; last change 11:07 UTC: chat was learned anew by order"
    )
    causes.steered("on", {("chat", "greedy"): "pinned to ngram at K = 2 by ops"}, T0 + 180.0)
    pinned = "pinned to ngram at K = 2 by ops; without that: R; last change 11:08 UTC: pinned to ngram at K = 2 by ops"
    assert causes.tell(CELL, "R", T0 + 181.0) == pinned
    assert seen(causes, ("eagle", 3), msgspec.structs.replace(after(), time=T0 + 200.0)) == pinned  # it plays the pin
    causes.steered("on", {}, T0 + 240.0)
    assert causes.tell(CELL, "R", T0 + 241.0) == "R; last change 11:09 UTC: unpinned"
    causes.steered("canary", {}, T0 + 300.0)
    assert causes.tell(CELL, "R", T0 + 301.0) == "R; last change 11:10 UTC: mode canary, before on"


def test_marks_are_bounded() -> None:
    causes = Causes()
    for load in range(MAX_MARKS + 9):
        causes.see(("chat", "greedy", load), ("none", 0), BEFORE, spent=False)
    assert len(causes.marks) == MAX_MARKS
    assert not causes.due(("chat", "greedy", MAX_MARKS), ("none", 0), T0)
    assert causes.tell(("chat", "greedy", MAX_MARKS), "R", T0) == "R"
    saved = msgspec.msgpack.encode(
        State([(("d" * 64, "greedy", n), Mark(("eagle", 3), T0, BEFORE, BEFORE)) for n in range(MAX_MARKS)])
    )
    assert len(saved) < 80_000


def choice(tuner: Tuner, now: float, number: int) -> Choice:
    decided = tuner.decide((5, number), now)
    tuner.committed(decided)
    assert decided.view is not None
    (code,) = (domain for domain in decided.view.domains if domain.domain == "code")
    return next(choice for choice in code.choices if choice.load == 1)


def test_a_pool_tells_what_made_it_change_and_still_knows_after_a_restart() -> None:
    """Two tokens of two are kept, then hardly any: the draft's first position falls, and no speculation wins."""
    settings = ControllerSettings(draws=64, seed=1)
    tuner, source = Tuner("p", settings), CountingEngine(started=T0)

    def report(accepted: int, steps: int, now: float, number: int) -> Choice:
        for _ in range(steps):
            source.step("code", accepted, seconds=0.06)
        tuner.consume([Entry(f"{int(now * 1000)}-0", encode(source.frame(full=True)))], now)
        return choice(tuner, now, number)

    first = report(2, 400, T0, 1)
    assert first.draft == "ngram"
    assert first.reason.endswith("; no change since 11:05 UTC")
    assert " worse at this load" in first.reason
    number, last = 1, first
    while last.draft == "ngram" and number < 60:
        number += 1
        last = report(0, 40, T0 + 10.0 * number, number)
    assert last.draft == "none"
    assert "; last change 11:" in last.reason
    assert "acceptance at position 1 fell from 1.00 to 0." in last.reason
    assert tuner.view is not None
    assert "acceptance at position 1 fell from 1.00 to 0." in tuner.view.records[0].switches[0].reason
    again = Tuner.restore("p", settings, Checkpoint(tuner.dump(), tuner.last_id, (5, number), T0))
    told = choice(again, T0 + 10.0 * number + 1.0, number + 1).reason
    assert told.partition("; last change ")[2] == last.reason.partition("; last change ")[2]
    again.steer(steering.with_pin(Orders(), Pin("code", "ngram", 4, by="ops"), again.spec, T0), T0 + 700.0)
    told = choice(again, T0 + 700.0, number + 2).reason
    assert told.startswith("pinned to ngram at K = 4 by ops; without that: no speculation: ")
    assert told.endswith("; last change 11:16 UTC: pinned to ngram at K = 4 by ops")
