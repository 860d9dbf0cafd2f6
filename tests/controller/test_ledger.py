import random
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.learner.evidence import Delta
from controller.ledger import Ledger, Limits, Taken
from engine.link.messages import AcceptanceCell, CostCell, Frame
from tests.controller.engines import CountingEngine, description

NOW = 2_000.0


def learned(taken: Taken) -> Delta:
    assert taken.verdict == "learned", taken
    assert taken.delta is not None
    return taken.delta


def summed(deltas: list[Delta]) -> dict[str, tuple[list[int], list[int]]]:
    seen: dict[str, list[int]] = {}
    accepted: dict[str, list[int]] = {}
    for delta in deltas:
        for cell in delta.acceptance:
            for sums, values in ((seen, cell.seen), (accepted, cell.accepted)):
                mine = sums.setdefault(cell.domain, [0, 0])
                mine[:] = [x + y for x, y in zip(mine, values, strict=True)]
    return {domain: (seen[domain], accepted[domain]) for domain in seen}


def test_the_first_frame_counts_from_the_start_and_is_dated_at_the_middle_of_its_life() -> None:
    engine = CountingEngine()
    engine.step("code", 2, seconds=4.0)
    delta = learned(Ledger().take(engine.frame(full=True), NOW))
    assert (delta.engine, delta.time) == ("e", NOW - 2.0)
    assert delta.acceptance == [AcceptanceCell("code", "greedy", "ngram", "policy", [1, 1], [1, 1], [1, 1])]


def test_later_frames_give_differences_dated_at_the_middle_of_their_interval() -> None:
    engine, ledger = CountingEngine(), Ledger()
    engine.step("code", 2, seconds=4.0)
    ledger.take(engine.frame(full=True), NOW)
    engine.step("code", 0, seconds=1.0)
    engine.step("code", 1, seconds=1.0)
    delta = learned(ledger.take(engine.frame(), NOW + 2))
    assert delta.time == NOW + 1.0
    assert delta.acceptance[0].seen == [2, 1]
    assert delta.acceptance[0].accepted == [1, 0]
    assert delta.account[0].tokens == 3
    assert delta.account[0].row_seconds == 2.0
    assert delta.cost[0].count == 2
    assert delta.cost[0].hist == {"151": 2}
    assert delta.cost[0].sxy == [6.0, 0.0, 128.0, 4.0, 4.0]
    assert delta.moments[0].segments == 2


def test_an_engine_whose_wall_clock_is_wrong_does_not_misdate_its_evidence() -> None:
    for started in (NOW + 500, NOW - 90_000):
        engine = CountingEngine(started=started)
        engine.step("code", 2, seconds=4.0)
        assert learned(Ledger().take(engine.frame(full=True), NOW)).time == NOW - 2.0


def test_a_repeated_or_late_frame_is_ignored() -> None:
    engine, ledger = CountingEngine(), Ledger()
    engine.step("code", 2)
    first = engine.frame(full=True)
    engine.step("code", 1)
    second = engine.frame()
    ledger.take(first, NOW)
    ledger.take(second, NOW)
    assert ledger.take(second, NOW) == ("ignored", "seq 2 is not after 2", None)
    assert ledger.take(first, NOW).verdict == "ignored"
    assert ledger.counts.ignored == 2


def test_a_lost_frame_is_seen_as_a_gap_and_its_counts_come_with_the_next() -> None:
    engine, ledger = CountingEngine(), Ledger()
    engine.step("code", 2)
    deltas = [learned(ledger.take(engine.frame(full=True), NOW))]
    engine.step("code", 1)
    engine.frame()  # lost
    engine.step("code", 0)
    deltas.append(learned(ledger.take(engine.frame(), NOW)))
    assert summed(deltas) == engine.totals()
    assert ledger.counts.missed == ledger.incarnations["i"].missed == 1


