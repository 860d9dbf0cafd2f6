"""Counters: numbers by hand, what they promise whatever is lost, and that they never make the decode loop wait."""

import threading
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.link.cells import CostCounts, at_least
from engine.link.counters import Counters, Snapshot
from engine.link.messages import AcceptanceCell, Frame, decode_frame, encode
from engine.link.ticket import RowOutcome, StepOutcome, Ticket


def row(ticket: Ticket, drafted: int, accepted: int, *, cut: bool = False, limited: bool = False) -> RowOutcome:
    seen = accepted if cut else min(accepted + 1, drafted)
    return RowOutcome(ticket, drafted, accepted, seen, accepted + (not cut), limited)


def step(*rows: RowOutcome, seconds: float = 0.05, prefill: int = 0, drafts: Any = None) -> StepOutcome:
    drafted = {} if drafts is None else drafts
    return StepOutcome(seconds, rows, sum(r.drafted + 1 for r in rows), prefill, 100, drafted)


def test_a_step_counts_positions_as_the_contract_says() -> None:
    counters, ticket = Counters(), Ticket("code", "greedy", "ngram")
    counters.record(step(row(ticket, 4, 4)))  # all accepted: 4 seen, 4 accepted
    counters.record(step(row(ticket, 4, 1)))  # rejected at position 2
    counters.record(step(row(ticket, 2, 0)))  # rejected at position 1
    counters.record(step(row(ticket, 4, 2, cut=True)))  # stopped after 2: position 3 is censored, not rejected
    counters.record(step(row(ticket, 0, 0)))  # K = 0 shows nothing
    (cell,) = counters.snapshot().acceptance
    assert (cell.seen, cell.accepted) == ([4, 3, 1, 1], [3, 2, 1, 1])
    assert cell.drafted == [4, 4, 3, 3]  # what was asked for, seen or not: four steps of two, three of four
    assert cell.origin == "policy"


def test_clamped_steps_count_as_limit_and_leave_curve_and_moments_alone() -> None:
    counters, ticket = Counters(), Ticket("code", "greedy", "ngram")
    counters.record(step(row(ticket, 1, 1, limited=True)))
    counters.finish(ticket)
    snapshot = counters.snapshot()
    assert [(c.origin, c.seen) for c in snapshot.acceptance] == [("limit", [1])]
    assert snapshot.moments == []


def test_adaptive_requests_have_their_own_cell_and_no_moments() -> None:
    counters = Counters()
    tickets = [Ticket("code", "greedy", "ngram", origin) for origin in ("policy", "request", "probe")]
    counters.record(step(*(row(t, 2, 1) for t in tickets)))
    for ticket in tickets:
        counters.finish(ticket)
    snapshot = counters.snapshot()
    assert Counter(c.origin for c in snapshot.acceptance) == {"policy": 1, "request": 1, "probe": 1}
    assert snapshot.moments[0].segments == 2  # of `policy` and `probe`


def test_moments_sum_over_segments_closed_at_64_steps_or_at_the_end() -> None:
    counters, ticket = Counters(), Ticket("chat", "sampled", "model")
    for i in range(65):
        counters.record(step(row(ticket, 2, i % 2)))  # 33 of 65 rejected at 1, 32 rejected at 2
        counters.record(step(row(ticket, 0, 0)))  # K = 0 belongs to no segment
    assert counters.snapshot().moments[0].segments == 1
    counters.finish(ticket)
    counters.finish(ticket)  # an ended request has no open segment
    (cell,) = counters.snapshot().moments
    # Segment 1: 64 steps, position 1 seen 64, accepted 32; position 2 seen 32, accepted 0. Segment 2: one rejection.
    assert cell.segments == 2
    assert (cell.s, cell.a) == ([65, 32], [32, 0])
    assert (cell.ss, cell.sa, cell.aa) == ([64**2 + 1, 32**2], [64 * 32, 0], [32**2, 0])
    assert (cell.total_s, cell.total_a) == (97, 32)
    assert (cell.total_ss, cell.total_sa, cell.total_aa) == (96**2 + 1, 96 * 32, 32**2)


def test_cost_cells_hold_the_sums_of_the_regression() -> None:
    counters, ticket = Counters(), Ticket("code", "greedy", "ngram")
    drafts = {"ngram": (4, 4), "model": (6, 3)}
    for seconds in (0.05, 0.07):
        counters.record(StepOutcome(seconds, [row(ticket, 4, 4)] * 3, 15, 70, 500, drafts))
    (cell,) = counters.snapshot().cost
    x = [15, 70, 500, 6, 3, 4, 4]  # verified, prefill, KV, then `model` and `ngram`: tokens, passes
    assert (cell.drafts, cell.batch, cell.passes, cell.prefill) == (["model", "ngram"], 2, 4, 64)
    assert cell.count == 2
    assert cell.seconds == pytest.approx(0.12)
    assert cell.seconds_sq == pytest.approx(0.05**2 + 0.07**2)
    assert cell.sx == [2 * v for v in x]
    assert cell.sxx == [2 * x[i] * x[j] for i in range(7) for j in range(i, 7)]
    assert cell.sxy == pytest.approx([0.12 * v for v in x])
    assert cell.hist == {"124": 1, "128": 1}


