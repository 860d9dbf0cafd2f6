"""Text in and out: templates, streaming in whole characters, stop strings across tokens."""

import json
from pathlib import Path

import pytest

from engine.core import ChatError, Detokenizer, ModelError, Tokenizer
from engine.core.tokenizer import StopStrings
from tests.engine.conftest import STOP


def test_text_survives_the_round_trip(llama: Path) -> None:
    tokenizer = Tokenizer(llama)
    text = "the fox jumps: 'naïve' 😀 日本"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.stop_ids == {STOP}


def test_a_conversation_ends_where_the_assistant_begins(llama: Path) -> None:
    tokenizer = Tokenizer(llama)
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi <b> & co"}]
    expected = "<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nhi <b> & co<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.chat_text(messages) == expected
    assert tokenizer.decode(tokenizer.chat(messages), skip_special=False) == expected


def test_messages_the_template_rejects_are_the_callers_error(llama: Path) -> None:
    with pytest.raises(ChatError, match="unknown role wizard"):
        Tokenizer(llama).chat([{"role": "wizard", "content": "hi"}])


def test_a_template_cannot_leave_its_sandbox(llama: Path, tmp_path: Path) -> None:
    for file in llama.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ messages.__class__.__mro__ }}")
    with pytest.raises(ChatError, match="unsafe"):
        Tokenizer(tmp_path).chat([{"role": "user", "content": "hi"}])
    (tmp_path / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(ModelError, match=r"chat template .* cannot be read"):
        Tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(
        "{{ messages | tojson }}{{ eos_token }}{{ strftime_now('%Y') | int > 1 }}"
    )
    assert Tokenizer(tmp_path).chat_text([{"é": "<"}]) == '[{"é": "<"}]<|im_end|>True'


def test_a_folder_without_tokenizer_or_template_says_so(tmp_path: Path, llama: Path) -> None:
    with pytest.raises(ModelError, match=r"has no tokenizer\.json"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((llama / "tokenizer.json").read_bytes())
    named = [{"name": "tools", "template": "x"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    with pytest.raises(ModelError, match="no chat template"):
        Tokenizer(tmp_path).chat([{"role": "user", "content": "hi"}])


def test_streamed_text_has_whole_characters_only(llama: Path) -> None:
    tokenizer = Tokenizer(llama)
    text = "fox 😀, 日本 é dog"
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push(t) for t in tokenizer.encode(text)]
    assert "\ufffd" not in "".join(pieces)
    assert len([p for p in pieces if p]) > 5
    assert "".join(pieces) + detokenizer.finish() == text


def test_a_character_the_prompt_began_is_completed(llama: Path) -> None:
    tokenizer = Tokenizer(llama)
    ids = tokenizer.encode("😀!")
    detokenizer = Detokenizer(tokenizer, ids[:2])
    assert "".join(detokenizer.push(t) for t in ids[2:]) == "😀!"


def test_broken_bytes_are_shown_at_the_end_and_do_not_pile_up(llama: Path) -> None:
    tokenizer = Tokenizer(llama)
    first = tokenizer.encode("😀")[0]  # a lead byte that nothing completes
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push(first) == ""
    assert detokenizer.finish() == "\ufffd"
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push(first) for _ in range(40)]
    assert len("".join(pieces)) >= 32
    assert max(len(p) for p in pieces) <= 16


def test_special_tokens_do_not_show(llama: Path) -> None:
    tokenizer = Tokenizer(llama)
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push(t) for t in (STOP, *tokenizer.encode("a"))] == ["", "a"]


def test_a_stop_string_is_found_across_pieces_and_cut_off() -> None:
    stops = StopStrings(["\n\n", "User:"])
    assert [stops.push(p) for p in ("one\n", "two Us", "er", ": three", "four")] == ["one", "\ntwo ", "", "", ""]
    assert stops.found
    assert stops.finish() == ""


def test_the_earliest_of_several_stop_strings_counts() -> None:
    stops = StopStrings(["lazy", "fox"])
    assert stops.push("the fox is lazy") == "the "
