"""Speed of the learner: `python -m tests.bench.bench_learner_micro` prints milliseconds per decision and microseconds
per observed delta, each the best and the median of several, since the machine may be shared."""

import statistics
import time

import numpy as np

from controller.learner import Delta, Learner, LearnerConfig, PoolSpec
from engine.link.messages import AcceptanceCell, AccountCell, DraftInfo, load_buckets
from tests.bench.plays import Timed
from tests.learner.world import cost_cell

REGIMES = ("greedy", "sampled")
SIZES = ((3, 3, 8, 1, 2), (3, 3, 8, 4, 2), (5, 4, 8, 5, 2), (16, 8, 16, 6, 2), (32, 8, 16, 10, 1))
LOADS = load_buckets(512)
KINDS = ("ngram", "model", "eagle", "model")


def _delta(
    rng: np.random.Generator,
    domains: int,
    drafts: int,
    deepest: int,
    loads: int,
    size: tuple[int, int],
    regimes: int = len(REGIMES),
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
        j, load, k = f"draft{rng.integers(drafts)}", LOADS[rng.integers(loads)], int(rng.integers(1, deepest + 1))
        x = np.array([load * (k + 1), 0, 100 * load, load * k, k], dtype=np.float64)
        costs.append(cost_cell((j,), load, min(k, 8), [(0.02 * (1 + 0.1 * k) * np.exp(rng.normal(0, 0.05)), x)] * 5))
    account = [
        AccountCell(f"domain{d}", regime, LOADS[load], "adaptive", 50, 100, 1.0)  # type: ignore[arg-type]
        for d in range(domains)
        for regime in REGIMES[:regimes]
        for load in range(loads)
    ]
    return Delta("engine", 0.0, acceptance, [], costs, account)


def measure(domains: int, drafts: int, deepest: int, loads: int, regimes: int, draws: int = 256) -> list[float]:
    """Best and median: milliseconds of `decide` in full, and after one domain ran 20 row-steps at one load, and
    microseconds of `observe` with 24 + 32 cells."""
    rng = np.random.default_rng(0)
    infos = tuple(DraftInfo(f"draft{i}", KINDS[i % 4], deepest) for i in range(drafts))  # type: ignore[arg-type]
    learner = Learner(LearnerConfig(draws=draws), PoolSpec(infos, tuple(range(deepest + 1)), LOADS[loads - 1]))
    for _ in range(20):
        learner.observe(_delta(rng, domains, drafts, deepest, loads, (24, 32), regimes))
    observed = []
    for _ in range(60):
        delta = _delta(rng, domains, drafts, deepest, loads, (24, 32), regimes)
        delta.account = []
        start = time.perf_counter()
        learner.observe(delta)
        observed.append((time.perf_counter() - start) * 1e6)
    decided = []
    for _ in range(7):
        start = time.perf_counter()
        learner.decide(1.0, rng, afresh=True)
        decided.append((time.perf_counter() - start) * 1e3)
    changed = []
    for _ in range(7):
        ran = AccountCell("domain0", "greedy", LOADS[loads // 2], "adaptive", 20, 40, 0.4)
        tried = AcceptanceCell("domain0", "greedy", "draft0", "policy", [20], [16])
        learner.observe(Delta("engine", 1.0, [tried], account=[ran]))
        start = time.perf_counter()
        learner.decide(1.0, rng)
        changed.append((time.perf_counter() - start) * 1e3)
    return [f(times) for times in (decided, changed, observed) for f in (min, statistics.median)]


def bars() -> Timed:
    """The medians at the size that the learner's bars name: 32 domains, one regime, 8 drafts, K 0..16, 10 loads."""
    full, one, frame = measure(*SIZES[-1])[1::2]
    return Timed(full, one, frame)


def main() -> None:
    """Print the table."""
    heads = f"{'decide, ms':>16}{'one domain, ms':>16}{'observe, us':>16}"
    print(f"{'domains x regimes x drafts x K x loads':40}{heads}   (best and median each)")
    for domains, drafts, deepest, loads, regimes in SIZES:
        times = measure(domains, drafts, deepest, loads, regimes)
        size = f"{domains + 1} x {regimes} x {drafts} x 0..{deepest} x {loads}"
        print(f"{size:40}" + "".join(f"{value:8.0f}" for value in times))


if __name__ == "__main__":
    main()
