"""Between engine and clients: the desk that keeps accounts and pins, and the jobs that carry answers."""

import asyncio

import pytest

from engine.link import RowOutcome, StaticLink, StepOutcome, Ticket
from engine.link.messages import Regime
from engine.server.desk import Account, Desk, Pin
from engine.server.job import Job, Piece
from engine.server.schema import Facts


def test_the_desk_keeps_pinned_rows_and_their_steps_from_the_link() -> None:
    class Recorder(StaticLink):
        def __init__(self) -> None:
            super().__init__("ngram", 4)
            self.seen: list[StepOutcome] = []

        def record(self, step: StepOutcome) -> None:
            self.seen.append(step)

    link = Recorder()
    desk = Desk(link)
    closed: list[Facts] = []
    free = desk.admit(desk.expect(Account("code", "header", None, closed.append)), "greedy", 1)
    pinned = desk.admit(desk.expect(Account("chat", "body", Pin("eagle", 2), closed.append)), "greedy", 2)
    assert desk.plan([pinned, free], 2) == [2, 4]
    assert desk.plan([free], 1) == [4]
    both = StepOutcome(0.5, [RowOutcome(pinned, 2, 1, 2, 2), RowOutcome(free, 4, 4, 4, 5)], 8)
    alone = StepOutcome(0.25, [RowOutcome(free, 4, 0, 1, 1)], 5)
    desk.record(both)
    desk.record(alone)
    assert link.seen == [alone]
    assert desk.status()["pinned_steps"] == 1
    desk.finish(pinned)
    desk.finish(free)
    assert closed == [
        Facts("chat", "body", "eagle", "pin", "greedy", 1, 2, 1, 2, 0.5),
        Facts("code", "header", "ngram", "policy", "greedy", 2, 8, 4, 6, 0.75),
    ]
    with pytest.raises(KeyError):
        desk.admit("never announced", "greedy", 1)


def test_a_link_that_fails_to_admit_costs_speculation_not_the_request() -> None:
    class Broken(StaticLink):
        def admit(self, domain: str, regime: Regime, batch: int) -> Ticket:
            raise RuntimeError("no")

    desk = Desk(Broken())
    ticket = desk.admit(desk.expect(Account("code", "body", None, lambda _: None)), "sampled", 1)
    assert (ticket.domain, ticket.draft) == ("code", "none")
    assert desk.plan([ticket], 1) == [0]
    desk.finish(ticket)


async def test_a_job_that_is_aborted_ends_without_a_finish_and_tells_the_engine_once() -> None:
    job = Job(asyncio.get_running_loop(), 3)
    told: list[bool] = []
    job.on_abort = lambda: told.append(True)
    job.deliver(Piece("a", 1))
    pieces = []
    async for piece in job:
        pieces.append(piece)
        job.abort()
        job.abort()
    assert pieces == [Piece("a", 1)]
    assert told == [True]


def test_a_piece_for_a_loop_that_has_closed_is_dropped() -> None:
    loop = asyncio.new_event_loop()
    job = Job(loop, 1)
    loop.close()
    job.deliver(Piece("a", 1))
