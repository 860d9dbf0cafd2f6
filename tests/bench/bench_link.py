"""Cost of the link on the decode thread: `python -m tests.bench.bench_link` prints microseconds per step."""

import statistics
import time
from collections.abc import Callable

from engine.link import DraftInfo, EngineDescription, Link, LinkSettings, RowOutcome, StaticChoice, StepOutcome, Ticket
from engine.link.messages import DraftChoice, Policy, PolicyCell, encode

K = 4
ROUNDS, STEPS = 15, 200


def policy() -> Policy:
    arms = [(0, 0.1), (2, 0.2), (4, 0.6), (6, 0.1)]
    seconds = [(0, 0.05), (2, 0.06), (4, 0.07), (6, 0.08)]
    choices = [DraftChoice(name, 0.5, arms, [7.0] * 8, [3.0] * 8, seconds) for name in ("model", "other")]
    cells = [PolicyCell(d, "greedy", load, choices) for d in ("code", "math", "chat") for load in (1, 2, 4, 8, 16)]
    now = time.time()
    return Policy("bench", (1, 1), now, now + 3600, StaticChoice(), [0, 2, 4, 6], cells, window=2, allowance=10**9)


def _microseconds(call: Callable[[], object]) -> float:
    """Median over rounds of the mean microseconds per call."""
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(STEPS):
            call()
        rounds.append((time.perf_counter() - start) / STEPS * 1e6)
    return statistics.median(rounds)


def _measure(rows: int) -> tuple[float, float, float]:
    drafts = [DraftInfo("model", "model", 8), DraftInfo("other", "model", 8)]
    describe = EngineDescription("bench", "t", "cpu", drafts, [0, 2, 4, 6], StaticChoice(), 64, switches=True)
    link = Link(LinkSettings(pool="bench", seed=1), describe)
    link.judge.judge(encode(policy()), time.time())
    tickets: list[Ticket] = [link.admit(("code", "math", "chat")[i % 3], "greedy", rows) for i in range(rows)]
    outcomes = [RowOutcome(t, K, i % (K + 1), min(i % (K + 1) + 1, K), i % (K + 1) + 1) for i, t in enumerate(tickets)]
    step = StepOutcome(0.05, outcomes, rows * (K + 1), 0, 4000, {"model": (rows * K, K)})
    record = _microseconds(lambda: link.record(step))
    plan = _microseconds(lambda: link.plan(tickets, rows))
    frame = _microseconds(lambda: link.reporter.frame(final=True))
    status = link.status()
    if status["lost"]:
        raise SystemExit(f"the link failed while it was measured: {status['why']}")
    return record, plan, frame


def main() -> None:
    """Print the table."""
    print(f"{'rows':>4}  {'record us':>9}  {'plan us':>8}  {'full frame us (background)':>26}")
    for rows in (1, 4, 16):
        record, plan, frame = _measure(rows)
        print(f"{rows:>4}  {record:>9.1f}  {plan:>8.1f}  {frame:>26.1f}")


if __name__ == "__main__":
    main()
