"""The real link and the real controller over a real server; only the model's luck and its clock are made up."""

import asyncio
import random
from collections.abc import Awaitable, Callable

from redis.asyncio import Redis

from controller.loop import PoolLoop
from controller.settings import ControllerSettings
from controller.store import PoolStore
from engine.link.link import Link, RowOutcome, StepOutcome, Ticket
from engine.link.messages import AcceptanceCell, AccountCell, DraftInfo, EngineDescription, StaticChoice
from engine.link.settings import LinkSettings

Until = Callable[[Callable[[], object]], Awaitable[None]]

ACCEPTANCE = {"code": 0.9, "chat": 0.25}
STEP, PASS = 0.050, 0.004  # seconds of a plain step, and of each drafting pass


def step(link: Link, tickets: list[Ticket], rng: random.Random) -> None:
    """One step of the whole batch, with geometric luck."""
    planned = link.plan(tickets, len(tickets))
    rows = []
    for ticket, k in zip(tickets, planned, strict=True):
        accepted = 0
        while accepted < k and rng.random() < ACCEPTANCE[ticket.domain]:
            accepted += 1
        rows.append(RowOutcome(ticket, k, accepted, min(accepted + 1, k), accepted + 1))
    drafted = {"eagle": (sum(planned), max(planned))} if any(planned) else {}
    seconds = (STEP + PASS * max(planned)) * rng.uniform(0.98, 1.02)
    link.record(StepOutcome(seconds, rows, sum(k + 1 for k in planned), 0, 100 * len(rows), drafted))


async def test_domains_part_ways_and_every_count_arrives(client: "Redis", server: str, until: Until) -> None:
    settings = ControllerSettings(seed=1, draws=128, decide_seconds=0.1, policy_seconds=60, lease_seconds=5)
    loop = PoolLoop(PoolStore(client, "p", lease_seconds=5), settings)
    task = asyncio.create_task(loop.run())
    describe = EngineDescription(
        "test", "smol", "cpu", [DraftInfo("eagle", "eagle", 8)], [0, 2, 4, 8], StaticChoice("eagle", 2), max_batch=2
    )
    link = Link.connect(
        LinkSettings(
            redis_url=server, pool="p", engine="e", static_draft="eagle", static_k=2, report_interval=0.05,
            poll_interval=0.05, seed=1,
        ),
        describe,
    )  # fmt: skip
    rng = random.Random(1)
    best: dict[str, int] = {}

    async def parted() -> bool:
        for domain in ("code", "chat"):  # one request of one domain at a time
            ticket = link.admit(domain, "greedy", 1)
            for _ in range(40):
                step(link, [ticket], rng)
            link.finish(ticket)
        for found in loop.view.domains if loop.view is not None else []:
            best[found.domain] = next(choice.k for choice in found.choices if choice.load == 1)
        applied = loop.view is not None and loop.view.engines[0].applied is not None
        return applied and best["code"] >= 4 and best["chat"] <= 2

    await until(parted)
    await asyncio.to_thread(link.close)
    await until(lambda: loop.view and loop.view.engines[0].ended)
    loop.stop()
    await task
    assert loop.tuner is not None
    snapshot = link.counters.snapshot()
    totals = loop.tuner.ledger.totals.values()
    acceptance = {(c.domain, c.regime, c.draft, c.origin): (c.seen, c.accepted) for c in snapshot.acceptance}
    assert {
        (c.domain, c.regime, c.draft, c.origin): (c.seen, c.accepted) for c in totals if isinstance(c, AcceptanceCell)
    } == acceptance
    account = {(c.domain, c.load, c.variant): (c.row_steps, c.tokens) for c in snapshot.account}
    assert {
        (c.domain, c.load, c.variant): (c.row_steps, c.tokens) for c in totals if isinstance(c, AccountCell)
    } == account
    assert loop.tuner.ledger.counts.rejected == 0
