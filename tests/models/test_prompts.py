import json
from pathlib import Path

import pytest

from engine.models.prompts import SOURCES, Source, load_prompts, read_prompts
from engine.models.wheels import FetchError

from .conftest import make_wheel

ROWS = [
    {"question_id": 1, "category": "writing", "turns": ["Write a haiku.", "Another."]},
    {"question_id": 2, "category": "coding", "turns": ["Sort a list.", "Faster."]},
]


def test_chat_takes_the_first_turn_of_its_categories_only(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps(row) for row in ROWS).encode()
    wheel = make_wheel(tmp_path, "questions", {"questions/q.jsonl": lines})
    prompts = read_prompts(tmp_path / wheel.file, Source(wheel, "questions/q.jsonl", SOURCES["chat"].read))
    assert [(p.domain, p.id, p.text) for p in prompts] == [("chat", "mt-bench-1-writing", "Write a haiku.")]
    assert prompts[0].messages == [{"role": "user", "content": "Write a haiku."}]


def test_a_wheel_without_the_file_is_named(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "questions", {})
    with pytest.raises(FetchError, match=rf"{wheel.file} has no questions/q.jsonl"):
        read_prompts(tmp_path / wheel.file, Source(wheel, "questions/q.jsonl", SOURCES["chat"].read))


@pytest.mark.model
def test_the_real_prompts_are_all_there_and_distinct() -> None:
    prompts = load_prompts(progress=False)
    assert {domain: len(items) for domain, items in prompts.items()} == {"code": 164, "math": 100, "chat": 40}
    for domain, items in prompts.items():
        assert {prompt.domain for prompt in items} == {domain}
        assert len({prompt.id for prompt in items}) == len({prompt.text for prompt in items}) == len(items)
    assert prompts["code"][0].text.startswith("from typing import List\n\n\ndef has_close_elements(")
    assert all(prompt.messages[0]["content"].startswith("Complete this Python function.") for prompt in prompts["code"])