def test_a_stall_is_counted_apart_and_a_lasting_slowdown_is_not_a_stall() -> None:
    cell = CostCounts((), 1, 0, 0)
    for _ in range(16):
        cell.add(0.01, [1, 0, 0])
    cell.add(0.079, [1, 0, 0])  # under 8 times the mean: ordinary
    assert (cell.count, cell.stalls) == (17, 0)
    for _ in range(4):
        cell.add(1.0, [1, 0, 0])
    assert (cell.count, cell.stalls, cell.stall_seconds) == (17, 4, 4.0)
    assert sum(cell.hist.values()) == 21
    cell.add(1.0, [1, 0, 0])  # the fifth in a row
    assert (cell.count, cell.stalls) == (18, 4)


def test_account_charges_every_row_the_whole_step() -> None:
    counters = Counters()
    code, chat = Ticket("code", "greedy", "ngram"), Ticket("chat", "greedy", "ngram")
    chat.variant = "adaptive"
    counters.record(step(row(code, 4, 3), row(chat, 2, 0), row(chat, 2, 1), seconds=0.5))
    counters.record(step(row(code, 0, 0), seconds=0.25), probing=True)
    cells = {(c.domain, c.load, c.variant): (c.row_steps, c.tokens, c.row_seconds) for c in counters.snapshot().account}
    assert cells == {
        ("code", 2, "static"): (1, 4, 0.5),
        ("chat", 2, "adaptive"): (2, 3, 1.0),
        ("code", 1, "probe"): (1, 1, 0.25),
    }


def test_beyond_the_caps_everything_still_counts_in_the_overflow_cells() -> None:
    counters = Counters(key_cap=2, cost_cap=3)
    for i in range(6):
        ticket = Ticket(counters.place(f"d{i}", "greedy", "ngram"), "greedy", "ngram")
        counters.record(step(row(ticket, 4, 4), prefill=(0, 1, 64, 256, 1024, 4096)[i], drafts={"ngram": (4, 4)}))
    snapshot = counters.snapshot()
    assert {c.domain: c.seen[0] for c in snapshot.acceptance} == {"d0": 1, "d1": 1, "other": 4}
    assert [(c.other, c.count) for c in snapshot.cost] == [(False, 1), (False, 1), (True, 4)]
    assert len(snapshot.cost[-1].sx) == 3


def test_cost_cells_of_several_drafts_take_a_quarter_with_prefill_three_and_pure_decode_the_rest() -> None:
    """Of a cap of 16: at most 4 cells of several drafts, 12 when one with prefill comes, 15 and the overflow cell."""
    counters, ticket = Counters(cost_cap=16), Ticket("code", "greedy", "a")

    def record(rows: int, k: int, prefill: int, *drafts: str) -> None:
        share = dict.fromkeys(drafts, (k, k))
        counters.record(StepOutcome(0.05, [row(ticket, k, k)] * rows, 9, prefill, 100, share))

    def kept() -> tuple[int, int, int, int]:
        """Cells of several drafts, of one with prefill, of one without, and the steps in the overflow cell."""
        cells = counters.snapshot().cost
        own = [c for c in cells if not c.other]
        mixed = sum(len(c.drafts) > 1 for c in own)
        read = sum(len(c.drafts) == 1 and c.prefill > 0 for c in own)
        return mixed, read, len(own) - mixed - read, sum(c.count for c in cells if c.other)

    for k in range(1, 7):
        record(2, k, 0, "a", "b")
    assert kept() == (4, 0, 0, 2)
    for k in range(1, 6):
        for prefill in (1, 64):
            record(1, k, prefill, "a")
    assert kept() == (4, 8, 0, 4)
    for k in range(1, 6):
        record(1, k, 0, "a")
    assert kept() == (4, 8, 3, 6)
    record(1, 1, 0, "a")  # kinds that have a cell go on counting in it
    record(2, 1, 0, "a", "b")
    record(1, 1, 64, "a")
    assert kept() == (4, 8, 3, 6)
    assert sum(c.count for c in counters.snapshot().cost) == counters.steps == 24


def test_a_load_that_comes_late_finds_room_for_its_pure_decode_steps() -> None:
    counters, ticket = Counters(cost_cap=8), Ticket("code", "greedy", "a")
    for prefill in (1, 64, 256, 1024, 4096):
        for k in (1, 2):
            counters.record(StepOutcome(0.05, [row(ticket, k, k)], 9, prefill, 100, {"a": (k, k)}))
    counters.record(StepOutcome(0.05, [row(ticket, 2, 2)] * 130, 9, 0, 100, {"a": (260, 2)}))
    assert [c.batch for c in counters.snapshot().cost if not c.other and not c.prefill] == [128]


