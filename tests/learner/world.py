"""A tiny world for the learner: engines that obey a policy as architecture.md says, with known acceptance and costs.

Not a simulator for people (that is simulations/): just enough to hold the learner against the truth. Seconds are in
plain steps of a batch of one, times 20 ms. Rewards are expected ones, so luck does not blur the shares.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from controller.learner import Decision, Delta, Learner, LearnerConfig, PoolSpec
from engine.link.messages import (
    AcceptanceCell,
    AccountCell,
    CostCell,
    DraftInfo,
    MomentCell,
    load_bucket,
    passes_bucket,
)

UNIT = 0.02
KINDS = {"ngram": "ngram", "small": "model", "medium": "model"}


def falling(first: float, decay: float, n: int = 8) -> list[float]:
    return [first * decay**i for i in range(n)]


@dataclass
class World:
    curves: dict[str, dict[str, list[float]]]  # domain -> draft -> acceptance by position
    passes: dict[str, float]  # price of a drafting pass, in units
    verify: float = 0.02  # price of a verified token beyond the rows, in units
    noise: float = 0.05
    ks: tuple[int, ...] = tuple(range(9))
    max_batch: int = 1
    spread: float | None = None  # concentration of a request's own acceptance around the curve; None: all alike
    stairs: Callable[[int], float] = field(default=lambda verified: 0.0)

    @property
    def spec(self) -> PoolSpec:
        drafts = tuple(DraftInfo(name, KINDS[name], max(self.ks)) for name in self.passes)  # type: ignore[arg-type]
        return PoolSpec(drafts, self.ks, self.max_batch)

    def seconds(self, rows: int, drafted: int, passes: dict[str, int]) -> float:
        verified = rows + drafted
        work = 1.0 + self.verify * (verified - 1) + sum(self.passes[j] * n for j, n in passes.items())
        return UNIT * (work + self.stairs(verified))

    def tokens(self, domain: str, draft: str, k: int) -> float:
        return 1.0 + (float(np.cumprod(self.curves[domain][draft][:k]).sum()) if k else 0.0)

    def arms(self) -> list[tuple[str, int]]:
        return [("none", 0)] + [(d, k) for d in self.passes for k in self.ks if k]

    def best(self, domain: str) -> tuple[float, tuple[str, int]]:
        """Best goodput at batch 1, tokens/s, and its arm."""
        return max((self.goodput(domain, arm), arm) for arm in self.arms())

    def goodput(self, domain: str, arm: tuple[str, int]) -> float:
        draft, k = arm
        return self.tokens(domain, draft, k) / self.seconds(1, k, {draft: k} if k else {})

    def best_joint(self, composition: dict[str, int]) -> float:
        """Best goodput of a batch of fixed composition, by enumeration of every arm of every domain."""
        best = 0.0
        rows = sum(composition.values())
        for choice in product(self.arms(), repeat=len(composition)):
            passes: dict[str, int] = {}
            drafted, earned = 0, 0.0
            for (domain, n), (draft, k) in zip(composition.items(), choice, strict=True):
                earned += n * self.tokens(domain, draft, k)
                drafted += n * k
                if k:
                    passes[draft] = max(passes.get(draft, 0), k)
            best = max(best, earned / self.seconds(rows, drafted, passes))
        return best


@dataclass
class Request:
    domain: str
    draft: str
    left: int
    tilt: float = 0.0
    moments: np.ndarray = field(default_factory=lambda: np.zeros(0))  # [2, P] seen, accepted


class Counters:
    """One engine's counters over one interval."""

    def __init__(self, positions: int) -> None:
        self.positions = positions
        self.seen: dict[tuple[str, str], np.ndarray] = defaultdict(lambda: np.zeros((2, positions), dtype=np.int64))
        self.cost: dict[tuple[tuple[str, ...], int, int], list[tuple[float, np.ndarray]]] = defaultdict(list)
        self.account: dict[tuple[str, int], np.ndarray] = defaultdict(lambda: np.zeros(3))
        self.segments: dict[tuple[str, str], list[np.ndarray]] = defaultdict(list)

    def delta(self, engine: str, time: float) -> Delta:
        acceptance = [
            AcceptanceCell(dom, "greedy", draft, "policy", n[0].tolist(), n[1].tolist())
            for (dom, draft), n in self.seen.items()
        ]
        moments = []
        for (dom, draft), segments in self.segments.items():
            g = np.array(segments)  # [m, 2, P]
            s, a = g[:, 0], g[:, 1]
            lists = [x.sum(axis=0).tolist() for x in (s, a, s * s, s * a, a * a)]
            ts, ta = s.sum(axis=1), a.sum(axis=1)
            totals = [int(x.sum()) for x in (ts, ta, ts * ts, ts * ta, ta * ta)]
            moments.append(MomentCell(dom, "greedy", draft, len(g), *lists, *totals))
        cost = [cost_cell(drafts, batch, passes, steps) for (drafts, batch, passes), steps in self.cost.items()]
        account = [
            AccountCell(dom, "greedy", load, "adaptive", int(v[0]), int(v[1]), float(v[2]))
            for (dom, load), v in self.account.items()
        ]
        return Delta(engine, time, acceptance, moments, cost, account)


