"""Continuous batching on tiny models: whatever drafts and K do, the output is that of plain decoding."""

import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.core import Delta, Engine, ModelError, Request, RequestError, SamplingParams
from engine.link import RowOutcome, StaticLink, StepOutcome, Ticket
from engine.link.messages import Regime
from tests.engine.conftest import STOP, VOCABULARY, write_llama

DRAFTS = ("none", "ngram", "small", "self", "eagle")


class Recorder(StaticLink):
    """A static link that keeps what it was told; the domain of a request names its draft."""

    def __init__(self, draft: str = "none", k: int = 0, **more: Any) -> None:
        super().__init__(draft, k, table={name: (name, k) for name in DRAFTS}, **more)
        self.outcomes: list[StepOutcome] = []
        self.finished: list[Ticket] = []

    def record(self, step: StepOutcome) -> None:
        self.outcomes.append(step)

    def finish(self, ticket: Ticket) -> None:
        self.finished.append(ticket)

    def rows(self) -> Iterator[RowOutcome]:
        return (row for step in self.outcomes for row in step.rows)


def erratic(seed: int, largest: int = 6) -> Any:
    """K at random, for every row and step anew."""
    rng = random.Random(seed)
    return lambda ticket, batch: rng.randint(0, largest)


@pytest.fixture(scope="module")
def sources(draft_folder: Path, self_draft: Path, eagle: Path) -> dict[str, str | Path]:
    return {"ngram": "ngram", "small": draft_folder, "self": self_draft, "eagle": eagle}


def build(folder: Path, drafts: Mapping[str, str | Path], link: Any, **more: Any) -> Engine:
    settings = {"max_batch": 5, "max_len": 120, "dtype": "float32", "device": "cpu", "prefill_budget": 16, **more}
    return Engine(folder, drafts, link, **settings)


def prompts(count: int, seed: int = 0, longest: int = 40) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(3, VOCABULARY) for _ in range(rng.randint(1, longest))] for _ in range(count)]


def decode(engine: Engine, asked: Sequence[list[int]], params: SamplingParams, domains: Sequence[str]) -> list[Request]:
    requests = [engine.submit(p, params, d) for p, d in zip(asked, domains, strict=True)]
    while engine.step():
        pass
    return [r.result() for r in requests]


GREEDY = SamplingParams(max_tokens=40, ignore_eos=True)


def test_greedy_output_equals_transformers_generate(llama: Path) -> None:
    asked = prompts(6)
    found = build(llama, {}, StaticLink()).generate(asked, GREEDY)
    reference = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
    for prompt, request in zip(asked, found, strict=True):
        ids = torch.tensor([prompt])
        expected = reference.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=40,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert request.output == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize("seed", [0, 1])
def test_every_draft_and_any_mix_of_k_leaves_greedy_output_unchanged(
    seed: int, llama: Path, sources: dict[str, str | Path]
) -> None:
    asked = prompts(15, seed)
    plain = [r.output for r in build(llama, {}, StaticLink()).generate(asked, GREEDY)]
    link = Recorder(choose=erratic(seed))
    found = decode(build(llama, sources, link), asked, GREEDY, [DRAFTS[i % 5] for i in range(15)])
    assert [r.output for r in found] == plain
    ran = {name for step in link.outcomes for name in step.drafted}
    assert ran == set(DRAFTS) - {"none"}
    for row in link.rows():
        assert 0 <= row.accepted <= row.seen <= row.drafted <= 6
        assert row.ticket.draft != "none" or row.drafted == 0
    emitted = sum(r.output_len for r in found) - len(found)  # the first token comes from the prompt's pass
    assert sum(row.emitted for row in link.rows()) == emitted


def test_the_targets_own_weights_as_draft_are_always_accepted(llama: Path, sources: dict[str, str | Path]) -> None:
    link = Recorder("self", 4)
    build(llama, sources, link).generate(prompts(3), GREEDY)
    rows = list(link.rows())
    assert all(row.accepted == row.drafted for row in rows)
    # 39 tokens after the first: seven full steps of 5, then K clamped to the last 4: one step of K = 3.
    assert [row.drafted for row in rows if row.ticket is rows[0].ticket] == [4] * 7 + [3]
    assert [row.limited for row in rows if row.ticket is rows[0].ticket] == [False] * 7 + [True]
    assert sum(passes for step in link.outcomes for _, passes in step.drafted.values()) >= 31