@pytest.mark.parametrize("label", ["", "x" * 65, "a\nb", "a\n", "\x7f", "\ud800"])
def test_labels_that_the_wire_cannot_carry_count_as_other(label: str) -> None:
    counters = Counters()
    ticket = Ticket(counters.place(label, "greedy", "ngram"), "greedy", "ngram")
    assert ticket.domain == "other"


def test_after_a_switch_steps_count_for_the_new_draft_and_segments_stay_apart() -> None:
    counters = Counters()
    ticket = Ticket("code", "greedy", "ngram")
    counters.place("code", "greedy", "ngram")
    counters.record(step(row(ticket, 2, 2)))
    assert counters.switch(ticket, "model")
    counters.record(step(row(ticket, 2, 0)))
    assert counters.switch(ticket, "ngram")
    counters.record(step(row(ticket, 2, 1)))
    counters.finish(ticket)
    snapshot = counters.snapshot()
    assert {c.draft: (c.seen, c.accepted) for c in snapshot.acceptance} == {
        "ngram": ([2, 2], [2, 1]),
        "model": ([1], [0]),
    }
    # Two stays with ngram are one segment: a request's steps are correlated whatever ran between them.
    assert {m.draft: (m.segments, m.total_s, m.total_ss) for m in snapshot.moments} == {
        "ngram": (1, 4, 16),
        "model": (1, 1, 1),
    }


def test_a_switch_beyond_the_cap_or_during_a_snapshot_is_refused() -> None:
    counters = Counters(key_cap=1)
    ticket = Ticket("code", "greedy", "ngram")
    counters.place("code", "greedy", "ngram")
    assert not counters.switch(ticket, "model")
    assert ticket.draft == "ngram"
    roomy = Counters()
    with roomy._lock:
        assert not roomy.switch(ticket, "model")
    assert roomy.switch(ticket, "model")
    assert ticket.draft == "model"


@pytest.mark.parametrize(
    "bad",
    [
        RowOutcome(Ticket("d", "greedy", "x"), 4, 5, 5, 6),
        RowOutcome(Ticket("d", "greedy", "x"), 4, 3, 2, 3),
        RowOutcome(Ticket("d", "greedy", "x"), 4, 1, 3, 2),
        RowOutcome(Ticket("d", "greedy", "x"), 33, 0, 1, 1),
        RowOutcome(Ticket("d", "greedy", "x"), 4, 1, 2, 3),
    ],
)
def test_an_impossible_row_is_refused_and_nothing_of_its_step_counts(bad: RowOutcome) -> None:
    counters = Counters()
    with pytest.raises(ValueError, match="drafted="):
        counters.record(step(row(bad.ticket, 2, 1), bad))
    assert counters.snapshot() == Snapshot(1, 0, [], [], [], [])


@pytest.mark.parametrize("seconds", [-0.1, float("nan"), float("inf")])
def test_impossible_seconds_are_refused_since_json_cannot_carry_them(seconds: float) -> None:
    with pytest.raises(ValueError, match="seconds"):
        Counters().record(step(seconds=seconds))


# One recorded row: (domain, origin, drafted, accepted up to drafted, cut, limited).
rows = st.tuples(
    st.sampled_from(["code", "math", "chat"]),
    st.sampled_from(["policy", "request"]),
    st.integers(0, 8),
    st.integers(0, 8),
    st.booleans(),
    st.booleans(),
)
histories = st.lists(st.tuples(st.lists(rows, max_size=4), st.booleans(), st.booleans()), max_size=60)


def total(cells: list[Any], key: int) -> dict[tuple[Any, ...], dict[str, Any]]:
    fields = [msgspec.structs.asdict(c) for c in cells]
    return {tuple(list(f.values())[:key]): dict(list(f.items())[key:]) for f in fields}


