"""What engines reported, as metrics: against the engine's own counts, and through whatever makes counts start anew."""

import random
import time
from dataclasses import replace

import msgspec
import pytest
from prometheus_client.core import Metric

from controller.ledger import Ledger
from controller.metrics.counts import K_BOUNDS, POSITIONS
from controller.metrics.engines import DRAFTS_OF_AN_ENGINE, engines
from controller.metrics.pools import PoolCollector
from controller.portrait import REPORTED
from controller.reported import STEP_BOUNDS, Sums
from controller.settings import ControllerSettings
from controller.store import Entry
from controller.tuner import Tuner
from controller.view import Measured, PoolView
from engine.link.messages import AcceptanceCell, AccountCell, CostCell, Frame, encode
from tests.controller.engines import CountingEngine, description

NOW = 1_700_000_000.0
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def view_of(*frames: Frame) -> PoolView:
    tuner = Tuner("p", ControllerSettings(draws=32, seed=1))
    tuner.consume([Entry(f"{int(NOW * 1000)}-{i}", encode(frame)) for i, frame in enumerate(frames)], NOW)
    view = tuner.decide((5, 1), NOW).view
    assert view is not None
    return view


def samples(families: list[Metric]) -> Samples:
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def told(found: Samples, name: str, **labels: str) -> float:
    return found[name, tuple(sorted(labels.items()))]


def test_an_engine_s_series_are_what_it_counted() -> None:
    engine = CountingEngine()
    for accepted, seconds in ((2, 0.05), (0, 0.05), (1, 0.05)):
        engine.step("code", accepted, seconds)
    found = samples(list(engines([view_of(engine.frame(full=True))], NOW + 2)))
    who = {"pool": "p", "engine": "e"}
    for name, counts in (("drafted", [3, 3]), ("seen", [3, 2]), ("accepted", [2, 1])):
        full = f"akc_reported_position_{name}_total"
        assert [told(found, full, **who, draft="ngram", position=str(i)) for i in (1, 2)] == counts
    assert told(found, "akc_reported_row_k_bucket", **who, le="1") == 0
    assert told(found, "akc_reported_row_k_bucket", **who, le="2") == 3
    assert told(found, "akc_reported_row_k_sum", **who) == 6
    assert told(found, "akc_reported_step_seconds_count", **who) == 3
    assert told(found, "akc_reported_step_seconds_sum", **who) == pytest.approx(0.15)
    assert told(found, "akc_reported_silence_seconds", **who) == 2
    assert [told(found, "akc_reported_breaker", **who, state=s) for s in ("closed", "half-open", "open")] == [1, 0, 0]
    assert told(found, "akc_reported_policy_in_force", **who) == 0


def test_the_age_of_an_engine_s_policy_goes_on_between_frames() -> None:
    engine = CountingEngine()
    engine.step("code", 1)
    frame = msgspec.structs.replace(engine.frame(full=True, applied=(5, 1)), policy_age=4.0)
    found = samples(list(engines([view_of(frame)], NOW + 3)))
    assert told(found, "akc_reported_policy_age_seconds", pool="p", engine="e") == 7
    assert told(found, "akc_reported_policy_in_force", pool="p", engine="e") == 1


def test_slowness_is_told_by_engine_and_the_measured_gain_with_what_it_is_over() -> None:
    engine = CountingEngine()
    engine.step("code", 1)
    view = view_of(engine.frame(full=True))
    slow = replace(view, reported=[view.reported[0]._replace(slowness=1.75)])
    found = samples(list(engines([slow], NOW)))
    assert told(found, "akc_reported_slowness_ratio", pool="p", engine="e") == 1.75
    supervisor = _Supervisor()
    measured = Measured(None, None, None, 2, 10, 30.0, 0.5, ("none", 0), NOW, NOW + 600, True, 1.0, 1.0)
    for gain, bounds in (
        (measured, {}),  # below three pairs there is no gain
        (replace(measured, ratio=1.42, low=1.37, high=1.47), {"low": 1.37, "value": 1.42, "high": 1.47}),
    ):
        supervisor.pools["p"].view = replace(view, measured=gain)
        found = samples(list(PoolCollector(supervisor, "1.2").collect()))  # type: ignore[arg-type]  # as much as is read
        name = "akc_measured_gain_ratio"
        assert {dict(key)["bound"]: value for (n, key), value in found.items() if n == name} == bounds
    assert told(found, name, pool="p", bound="value", draft="none", k="0") == 1.42


def test_sums_survive_a_restart_of_the_controller_and_start_anew_with_the_engine() -> None:
    ledger, first = Ledger(), CountingEngine()
    first.run(20, random.Random(1), ("code",))
    ledger.take(first.frame(full=True), NOW)
    ledger = Ledger.load(ledger.dump())
    first.run(5, random.Random(2), ("code",))
    ledger.take(first.frame(), NOW + 1)
    sums = ledger.sums["i"]
    seen, accepted = first.totals()["code"]
    assert (sums.drafts["ngram"].seen, sums.drafts["ngram"].accepted) == (seen, accepted)
    assert (sums.rows, sum(sums.steps)) == (25, 25)
    again = CountingEngine(incarnation="j")
    again.step("code", 2)
    ledger.take(again.frame(full=True), NOW + 2)
    assert ledger.sums["j"].rows == 1


