"""How outputs end on tiny models: by a stop, a limit or an abort, in the middle of an accepted block as anywhere."""

from pathlib import Path

from engine.core import Delta, SamplingParams
from engine.link import StaticLink
from tests.engine.batches import GREEDY, Recorder, build, decode, erratic, prompts
from tests.engine.conftest import STOP, VOCABULARY


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
