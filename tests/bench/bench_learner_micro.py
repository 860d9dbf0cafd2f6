"""Speed of the learner: `python -m tests.bench.bench_learner_micro` prints milliseconds per decision and microseconds
per observed delta, each the best and the median of several, since the machine may be shared."""

import statistics
import time

import numpy as np

from controller.learner import Delta, Learner, LearnerConfig, PoolSpec
from engine.link.messages import AcceptanceCell, AccountCell, DraftInfo
from tests.bench.plays import Timed
from tests.learner.world import cost_cell

REGIMES = ("greedy", "sampled")
KINDS = ("ngram", "model", "eagle", "model")


def _delta(
    rng: np.random.Generator,
    domains: int,
    drafts: int,
    deepest: int,
    loads: int,
    size: tuple[int, int],
    regimes: int = 2,
) -> Delta:
    """One delta of size (acceptance cells, cost cells), spread over all keys at random."""
    acceptance, costs = [], []
    for _ in range(size[0]):
        alive, seen, accepted = 100, [], []
        for _ in range(deepest):
            seen.append(alive)
            alive = int(rng.binomial(alive, 0.8))
            accepted.append(alive)
        name = f"domain{rng.integers(domains)}", REGIMES[rng.integers(regimes)], f"draft{rng.integers(drafts)}"
        acceptance.append(AcceptanceCell(*name, "policy", seen, accepted))  # type: ignore[arg-type]
    for _ in range(size[1]):
        j, load, k = f"draft{rng.integers(drafts)}", 1 << int(rng.integers(loads)), int(rng.integers(1, deepest + 1))
        x = np.array([load * (k + 1), 0, 100 * load, load * k, k], dtype=np.float64)
        costs.append(cost_cell((j,), load, min(k, 8), [(0.02 * (1 + 0.1 * k) * np.exp(rng.normal(0, 0.05)), x)] * 5))
    account = [
        AccountCell(f"domain{d}", regime, 1 << load, "adaptive", 50, 100, 1.0)  # type: ignore[arg-type]
        for d in range(domains)
        for regime in REGIMES[:regimes]
        for load in range(loads)
    ]
    return Delta("engine", 0.0, acceptance, [], costs, account)


def measure(domains: int, drafts: int, deepest: int, loads: int, draws: int = 256) -> tuple[float, float, float, float]:
    """(best, median) milliseconds of `decide` and (best, median) microseconds of `observe` with 24 + 32 cells."""
    rng = np.random.default_rng(0)
    infos = tuple(DraftInfo(f"draft{i}", KINDS[i % 4], deepest) for i in range(drafts))  # type: ignore[arg-type]
    learner = Learner(LearnerConfig(draws=draws), PoolSpec(infos, tuple(range(deepest + 1)), 1 << (loads - 1)))
    for _ in range(20):
        learner.observe(_delta(rng, domains, drafts, deepest, loads, (24, 32)))
    observed = []
    for _ in range(60):
        delta = _delta(rng, domains, drafts, deepest, loads, (24, 32))
        delta.account = []
        start = time.perf_counter()
        learner.observe(delta)
        observed.append((time.perf_counter() - start) * 1e6)
    decided = []
    for _ in range(7):
        start = time.perf_counter()
        learner.decide(1.0, rng)
        decided.append((time.perf_counter() - start) * 1e3)
    return min(decided), statistics.median(decided), min(observed), statistics.median(observed)


def bars() -> Timed:
    """The sizes that the learner's bars name: 32 domains with `other`, one regime, 8 drafts, K 0..16, 10 loads."""
    rng = np.random.default_rng(0)
    infos = tuple(DraftInfo(f"draft{i}", KINDS[i % 4], 16) for i in range(8))  # type: ignore[arg-type]
    learner = Learner(LearnerConfig(draws=256), PoolSpec(infos, tuple(range(17)), 1 << 9))
    for _ in range(20):
        learner.observe(_delta(rng, 31, 8, 16, 10, (24, 32), regimes=1))
    full, one, frame = [], [], []
    for _ in range(5):
        start = time.perf_counter()
        learner.decide(1.0, rng)
        full.append((time.perf_counter() - start) * 1e3)
        learner.observe(_delta(rng, 1, 8, 16, 10, (1, 0), regimes=1))
        start = time.perf_counter()
        learner.decide(1.0, rng)
        one.append((time.perf_counter() - start) * 1e3)
    for _ in range(60):
        delta = _delta(rng, 31, 8, 16, 10, (24, 32), regimes=1)
        delta.account = []
        start = time.perf_counter()
        learner.observe(delta)
        frame.append((time.perf_counter() - start) * 1e6)
    return Timed(*map(statistics.median, (full, one, frame)))


def main() -> None:
    """Print the table."""
    print(f"{'domains x regimes x drafts x K x loads':42}{'decide, ms (best, median)':>28}{'observe, us':>20}")
    for domains, drafts, deepest, loads in ((3, 3, 8, 4), (5, 4, 8, 5), (16, 8, 16, 6)):
        best, median, fast, usual = measure(domains, drafts, deepest, loads)
        size = f"{domains + 1} x 2 x {drafts} x 0..{deepest} x {loads}"
        print(f"{size:42}{best:14.0f}{median:14.0f}{fast:12.0f}{usual:8.0f}")


if __name__ == "__main__":
    main()