def test_sampled_output_does_not_depend_on_the_company(llama: Path, sources: dict[str, str | Path]) -> None:
    # The same seed and K, alone and beside others: rows of a batch do not touch each other's luck.
    asked = prompts(5, 3)
    each = [SamplingParams(max_tokens=25, temperature=0.9, top_p=0.95, seed=i, ignore_eos=True) for i in range(5)]
    for draft in DRAFTS:
        together = [r.output for r in build(llama, sources, Recorder(draft, 3), dtype="float64").generate(asked, each)]
        engine = build(llama, sources, Recorder(draft, 3), dtype="float64")
        alone = [engine.generate([p], [s])[0].output for p, s in zip(asked, each, strict=True)]
        assert together == alone, draft
        assert len({tuple(o) for o in together}) == 5


@pytest.mark.parametrize("draft", ["ngram", "small", "eagle"])
def test_sampled_tokens_follow_the_targets_distribution(
    draft: str, llama: Path, sources: dict[str, str | Path]
) -> None:
    # Second token given the prompt, marginal over the first; top_k = 2 leaves at most four outcomes to count.
    prompt, n = [5, 6, 7, 5, 6], 1500
    reference = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)

    def top2(ids: list[int]) -> dict[int, float]:
        with torch.inference_mode():
            values, tokens = reference(torch.tensor([ids])).logits[0, -1].topk(2)
        return dict(zip(tokens.tolist(), values.softmax(0).tolist(), strict=True))

    expected: dict[tuple[int, ...], float] = {}
    for first, p in top2(prompt).items():
        for second, q in top2([*prompt, first]).items():
            for third, r in top2([*prompt, first, second]).items():
                expected[first, second, third] = p * q * r
    params = [SamplingParams(max_tokens=3, temperature=1.0, top_k=2, seed=i, ignore_eos=True) for i in range(n)]
    engine = build(llama, sources, Recorder(draft, 3), max_batch=64, prefill_budget=4096)
    outputs = [tuple(r.output) for r in engine.generate([prompt] * n, params)]
    for outcome, p in expected.items():
        # Five standard deviations of a share.
        assert abs(outputs.count(outcome) / n - p) < 5 * (p * (1 - p) / n) ** 0.5 + 1e-9
    assert set(outputs) <= set(expected)


def test_a_request_joins_and_leaves_between_steps(llama: Path, sources: dict[str, str | Path]) -> None:
    asked = prompts(4, 5)
    plain = [r.output for r in build(llama, {}, StaticLink()).generate(asked, GREEDY)]
    engine = build(llama, sources, Recorder(choose=erratic(5)), max_batch=2)
    requests = [engine.submit(asked[0], GREEDY, "eagle")]
    steps = 0
    while engine.step():
        steps += 1
        if steps % 4 == 0 and len(requests) < 4:
            requests.append(engine.submit(asked[len(requests)], GREEDY, DRAFTS[len(requests)]))
        assert engine.running <= 2
    assert [r.result().output for r in requests] == plain
    assert (engine.running, engine.waiting, engine.kv_tokens) == (0, 0, 0)


def test_an_aborted_request_ends_and_the_others_do_not_notice(llama: Path, sources: dict[str, str | Path]) -> None:
    asked = prompts(4, 6)
    plain = [r.output for r in build(llama, {}, StaticLink()).generate(asked, GREEDY)]
    link = Recorder(choose=erratic(6))
    engine = build(llama, sources, link, max_batch=3)
    requests = [engine.submit(p, GREEDY, d) for p, d in zip(asked, ("small", "eagle", "self", "ngram"), strict=True)]
    for _ in range(6):
        engine.step()
    engine.abort(requests[0])
    engine.abort(requests[3])  # still waiting
    while engine.step():
        pass
    ended = [r.result() for r in requests]
    assert [r.finish for r in ended] == ["abort", "length", "length", "abort"]
    assert ended[0].output == plain[0][: ended[0].output_len]
    assert [r.output for r in ended[1:3]] == plain[1:3]
    assert len(link.finished) == 3  # the waiting one never had a ticket


def test_a_stop_token_inside_an_accepted_block_ends_the_output_there(
    llama: Path, sources: dict[str, str | Path]
) -> None:
    prompt = prompts(1, 1)[0]
    plain = build(llama, {}, StaticLink()).generate([prompt], GREEDY)[0].output
    stop = plain[8]
    first = plain.index(stop)
    link = Recorder("self", 6)
    params = SamplingParams(max_tokens=40, ignore_eos=True, stop_token_ids=[stop])
    request = build(llama, sources, link).generate([prompt], params)[0]
    assert (request.output, request.finish) == (plain[: first + 1], "stop")
    # Everything is accepted, so position p (of tokens 1.. after the first) falls into step p // 7, place p % 7.
    last = list(link.rows())[-1]
    cut = (first - 1) % 7 + 1
    assert (last.emitted, last.drafted) == (cut, 6)
    # Positions after the cut were not decided: seen ends with the last accepted one.
    assert (last.accepted, last.seen) == (min(cut, 6), min(cut, 6))


