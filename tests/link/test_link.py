"""The whole link: against a real server that is killed and restarted, and against faults of its own."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from engine.link import DraftInfo, EngineDescription, Link, LinkSettings, RowOutcome, StaticLink, StepOutcome, Ticket
from engine.link.messages import Keys, Policy, ProbePlan, decode_frame, encode

if TYPE_CHECKING:
    from tests.link.conftest import Server

MakePolicy = Callable[..., Policy]
Eventually = Callable[[Callable[[], object]], None]
NOBODY = "redis://127.0.0.1:1/0"  # a port where nothing listens


def settings(url: str = NOBODY, **fields: Any) -> LinkSettings:
    values = {
        "redis_url": url,
        "pool": "p",
        "engine": "e",
        "static_draft": "ngram",
        "static_k": 4,
        "report_interval": 0.05,
        "poll_interval": 0.1,
        "timeout": 1.0,
        "seed": 3,
    }
    return LinkSettings(**{**values, **fields})


@pytest.fixture
def link(describe: EngineDescription) -> Link:
    """A link without threads; a policy goes in through its judge."""
    return Link(settings(), describe)


@pytest.fixture
def connect(describe: EngineDescription) -> Iterator[Callable[..., Link]]:
    links: list[Link] = []

    def make(url: str, **fields: Any) -> Link:
        links.append(Link.connect(settings(url, **fields), describe))
        return links[-1]

    yield make
    for link in links:
        link.close()


def play(link: Link, tickets: Sequence[Ticket], steps: int, seconds: float = 0.05, accepted: int = 2) -> list[int]:
    """Let an engine decode: every row accepts `accepted` of its tokens; K of the first row by step."""
    ks = []
    for _ in range(steps):
        planned = link.plan(tickets, len(tickets))
        rows = []
        for ticket, k in zip(tickets, planned, strict=True):
            a = min(accepted, k)
            rows.append(RowOutcome(ticket, k, a, min(a + 1, k), a + 1))
        deepest = max(planned)
        drafted = {tickets[0].draft: (sum(planned), deepest)} if deepest else {}
        link.record(StepOutcome(seconds, rows, sum(planned) + len(planned), 0, 100, drafted))
        ks.append(planned[0])
    return ks


def fresh(policy: Policy) -> Policy:
    return msgspec.structs.replace(policy, issued=time.time(), expires=time.time() + 600)


def test_the_loop_through_a_server_that_is_killed_and_restarted(
    down_server: "Server", connect: Callable[..., Link], make_policy: MakePolicy, eventually: Eventually
) -> None:
    link = connect(down_server.url)
    tickets = [link.admit("code", "greedy", 1)]
    assert set(play(link, tickets, 50)) == {4}  # static, from the first step
    down_server.start()
    eventually(lambda: link.status()["connected"])
    down_server.publish(fresh(make_policy({("code", 1): {"ngram": (1.0, [(2, 1.0)])}}, version=(7, 1))))
    eventually(lambda: link.status()["version"] == (7, 1))
    tickets.append(link.admit("code", "greedy", 2))
    assert link.plan(tickets, 2) == [4, 2]  # the older request keeps the static choice it was admitted with
    eventually(lambda: (last := down_server.last()) and last.applied == (7, 1))
    down_server.kill()
    eventually(lambda: not link.reporter.connected)
    assert set(play(link, tickets[1:], 50)) == {2}  # the policy in force stays
    down_server.start()
    eventually(lambda: link.reporter.connected)
    for ticket in tickets:
        link.finish(ticket)
    link.close()
    last = down_server.last()
    assert last is not None
    assert (last.final, last.full, last.steps, last.lost, last.running) == (True, True, 100, 0, 0)
    assert sum(c.tokens for c in last.account) == 300
    assert {c.variant: c.row_steps for c in last.account} == {"static": 50, "adaptive": 50}
    assert last.describe is not None
    assert last.describe.static.k == 4


def test_frames_written_twice_or_out_of_order_still_hold_absolute_values(
    server: "Server", connect: Callable[..., Link], eventually: Eventually
) -> None:
    link = connect(server.url)
    ticket = link.admit("code", "greedy", 1)
    for n in (10, 20):
        play(link, [ticket], n)
        eventually(lambda: (last := server.last()) and last.steps == link.counters.steps)
    with server.client() as client:
        for data in reversed(server.frames()):
            client.xadd(Keys("p").frames, {"frame": data})
    newest: dict[tuple[str, int], tuple[int, int]] = {}
    for frame in map(decode_frame, server.frames()):  # a receiver that keeps, per cell, the value of the highest seq
        for cell in frame.acceptance:
            key = (cell.domain, 0)
            newest[key] = max(newest.get(key, (0, 0)), (frame.seq, cell.seen[0]))
    assert newest["code", 0][1] == 30


class Audit:
    """What the interpreter itself reports of one thread: sockets, files, sleeps."""

    WATCHED = ("socket.", "open", "time.sleep", "subprocess.", "os.")

    def __init__(self) -> None:
        self.events: list[str] = []
        self.thread: int | None = None
        sys.addaudithook(self._hook)  # cannot be removed: `thread` switches it

    def _hook(self, event: str, _: tuple[object, ...]) -> None:
        if self.thread == threading.get_ident() and event.startswith(self.WATCHED):
            self.events.append(event)


def test_the_decode_thread_does_no_io_with_the_server_unreachable(
    connect: Callable[..., Link], tmp_path: Path, eventually: Eventually
) -> None:
    link = connect(NOBODY, trace_dir=tmp_path)
    audit = Audit()
    audit.thread = threading.get_ident()
    for _ in range(200):
        ticket = link.admit("code", "greedy", 1)
        play(link, [ticket], 20)
        link.finish(ticket)
    audit.thread = None
    assert audit.events == []
    link.counters.snapshot()  # counts what was held back while the reporter took one
    status = link.status()
    assert (status["connected"], status["lost"], status["steps"]) == (False, 0, 4000)
    eventually(lambda: "ConnectionError" in str(link.status()["why"]))


def test_closing_without_a_server_takes_bounded_time(connect: Callable[..., Link]) -> None:
    link = connect(NOBODY)
    start = time.monotonic()
    link.close(timeout=2.0)
    link.close(timeout=2.0)  # twice is harmless
    assert time.monotonic() - start < 5.0


@pytest.mark.parametrize("where", ["admit", "plan", "observe"])
def test_an_internal_fault_leaves_decoding_with_the_static_choice(
    link: Link,
    make_policy: MakePolicy,
    where: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    link.judge.judge(encode(fresh(make_policy({("code", 1): {"model": (1.0, [(2, 1.0)])}}))), time.time())
    before = link.admit("code", "greedy", 1)
    assert play(link, [before], 1) == [2]

    def fault(*_: object) -> None:
        raise ZeroDivisionError("made up")

    monkeypatch.setattr(link._chooser, where, fault)
    ticket = link.admit("code", "greedy", 1)
    play(link, [ticket], 3)
    after = link.admit("math", "sampled", 1)
    assert after.draft == "ngram"
    assert set(play(link, [after], 5)) == {4}
    link.finish(ticket)
    status = link.status()
    assert f"internal error in {'record' if where == 'observe' else where}: ZeroDivisionError" in str(status["why"])
    assert isinstance(status["lost"], int)
    assert status["lost"] >= 5
    frame, _ = link.reporter.frame()
    assert (frame.lost, frame.applied) == (status["lost"], None)
    assert sum("internal error" in r.message for r in caplog.records) == 1


def test_an_impossible_step_is_left_out_and_the_link_goes_on(
    link: Link, make_policy: MakePolicy, caplog: pytest.LogCaptureFixture
) -> None:
    link._chooser.use(make_policy({("code", 1): {"ngram": (1.0, [(2, 1.0)])}}), 1_700_000_000.0)
    ticket = link.admit("code", "greedy", 1)
    for _ in range(5):
        link.record(StepOutcome(0.05, [RowOutcome(ticket, 2, 3, 3, 4)], 3))
    assert link.plan([ticket], 1) == [2]  # the policy's K, not the static one
    link.record(StepOutcome(0.05, [RowOutcome(ticket, 2, 2, 2, 3)], 3, drafted={"ngram": (2, 2)}))
    status = link.status()
    assert (status["refused"], status["lost"], status["steps"]) == (5, 5, 1)
    assert "internal error" not in str(status["why"])
    warnings = [r.message for r in caplog.records if "step left out" in r.message]
    assert [w.split("(")[1].split()[0] for w in warnings] == ["1", "2", "4"]
    assert "accepted=3" in warnings[0]


def test_a_description_that_nobody_can_read_fails_at_the_start(describe: EngineDescription) -> None:
    bad = msgspec.structs.replace(describe, drafts=[DraftInfo("", "model", 4)])
    with pytest.raises(msgspec.ValidationError, match=r"length >= 1.*drafts"):
        Link(settings(), bad)


def test_strange_labels_are_served_as_other(link: Link, make_policy: MakePolicy) -> None:
    link.judge.judge(encode(fresh(make_policy({("other", 1): {"ngram": (1.0, [(1, 1.0)])}}))), time.time())
    ticket = link.admit("<script>\n", "greedy", 1)
    assert ticket.domain == "other"
    play(link, [ticket], 2)
    frame, _ = link.reporter.frame()
    assert [c.domain for c in frame.acceptance] == ["other"]


def test_plain_probes_are_accounted_apart(link: Link, make_policy: MakePolicy) -> None:
    policy = make_policy({("code", 1): {"ngram": (1.0, [(4, 1.0)])}}, probe=ProbePlan(8, 2))
    link.judge.judge(encode(fresh(policy)), time.time())
    ticket = link.admit("code", "greedy", 1)
    ks = play(link, [ticket], 20)
    assert [i for i, k in enumerate(ks) if k == 0] == [8, 9, 18, 19]
    frame, _ = link.reporter.frame()
    assert {c.variant: (c.row_steps, c.tokens) for c in frame.account} == {"adaptive": (16, 48), "probe": (4, 4)}
    assert {tuple(c.drafts): c.count for c in frame.cost} == {("ngram",): 16, (): 4}


@pytest.mark.parametrize("idle", [{}, {"ngram": (0, 1)}], ids=["off", "paused: one pass keeps the draft in step"])
def test_speculation_that_loses_is_turned_off_reported_and_let_in_again(
    link: Link, make_policy: MakePolicy, idle: dict[str, tuple[int, int]]
) -> None:
    policy = make_policy({("code", 1): {"ngram": (1.0, [(4, 1.0)])}}, probe=ProbePlan(40, 2))
    link.judge.judge(encode(fresh(policy)), time.time())
    ticket = link.admit("code", "greedy", 1)
    for _ in range(2000):
        (k,) = link.plan([ticket], 1)
        seconds, drafted = (0.04, {"ngram": (4, 4)}) if k else (0.01, idle)
        link.record(StepOutcome(seconds, [RowOutcome(ticket, k, 0, min(k, 1), 1)], k + 1, 0, 0, drafted))
        if link.status()["breaker"] == "open":
            break
    frame, _ = link.reporter.frame()
    assert frame.breaker == "open"
    spent = link.counters.steps
    assert spent < 500  # four batches of 64 steps after the third probe
    states = []
    for _ in range(400):
        (k,) = link.plan([ticket], 1)
        seconds, drafted = (0.012, {"ngram": (4, 4)}) if k else (0.01, idle)  # now it pays
        link.record(StepOutcome(seconds, [RowOutcome(ticket, k, k, k, k + 1)], k + 1, 0, 0, drafted))
        states.append(link.status()["breaker"])
    assert states.count("open") == 255  # and the step that ended it
    assert states[-1] == "closed"
    assert link.plan([ticket], 1) == [4]


def test_the_breaker_can_be_turned_off(describe: EngineDescription) -> None:
    link = Link(settings(breaker=False), describe)
    ticket = link.admit("code", "greedy", 1)
    play(link, [ticket], 5)
    assert link.status()["breaker"] == "closed"


def test_the_trace_holds_one_line_per_request(
    server: "Server", connect: Callable[..., Link], make_policy: MakePolicy, tmp_path: Path, eventually: Eventually
) -> None:
    link = connect(server.url, trace_dir=tmp_path / "trace", nonadaptive=1.0)
    arms = {"ngram": (0.25, [(4, 1.0)]), "model": (0.75, [(2, 0.4), (6, 0.6)])}
    server.publish(fresh(make_policy({("code", 1): arms}, version=(7, 1), probe=ProbePlan(3, 1))))
    eventually(lambda: link.status()["version"] == (7, 1))
    tickets = [link.admit("code", "greedy", 1) for _ in range(20)]
    for ticket in tickets:
        play(link, [ticket], 4)
        link.finish(ticket)
    link.close()
    (path,) = (tmp_path / "trace").iterdir()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["request"] for line in lines] == list(range(1, 21))
    for line in lines:
        assert (line["version"], line["origin"], line["steps"], line["load"]) == ([7, 1], "policy", 4, [1] * 4)
        assert line["draft_p"] == pytest.approx(arms[line["draft"]][0])
        assert line["p"].count(None) == line["k"].count(0) == 1  # the probe
        chances = {**dict(arms[line["draft"]][1]), 0: None}
        assert line["p"] == [None if k == 0 else pytest.approx(chances[k]) for k in line["k"]]
        assert line["drafted"] == line["k"]
        assert line["accepted"] == [min(2, k) for k in line["k"]]
    numbers = [n for line in lines for n in line["step"]]
    assert numbers == list(range(1, 81))


def test_a_full_trace_buffer_or_disk_costs_lines_and_nothing_else(describe: EngineDescription, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    link = Link(settings(trace_dir=tmp_path / "file" / "below", trace_buffer=2), describe)
    for _ in range(3):
        ticket = link.admit("code", "greedy", 1)
        play(link, [ticket], 2)
        link.finish(ticket)
    assert link.status()["trace_dropped"] == 1
    assert link._tracer is not None
    link._tracer.flush()  # the folder cannot be made
    assert link.status()["trace_dropped"] == 3
    assert link.status()["lost"] == 0


def test_waiting_requests_travel_with_the_frame(link: Link) -> None:
    link.admit("code", "greedy", 1)
    link.queue(9)
    frame, _ = link.reporter.frame()
    assert (frame.running, frame.waiting) == (1, 9)


def test_a_static_link_offers_the_same_calls() -> None:
    static = StaticLink("ngram", 4, table={"chat": ("model", 2)}, choose=lambda ticket, batch: batch)
    calls = {name for name in dir(Link) if not name.startswith("_")}
    assert calls - set(dir(static)) == {"connect"}
    tickets = [static.admit("code", "greedy", 1), static.admit("chat", "greedy", 2)]
    assert static.plan(tickets, 2) == [2, 2]
    static.record(StepOutcome(0.05, [], 0))
    static.finish(tickets[0])
    static.queue(3)
    static.close()
    status = static.status()
    assert (status["running"], status["steps"]) == (1, 1)


def test_what_of_a_policy_an_engine_has_not_is_said_once(
    link: Link, make_policy: MakePolicy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "engine.link")
    now = time.time()
    cells = {("code", 1): {"ngram": (0.5, [(5, 1.0)]), "eagle9": (0.5, [(2, 1.0)])}}
    for n in (1, 2):
        link.judge.judge(encode(make_policy(cells, version=(1, n), issued=now)), now)
    told = ["draft 'eagle9' is not loaded here and left out", "for K = 5 of 'ngram' this engine runs 4"]
    assert link.status()["narrowed"] == told
    assert [r.message for r in caplog.records if "has not" in r.message] == [
        f"link: the policy asks for what this engine has not: {'; '.join(told)}"
    ]
    link.judge.judge(encode(make_policy({("code", 1): {"ngram": (1.0, [(4, 1.0)])}}, version=(1, 3), issued=now)), now)
    assert link.status()["narrowed"] == []
