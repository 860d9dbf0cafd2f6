"""Frames: what they hold, what a lost one costs (nothing), and a server that is down, killed or deaf."""

import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from engine.link import EngineDescription, LinkSettings, RowOutcome, StepOutcome, Ticket
from engine.link.counters import Counters
from engine.link.messages import Keys, decode_frame
from engine.link.reporter import Live, Reporter

if TYPE_CHECKING:
    from tests.link.conftest import Server

Eventually = Callable[[Callable[[], object]], None]


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
def make_reporter(describe: EngineDescription, counters: Counters) -> Callable[..., Reporter]:
    def make(url: str, **settings: object) -> Reporter:
        values = {"redis_url": url, "pool": "p", "engine": "e", "report_interval": 0.05, "timeout": 1.0, **settings}
        live = Live((1, 2), "closed", 3, 4, 5, 6.5)
        return Reporter(LinkSettings(**values), describe, "abc", counters, lambda: live)  # type: ignore[arg-type]

    return make


def count(counters: Counters, ticket: Ticket) -> None:
    counters.record(StepOutcome(0.05, [RowOutcome(ticket, 4, 2, 3, 3)], 5))


def test_every_thirtieth_frame_is_full_and_the_others_hold_what_changed(
    server: "Server", counters: Counters, make_reporter: Callable[..., Reporter]
) -> None:
    reporter = make_reporter(server.url, full_every=3)
    code, chat = Ticket("code", "greedy", "ngram"), Ticket("chat", "greedy", "ngram")
    count(counters, code)
    count(counters, chat)
    for _ in range(4):
        assert reporter._ship()
        count(counters, code)
    assert reporter.close(1)
    frames = [decode_frame(data) for data in server.frames()]
    assert [f.seq for f in frames] == [1, 2, 3, 4, 5]
    assert [f.full for f in frames] == [True, False, False, True, True]
    assert [sorted(c.domain for c in f.acceptance) for f in frames] == [
        ["chat", "code"],
        ["code"],
        ["code"],
        ["chat", "code"],
        ["chat", "code"],
    ]
    assert [f.acceptance[0].seen[0] for f in frames] == [1, 2, 3, 4, 5]
    assert [f.describe is not None for f in frames] == [f.full for f in frames]
    assert [f.final for f in frames] == [False] * 4 + [True]
    assert frames[0].policy_age == 6.5
    assert (frames[0].applied, frames[0].running, frames[0].waiting, frames[0].lost) == ((1, 2), 3, 4, 5)
    with server.client() as client:
        assert client.smembers(Keys.POOLS) == {b"p"}


def test_a_frame_that_could_not_be_sent_is_superseded_by_a_full_one(
    server: "Server", counters: Counters, make_reporter: Callable[..., Reporter]
) -> None:
    reporter = make_reporter(server.url)
    ticket = Ticket("code", "greedy", "ngram")
    count(counters, ticket)
    assert reporter._ship()
    server.kill()
    count(counters, ticket)
    assert not reporter._ship()
    count(counters, ticket)
    assert not reporter._ship()
    assert not reporter.connected
    assert reporter.unreported == 2
    server.start()  # and has forgotten everything
    assert reporter._ship()
    assert reporter.unreported == 0
    (frame,) = [decode_frame(data) for data in server.frames()]
    assert (frame.seq, frame.full, frame.acceptance[0].seen) == (4, True, [3, 3, 3])


def test_the_stream_stays_bounded(server: "Server", counters: Counters, make_reporter: Callable[..., Reporter]) -> None:
    reporter = make_reporter(server.url, stream_length=100)
    for _ in range(400):
        assert reporter._ship()
    assert 100 <= len(server.frames()) <= 250  # trimming is approximate: whole nodes of 100 entries


def test_the_thread_reports_through_a_restart_and_ends_with_a_final_frame(
    down_server: "Server", counters: Counters, make_reporter: Callable[..., Reporter], eventually: Eventually
) -> None:
    reporter = make_reporter(down_server.url)
    ticket = Ticket("code", "greedy", "ngram")
    reporter.start()
    eventually(lambda: reporter.failed >= 2)
    count(counters, ticket)
    down_server.start()
    eventually(lambda: reporter.connected)
    down_server.kill()
    eventually(lambda: not reporter.connected)
    count(counters, ticket)
    down_server.start()
    eventually(lambda: reporter.connected)
    count(counters, ticket)
    assert reporter.close(5)
    last = down_server.last()
    assert last is not None
    assert (last.final, last.steps, last.acceptance[0].seen[0]) == (True, 3, 3)


def test_closing_is_bounded_when_the_server_accepts_and_then_says_nothing(
    make_reporter: Callable[..., Reporter], eventually: Eventually
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        reporter = make_reporter(f"redis://127.0.0.1:{deaf.getsockname()[1]}/0", timeout=30)
        reporter.start()
        start = time.monotonic()
        assert not reporter.close(0.2)
        assert time.monotonic() - start < 5.0
    eventually(lambda: not reporter._thread.is_alive())  # the socket is closed: the thread sees it and ends


def test_an_error_in_a_chore_does_not_end_the_thread(
    server: "Server", describe: EngineDescription, counters: Counters, eventually: Eventually
) -> None:
    calls = []

    def chore() -> None:
        calls.append(1)
        if len(calls) < 3:
            raise RuntimeError("disk on fire")

    settings = LinkSettings(redis_url=server.url, pool="p", report_interval=0.02)
    live = Live(None, "closed", 0, 0, 0)
    reporter = Reporter(settings, describe, "abc", counters, lambda: live, [chore])
    reporter.start()
    eventually(lambda: reporter.delivered)
    assert reporter.failed == 2
    assert reporter.close(5)