def test_a_counter_that_goes_backwards_is_refused_by_name_and_changes_nothing() -> None:
    engine, ledger = CountingEngine(), Ledger()
    engine.run(5, random.Random(1), ("code",))
    good = engine.frame(full=True)
    ledger.take(good, NOW)
    before = ledger.dump()
    seen = good.acceptance[0].seen
    cell = msgspec.structs.replace(good.acceptance[0], seen=[seen[0] - 1, seen[1]])
    taken = ledger.take(msgspec.structs.replace(good, seq=9, acceptance=[cell]), NOW)
    assert taken.verdict == "rejected"
    assert taken.reason == f"acceptance code greedy ngram policy: seen went backwards, from {seen[0]} to {seen[0] - 1}"
    ledger.counts.rejected = 0
    assert ledger.dump() == before


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"acceptance": [AcceptanceCell("d", "greedy", "n", "policy", [1], [2])]},
            "position 1 accepted 2 times but seen 1",
        ),
        (
            {"acceptance": [AcceptanceCell("d", "greedy", "n", "policy", [3, 3], [2, 1])]},
            "position 2 seen 3 times after 2",
        ),
        ({"acceptance": [AcceptanceCell("d", "greedy", "n", "policy", [3, 1], [2])]}, "2 positions seen, 1 accepted"),
        (
            {"acceptance": [AcceptanceCell("d", "greedy", "n", "policy", [2, 2], [2, 1], [2])]},
            "position 2 seen 2 times but drafted 0",
        ),
        (
            {"acceptance": [AcceptanceCell("d", "greedy", "n", "policy", [1], [1], [1, 2])]},
            "position 2 drafted 2 times, the one before 1",
        ),
        ({"acceptance": [AcceptanceCell("d", "greedy", "n", "policy", [1], [1])] * 2}, "twice"),
        ({"cost": [CostCell(["n"], 1, 1, 0, 1, 1.0, 1.0, [1.0] * 3, [1.0] * 6, [1.0] * 3)]}, "sx has 3 entries, 5 for"),
        ({"cost": [CostCell([], 1, 0, 0, 1, float("inf"), 1.0, [1.0] * 3, [1.0] * 6, [1.0] * 3)]}, "seconds holds inf"),
        ({"cost": [CostCell([], 1, 0, 0, 1, 1.0, 1.0, [-1.0] * 3, [1.0] * 6, [1.0] * 3)]}, "sx holds -1.0"),
    ],
)
def test_cells_that_contradict_themselves_are_refused(change: dict[str, Any], reason: str) -> None:
    frame = Frame("e", "i", 1, 1.0, 1_000.0, full=True, describe=description(), **change)
    taken = Ledger().take(frame, NOW)
    assert taken.verdict == "rejected"
    assert reason in taken.reason


def test_a_full_frame_that_lacks_a_reported_cell_is_refused() -> None:
    engine, ledger = CountingEngine(), Ledger()
    engine.step("code", 2)
    ledger.take(engine.frame(full=True), NOW)
    taken = ledger.take(Frame("e", "i", 5, 9.0, 1_009.0, full=True), NOW)
    assert taken.verdict == "rejected"
    assert "a full frame lacks" in taken.reason


def test_engine_time_that_goes_backwards_and_a_borrowed_incarnation_are_refused() -> None:
    engine, ledger = CountingEngine(), Ledger()
    engine.step("code", 2)
    frame = engine.frame(full=True)
    ledger.take(frame, NOW)
    assert "time went backwards" in ledger.take(msgspec.structs.replace(frame, seq=2, time=0.01), NOW).reason
    assert "sent as 'x'" in ledger.take(msgspec.structs.replace(frame, seq=2, engine="x"), NOW).reason


def test_an_unknown_engine_waits_for_its_first_full_frame_and_loses_nothing() -> None:
    engine, ledger = CountingEngine(), Ledger()
    engine.step("code", 2)
    assert ledger.take(engine.frame(), NOW).verdict == "deferred"
    engine.step("code", 1)
    assert summed([learned(ledger.take(engine.frame(full=True), NOW))]) == engine.totals()


def test_a_restarted_engine_counts_anew_and_its_old_incarnation_ends() -> None:
    old, ledger = CountingEngine(incarnation="old"), Ledger()
    old.step("code", 2)
    ledger.take(old.frame(full=True), NOW)
    new = CountingEngine(incarnation="new")
    new.step("code", 1)
    assert learned(ledger.take(new.frame(full=True), NOW)).acceptance[0].seen == [1, 1]
    assert [i.id for i in ledger.live()] == ["new"]
    total = next(cell for key, cell in ledger.totals.items() if key[0] == "acceptance")
    assert isinstance(total, AcceptanceCell)
    assert (total.seen, total.accepted) == ([2, 2], [2, 1])


