"""The bridge between a scheduler's hooks and the link, hook by hook, without vLLM. Numbers by hand."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from engine.link import StaticLink, StepOutcome, Ticket
from engine.link.messages import Regime
from engine.vllm.bridge import Bridge, Counts
from engine.vllm.drafter import by_batch, drafter_of
from engine.vllm.labels import Labels
from engine.vllm.settings import VllmSettings


class Keeping(StaticLink):
    """A static link that keeps what it was told; `ks` are the K of the next plans, in turn, for every row."""

    def __init__(self, ks: Sequence[int]) -> None:
        super().__init__("ngram", 4, choose=lambda ticket, batch: self._next)
        self._ks = list(ks)
        self._next = 0
        self.steps: list[StepOutcome] = []
        self.over: list[Ticket] = []

    def plan(self, tickets: Sequence[Ticket], batch: int) -> list[int]:
        self._next = self._ks.pop(0) if len(self._ks) > 1 else self._ks[0]
        return super().plan(tickets, batch)

    def record(self, step: StepOutcome) -> None:
        self.steps.append(step)

    def finish(self, ticket: Ticket) -> None:
        self.over.append(ticket)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Named(SimpleNamespace):
    def __hash__(self) -> int:  # type: ignore[override]  # a namespace has none
        return id(self)


def made(name: str, prompt: int = 8, **params: Any) -> Any:
    sampling = SimpleNamespace(temperature=0.0, extra_args={"domain": "code"}, min_p=0.0, logit_bias=None)
    vars(sampling).update(params)
    return Named(
        request_id=name, prompt_token_ids=[1] * prompt, sampling_params=sampling, lora_request=None, cache_salt=None,
        num_computed_tokens=0, num_output_placeholders=0, num_output_tokens=0, is_prefill_chunk=True, spec_token_ids=[],
    )  # fmt: skip


class Engine:
    """What vLLM does around the hooks, for requests whose fate the test dictates."""

    def __init__(
        self,
        ks: Sequence[int],
        table: Sequence[Sequence[int]] | None = None,
        reach: int | None = None,
        method: str = "ngram",
    ) -> None:
        self.link, self.clock = Keeping(ks), Clock()
        settings = VllmSettings(classify=False)
        labels = Labels(settings, lambda: pytest.fail("nobody asked for a tokenizer"))
        looked_up = by_batch(table) if table else None
        drafter = drafter_of(method, None, 4, "ngram")
        self.bridge = Bridge(self.link, labels, drafter, table=looked_up, reach=reach, clock=self.clock)
        self.asked: list[tuple[int, dict[str, int]]] = []

    def schedule(self, tokens: dict[Any, int], drafts: dict[str, int] | None = None, new: Sequence[str] = ()) -> Any:
        for one, n in tokens.items():
            one.num_computed_tokens += n
            one.is_prefill_chunk = one.num_computed_tokens < len(one.prompt_token_ids)
        step = SimpleNamespace(
            num_scheduled_tokens={one.request_id: n for one, n in tokens.items()},
            scheduled_spec_decode_tokens={name: [7] * n for name, n in (drafts or {}).items()},
            scheduled_new_reqs=[SimpleNamespace(req_id=name) for name in new],
            scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set()),
            num_invalid_spec_tokens=None,
        )
        self.asked.append(self.bridge.scheduled(step, waiting=0))
        return step

    def complete(
        self, step: Any, sampled: dict[Any, int], kept: dict[str, int] | None = None, took: float = 0.05
    ) -> None:
        before = self.bridge.outputs(step)
        for one, n in sampled.items():
            one.num_output_tokens += (kept or {}).get(one.request_id, n)
        self.clock.now += took
        self.bridge.completed(step, {one.request_id: n for one, n in sampled.items()}, before, busy=True)

    def draft(self, offered: dict[str, int], valid: dict[str, int] | None = None) -> dict[str, int]:
        cut = self.bridge.offered(offered)
        self.bridge.validated(valid or {name: min(n, cut[name]) for name, n in offered.items()})
        return cut


def test_a_step_is_reported_with_the_k_that_was_asked_when_its_drafts_were_made() -> None:
    engine, a = Engine([3, 2]), made("a")
    engine.bridge.came(a)
    first = engine.schedule({a: 8}, new=["a"])
    assert engine.asked[-1] == (3, {"a": 3})
    engine.complete(first, {a: 1})
    assert engine.link.steps == []  # nothing but a prompt
    assert engine.draft({"a": 4}) == {"a": 3}
    second = engine.schedule({a: 4}, {"a": 3})
    assert engine.asked[-1] == (2, {"a": 2})
    engine.complete(second, {a: 3})
    (step,) = engine.link.steps
    (row,) = step.rows
    assert (row.ticket.domain, row.ticket.regime) == ("code", "greedy")
    assert (row.drafted, row.accepted, row.seen, row.emitted, row.limited) == (3, 2, 3, 3, False)
    assert step.seconds == pytest.approx(0.05)
    assert (step.verified, step.prefill) == (4, 0)
    assert step.kv_tokens == 12
    assert step.drafted == {"ngram": (2, 2)}  # drafting for the next step is part of this one
    assert engine.bridge.counts == Counts(3, 2)


def test_a_draft_that_offers_less_than_asked_misses_at_the_first_token_it_lacks() -> None:
    engine, a = Engine([4]), made("a")
    engine.bridge.came(a)
    engine.complete(engine.schedule({a: 8}, new=["a"]), {a: 1})
    engine.draft({"a": 2})
    engine.complete(engine.schedule({a: 3}, {"a": 2}), {a: 3})
    engine.draft({"a": 0})
    engine.complete(engine.schedule({a: 1}), {a: 1})
    two, none = (step.rows[0] for step in engine.link.steps)
    assert (two.drafted, two.accepted, two.seen, two.limited) == (4, 2, 3, False)
    assert (none.drafted, none.accepted, none.seen, none.limited) == (4, 0, 1, False)
    assert [step.verified for step in engine.link.steps] == [5, 5]


def test_what_grammar_or_room_cut_off_is_censored() -> None:
    engine, a = Engine([4]), made("a")
    engine.bridge.came(a)
    engine.complete(engine.schedule({a: 8}, new=["a"]), {a: 1})
    engine.draft({"a": 4}, valid={"a": 1})  # by grammar
    engine.complete(engine.schedule({a: 2}, {"a": 1}), {a: 2})
    engine.draft({"a": 4})
    engine.complete(engine.schedule({a: 3}, {"a": 2}), {a: 2})  # by room: 2 of 4 were scheduled
    grammar, room = (step.rows[0] for step in engine.link.steps)
    assert (grammar.drafted, grammar.accepted, grammar.seen, grammar.limited) == (1, 1, 1, True)
    assert (room.drafted, room.accepted, room.seen, room.limited) == (2, 1, 2, True)


def test_drafts_behind_a_stop_token_count_for_vllm_but_not_for_the_curve() -> None:
    engine, a = Engine([4]), made("a")
    engine.bridge.came(a)
    engine.complete(engine.schedule({a: 8}, new=["a"]), {a: 1})
    engine.draft({"a": 4})
    last = engine.schedule({a: 5}, {"a": 4})
    before = engine.bridge.outputs(last)
    a.num_output_tokens += 2  # of five tokens, the second one stops it
    engine.bridge.ended("a")
    assert engine.link.over == []
    engine.bridge.completed(last, {"a": 5}, before, busy=False)
    (row,) = engine.link.steps[0].rows
    assert (row.drafted, row.accepted, row.seen, row.emitted) == (4, 2, 2, 2)
    assert engine.bridge.counts == Counts(4, 4)
    assert engine.link.over == [row.ticket]


def test_an_aborted_request_has_no_row_but_its_tokens_were_verified() -> None:
    engine, a, b = Engine([2]), made("a"), made("b")
    for one in (a, b):
        engine.bridge.came(one)
    engine.complete(engine.schedule({a: 8, b: 8}, new=["a", "b"]), {a: 1, b: 1})
    engine.draft({"a": 2, "b": 2})
    step = engine.schedule({a: 3, b: 3}, {"a": 2, "b": 2})
    engine.bridge.ended("b")
    engine.complete(step, {a: 2, b: 3}, kept={"b": 0})
    (done,) = engine.link.steps
    assert [row.ticket for row in done.rows] == [engine.bridge._known["a"].ticket]
    assert done.verified == 6
    assert len(engine.link.over) == 1


def test_requests_that_vllm_samples_wrongly_with_drafts_get_none() -> None:
    engine, a, b = Engine([4]), made("a", min_p=0.1), made("b", logit_bias={5: 1.0})
    for one in (a, b):
        engine.bridge.came(one)
    engine.schedule({a: 8, b: 8}, new=["a", "b"])
    assert engine.asked[-1] == (0, {"a": 0, "b": 0})


def test_idle_time_is_no_part_of_a_step() -> None:
    engine, a, b = Engine([0]), made("a"), made("b")
    engine.bridge.came(a)
    engine.complete(engine.schedule({a: 8}, new=["a"]), {a: 1})
    engine.draft({"a": 0})
    engine.complete(engine.schedule({a: 1}), {a: 1}, took=0.02)
    last = engine.schedule({a: 1})
    engine.bridge.ended("a")
    before = engine.bridge.outputs(last)
    a.num_output_tokens += 1
    engine.clock.now += 0.02
    engine.bridge.completed(last, {"a": 1}, before, busy=False)
    engine.clock.now += 60.0
    engine.bridge.came(b)
    engine.complete(engine.schedule({b: 8}, new=["b"]), {b: 1}, took=0.5)
    engine.draft({"b": 0})
    engine.complete(engine.schedule({b: 1}), {b: 1}, took=0.03)
    assert [step.seconds for step in engine.link.steps] == pytest.approx([0.02, 0.02, 0.03])


def test_under_asynchronous_scheduling_places_for_drafts_are_all_that_is_seen() -> None:
    """Step t + 1 is scheduled before t comes back; every row drafts what its place says."""
    engine, a = Engine([3, 1, 2]), made("a")
    engine.bridge.came(a)
    first = engine.schedule({a: 8}, new=["a"])
    second = engine.schedule({a: 4}, {"a": 3})
    engine.complete(first, {a: 1})
    third = engine.schedule({a: 2}, {"a": 1})
    engine.complete(second, {a: 4})
    engine.complete(third, {a: 1})
    rows = [step.rows[0] for step in engine.link.steps]
    assert [(row.drafted, row.accepted, row.seen, row.emitted) for row in rows] == [(3, 3, 3, 4), (1, 0, 1, 1)]


def test_a_label_that_comes_late_starts_a_ticket_of_its_own() -> None:
    engine, a = Engine([2]), made("a", extra_args=None)
    engine.bridge.came(a)
    engine.complete(engine.schedule({a: 8}, new=["a"]), {a: 1})
    old = engine.bridge._known["a"].ticket
    assert old is not None
    assert old.domain == "other"
    engine.bridge.labels._found["a"] = "math"
    engine.draft({"a": 2})
    engine.complete(engine.schedule({a: 3}, {"a": 2}), {a: 3})
    new = engine.bridge._known["a"].ticket
    assert new is not None
    assert new.domain == "math"
    assert engine.link.over == [old]


def test_a_step_nobody_scheduled_is_an_error() -> None:
    engine = Engine([2])
    with pytest.raises(LookupError, match="never scheduled"):
        engine.bridge.completed(SimpleNamespace(num_invalid_spec_tokens=None), {}, {}, busy=False)


def test_vllm_s_table_counts_decoding_rows_and_does_not_flicker() -> None:
    engine = Engine([2], table=[[1, 4, 2], [5, 512, 0]])
    rows = [made(str(n)) for n in range(6)]
    for one in rows:
        engine.bridge.came(one)
    engine.schedule(dict.fromkeys(rows[:4], 8), new=["0", "1", "2", "3"])
    # A prompt that is being read is no decoding row: vLLM itself counts 5 requests here and stops speculating.
    engine.schedule({**dict.fromkeys(rows[:4], 1), rows[4]: 4}, new=["4"])
    assert [k for k, _ in engine.asked] == [2, 2]
    # A fifth row that comes and goes leaves K alone; one that stays is followed at its 16th step.
    engine.schedule({**dict.fromkeys(rows[:4], 1), rows[4]: 4})
    for n in range(61):
        engine.schedule(dict.fromkeys(rows[: 4 + n % 2], 1))
    assert {k for k, _ in engine.asked} == {2}
    for _ in range(16):
        engine.schedule(dict.fromkeys(rows[:5], 1))
    assert [k for k, _ in engine.asked[-2:]] == [2, 0]


def test_a_policy_goes_by_its_own_loads_not_by_vllm_s_table() -> None:
    engine, a = Engine([4], table=[[1, 512, 0]]), made("a")
    engine.bridge.came(a)
    engine.schedule({a: 8}, new=["a"])
    assert engine.asked[-1] == (0, {"a": 0})
    known = engine.bridge._known["a"]
    assert known.ticket is not None
    known.ticket.variant = "adaptive"
    engine.schedule({a: 1})
    assert engine.asked[-1] == (4, {"a": 4})


@pytest.mark.parametrize(("method", "limited"), [("ngram", False), ("draft_model", True)])
def test_near_the_drafter_s_longest_sequence_nobody_is_asked_for_drafts(method: str, limited: bool) -> None:
    """vLLM hands out zeros there, to every row, which would count as rejected; a model has a hole in its cache then."""
    engine, a, b = Engine([4], reach=20, method=method), made("a"), made("b", prompt=16)
    for one in (a, b):
        engine.bridge.came(one)
    engine.complete(engine.schedule({a: 8, b: 16}, new=["a", "b"]), {a: 1, b: 1})
    engine.draft({"a": 4, "b": 4})
    last = engine.schedule({a: 5, b: 5}, {"a": 4, "b": 4})  # `b` has 21 tokens now
    assert engine.asked[-1] == (0, {"a": 0, "b": 0})
    engine.complete(last, {a: 5, b: 5})
    assert engine.draft({"a": 4, "b": 4}) == {"a": 0, "b": 0}
    engine.bridge.ended("b")
    engine.complete(engine.schedule({a: 1}), {a: 1})
    assert engine.asked[-1] == (4, {"a": 4})
    engine.draft({"a": 4})
    engine.complete(engine.schedule({a: 5}, {"a": 4}), {a: 2})
    rows = [step.rows[0] for step in engine.link.steps]
    assert [(row.drafted, row.accepted, row.limited) for row in rows] == [(4, 4, False), (0, 0, False), (4, 1, limited)]
    assert engine.bridge.counts == Counts(12, 9)


def test_a_label_beyond_the_cap_is_admitted_once() -> None:
    """The link counts it as `other`; the request keeps its ticket, and with it its evidence."""

    class Capped(Keeping):
        admitted = 0

        def admit(self, domain: str, regime: Regime, batch: int) -> Ticket:
            self.admitted += 1
            return super().admit("other", regime, batch)

    engine, a = Engine([2]), made("a")
    engine.bridge.link = link = Capped([2])
    engine.bridge.came(a)
    engine.complete(engine.schedule({a: 8}, new=["a"]), {a: 1})
    tickets = set()
    for _ in range(3):
        engine.draft({"a": 2})
        engine.complete(engine.schedule({a: 3}, {"a": 2}), {a: 1})
        tickets.add(id(engine.bridge._known["a"].ticket))
    assert (link.admitted, len(tickets), link.over) == (1, 1, [])
    engine.bridge.labels._found["a"] = "math"  # another label is tried, once
    for _ in range(2):
        engine.draft({"a": 2})
        engine.complete(engine.schedule({a: 3}, {"a": 2}), {a: 1})
    assert (link.admitted, len(link.over)) == (2, 1)


def test_no_worker_is_asked_for_more_than_its_drafter_was_made_for() -> None:
    engine, a = Engine([20]), made("a")
    engine.bridge.link = StaticLink("ngram", 20)  # what the link falls back on after an error of its own
    engine.bridge.came(a)
    engine.schedule({a: 8}, new=["a"])
    assert engine.asked == [(4, {"a": 4})]


def test_a_pause_is_no_part_of_a_step() -> None:
    """As between two steps, and with a step under way that comes back when generation goes on."""
    engine, a = Engine([0]), made("a")
    engine.bridge.came(a)
    engine.complete(engine.schedule({a: 8}, new=["a"]), {a: 1})
    engine.draft({"a": 0})
    engine.complete(engine.schedule({a: 1}), {a: 1}, took=0.02)
    engine.bridge.interrupted()
    engine.clock.now += 600.0
    engine.bridge.interrupted()
    engine.complete(engine.schedule({a: 1}), {a: 1}, took=0.03)
    under_way = engine.schedule({a: 1})
    engine.bridge.interrupted()
    engine.clock.now += 600.0
    engine.bridge.interrupted()
    engine.complete(under_way, {a: 1}, took=0.01)
    engine.complete(engine.schedule({a: 1}), {a: 1}, took=0.04)
    assert [step.seconds for step in engine.link.steps] == pytest.approx([0.02, 0.03, 0.04])