def test_a_stop_string_ends_the_output_and_its_text_stops_before(llama: Path, sources: dict[str, str | Path]) -> None:
    prompt = prompts(1, 2)[0]
    plain = build(llama, {}, StaticLink()).generate([prompt], GREEDY)[0]
    stop = plain.text[9:12]
    at = plain.text.index(stop)
    for draft, k in (("none", 0), ("self", 5), ("ngram", 4)):
        params = SamplingParams(max_tokens=40, ignore_eos=True, stop=[stop])
        request = build(llama, sources, Recorder(draft, k)).generate([prompt], params)[0]
        assert (request.text, request.finish) == (plain.text[:at], "stop"), draft
        assert request.output == plain.output[: request.output_len]


def test_the_models_own_end_token_ends_the_output(llama: Path) -> None:
    engine = build(llama, {}, StaticLink())
    engine.stop_ids = frozenset(range(VOCABULARY))
    request = engine.generate([[5, 6]], SamplingParams(max_tokens=9))[0]
    assert (request.output_len, request.finish) == (1, "stop")
    assert engine.tokenizer.stop_ids == {STOP}


def test_the_context_ends_an_output_and_limits_k(llama: Path, sources: dict[str, str | Path]) -> None:
    asked = [[5 + i] * 90 for i in range(3)]
    params = SamplingParams(max_tokens=500, ignore_eos=True)
    plain = [r.output for r in build(llama, {}, StaticLink()).generate(asked, params)]
    assert [len(o) for o in plain] == [30] * 3
    link = Recorder(choose=lambda ticket, batch: 6)
    found = decode(build(llama, sources, link), asked, params, ["small", "self", "eagle"])
    assert [r.output for r in found] == plain
    assert {r.finish for r in found} == {"length"}
    by_draft = {name: [row for row in link.rows() if row.ticket.draft == name] for name in ("small", "self")}
    assert by_draft["self"][-1].limited
    # The small draft holds 96 positions: from length 96 on it cannot be asked, and says so.
    assert sum(row.drafted for row in by_draft["small"][-10:]) == 0
    assert by_draft["small"][-1].limited


def test_deltas_add_up_to_the_output(llama: Path, sources: dict[str, str | Path]) -> None:
    engine = build(llama, sources, Recorder("self", 4))
    seen: list[Delta] = []
    called = engine.submit([5, 6], GREEDY, on_delta=seen.append)
    streamed = engine.submit([5, 6], GREEDY)
    while engine.step():
        pass
    deltas = list(streamed)
    assert deltas == seen
    assert [t for d in deltas for t in d.tokens] == called.output
    assert "".join(d.text for d in deltas) == called.text == engine.tokenizer.decode(called.output)
    assert [d.finish for d in deltas] == [None] * (len(deltas) - 1) + ["length"]
    assert max(len(d.tokens) for d in deltas) == 5


def test_prompts_are_read_in_chunks_beside_decoding_rows(llama: Path) -> None:
    link = Recorder()
    engine = build(llama, {}, link, prefill_budget=16)
    engine.submit([5] * 4, GREEDY)
    engine.step()
    engine.submit([6] * 40, GREEDY)
    engine.submit([7] * 10, GREEDY)
    for _ in range(5):
        engine.step()
    # 40 = 16 + 16 + 8, and the next prompt takes what is left of the budget.
    assert [step.prefill for step in link.outcomes] == [4, 16, 16, 16, 2, 0]
    assert [step.verified for step in link.outcomes] == [0, 1, 1, 1, 2, 3]
    assert [step.kv_tokens for step in link.outcomes] == [4, 21, 38, 55, 59, 62]


def test_step_seconds_are_intervals_without_idle_gaps(llama: Path) -> None:
    now = iter(float(t) for t in (10, 11, 13, 16, 100, 101, 102))
    link = Recorder()
    engine = build(llama, {}, link, clock=lambda: next(now))
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    engine.generate([[5]], params)
    engine.generate([[5]], SamplingParams(max_tokens=2, ignore_eos=True))
    # First step from its own start, later ones from the end of the step before; 16 to 100 was idle.
    assert [step.seconds for step in link.outcomes] == [1, 2, 3, 1, 1]


class Broken(StaticLink):
    def __init__(self, where: set[str]) -> None:
        super().__init__("ngram", 3)
        self._where = where

    def _fail(self, where: str) -> None:
        if where in self._where:
            raise RuntimeError(where)

    def admit(self, domain: str, regime: Regime, batch: int) -> Ticket:
        self._fail("admit")
        return super().admit(domain, regime, batch)

    def plan(self, tickets: Sequence[Ticket], batch: int) -> list[int]:
        self._fail("plan")
        return super().plan(tickets, batch)

    def record(self, step: StepOutcome) -> None:
        self._fail("record")

    def finish(self, ticket: Ticket) -> None:
        self._fail("finish")

    def queue(self, waiting: int) -> None:
        self._fail("queue")