def test_an_engine_that_does_not_tell_what_it_drafted_has_no_histogram_of_k() -> None:
    sums = Sums()
    sums.add(AccountCell("code", "greedy", 1, "static", 4, 6, 0.2))
    assert sums.rows_by_k() == [4] + [0] * 32  # none drafted, as far as was told: no acceptance cell at all
    sums.add(AcceptanceCell("code", "greedy", "ngram", "policy", [3], [2]))
    assert sums.rows_by_k() is None


def test_k_is_counted_over_drafts_and_beyond_the_last_position() -> None:
    sums = Sums()
    sums.add(AccountCell("code", "greedy", 1, "static", 7, 9, 0.2))
    sums.add(AcceptanceCell("code", "greedy", "a", "policy", [2], [0], [2, 2, 1]))
    sums.add(AcceptanceCell("code", "greedy", "b", "limit", [3], [0], [3]))
    by_k = sums.rows_by_k()
    assert by_k is not None
    assert (by_k[:5], len(by_k)) == ([2, 3, 1, 1, 0], 33)
    assert K_BOUNDS[-1] == 32


def test_stalls_are_in_the_histogram_and_in_the_seconds() -> None:
    sums = Sums()
    # Buckets of the wire are 9% apart: 124 is 46 to 50 ms, 255 is beyond an hour; both bounds are edges of its own.
    sums.add(CostCell([], 1, 0, 0, 2, 0.1, 0.005, [0.0] * 3, [0.0] * 6, [0.0] * 3, {"124": 2, "255": 1}, 1, 4000.0))
    assert sums.seconds == 4000.1
    within = next(i for i, bound in enumerate(STEP_BOUNDS) if bound >= 0.0505)
    assert sums.steps[within] == 2
    assert sums.steps[-1] == 1
    assert sum(sums.steps) == 3


def test_a_snapshot_does_not_change_with_the_sums() -> None:
    sums, cell = Sums(), AcceptanceCell("code", "greedy", "a", "policy", [2], [1], [2])
    sums.add(cell)
    kept = sums.copy()
    sums.add(cell)
    sums.add(AccountCell("code", "greedy", 1, "static", 7, 9, 0.2))
    assert (kept.drafts["a"].seen, kept.rows, sums.drafts["a"].seen) == ([2], 0, [4])


def test_labels_stay_bounded_whatever_engines_send() -> None:
    frames = []
    for n in range(REPORTED + 3):
        drafts = tuple(f"d{i}" for i in range(DRAFTS_OF_AN_ENGINE + 2))
        cells = [
            AcceptanceCell("code", "greedy", d, "policy", [9 + i] * 32, [9 + i] * 32, [9 + i] * 32)
            for i, d in enumerate(drafts)
        ]
        frames.append(
            Frame(
                f"e{n}", f"i{n}", 1, 1.0, NOW, full=True, describe=description(drafts=drafts), acceptance=cells, steps=9
            )
        )
    found = samples(list(engines([view_of(*frames)], NOW)))
    labels = [dict(pairs) for name, pairs in found if name == "akc_reported_position_seen_total"]
    assert len({row["engine"] for row in labels}) == REPORTED
    assert {row["draft"] for row in labels} == {f"d{i}" for i in range(2, DRAFTS_OF_AN_ENGINE + 2)}  # drafted most
    assert max(int(row["position"]) for row in labels) == POSITIONS


class _Loop:
    """As much of a pool's loop as the collector reads."""

    role, complaint = "leading", None

    def __init__(self) -> None:
        self.tuner = Tuner("p", ControllerSettings(draws=32, seed=1))
        engine = CountingEngine(started=NOW - 3_600)
        engine.run(200, random.Random(1))
        self.tuner.consume([Entry(f"{int(NOW * 1000)}-1", encode(engine.frame(full=True)))], NOW)
        self.view = self.tuner.decide((5, 1), NOW).view


class _Supervisor:
    def __init__(self) -> None:
        self.pools = {"p": _Loop()}


def test_the_pool_s_gate_choices_and_counts_are_told() -> None:
    supervisor = _Supervisor()
    found = samples(list(PoolCollector(supervisor, "1.2").collect()))  # type: ignore[arg-type]  # as much as is read
    view = supervisor.pools["p"].view
    assert view is not None
    assert view.gate is not None
    assert told(found, "akc_controller_info", version="1.2") == 1
    assert told(found, "akc_gate_budget_steps", pool="p") == view.gate.budget > 0
    left = [told(found, "akc_gate_reserve_steps", pool="p", domain=d, regime="greedy") for d in ("code", "chat")]
    assert all(-view.gate.budget <= steps <= view.gate.budget for steps in left)
    assert told(found, "akc_pool_mode", pool="p", mode="on") == 1
    assert told(found, "akc_last_frame_timestamp_seconds", pool="p") == NOW
    assert told(found, "akc_policy_expiry_timestamp_seconds", pool="p") == NOW + 60
    code = next(d for d in view.domains if d.domain == "code")
    choice = next(c for c in code.choices if c.load == code.main_load)
    chosen = {"pool": "p", "domain": "code", "regime": "greedy", "draft": choice.draft}
    assert told(found, "akc_choice_k", **chosen) == choice.k
    assert told(found, "akc_tokens_total", pool="p", domain="code", regime="greedy") == code.tokens
    assert told(found, "akc_row_k_count", pool="p", domain="code", regime="greedy") == code.row_steps
    seen = {"pool": "p", "domain": "code", "regime": "greedy", "draft": "ngram", "position": "1"}
    assert told(found, "akc_position_seen_total", **seen) == code.curves[0].positions[0].seen
    assert told(found, "akc_checkpoint_age_seconds", pool="p") == pytest.approx(time.time() - NOW, abs=60)
