"""`akc status`, `pin` and the rest, and the client beneath them, against a controller that really listens."""

import io
import json
import re
import socketserver
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from pydantic import TypeAdapter
from rich.console import Console
from typer.testing import CliRunner

from controller.api.examples import EXAMPLES
from controller.api.pools import PoolSummary
from controller.cli import following
from controller.cli.commands import app
from controller.cli.following import AGAIN_SECONDS, Screen, Snapshot, follow
from controller.cli.screen import domain_tables, measured_line, pool_table
from controller.client import QUIET_SECONDS, Client, ControllerError
from controller.view import Arm, Choice, Curve, Domain, Interval, Measured, Position, Spread, Traffic
from engine.link.messages import Keys, encode
from tests.controller.engines import CountingEngine
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


def test_status_tells_of_every_pool_and_a_fresh_one_is_code_0(tmp_path: Path) -> None:
    with serving(tmp_path) as site, Client(site.url, READER) as client:
        deadline = time.monotonic() + 30
        site.report(5)  # on a slow machine the first frame is old by now
        while client.pool("p").stale:
            assert time.monotonic() < deadline
        code, text = akc(site.url, "status", token=None)
        assert code == 0, text
        assert "plain decoding" in text
        assert {line.split()[0] for line in text.splitlines() if line.strip()} >= {"p", "domain", "code", "chat"}
        code, text = akc(site.url, "status", "--json", token=None)
        (pool,) = json.loads(text)
        assert (code, pool["pool"], pool["target"], pool["stale"]) == (0, "p", "smol", False)
        assert {d["domain"] for d in pool["domains"]} == {"code", "chat"}
        # An engine of other hardware: the pool has a problem.
        other = CountingEngine("f", "j", started=time.time() - 60)
        other.describe = msgspec.structs.replace(other.describe, hardware="gpu")
        other.step("code", 1)
        site.client.xadd(Keys("p").frames, {"frame": encode(other.frame(full=True))})
        while client.pool("p").problem is None:
            assert time.monotonic() < deadline
        code, text = akc(site.url, "status", token=None)
        assert (code, "hardware 'gpu' against 'cpu'" in " ".join(text.split())) == (4, True)


def test_status_of_a_stale_pool_is_code_4(tmp_path: Path) -> None:
    with serving(tmp_path, sent=time.time() - 60) as site:
        code, text = akc(site.url, "status", token=None)
        assert code == 4, text
        found = re.search(r"stale: the last frame came (\d+) s ago; do its engines run", text)
        assert found is not None
        assert 60 <= int(found[1]) < 120


def test_a_label_that_is_markup_stays_text_in_every_table(tmp_path: Path) -> None:
    evil = ("[/x]", "[bold red]x")
    with serving(tmp_path) as site:
        engine = CountingEngine("[/e]", "j", started=time.time() - 60)
        for label in evil:
            engine.step(label, 1)
        site.client.xadd(Keys("p").frames, {"frame": encode(engine.frame(full=True))})
        with Client(site.url, READER) as client:
            deadline = time.monotonic() + 30
            while not {*evil} <= {one.domain for one in client.domains("p")}:
                assert time.monotonic() < deadline
        for words in (("status",), ("watch", "--updates", "1")):
            result = CliRunner().invoke(app, [*words, "--url", site.url], env={"COLUMNS": "200", "TERM": "dumb"})
            assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
            shown = {line.split("  ")[0] for line in result.output.splitlines()}
            assert shown >= {*evil, "[/e]"}, result.output
        for label in evil:
            code, text = akc(site.url, "explain", label)
            assert (code, text.startswith(f"{label}, greedy:")) == (0, True), text


def test_titles_drafts_engines_and_reasons_are_no_markup_either() -> None:
    shown = io.StringIO()
    console = Console(file=shown, width=200)
    one = Interval(1.0, 1.0, 1.0)
    arm = Arm("[/d]", 2, 1.0, 1.0, one, 1.0, 1.0, 1.0)
    choice = Choice(1, "[/d]", 2, 1.0, one, "[/d] at K = 2", 1, [arm])
    curve = Curve("[/d]", 1.0, Spread(1.0, None, 1.0, 1.0), [Position(1, one, one, 1, 1)])
    recent = Traffic(60.0, 1, 1, 1.0, None, None, None)
    for part in domain_tables(Domain("[/x]", "greedy", 1, 1, recent, 1, [curve], [choice])):
        console.print(part)
    text = shown.getvalue()
    assert "[/d]: 1 steps lately" in text  # the title
    assert [line for line in text.splitlines() if line.startswith("[/d] ")]  # the arm's row


STANDS_BY = "p: stands by: another replica leads this pool, and only that one has its figures; name it with --url"