def test_an_engine_of_another_target_is_refused_while_others_serve_the_pool() -> None:
    first, second, ledger = CountingEngine("a", "1"), CountingEngine("b", "2"), Ledger()
    second.describe = description(target="other")
    ledger.take(first.frame(full=True), NOW)
    taken = ledger.take(second.frame(full=True), NOW)
    assert taken == ("rejected", "engine serves target 'other', the pool serves 'smol'", None)
    ledger.take(first.frame(final=True), NOW)
    assert ledger.take(second.frame(full=True), NOW).verdict == "learned"
    assert ledger.target == "other"


def test_nothing_is_taken_after_a_final_frame() -> None:
    engine, ledger = CountingEngine(), Ledger()
    engine.step("code", 2)
    ledger.take(engine.frame(final=True), NOW)
    assert ledger.incarnations["i"].ended == NOW
    assert ledger.take(engine.frame(full=True), NOW).reason == "sent after the incarnation's final frame"


def test_a_silent_engine_ends_and_comes_back_with_what_it_counted_meanwhile() -> None:
    engine, ledger = CountingEngine(), Ledger(Limits(silent=60))
    engine.step("code", 2)
    deltas = [learned(ledger.take(engine.frame(full=True), NOW))]
    ledger.sweep(NOW + 61)
    assert list(ledger.live()) == []
    engine.step("code", 1)
    deltas.append(learned(ledger.take(engine.frame(), NOW + 3_600)))
    assert [i.id for i in ledger.live()] == ["i"]
    assert summed(deltas) == engine.totals()


def test_tombstones_last_a_day() -> None:
    engine, ledger = CountingEngine(), Ledger()
    engine.step("code", 2)
    last = engine.frame(final=True)
    ledger.take(last, NOW)
    ledger.sweep(NOW + 86_000)
    assert ledger.take(last, NOW + 86_000).verdict == "ignored"
    ledger.sweep(NOW + 86_500)  # let go: now only its id is known
    assert ledger.incarnations == {}


def test_replaced_incarnations_beyond_the_limit_are_only_remembered_by_id_and_never_counted_again() -> None:
    ledger, frames = Ledger(Limits(endings=2)), []
    for start in range(6):
        engine = CountingEngine(incarnation=f"i{start}")
        engine.step("code", 2)
        frames.append(engine.frame(full=True))
        ledger.take(frames[-1], NOW + start)
    ledger.sweep(NOW + 10)
    assert sorted(ledger.incarnations) == ["i3", "i4", "i5"]
    assert ledger.take(frames[0], NOW + 11).verdict == "ignored"


def test_an_incarnation_that_was_let_go_counts_from_its_return_on() -> None:
    ledger, engine = Ledger(Limits(endings=0)), CountingEngine(incarnation="old")
    engine.step("code", 2)
    ledger.take(engine.frame(full=True), NOW)
    ledger.take(CountingEngine(incarnation="new").frame(full=True), NOW)
    ledger.sweep(NOW + 1)
    assert list(ledger.incarnations) == ["new"]
    engine.step("code", 1)
    back = ledger.take(engine.frame(full=True), NOW + 2)
    assert (back.verdict, back.delta) == ("learned", None)
    engine.step("code", 0)
    assert learned(ledger.take(engine.frame(), NOW + 3)).acceptance[0].seen == [1, 0]


def test_domains_beyond_the_cap_are_counted_together_as_other() -> None:
    engine, ledger = CountingEngine(), Ledger(Limits(domains=1))
    for domain in ("code", "math", "chat"):
        engine.step(domain, 2)
    delta = learned(ledger.take(engine.frame(full=True), NOW))
    assert {cell.domain: cell.seen for cell in delta.acceptance} == {"code": [1, 1], "other": [2, 2]}
    assert {cell.domain: cell.tokens for cell in delta.account} == {"code": 3, "other": 6}
    assert ledger.counts.merged_cells == 6  # acceptance, moments and account of two domains


def test_drafts_beyond_the_cap_are_left_out_and_counted() -> None:
    engine, ledger = CountingEngine(), Ledger(Limits(drafts=1))
    engine.describe = description(drafts=("first", "ngram"))
    engine.step("code", 2)
    delta = learned(ledger.take(engine.frame(full=True), NOW))
    assert (delta.acceptance, delta.moments, delta.cost) == ([], [], [])
    assert delta.account[0].tokens == 3
    assert ledger.counts.dropped_cells == 3