def cost_cell(drafts: tuple[str, ...], batch: int, passes: int, steps: list[tuple[float, np.ndarray]]) -> CostCell:
    y, x = np.array([s for s, _ in steps]), np.array([v for _, v in steps])
    upper = np.triu_indices(x.shape[1])
    return CostCell(
        list(drafts), batch, passes, 0, len(y), float(y.sum()), float(y @ y),
        x.sum(axis=0).tolist(), (x.T @ x)[upper].tolist(), (x.T @ y).tolist(),
    )  # fmt: skip


def quantile(pairs: list[tuple[int, float]], u: float) -> int:
    total = 0.0
    for k, p in pairs:
        total += p
        if u < total:
            return k
    return pairs[-1][0]


@dataclass
class Log:
    """By domain, one entry a row-step: expected tokens, expected seconds (each row is charged the whole step), arm."""

    tokens: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    arms: dict[str, list[tuple[str, int]]] = field(default_factory=lambda: defaultdict(list))
    batch_tokens: float = 0.0
    batch_seconds: float = 0.0
    switches: int = 0

    def share(self, world: World, steps: int) -> float:
        """Share of the clairvoyant's goodput over the first `steps` steps of each domain, batch 1."""
        earned = sum(sum(self.tokens[d][:steps]) for d in world.curves)
        due = sum(world.best(d)[0] * sum(self.seconds[d][:steps]) for d in world.curves)
        return earned / due


class Engine:
    """Decodes `slots` rows; slot i always holds requests of domain order[i % len(order)], or takes turns at batch 1."""

    def __init__(
        self, world: World, slots: list[str] | None, rng: np.random.Generator, length: int, window: int
    ) -> None:
        self.world, self.rng, self.length, self.window = world, rng, length, window
        self.slots = slots  # None: one row, domains in turn
        self.turn = 0
        self.requests: list[Request] = []
        self.u, self.age = 0.0, window
        self.policy: dict[tuple[str, int], dict[str, tuple[float, list[tuple[int, float]]]]] = {}
        self.quantiles: dict[tuple[str, int], float | None] = {}

    @property
    def rows(self) -> int:
        return len(self.slots) if self.slots else 1

    def follow(self, decision: Decision) -> None:
        self.policy = {
            (cell.domain, cell.load): {choice.draft: (choice.p, choice.k) for choice in cell.drafts}
            for cell in decision.cells
            if cell.regime == "greedy"
        }
        self.quantiles = {(c.domain, c.load): c.draw for c in decision.cells if c.regime == "greedy"}

    def cell(self, domain: str) -> dict[str, tuple[float, list[tuple[int, float]]]]:
        load = load_bucket(self.rows)
        return self.policy.get((domain, load)) or self.policy["other", load]

    def admit(self, slot: int) -> Request:
        domains = list(self.world.curves)
        if self.slots:
            domain = self.slots[slot]
        else:
            domain = domains[self.turn % len(domains)]
            self.turn += 1
        cell = self.cell(domain)
        names = list(cell)
        p = np.array([cell[n][0] for n in names])
        load = load_bucket(self.rows)
        key = (domain, load) if (domain, load) in self.policy else ("other", load)
        u = self.quantiles[key]
        u = float(self.rng.random()) if u is None else u
        draft = names[min(int(np.searchsorted(np.cumsum(p / p.sum()), u, side="right")), len(names) - 1)]
        tilt = 0.0
        if self.world.spread:
            tilt = float(self.rng.normal(0.0, self.world.spread))
        return Request(domain, draft, self.length, tilt, np.zeros((2, max(self.world.ks)), dtype=np.int64))

    def step(self, log: Log, counters: Counters) -> float:
        world, rng = self.world, self.rng
        if not self.requests:
            self.requests = [self.admit(i) for i in range(self.rows)]
        if self.age >= self.window:
            self.u, self.age = float(rng.random()), 0
        self.age += 1
        plan = [quantile(self.cell(r.domain)[r.draft][1], self.u) for r in self.requests]
        passes: dict[str, int] = {}
        drafted: dict[str, int] = defaultdict(int)
        for r, k in zip(self.requests, plan, strict=True):
            if k:
                passes[r.draft] = max(passes.get(r.draft, 0), k)
                drafted[r.draft] += k
        expected = world.seconds(self.rows, sum(plan), passes)
        took = expected * float(np.exp(rng.normal(0.0, world.noise)))
        names = tuple(sorted(passes))
        x = [self.rows + sum(plan), 0, 100 * self.rows]
        for n in names:
            x += [drafted[n], passes[n]]
        bucket = load_bucket(self.rows)
        most = passes_bucket(max(plan, default=0))
        counters.cost[names, bucket, most].append((took, np.array(x, dtype=np.float64)))
        total = 0.0
        for i, (r, k) in enumerate(zip(self.requests, plan, strict=True)):
            accepted = 0
            if k:
                p = np.array(world.curves[r.domain][r.draft][:k])
                if r.tilt:
                    odds = p / (1 - p) * np.exp(r.tilt)
                    p = odds / (1 + odds)
                kept = rng.random(k) < p
                accepted = k if kept.all() else int(kept.argmin())
                counts = np.zeros((2, counters.positions), dtype=np.int64)
                counts[0, : min(accepted + 1, k)] = 1
                counts[1, :accepted] = 1
                counters.seen[r.domain, r.draft] += counts
                r.moments += counts
            value = world.tokens(r.domain, r.draft, k)
            total += value
            log.tokens[r.domain].append(value)
            log.seconds[r.domain].append(expected)
            log.arms[r.domain].append((r.draft if k else "none", k))
            counters.account[r.domain, bucket] += (1, accepted + 1, took)
            r.left -= 1
            if r.left <= 0:
                if r.moments[0, 0]:
                    counters.segments[r.domain, r.draft].append(r.moments)
                self.requests[i] = self.admit(i)
        log.batch_tokens += total
        log.batch_seconds += expected
        return took


