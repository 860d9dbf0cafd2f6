import json
import random
import time

import msgspec
import pytest

from controller.settings import ControllerSettings
from controller.store import LARGEST_FRAME, Checkpoint, Entry
from controller.tuner import DAY_MS, Tuner
from engine.link.messages import AcceptanceCell, AccountCell, Frame, Policy, decode_policy, encode
from tests.controller.engines import CountingEngine, description

NOW = 1_700_000_000.0
SETTINGS = ControllerSettings(draws=64, seed=1)


def entry(frame: Frame, at: float = NOW) -> Entry:
    return Entry(f"{int(at * 1000)}-{frame.seq}", encode(frame))


def engine(**names: str) -> CountingEngine:
    return CountingEngine(started=NOW - 3_600, **names)


def policy_of(tuner: Tuner, version: tuple[int, int] = (5, 1), now: float = NOW) -> Policy:
    decided = tuner.decide(version, now)
    assert decided.policy is not None
    tuner.committed(decided)
    return decode_policy(decided.policy)


def test_nothing_is_decided_before_an_engine_has_described_itself() -> None:
    tuner, silent = Tuner("p", SETTINGS), engine()
    silent.step("code", 2)
    tuner.consume([entry(silent.frame())], NOW)
    decided = tuner.decide((5, 1), NOW)
    assert (decided.policy, tuner.ready) == (None, False)
    assert decided.view is not None
    assert decided.view.frames.deferred == 1


def test_a_young_pool_is_decided_more_often_and_its_furthest_engine_counts() -> None:
    """40 of 160 steps: a quarter of the interval; at least a tenth."""
    tuner = Tuner("p", ControllerSettings(draws=64, seed=1, decide_seconds=2.0))
    assert tuner.decide_seconds == pytest.approx(0.2)
    first, second = engine(), engine(name="e2", incarnation="i2")

    def after(source: CountingEngine, steps: int, *, final: bool = False) -> float:
        source.run(steps, random.Random(3))
        tuner.consume([entry(source.frame(full=True, final=final))], NOW)
        return tuner.decide_seconds

    assert after(first, 8) == pytest.approx(0.2)
    assert after(first, 32) == pytest.approx(0.5)
    assert after(second, 120) == pytest.approx(1.5)
    assert after(first, 10) == pytest.approx(1.5)
    assert after(second, 4000) == pytest.approx(2.0)
    assert after(second, 1, final=True) == pytest.approx(0.625)  # the other one, after 50 steps, is alone now


def test_a_policy_carries_the_version_the_expiry_and_an_answer_for_every_domain_seen() -> None:
    tuner, busy = Tuner("p", SETTINGS), engine()
    busy.run(200, random.Random(1))
    tuner.consume([entry(busy.frame(full=True))], NOW)
    policy = policy_of(tuner)
    assert (policy.version, policy.issued, policy.expires) == ((5, 1), NOW, NOW + 60)
    assert policy.static == busy.describe.static
    assert {cell.domain for cell in policy.cells} == {"code", "chat", "other"}


def test_a_killed_tuner_restored_from_its_checkpoint_ends_with_the_very_same_counts() -> None:
    source, straight = engine(), Tuner("p", SETTINGS)
    rng = random.Random(2)
    entries = []
    for i in range(30):
        source.run(rng.randrange(4), rng)
        entries.append(entry(source.frame(full=i % 7 == 0), NOW + i))
    straight.consume(entries, NOW + 30)
    killed = Tuner("p", SETTINGS)
    killed.consume(entries[:10], NOW + 10)
    state = killed.decide((5, 1), NOW + 10).state
    killed.consume(entries[10:17], NOW + 17)  # learned, but never committed
    again = Tuner.restore("p", SETTINGS, Checkpoint(state, entries[9].id, (5, 1), NOW + 10))
    again.consume([e for e in entries if e.id > again.last_id], NOW + 30)
    assert again.ledger.dump() == straight.ledger.dump()
    cells = {c.domain: c for c in again.ledger.totals.values() if isinstance(c, AcceptanceCell)}
    assert {domain: (cell.seen, cell.accepted) for domain, cell in cells.items()} == source.totals()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the entry has no field 'frame'"),
        (b"{not json", "not a frame: "),
        (b"\xff\xfe", "not a frame: "),
        (b'{"engine":"e"}', "not a frame: Object missing required field `incarnation`"),
        (b"[" * 100_000, "not a frame: "),
        (b" " * (LARGEST_FRAME + 1), f"{LARGEST_FRAME + 1} bytes; at most {LARGEST_FRAME} are read"),
        (encode(Frame("e", "i", 1, 1.0, 1.0, v=9)), "wire version 9; this controller reads up to 1"),
    ],
)
def test_an_unreadable_frame_becomes_a_dead_letter_with_its_reason(data: bytes, reason: str) -> None:
    tuner = Tuner("p", SETTINGS)
    tuner.consume([Entry("1700000000000-0", data)], NOW)
    assert [letter.reason.startswith(reason) for letter in tuner.dead] == [True]
    assert tuner.ledger.counts.rejected == 1
    assert tuner.last_id == "1700000000000-0"


