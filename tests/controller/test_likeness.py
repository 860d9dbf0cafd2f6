"""Engines that are unlike: who is compared with whom, and when it is forgotten."""

import msgspec
import pytest

from controller.ledger import Ledger, Limits
from controller.likeness import SHOWN, disagreement
from tests.controller.engines import CountingEngine, description

NOW = 2_000.0


def engine(name: str, incarnation: str | None = None, **changes: object) -> CountingEngine:
    made = CountingEngine(name, incarnation or name)
    made.describe = msgspec.structs.replace(made.describe, **changes)
    return made


def test_no_engine_and_one_engine_are_alike() -> None:
    assert disagreement([]) is None
    assert disagreement([("a", description())]) is None


def test_the_first_unlike_engine_is_shown_and_the_others_are_counted() -> None:
    gpu = msgspec.structs.replace(description(), hardware="gpu")
    listed = [("a", description()), ("b", description(max_batch=99)), ("c", gpu), ("d", gpu)]
    assert disagreement(listed) == (
        "engine 'c' is not like engine 'a': hardware 'gpu' against 'cpu' (engines that differ from 'a': 2); "
        "give it a pool of its own"
    )


def test_a_long_value_is_cut() -> None:
    long = msgspec.structs.replace(description(), hardware="x" * 10_000)
    words = disagreement([("a", description()), ("b", long)])
    assert words is not None
    assert f"'{'x' * (SHOWN - 1)}…'" in words
    assert len(words) < 250


def test_an_unlike_engine_is_forgotten_when_it_has_been_silent() -> None:
    ledger, here, there = Ledger(), engine("here"), engine("there", hardware="gpu")
    ledger.take(here.frame(full=True), NOW)
    ledger.take(there.frame(full=True), NOW)
    assert ledger.disagreement() is not None
    ledger.take(here.frame(), NOW + 61)
    ledger.sweep(NOW + 61)
    assert ledger.disagreement() is None


def test_the_engine_that_stays_is_the_one_that_the_next_are_compared_with() -> None:
    ledger, old, new = Ledger(), engine("old"), engine("new", hardware="gpu")
    ledger.take(old.frame(full=True), NOW)
    ledger.take(new.frame(full=True), NOW)
    ledger.take(old.frame(final=True), NOW)
    ledger.take(engine("newer", hardware="gpu").frame(full=True), NOW)
    assert ledger.disagreement() is None


@pytest.mark.parametrize("restart", [False, True])
def test_an_engine_with_another_target_is_remembered_while_it_reports(restart: bool) -> None:
    ledger, here, there = Ledger(), engine("here"), engine("there", target="large")
    ledger.take(here.frame(full=True), NOW)
    assert ledger.take(there.frame(full=True), NOW).verdict == "rejected"
    if restart:
        ledger = Ledger.load(ledger.dump())
    for seconds in (50, 100):  # frames that are not full say only that it is still there
        ledger.take(here.frame(), NOW + seconds)
        assert ledger.take(there.frame(), NOW + seconds).verdict == "deferred"
        ledger.sweep(NOW + seconds)
    assert "target 'large' against 'smol'" in (ledger.disagreement() or "")
    ledger.take(here.frame(), NOW + 161)
    ledger.sweep(NOW + 161)
    assert ledger.disagreement() is None


def test_an_engine_with_another_target_is_forgotten_at_its_final_frame_and_when_it_comes_back_alike() -> None:
    ledger, here, there = Ledger(), engine("here"), engine("there", target="large")
    ledger.take(here.frame(full=True), NOW)
    ledger.take(there.frame(full=True), NOW)
    ledger.take(there.frame(final=True), NOW)
    assert ledger.disagreement() is None
    ledger.take(engine("there", "second start", target="large").frame(full=True), NOW)
    assert ledger.disagreement() is not None
    assert ledger.take(engine("there", "third start").frame(full=True), NOW).verdict == "learned"
    assert ledger.disagreement() is None


def test_an_engine_with_another_target_may_take_over_a_pool_that_the_others_have_left() -> None:
    ledger, here, there = Ledger(), engine("here"), engine("there", target="large")
    ledger.take(here.frame(full=True), NOW)
    ledger.take(there.frame(full=True), NOW)
    ledger.take(here.frame(final=True), NOW)
    assert ledger.take(there.frame(full=True), NOW).verdict == "learned"
    assert (ledger.target, ledger.disagreement(), ledger.strangers) == ("large", None, {})


def test_engines_with_other_targets_are_remembered_up_to_the_cap() -> None:
    ledger = Ledger(Limits(engines=2))
    ledger.take(engine("here").frame(full=True), NOW)
    for i in range(5):
        ledger.take(engine(f"there{i}", target="large").frame(full=True), NOW)
    assert list(ledger.strangers) == ["there0", "there1"]