@pytest.mark.parametrize("where", ["admit", "plan", "record", "finish", "queue"])
def test_a_failing_link_does_not_stop_decoding(where: str, llama: Path) -> None:
    asked = prompts(3)
    plain = [r.output for r in build(llama, {}, StaticLink()).generate(asked, GREEDY)]
    engine = build(llama, {"ngram": "ngram"}, Broken({where}), max_batch=2)
    assert [r.output for r in engine.generate(asked, GREEDY)] == plain
    assert engine.link_errors > 0


def test_a_draft_that_is_not_loaded_is_not_used(llama: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = build(llama, {"ngram": "ngram"}, StaticLink("gone", 4))
    assert engine.generate([[5], [6]], GREEDY)[1].output_len == 40
    assert [r.getMessage() for r in caplog.records] == [
        "the link chose draft 'gone', which is not loaded (loaded: ngram)"
    ]


def test_an_owners_failing_callback_ends_its_request_only(llama: Path) -> None:
    def fail(delta: Delta) -> None:
        raise KeyError("owner")

    engine = build(llama, {}, StaticLink())
    broken, fine = engine.submit([5], GREEDY, on_delta=fail), engine.submit([5], GREEDY)
    while engine.step():
        pass
    assert (broken.finish, fine.finish) == ("error", "length")
    assert isinstance(broken.error, KeyError)


def test_the_loop_serves_threads_until_it_is_stopped(llama: Path) -> None:
    engine = build(llama, {"ngram": "ngram"}, StaticLink("ngram", 3), max_batch=2)
    stop = threading.Event()
    loop = threading.Thread(target=engine.run_forever, args=(stop,))
    loop.start()
    outputs: dict[int, str] = {}

    def ask(i: int) -> None:
        outputs[i] = engine.submit("the fox", GREEDY).result().text

    askers = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
    for thread in askers:
        thread.start()
    for thread in askers:
        thread.join()
    stop.set()
    engine.wake()
    loop.join()
    assert len(outputs) == 6
    assert len(set(outputs.values())) == 1


def test_a_failing_step_ends_all_requests_with_the_error(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = build(llama, {}, StaticLink(), max_batch=1)
    requests = [engine.submit([5], GREEDY) for _ in range(3)]

    def fail(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(engine.target, "forward", fail)
    with pytest.raises(MemoryError):
        engine.run_forever(threading.Event())
    for request in [*requests, engine.submit([5], GREEDY)]:
        with pytest.raises(MemoryError, match="no room"):
            request.result()


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "the prompt is empty"),
        ([5] * 120, r"has 120 tokens; with max_len 120 at most 119"),
        ([5, VOCABULARY], rf"has token {VOCABULARY}; allowed are 0 to {VOCABULARY - 1}"),
        ([-1], "has token -1"),
    ],
)
def test_prompts_that_cannot_be_served_are_refused(prompt: list[int], message: str, llama: Path) -> None:
    with pytest.raises(RequestError, match=message):
        build(llama, {}, StaticLink()).submit(prompt)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"max_tokens": 0}, "max_tokens is 0; it must be at least 1"),
        ({"temperature": float("nan")}, "temperature is nan; allowed are 0 to 100"),
        ({"top_p": 0.0}, "top_p is 0.0; it must be above 0 and at most 1"),
        ({"top_k": -1}, "top_k is -1"),
        ({"stop": [""]}, r"stop is \[''\]; allowed are up to 16 non-empty strings"),
    ],
)
def test_parameters_out_of_range_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        SamplingParams(**params)


def test_a_single_stop_string_and_chat_messages_are_understood(llama: Path) -> None:
    assert SamplingParams(stop="ab").stop == ("ab",)
    engine = build(llama, {}, StaticLink())
    ids = engine.encode([{"role": "user", "content": "hi"}])
    assert engine.tokenizer.decode(ids, skip_special=False).endswith("hi<|im_end|>\n<|im_start|>assistant\n")


def test_a_draft_with_another_tokenizer_is_refused(llama: Path, tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "other", num_hidden_layers=1)
    text = (folder / "tokenizer.json").read_text().replace('"<|im_end|>"', '"<|done|>"')
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(ModelError, match=r"token '<\|(done|im_end)\|>' has id .* must use the target's own tokenizer"):
        build(llama, {"other": folder}, StaticLink())