def test_a_replica_that_stands_by_is_healthy_and_says_so(tmp_path: Path) -> None:
    with serving(tmp_path) as site, standing_by(site, tmp_path) as other:
        code, text = akc(other, "status", token=None)
        assert (code, text.strip()) == (0, STANDS_BY)
        with Client(other) as client:
            summary = client.pool("p")
        assert (summary.role, summary.stale, summary.catching_up, summary.time) == ("standby", False, False, None)
        # Its stream is silent for as long as the other one leads.
        assert akc(other, "watch", "--updates", "1", token=None) == (0, f"{STANDS_BY}\n")
        code, text = akc(other, "watch", "--updates", "1", "--json", token=None)
        assert (code, json.loads(text)["role"], json.loads(text)["domains"]) == (0, "standby", [])
        # Then it goes on as soon as there is something: the one that leads has gone.
        with Client(other) as client:
            seen = follow(client, "p")
            first = next(seen)
            assert isinstance(first, Snapshot)
            assert first.summary.time is None
            site.stop()
            second = next(seen)
        assert isinstance(second, Snapshot)
        assert (second.summary.role, {d.domain for d in second.domains}) == ("leading", {"chat", "code"})


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


def test_a_pin_of_a_domain_that_nobody_asked_for_is_kept_and_questioned(url: str) -> None:
    """Its requests may come later; a slip of the pen would look the same, and hold nothing."""
    code, text = akc(url, "pin", "caht", "ngram", "2")
    assert code == 0
    assert "akc: pinned; no request of domain 'caht' has been seen yet; seen: 'chat' (greedy), 'code' (greedy)" in text
    assert "caht pinned to ngram at K = 2" in text
    assert "caht pinned to ngram at K = 2, by ana" in akc(url, "status")[1]  # though no row of the table is its own
    (pool,) = json.loads(akc(url, "status", "--json")[1])
    assert [(one["domain"], one["by"]) for one in pool["orders"]["pins"]] == [("caht", "ana")]
    assert akc(url, "unpin", "caht")[0] == 0
    assert "has been seen yet" not in akc(url, "pin", "chat", "ngram", "2")[1]
    text = akc(url, "pin", "chat", "ngram", "2", "--regime", "sampled")[1]
    assert "no request of domain 'chat' (sampled) has been seen yet" in text
    assert akc(url, "unpin", "chat")[0] == 0


def test_measure_and_stop(url: str) -> None:
    with Client(url, ADMIN) as client:  # orders of the tests before reach the pool with its next decision
        deadline = time.monotonic() + 30
        while (seen := client.pool("p")).mode != "on" or not seen.drafts:
            assert time.monotonic() < deadline
    code, text = akc(url, "measure", "--minutes", "10", "--share", "0.25", "--why", "first day")
    assert (code, "in windows of 15 s, 25.0% of the time at the static choice" in text) == (0, True), text
    said, deadline = "measuring: no interval yet, 0 of 10 pairs of 15 s windows", time.monotonic() + 30
    while said not in (shown := akc(url, "status")[1]):  # shown with the next decision
        assert time.monotonic() < deadline, shown
    # Another mode ends it: whoever sets one is told, with what was measured by then, and the log is.
    code, text = akc(url, "mode", "canary", "--share", "0.5")
    assert code == 0, text
    assert "the measurement that ran has ended; measured by switching: no interval yet, 0 of 10 pairs" in text
    with Client(url, READER) as client:
        assert client.audit("p", limit=1)[0].what == "mode canary, share 0.5; ends the measurement that ran"
    code, text = akc(url, "mode", "on")
    assert (code, "has ended" in text) == (0, False)
    assert akc(url, "measure", "--minutes", "10", "--windows", "10")[0] == 0
    code, text = akc(url, "measure", "--minutes", "20")  # so does another one
    assert re.search(
        r"the measurement that ran has ended.*\n  measuring until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC in",
        text,
    )
    assert akc(url, "measure", "--stop", "--json")[0] == 0
    with Client(url, READER) as client:
        assert client.audit("p", limit=1)[0].what == "stop measuring"
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


def test_an_engine_that_is_slower_than_usual_says_by_how_much(url: str) -> None:
    with Client(url, READER) as client:
        seen = following.snapshot(client, "p")
    for slowness, said in ((1.84, True), (1.04, False), (None, False)):
        shown = io.StringIO()
        engines = [replace(one, slowness=slowness) for one in seen.engines]
        Console(file=shown, width=200).print(pool_table(replace(seen, engines=engines), seen.taken))
        assert (" ms, 1.8x usual" in shown.getvalue(), "usual" in shown.getvalue()) == (said, said)


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
    assert "do its engines run" not in told.getvalue()  # nobody knows
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
        assert {arm.regime for arm in client.what_if("p", 1, pin=("code", "ngram", 2), regime="greedy").arms} == {
            "greedy"
        }
        with pytest.raises(ControllerError, match="domain 'code' has no rows at this load"):
            client.what_if("p", 1, pin=("code", "ngram", 2), regime="sampled")
        with pytest.raises(ValueError, match="regime is 'greedy' without a pin"):
            client.what_if("p", 1, regime="greedy")
        notice = next(client.events("p"))
        assert (notice.kind, notice.data["pool"]) == ("state", "p")
        with pytest.raises(ControllerError, match="There is no pool 'q'") as refused:
            client.pool("q")
        assert refused.value.status == 404


