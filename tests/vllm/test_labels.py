"""Where a request's domain comes from, and the classifier's thread. What waits for the thread waits on an event."""

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from engine.domains import classify
from engine.vllm import labels as module
from engine.vllm.labels import Labels
from engine.vllm.settings import VllmSettings

CODE = "def add(a, b):\n    return a + b\n\nclass Stack:\n    def push(self, item):\n        self.items.append(item)\n"
MATH = "Solve the equation 3x + 5 = 20 for x. What is the sum of the integers from 1 to 100? Prove it."


def request(name: str, prompt: str = "", **given: Any) -> Any:
    return SimpleNamespace(
        request_id=name, prompt_token_ids=[ord(letter) for letter in prompt],
        sampling_params=SimpleNamespace(extra_args=given.get("extra")),
        lora_request=SimpleNamespace(lora_name=given["lora"]) if "lora" in given else None,
    )  # fmt: skip


def letters(tokens: Sequence[int]) -> str:
    return "".join(map(chr, tokens))


def labels(detokenise: Callable[[Sequence[int]], str] = letters, **settings: Any) -> Labels:
    return Labels(VllmSettings(**settings), lambda: detokenise)


class Gate:
    """A detokeniser that waits at its door until it is opened."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def __call__(self, tokens: Sequence[int]) -> str:
        self.reached.set()
        assert self.open.wait(10.0)
        return letters(tokens)


def test_a_request_s_own_word_comes_before_its_id_and_its_lora_before_the_classifier() -> None:
    found = labels(request_id=r"^([a-z]+)-")
    found.ask(request("chat-1", CODE, extra={"domain": "math"}, lora="sql"))
    found.ask(request("chat-2", CODE, lora="sql"))
    found.ask(request("3", CODE, lora="sql"))
    found.ask(request("4", CODE))
    found.settle()
    assert [found.of(name) for name in ("chat-1", "chat-2", "3", "4")] == ["math", "chat", "sql", "code"]
    found.close()


def test_a_lora_s_name_is_left_out_where_it_was_switched_off() -> None:
    found = labels(lora=False, classify=False)
    found.ask(request("1", CODE, lora="sql"))
    assert found.of("1") is None


def test_a_label_nobody_can_use_is_left_out_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    found = labels(classify=False)
    found.ask(request("1", extra={"domain": "a label: with spaces, and far too long" * 9}))
    assert (found.of("1"), found.refused) == (None, 1)
    assert "label left out (1 so far)" in caplog.text


@pytest.mark.parametrize("label", [["a", "b"], 1, True, 2.5, {"a": "b"}])
def test_what_is_no_text_is_no_label(label: Any, caplog: pytest.LogCaptureFixture) -> None:
    found = labels(classify=False)
    found.ask(request("1", extra={"domain": label}))
    assert (found.of("1"), found.refused) == (None, 1)
    assert "allowed is text" in caplog.text


def test_only_the_first_tokens_are_read() -> None:
    read: list[int] = []

    def detokenise(tokens: Sequence[int]) -> str:
        read.append(len(tokens))
        return letters(tokens)

    found = labels(detokenise, classify_tokens=20)
    found.ask(request("1", CODE))
    found.settle()
    assert read == [20]
    found.close()


def test_a_full_queue_leaves_further_prompts_without_a_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WAITING", 2)
    gate = Gate()
    found = labels(gate)
    found.ask(request("1", CODE))
    assert gate.reached.wait(10.0)  # the first is being read, two more fit
    for name in ("2", "3", "4", "5"):
        found.ask(request(name, CODE))
    assert found.unread == 2
    gate.open.set()
    found.settle()
    assert [found.of(name) for name in "12345"] == ["code", "code", "code", None, None]
    found.close()


def test_a_tokenizer_that_fails_to_load_ends_the_classifier(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> Callable[[Sequence[int]], str]:
        raise OSError("no tokenizer.json")

    found = Labels(VllmSettings(), fails)
    found.ask(request("1", CODE))
    found.settle()
    assert "no tokenizer.json" in caplog.text
    found.ask(request("2", CODE))
    found.ask(request("3", CODE, extra={"domain": "chat"}))
    found.settle()
    assert [found.of(name) for name in "123"] == [None, None, "chat"]
    assert found.unread == 1  # the second is not even asked about
    found.close()


def test_a_prompt_that_cannot_be_detokenised_leaves_the_others_alone() -> None:
    def detokenise(tokens: Sequence[int]) -> str:
        if tokens[0] == ord("!"):
            raise ValueError("no such token")
        return letters(tokens)

    found = labels(detokenise)
    for name, prompt in (("1", CODE), ("2", "!" + CODE), ("3", MATH)):
        found.ask(request(name, prompt))
    found.settle()
    assert [found.of(name) for name in "123"] == ["code", None, classify(MATH).domain]
    assert found.unread == 1
    found.close()


def test_a_request_that_ended_meanwhile_leaves_nothing() -> None:
    gate = Gate()
    found = labels(gate)
    found.ask(request("1", CODE))
    assert gate.reached.wait(10.0)
    found.forget("1")
    gate.open.set()
    found.settle()
    assert found.of("1") is None
    assert not found._found
    found.close()


def test_closing_ends_the_thread() -> None:
    found = labels()
    found.ask(request("1", CODE))
    thread = found._thread
    assert thread is not None
    found.close()
    thread.join(10.0)
    assert not thread.is_alive()
    assert found.of("1") == "code"


def test_closing_before_anything_was_asked_is_fine() -> None:
    labels().close()
