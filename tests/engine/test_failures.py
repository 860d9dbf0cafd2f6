"""What the engine refuses, and what it survives: links, callbacks and steps that fail."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.core import Delta, ModelError, RequestError, SamplingParams
from engine.link import StaticLink, StepOutcome, Ticket
from engine.link.messages import Regime
from tests.engine.batches import GREEDY, build, prompts
from tests.engine.conftest import VOCABULARY, write_llama


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


def test_a_draft_with_another_tokenizer_is_refused(llama: Path, tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "other", num_hidden_layers=1)
    text = (folder / "tokenizer.json").read_text().replace('"<|im_end|>"', '"<|done|>"')
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(ModelError, match=r"token '<\|(done|im_end)\|>' has id .* must use the target's own tokenizer"):
        build(llama, {"other": folder}, StaticLink())