def test_what_if_tells_of_arms_of_a_pin_and_of_another_mix(url: str) -> None:
    code, text = akc(url, "what-if", "code", "--load", "1")
    assert code == 0, text
    head, titles, *rows = text.splitlines()
    assert head.startswith("code at load 1, ")
    assert titles.split()[:3] == ["regime", "draft", "K"]
    assert {tuple(row.split()[:3]) for row in rows} == {
        ("greedy", "none", "0"), ("greedy", "ngram", "2"), ("greedy", "ngram", "4"),
    }  # fmt: skip
    code, text = akc(
        url, "what-if", "code", "--load", "2", "--draft", "ngram", "--k", "4", "--mix", "code=3", "--mix", "chat=1",
        "--regime", "greedy", "--json",
    )  # fmt: skip
    answer = json.loads(text)
    assert (code, answer["load"], answer["mix"]) == (0, 2, {"code": pytest.approx(0.75), "chat": pytest.approx(0.25)})
    (arm,) = answer["arms"]
    assert (arm["domain"], arm["draft"], arm["k"]) == ("code", "ngram", 4)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--k", "2"), "--k is 2 without --draft"),
        (("--draft", "ngram"), "--draft is 'ngram' without --k"),
        (("--load", "1", "--draft", "ngram", "--k", "3"), "k is 3 for draft 'ngram'; allowed: 0, 2, 4"),
        (("--load", "1", "--regime", "hot"), "--regime is 'hot'; allowed: greedy, sampled"),
        (
            ("--load", "1", "--regime", "sampled"),
            "domain 'code' has no rows at this load; those that have: 'chat', 'code'",
        ),
        (("--load", "1", "--mix", "code"), "--mix is 'code'; allowed: DOMAIN=SHARE"),
        (("--load", "400"), "load is 400; allowed: 1 to"),
    ],
)
def test_what_cannot_be_imagined_is_told_with_code_2(url: str, words: tuple[str, ...], said: str) -> None:
    code, text = akc(url, "what-if", "code", *words)
    assert (code, said in text) == (2, True), text


def test_what_if_asks_about_the_load_that_is_served(tmp_path: Path) -> None:
    with serving(tmp_path) as site:
        code, text = akc(site.url, "what-if", "code")
        assert (code, text.startswith("code at load 1, ")) == (0, True), text
        code, text = akc(site.url, "what-if", "poetry")
        assert (code, "known domains: 'chat', 'code'" in text) == (2, True)


def test_what_is_measured_is_marked_while_it_runs_and_no_more_when_it_is_over() -> None:
    runs = Measured(1.42, 1.37, 1.47, 3, 20, 30.0, 0.5, ("none", 0), 0.0, 1200.0, True, 500.0, 510.0)
    assert "measuring: 1.42x no speculation (1.37-1.47) so far, 3 of 20 pairs" in measured_line(runs)
    assert "so far" not in measured_line(replace(runs, running=False))


class Falling(socketserver.StreamRequestHandler):
    """A controller whose host vanishes in the middle of its event stream: nothing more comes, and nothing closes. It
    has figures of the pool."""

    def handle(self) -> None:
        asked = b"".join(iter(self.rfile.readline, b"\r\n")).decode()
        if not asked.startswith("GET /v1/pools/p/events"):
            body = TypeAdapter(PoolSummary).dump_json(EXAMPLES[PoolSummary])
            self.wfile.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            return
        self.server.asked.append(asked)  # type: ignore[attr-defined]
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
        number = len(self.server.asked)  # type: ignore[attr-defined]
        self.wfile.write(f"{head}: ping\n\nid: 7.{number}\nevent: order\ndata: {{}}\n\n".encode())
        self.server.over.wait(30)  # type: ignore[attr-defined]


@pytest.fixture
def falling() -> Iterator[socketserver.ThreadingTCPServer]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Falling) as server:
        server.asked, server.over = [], threading.Event()  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.over.set()  # type: ignore[attr-defined]
            server.shutdown()
            thread.join(30)


def test_a_host_that_vanishes_is_noticed_and_the_stream_taken_up_where_it_was_cut(
    falling: socketserver.ThreadingTCPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.client.QUIET_SECONDS", 0.2)
    with Client(f"http://127.0.0.1:{falling.server_address[1]}") as client:
        seen = follow(client, "p", lambda _: None)
        first, second = next(seen), next(seen)
    for lost in (first, second):
        assert isinstance(lost, ControllerError)
        assert "is silent: nothing came for 0.2 s" in str(lost)
    asked = falling.asked  # type: ignore[attr-defined]
    assert "last-event-id" not in asked[0].lower()
    assert "last-event-id: 7.1\r\n" in asked[1].lower()


def test_the_client_waits_for_several_of_the_server_s_keep_alive_comments() -> None:
    from fastapi import sse

    assert QUIET_SECONDS >= 3 * sse._PING_INTERVAL