def play(
    world: World,
    seed: int,
    steps: int,
    config: LearnerConfig | None = None,
    slots: list[str] | None = None,
    every: int = 20,
    length: int = 32,
    window: int = 64,
) -> tuple[Learner, Log]:
    """Let one engine run `steps` steps under a learner that decides every `every` steps."""
    rng = np.random.default_rng([seed, 1])
    learner = Learner(config or LearnerConfig(), world.spec)
    engine, log = Engine(world, slots, rng, length, window), Log()
    decide = np.random.default_rng([seed, 2])
    now = 1e9
    engine.follow(learner.decide(now, decide))
    done = 0
    while done < steps:
        counters, began = Counters(max(world.ks)), now
        for _ in range(min(every, steps - done)):
            now += engine.step(log, counters)
            done += 1
        learner.observe(counters.delta("e0", (began + now) / 2))
        decision = learner.decide(now, decide)
        log.switches += decision.switches
        engine.follow(decision)
    return learner, log


THREE_DOMAINS = World(
    {
        "code": {"small": falling(0.90, 0.98), "medium": falling(0.92, 0.98), "ngram": falling(0.60, 0.95)},
        "math": {"small": falling(0.82, 0.98), "medium": falling(0.85, 0.98), "ngram": falling(0.45, 0.95)},
        "chat": {"small": falling(0.65, 0.96), "medium": falling(0.70, 0.96), "ngram": falling(0.25, 0.95)},
    },
    {"small": 0.04, "medium": 0.15, "ngram": 0.005},
)
DIFFERENT_BEST = World(
    {
        "code": {"small": falling(0.70, 0.97), "medium": falling(0.75, 0.97), "ngram": falling(0.88, 0.99)},
        "math": {"small": falling(0.86, 0.98), "medium": falling(0.84, 0.97), "ngram": falling(0.40, 0.95)},
        "chat": {"small": falling(0.45, 0.95), "medium": falling(0.82, 0.97), "ngram": falling(0.20, 0.95)},
    },
    {"small": 0.05, "medium": 0.10, "ngram": 0.005},
)
DIP = World(
    {
        "code": {"small": [0.9, 0.55, *[0.95] * 6], "medium": [0.85, 0.6, *[0.9] * 6], "ngram": [0.6, 0.4, *[0.8] * 6]},
        "math": {"small": [0.8, 0.5, *[0.92] * 6], "medium": [0.85, 0.6, *[0.85] * 6], "ngram": [0.5, 0.4, *[0.7] * 6]},
        "chat": {"small": [0.7, 0.45, *[0.9] * 6], "medium": [0.75, 0.4, *[0.8] * 6], "ngram": [0.3, 0.3, *[0.6] * 6]},
    },
    {"small": 0.04, "medium": 0.12, "ngram": 0.005},
)
NOTHING_HELPS = World(
    {
        domain: {"small": falling(0.25, 0.9), "medium": falling(0.3, 0.9), "ngram": falling(0.02, 0.9)}
        for domain in ("code", "math", "chat")
    },
    {"small": 0.30, "medium": 0.40, "ngram": 0.03},
)  # fmt: skip