def test_dead_letters_wait_until_they_are_committed() -> None:
    tuner = Tuner("p", SETTINGS)
    tuner.consume([Entry("1-0", b"x")], NOW)
    decided = tuner.decide((5, 1), NOW)
    assert len(tuner.dead) == 1
    tuner.committed(decided)
    assert len(tuner.dead) == 0


def test_the_highest_applied_version_is_remembered_unless_it_is_from_beyond_tomorrow() -> None:
    tuner, source = Tuner("p", SETTINGS), engine()
    now_ms = int(NOW * 1000)
    applied = [(now_ms, 7), (now_ms - 5, 9), (now_ms + DAY_MS + 1, 1)]
    tuner.consume([entry(source.frame(full=True, applied=version)) for version in applied], NOW)
    assert tuner.applied == (now_ms, 7)


def test_a_switch_is_recorded_once_with_its_reason_and_reaches_the_audit() -> None:
    tuner, source = Tuner("p", SETTINGS), engine()
    source.run(400, random.Random(1), ("code",))
    tuner.consume([entry(source.frame(full=True))], NOW)
    first = tuner.decide((5, 1), NOW)
    assert first.audit is not None
    record = json.loads(first.audit)
    assert [(s["domain"], s["load"], s["before"]) for s in record["switches"]] == [("code", 1, None)]
    assert record["switches"][0]["reason"]
    tuner.committed(first)
    source.step("code", 1)
    tuner.consume([entry(source.frame())], NOW + 1)
    assert tuner.decide((5, 2), NOW + 1).audit is None
    fresh = Tuner("p", SETTINGS)
    fresh.remember([("9-0", first.audit), ("8-0", b"{}"), ("7-0", b"an operator's note")])
    view = fresh.decide((6, 1), NOW).view
    assert view is not None
    assert [r.version for r in view.records] == [(5, 1)]


def test_a_switch_whose_commit_failed_is_written_with_the_next_one() -> None:
    tuner, source = Tuner("p", SETTINGS), engine()
    source.run(100, random.Random(1), ("code",))
    tuner.consume([entry(source.frame(full=True))], NOW)
    assert tuner.decide((5, 1), NOW).audit is not None
    again = tuner.decide((6, 1), NOW).audit
    assert again is not None
    assert len(json.loads(again)["switches"]) == 1


def test_a_state_that_cannot_be_read_is_left_behind_with_a_note() -> None:
    tuner = Tuner.restore("p", SETTINGS, Checkpoint(b"\xc1", "9-0", (5, 1), NOW))
    assert tuner.last_id == "9-0"
    source = engine()
    source.step("code", 2)
    tuner.consume([entry(source.frame(full=True))], NOW)
    audit = tuner.decide((6, 1), NOW).audit
    assert audit is not None
    assert json.loads(audit)["note"].startswith("the saved state could not be read; learned anew")


def test_engines_that_bring_another_draft_keep_what_was_learned() -> None:
    tuner, old = Tuner("p", SETTINGS), engine(name="a", incarnation="1")
    old.run(100, random.Random(1), ("code",))
    tuner.consume([entry(old.frame(full=True))], NOW)
    policy_of(tuner)
    new = engine(name="b", incarnation="2")
    new.describe = description(drafts=("eagle", "ngram"))
    tuner.consume([entry(new.frame(full=True))], NOW + 1)
    policy = policy_of(tuner, (5, 2), NOW + 1)
    assert {choice.draft for choice in policy.cells[0].drafts} == {"none", "eagle", "ngram"}
    view = tuner.view
    assert view is not None
    assert view.records[0].note == "the engines changed: drafts eagle, ngram; K of (0, 2, 4); batches up to 4"
    curve = next(curve for curve in view.domains[0].curves if curve.draft == "ngram")
    assert curve.positions[0].seen == 100


