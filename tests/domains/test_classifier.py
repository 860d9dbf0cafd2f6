"""The classifier on prompts it never saw, and what it must never do."""

import json
import math
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.domains import classify, explain
from engine.domains.classifier import parse_weights
from engine.domains.features import MAX_CHARACTERS, NAMES, features

# Every third HumanEval prompt, every GSM8K case and the 40 MT-Bench questions that count as chat.
HELD_OUT = [json.loads(line) for line in (Path(__file__).with_name("held_out.jsonl")).read_text("utf-8").splitlines()]


def answers(domain: str) -> Counter[str]:
    return Counter(classify(row["text"]).domain for row in HELD_OUT if row["domain"] == domain)


@pytest.mark.parametrize(("domain", "floor"), [("code", 0.95), ("math", 0.95), ("chat", 0.9)])
def test_held_out_prompts_are_recognised_and_errors_are_rarely_another_domain(domain: str, floor: float) -> None:
    counts = answers(domain)
    total = counts.total()
    assert counts[domain] / total >= floor
    assert (total - counts[domain] - counts["other"]) / total <= 0.03


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n\t ",
        "Bonjour, comment allez-vous aujourd'hui ?",
        "Wie ist das Wetter heute in Berlin?",
        "今日はいい天気ですね。",
        "Добрый день, как у вас дела?",
        "\x00\x01\x82\xff\x9d",
        "asdf qwer zxcv",
        "12345",
    ],
)
def test_empty_foreign_and_meaningless_text_is_other(text: str) -> None:
    assert classify(text).domain == "other"


@pytest.mark.parametrize(
    ("text", "domain"),
    [
        ("hello", "chat"),
        ("Tell me a joke", "chat"),
        ("What is 2+2?", "math"),
        ("Write a quicksort in Rust", "code"),
        ("SELECT name FROM users WHERE id = 3;", "code"),
    ],
)
def test_short_prompts(text: str, domain: str) -> None:
    assert classify(text).domain == domain


@given(st.text(max_size=300))
def test_any_text_gets_finite_features_and_probabilities_that_sum_to_one(text: str) -> None:
    values = features(text)
    assert len(values) == len(NAMES)
    assert all(math.isfinite(v) and v >= 0 for v in values)
    prediction = classify(text)
    if text and not text.isspace():
        assert sum(prediction.classes.values()) == pytest.approx(1, abs=1e-12)
        assert prediction.probability == max(prediction.classes.values())


def test_lone_surrogates_do_not_crash() -> None:
    assert classify("\ud800 \udfff").domain == "other"


def test_only_the_head_and_the_tail_of_a_long_prompt_are_read() -> None:
    head, tail = "a b " * (MAX_CHARACTERS // 8), " c d" * (MAX_CHARACTERS // 8)
    assert features(head + "x" * 9999 + tail) == features(head + "{};" * 5 + tail)


def test_explanation_adds_up_to_the_lead_of_the_winning_class() -> None:
    # Over all features, contributions are the class's score without bias, less the mean score of the classes: an
    # affine function of the log probabilities, whose differences they must reproduce for every pair of texts.
    def lead(text: str) -> float:
        classes = classify(text).classes
        logs = [math.log(p) for p in classes.values()]
        return max(logs) - sum(logs) / len(logs)

    one, two = "def add(a, b):\n    return a + b\n", "def f(x):\n    for i in range(x):\n        print(i)\n"
    total = [sum(row.contribution for row in explain(text, top=len(NAMES))) for text in (one, two)]
    assert total[0] - total[1] == pytest.approx(lead(one) - lead(two), abs=1e-9)


def test_explanation_names_what_a_person_would() -> None:
    names = [row.feature for row in explain("Solve $x^2 - 4 = 0$ and add the roots: x^2 + 3x.", top=3)]
    assert "arithmetic per word" in names


def test_weights_for_other_features_are_refused() -> None:
    with pytest.raises(ValueError, match="trained for other features"):
        parse_weights('{"features": ["length"]}')


@pytest.mark.parametrize(
    "text",
    [
        ("Janet has 12 apples and gives 3 to each of her friends. How many are left? " * 30)[:2000],
        "$" * 2000,
        "\\(" * 1000,
        "1+" * 1000,
        "\n " * 1000,
        "é" * 2000,
        "a" * 1_000_000,
    ],
)
def test_no_text_takes_long(text: str) -> None:
    # Measured 0.2 ms for prose on a quiet core. The bound is that of a quadratic slip, not of a busy or traced machine.
    best = math.inf
    for _ in range(5):
        start = time.thread_time()
        classify(text)
        best = min(best, time.thread_time() - start)
    assert best < 0.02
