"""The trace around any link: what it writes of a request, and when."""

from pathlib import Path

import msgspec

from engine.link.static import StaticLink
from engine.link.ticket import RowOutcome, StepOutcome
from engine.link.trace import Traced, TraceLine, Tracer


def lines(path: Path) -> list[TraceLine]:
    return [msgspec.json.decode(line, type=TraceLine) for line in path.read_bytes().splitlines()]


def test_two_requests_of_a_static_link_are_written_when_the_last_one_ends(tmp_path: Path) -> None:
    tracer = Tracer(tmp_path, "engine", "life", 64)
    link = Traced(StaticLink("draft", 4), tracer)
    first, second = (link.admit(domain, "greedy", 1) for domain in ("code", "chat"))
    assert link.plan([first, second], 2) == [4, 4]
    link.record(StepOutcome(0.5, [RowOutcome(first, 4, 2, 3, 3), RowOutcome(second, 1, 1, 1, 2, True)], 7, 30))
    link.finish(second)
    assert not tracer.path.exists()
    assert link.plan([first], 1) == [4]
    link.record(StepOutcome(0.25, [RowOutcome(first, 4, 0, 1, 1)], 5))
    link.finish(first)
    chat, code = lines(tracer.path)
    assert (code.request, code.domain, code.draft, code.steps) == (1, "code", "draft", 2)
    assert (code.step, code.batch, code.prefill, code.seconds) == ([1, 2], [2, 1], [30, 0], [0.5, 0.25])
    assert (code.k, code.drafted, code.accepted, code.emitted) == ([4, 4], [4, 4], [2, 0], [3, 1])
    assert (chat.request, chat.k, chat.drafted, chat.limited, chat.p) == (2, [4], [1], [True], [None])


def test_a_busy_engine_writes_once_a_quarter_of_the_buffer_is_full(tmp_path: Path) -> None:
    tracer = Tracer(tmp_path, "engine", "life", 8)
    link = Traced(StaticLink(), tracer)
    for _ in range(3):
        link.admit("code", "greedy", 1)
    tickets = [link.admit("code", "greedy", 1) for _ in range(3)]
    link.finish(tickets[0])
    assert not tracer.path.exists()
    link.finish(tickets[1])
    assert len(lines(tracer.path)) == 2
    link.finish(tickets[2])
    assert len(lines(tracer.path)) == 2
    assert tracer.dropped == 0


def test_a_line_from_before_batch_sizes_were_traced_can_still_be_read() -> None:
    old: dict[str, list[int]] = {
        name: [] for name in ("step", "load", "k", "p", "drafted", "accepted", "seen", "emitted", "limited", "seconds")
    }
    names = {"engine": "e", "incarnation": "i", "domain": "code", "regime": "greedy", "draft": "none"}
    rest = {"request": 1, "draft_p": 1.0, "origin": "policy", "version": None, "steps": 0}
    line = msgspec.convert({**old, **names, **rest}, TraceLine)
    assert (line.batch, line.prefill) == ([], [])