def test_another_target_starts_from_nothing_and_says_so() -> None:
    tuner, old = Tuner("p", SETTINGS), engine()
    old.run(100, random.Random(1), ("code",))
    tuner.consume([entry(old.frame(full=True)), entry(old.frame(final=True))], NOW)
    new = engine(incarnation="2")
    new.describe = description(target="larger")
    tuner.consume([entry(new.frame(full=True))], NOW + 1)
    decided = tuner.decide((5, 1), NOW + 1)
    assert decided.audit is not None
    assert json.loads(decided.audit)["note"] == "the target changed from 'smol' to 'larger': learned anew"
    assert decided.policy is not None
    assert {cell.domain for cell in decode_policy(decided.policy).cells} == {"other"}


def test_the_view_adds_up_what_was_served_and_prices_it_against_plain() -> None:
    tuner, source = Tuner("p", SETTINGS), engine()
    for _ in range(300):
        source.step("code", 2, seconds=0.05)
    tuner.consume([entry(source.frame(full=True))], NOW)
    policy_of(tuner)
    view = tuner.view
    assert view is not None
    traffic = view.traffic
    assert (traffic.tokens, traffic.row_steps) == (900, 300)
    assert traffic.busy_seconds == pytest.approx(15.0)
    assert traffic.tokens_per_second == pytest.approx(60.0)
    assert traffic.accepted_per_step == 2.0
    assert traffic.mean_rows == pytest.approx(1.0)
    assert traffic.speedup is not None
    assert traffic.speedup.low < traffic.speedup.value < traffic.speedup.high
    code = view.domains[0]
    assert (code.domain, code.tokens, code.main_load) == ("code", 900, 1)
    assert [(p.seen, p.accepted) for p in code.curves[0].positions[:2]] == [(300, 300), (300, 300)]
    assert sum(arm.probability for arm in code.choices[0].arms) == pytest.approx(1.0)
    assert code.choices[0].row_steps == 300


def test_what_was_served_leaves_the_view_after_a_minute_but_stays_in_the_totals() -> None:
    tuner, source = Tuner("p", SETTINGS), engine()
    source.run(50, random.Random(1), ("code",))
    tuner.consume([entry(source.frame(full=True))], NOW)
    view = tuner.decide((5, 1), NOW + 61).view
    assert view is not None
    assert (view.traffic.tokens, view.traffic.speedup) == (0, None)
    assert view.domains[0].row_steps == 50


def test_the_long_life_of_an_engine_new_to_the_controller_is_not_shown_as_recent() -> None:
    tuner, source = Tuner("p", SETTINGS), engine()
    for _ in range(100):
        source.step("code", 2, seconds=36.0)  # an hour
    tuner.consume([entry(source.frame(full=True))], NOW)
    view = tuner.decide((5, 1), NOW).view
    assert view is not None
    assert (view.traffic.tokens, view.domains[0].tokens) == (0, 300)


def test_a_decision_for_a_small_pool_is_quick_enough_to_make_every_second() -> None:
    tuner, source = Tuner("p", ControllerSettings(seed=1)), engine()
    source.run(300, random.Random(1), ("code", "chat", "math"))
    tuner.consume([entry(source.frame(full=True))], NOW)
    tuner.decide((5, 1), NOW)
    started = time.process_time()
    tuner.decide((5, 2), NOW)
    assert time.process_time() - started < 1.0


def test_a_checkpoint_holds_no_more_than_msgpack() -> None:
    tuner = Tuner("p", SETTINGS)
    assert set(msgspec.msgpack.decode(tuner.dump())) == {
        "schema", "ledger", "learner", "spec", "arms", "decisions", "switches", "resets", "switchback",
        "causes",
    }  # fmt: skip


def test_another_target_keeps_the_count_of_changes_that_contradicted_themselves() -> None:
    tuner, old = Tuner("p", SETTINGS), engine()
    frame = old.frame(full=True)
    impossible = AccountCell("code", "greedy", 1, "static", row_steps=2, tokens=2, row_seconds=0.0)
    tuner.consume([entry(msgspec.structs.replace(frame, account=[impossible]))], NOW)
    tuner.consume([entry(old.frame(final=True), NOW + 1)], NOW + 1)
    new = engine(incarnation="new")
    new.describe = description(target="larger")
    tuner.consume([entry(new.frame(full=True), NOW + 2)], NOW + 2)
    decided = tuner.decide((5, 1), NOW + 2)
    again = Tuner.restore("p", SETTINGS, Checkpoint(decided.state, "1-0", (5, 1), NOW + 2))
    for view in (decided.view, again.decide((5, 2), NOW + 3).view):
        assert view is not None
        assert view.evidence.rejected == {"acceptance": 0, "moments": 0, "cost": 0, "account": 1}
