"""Continuous batching on tiny models: whatever drafts and K do, the output is that of plain decoding."""

import random
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.core import SamplingParams
from engine.link import StaticLink, Ticket
from tests.engine.batches import DRAFTS, GREEDY, Recorder, build, decode, erratic, prompts


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


@pytest.mark.parametrize("seed", [0, 1])
def test_a_draft_may_change_at_any_step_of_a_request(seed: int, llama: Path, sources: dict[str, str | Path]) -> None:
    asked = prompts(12, seed)
    plain = [r.output for r in build(llama, {}, StaticLink()).generate(asked, GREEDY)]
    rng = random.Random(seed)

    class Switching(Recorder):
        def plan(self, tickets: Sequence[Ticket], batch: int) -> list[int]:
            for ticket in tickets:
                if rng.random() < 0.3:
                    ticket.take(rng.choice(DRAFTS))
            return super().plan(tickets, batch)

    link = Switching(choose=erratic(seed))
    found = decode(build(llama, sources, link), asked, GREEDY, ["other"] * 12)
    assert [r.output for r in found] == plain
    drafts = {name for step in link.outcomes for name in step.drafted}
    assert drafts == set(DRAFTS) - {"none"}
    # A draft with the target's own weights is right whenever it is asked, however much it has missed.
    own = build(llama, sources, link := Switching(choose=lambda ticket, batch: 4 if ticket.draft == "self" else 2))
    own.generate(asked, GREEDY)
    mine = [(tokens, kept) for draft, tokens, kept in link.played if draft == "self" and tokens]
    assert len(mine) > 20
    assert all(tokens == kept for tokens, kept in mine)


def test_what_a_draft_missed_for_long_is_booked_as_prefill(llama: Path, sources: dict[str, str | Path]) -> None:
    class Late(Recorder):
        def plan(self, tickets: Sequence[Ticket], batch: int) -> list[int]:
            if len(self.outcomes) == 10:
                tickets[0].take("small")
            return super().plan(tickets, batch)

    link = Late(choose=lambda ticket, batch: 2)
    engine = build(llama, sources, link, prefill_budget=64)
    engine.generate([prompts(1, longest=1)[0] * 50], GREEDY)
    prefill = [step.prefill for step in link.outcomes]
    # A prompt of 50 in the first step, which emits a token; nine plain steps emit one each: the draft reads 60.
    assert prefill[:12] == [50, *[0] * 9, 60, 0]
    assert not any(prefill[12:])
    assert link.outcomes[10].drafted == {"small": (2, 2)}


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


def test_a_single_stop_string_and_chat_messages_are_understood(llama: Path) -> None:
    assert SamplingParams(stop="ab").stop == ("ab",)
    engine = build(llama, {}, StaticLink())
    ids = engine.encode([{"role": "user", "content": "hi"}])
    assert engine.tokenizer.decode(ids, skip_special=False).endswith("hi<|im_end|>\n<|im_start|>assistant\n")