@settings(max_examples=60, deadline=None)
@given(histories)
def test_differences_of_delivered_frames_add_up_to_what_was_recorded_whatever_is_lost(history: Any) -> None:
    """A receiver that takes differences per cell sees the totals of a direct count, whichever frames get lost."""
    counters = Counters()
    tickets: dict[tuple[str, str], Ticket] = {}
    direct_seen: Counter[tuple[str, str, int]] = Counter()
    direct_accepted: Counter[tuple[str, str, int]] = Counter()
    tokens = 0
    since, seen_frames = 0, 0
    last: dict[tuple[str, str], AcceptanceCell] = {}
    summed: Counter[tuple[str, str, int, str]] = Counter()
    for rows_of_step, frame_now, delivered in [*history, ([], True, True)]:
        outcomes = []
        for domain, origin, drafted, accepted, cut, limited in rows_of_step:
            ticket = tickets.setdefault((domain, origin), Ticket(domain, "greedy", "ngram", origin))
            outcome = row(ticket, drafted, min(accepted, drafted), cut=cut, limited=limited)
            outcomes.append(outcome)
            tokens += outcome.emitted
            counted = "limit" if limited else origin
            direct_seen.update((domain, counted, i) for i in range(outcome.seen))
            direct_accepted.update((domain, counted, i) for i in range(outcome.accepted))
        counters.record(step(*outcomes))
        if not frame_now:
            continue
        snapshot = counters.snapshot(since)
        if not delivered:
            continue
        since, seen_frames = snapshot.generation, seen_frames + 1
        frame = decode_frame(encode(Frame("e", "i", seen_frames, 0.0, 0.0, acceptance=snapshot.acceptance)))
        for cell in frame.acceptance:
            assert all(a <= s for s, a in zip(cell.seen, cell.accepted, strict=True))
            assert all(s <= a for s, a in zip(cell.seen[1:], cell.accepted, strict=False))
            before = last.get((cell.domain, cell.origin))
            for i, (s, a) in enumerate(zip(cell.seen, cell.accepted, strict=True)):
                old_s, old_a = (before.seen[i], before.accepted[i]) if before and i < len(before.seen) else (0, 0)
                summed[cell.domain, cell.origin, i, "s"] += s - old_s
                summed[cell.domain, cell.origin, i, "a"] += a - old_a
            last[cell.domain, cell.origin] = cell
    assert {k[:3]: v for k, v in summed.items() if k[3] == "s" and v} == dict(direct_seen)
    assert {k[:3]: v for k, v in summed.items() if k[3] == "a" and v} == dict(direct_accepted)
    full = counters.snapshot()
    assert sum(c.tokens for c in full.account) == tokens
    assert sum(c.count for c in full.cost) == len(history) + 1
    for ticket in tickets.values():
        counters.finish(ticket)
    moments = {c.domain: c for c in counters.snapshot().moments}
    for cell in full.acceptance:
        if cell.origin == "policy":
            assert (moments[cell.domain].s, moments[cell.domain].a) == (cell.seen, cell.accepted)
            assert moments[cell.domain].total_s == sum(cell.seen)


def test_a_snapshot_since_a_delivered_one_holds_only_what_changed() -> None:
    counters = Counters()
    code, chat = Ticket("code", "greedy", "ngram"), Ticket("chat", "greedy", "ngram")
    counters.record(step(row(code, 2, 1), row(chat, 2, 1)))
    first = counters.snapshot()
    assert len(first.acceptance) == 2
    counters.record(step(row(code, 2, 1)))
    lost = counters.snapshot(first.generation)
    assert [c.domain for c in lost.acceptance] == ["code"]
    again = counters.snapshot(first.generation)  # the one before was not delivered: its cells come again
    assert again.acceptance == [AcceptanceCell("code", "greedy", "ngram", "policy", [2, 2], [2, 0], [2, 2])]
    assert counters.snapshot(again.generation).acceptance == []


def test_record_never_waits_while_a_snapshot_holds_the_lock() -> None:
    counters, ticket = Counters(pending=3), Ticket("code", "greedy", "ngram")
    with counters._lock:  # what the background thread does during a snapshot
        for _ in range(5):
            counters.record(step(row(ticket, 2, 1)))  # would hang here for ever if it waited
    assert (counters.steps, counters.lost) == (0, 2)
    counters.record(step(row(ticket, 2, 1)))
    assert counters.steps == 4
    with counters._lock:
        counters.finish(ticket)
    assert counters.snapshot().moments[0].s == [4, 4]  # the snapshot itself takes in what was held back


def test_snapshots_from_another_thread_lose_nothing_and_show_whole_steps() -> None:
    counters, ticket = Counters(pending=20_000), Ticket("code", "greedy", "ngram")
    done = threading.Event()
    torn: list[Snapshot] = []

    def read() -> None:
        since = 0
        while not done.is_set():
            snapshot = counters.snapshot(since)
            since = snapshot.generation
            if snapshot.cost and snapshot.cost[0].count != snapshot.account[0].row_steps:
                torn.append(snapshot)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(20_000):
        counters.record(step(row(ticket, 2, 1)))
    done.set()
    reader.join()
    final = counters.snapshot()
    assert torn == []
    assert (final.steps, final.acceptance[0].seen, counters.lost) == (20_000, [20_000, 20_000], 0)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=9))
def test_at_least_is_the_sum_of_the_tail(exactly: list[int]) -> None:
    reached = at_least(exactly)
    expected = [sum(exactly[i:]) for i in range(1, len(exactly))]
    assert reached == [v for v in expected if v]
