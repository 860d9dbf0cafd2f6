"""`akc status`, `pin` and the rest, and the client beneath them, against a controller that really listens."""

import io
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from controller.cli import following
from controller.cli.commands import app
from controller.cli.following import AGAIN_SECONDS, Screen, Snapshot, follow
from controller.cli.screen import pool_table
from controller.client import Client, ControllerError
from tests.controller.process import free_port
from tests.controller.site import ADMIN, READER, serving, standing_by


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A controller that has read one engine's 200 steps, with two tokens."""
    with serving(tmp_path_factory.mktemp("steer")) as site:
        yield site.url


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


def test_a_replica_that_stands_by_is_healthy(tmp_path: Path) -> None:
    with serving(tmp_path) as site, standing_by(site, tmp_path) as other:
        code, text = akc(other, "status", token=None)
        assert (code, text.strip()) == (0, "p: stands by; another replica leads this pool")
        with Client(other) as client:
            summary = client.pool("p")
        assert (summary.role, summary.stale, summary.catching_up, summary.time) == ("standby", False, False, None)


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
    assert (code, "Token 'bob' has role 'read'" in text, "role 'admin'" in text) == (3, True, True)


def test_nobody_there_is_told_so() -> None:
    code, text = akc(f"http://127.0.0.1:{free_port()}", "status")
    assert code == 1
    assert "Is it running" in text


def test_watch_follows_the_event_stream_and_prints_once_where_there_is_no_terminal(url: str) -> None:
    for words in (("watch",), ("watch", "--updates", "1")):
        code, text = akc(url, *words)
        assert code == 0
        assert text.count("plain decoding") == 1
        assert {line.split()[0] for line in text.splitlines() if line} >= {"p", "domain", "code", "chat", "engine", "e"}
    code, text = akc(url, "watch", "--updates", "1", "--json")
    (line,) = text.splitlines()
    seen = json.loads(line)
    assert (code, seen["pool"], [e["engine"] for e in seen["live_engines"]]) == (0, "p", ["e"])


def test_watch_says_that_the_controller_has_gone_and_how_old_its_figures_are(tmp_path: Path) -> None:
    with serving(tmp_path) as site, Client(site.url, ADMIN) as client:
        pauses: list[float] = []
        seen = follow(client, "p", pauses.append)
        first = next(seen)
        assert isinstance(first, Snapshot)
        site.stop()
        lost = next(one for one in seen if isinstance(one, ControllerError))
        assert pauses == []
        assert isinstance(next(seen), ControllerError)  # and it goes on trying
        assert pauses == [AGAIN_SECONDS]
    screen = Screen()
    screen.take(first)
    screen.take(lost)
    told = io.StringIO()
    Console(file=told, width=200).print(pool_table(first, first.taken + 20, str(lost)))
    assert "trying again. What you see is 20 s old" in told.getvalue()
    assert "stale: the last frame came" in told.getvalue()
    assert (screen.last, screen.lost) == (first, str(lost))


def test_ctrl_c_ends_watch_quietly(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(following, "snapshot", pressed)
    assert akc(url, "watch") == (0, "")


@pytest.mark.parametrize(
    ("words", "code", "advice"),
    [
        (("explain", "code", "--pool", "q"), 2, "'akc status' shows what there is"),
        (("pin", "code", "big", "2"), 2, "draft is 'big'; allowed: 'none', 'ngram'"),
        (("pin", "code", "ngram", "3"), 2, "allowed: 0, 2, 4"),
        (("draft", "big"), 2, "loaded are 'ngram'"),
    ],
)
def test_what_there_is_not_is_told_with_what_there_is(url: str, words: tuple[str, ...], code: int, advice: str) -> None:
    found, text = akc(url, *words)
    assert (found, advice in text) == (code, True), text


def test_the_shell_completes_the_controller_s_domains(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for address, names in ((url, ["chat", "code"]), ("http://127.0.0.1:1", [])):
        line = f"akc explain --url {address} c"
        given = {"_AKC_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": "4"}
        result = CliRunner().invoke(app, [], prog_name="akc", env=given)
        assert result.output.split() == names


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