def test_engines_and_cells_beyond_the_cap_are_refused() -> None:
    ledger = Ledger(Limits(engines=1, cells=4))
    first, second = CountingEngine("a", "1"), CountingEngine("b", "2")
    first.step("code", 2)
    assert ledger.take(first.frame(full=True), NOW).verdict == "learned"
    assert ledger.take(second.frame(full=True), NOW).reason == "the pool already has 1 engines, the limit"
    first.step("math", 2)
    assert ledger.take(first.frame(full=True), NOW).reason == "more than 4 cells of one engine"


def test_a_dump_of_another_schema_or_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        Ledger.load(b"\xc1")
    state = msgspec.msgpack.decode(Ledger().dump())
    state["schema"] = 7
    with pytest.raises(ValueError, match="the saved ledger has schema 7; this version reads up to 1"):
        Ledger.load(msgspec.msgpack.encode(state))


# What may happen to a frame on its way, and to the controller between two frames.
FATES = st.lists(
    st.tuples(
        st.integers(0, 6),  # steps before the frame
        st.booleans(),  # full
        st.sampled_from(["deliver", "deliver", "lose", "twice", "delay", "deliver and restart the controller"]),
        st.sampled_from(["a", "b"]),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=150)
@given(FATES, st.integers(0, 2**32))
def test_whatever_happens_to_frames_the_differences_add_up_to_what_the_engines_counted(
    fates: list[tuple[int, bool, str, str]], seed: int
) -> None:
    rng = random.Random(seed)
    engines = {name: CountingEngine(name, f"{name}-1") for name in ("a", "b")}
    ledger, given_out, delayed = Ledger(), [], []
    retired: list[CountingEngine] = []

    def take(frame: Frame) -> None:
        taken = ledger.take(frame, NOW)
        assert taken.verdict != "rejected", taken
        if taken.delta is not None:
            given_out.append(taken.delta)

    for steps, full, fate, name in fates:
        engines[name].run(steps, rng)
        frame = engines[name].frame(full=full)
        if fate == "delay":
            delayed.append(frame)
        elif fate != "lose":
            for _ in range(2 if fate == "twice" else 1):
                take(frame)
            if delayed and rng.random() < 0.5:
                take(delayed.pop(rng.randrange(len(delayed))))
        if fate.endswith("restart the controller"):
            ledger = Ledger.load(ledger.dump())
        if rng.random() < 0.1:  # an orderly restart of the engine
            take(engines[name].frame(final=True))
            retired.append(engines[name])
            engines[name] = CountingEngine(name, f"{name}-{len(retired) + 1}")
    for frame in delayed:
        take(frame)
    for engine in engines.values():
        take(engine.frame(full=True))
    expected: Counter[tuple[str, int, str]] = Counter()
    for engine in (*engines.values(), *retired):
        for domain, lists in engine.totals().items():
            for what, values in zip(("seen", "accepted"), lists, strict=True):
                expected.update({(domain, i, what): n for i, n in enumerate(values)})
    found: Counter[tuple[str, int, str]] = Counter()
    for domain, lists in summed(given_out).items():
        for what, values in zip(("seen", "accepted"), lists, strict=True):
            found.update({(domain, i, what): n for i, n in enumerate(values)})
    assert +found == +expected
    counted = sum(engine.cells["cost"]["all"].count for engine in (*engines.values(), *retired) if engine.cells["cost"])
    assert sum(cell.count for delta in given_out for cell in delta.cost) == counted
    kept = [cell for cell in ledger.totals.values() if isinstance(cell, AcceptanceCell)]
    assert sum(sum(cell.seen) for cell in kept) == sum(n for (_, _, what), n in found.items() if what == "seen")


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32), st.integers(0, 30))
def test_a_restored_ledger_is_the_same_and_goes_on_the_same(seed: int, steps: int) -> None:
    rng = random.Random(seed)
    engine, ledger = CountingEngine(), Ledger()
    engine.run(steps, rng)
    ledger.take(engine.frame(full=True), NOW)
    ledger.sweep(NOW + 1)
    restored = Ledger.load(ledger.dump())
    assert restored.dump() == ledger.dump()
    engine.run(3, rng)
    frame = engine.frame()
    assert restored.take(frame, NOW + 2) == ledger.take(frame, NOW + 2)
    assert restored.dump() == ledger.dump()
