"""What `bench_vllm` measured, and its tables."""

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from controller.cli.demo.verdict import Block, Ratio, goodput, paired_ratio

MIXED = "mixed"
PLAIN, ADAPTIVE = "none", "adaptive"


ALIKE = 60  # steps whose median is a price


class Step(NamedTuple):
    """A step of an engine: rows that decode, tokens of them that are verified, tokens of prompts, seconds of CPU."""

    rows: int
    verified: int
    prompt: int
    cpu: float


class Run(NamedTuple):
    """One run of the client against one server: `traffic` is a domain or all of them; times in seconds.

    `cpu` and `steps`: of the engine's thread, where servers take turns in one engine.
    """

    round: int
    server: str
    traffic: str
    concurrency: int
    tokens: int
    seconds: float
    tpot_p50: float
    tpot_p95: float
    failed: int
    cpu: float = 0.0
    steps: Sequence[Step] = ()


def read(line: str) -> Run:
    """A run as it was written, a JSON list of its fields. Raises msgspec.ValidationError for anything else."""
    return msgspec.json.decode(line, type=Run)


def prices(steps: Sequence[Step]) -> Callable[[Step], float]:
    """What a step of a kind costs, seconds of CPU, over all runs: one price list for all modes.

    With greedy decoding the steps that a mode needs are its own, and the seconds that they took are the machine's. A
    step without prompts costs the median of the `ALIKE` or more nearest to it in verified tokens; one with prompts what
    least squares in verified and prompt tokens say.

    >>> steps = [Step(1, k + 1, 0, 0.1 + 0.01 * k + noise) for k in (0, 4) for noise in (0.0, 0.0, 0.5) * 20]
    >>> price = prices(steps)
    >>> price(Step(1, 1, 0, 9.9)), price(Step(1, 5, 0, 9.9))
    (0.1, 0.14)
    """
    decoding = sorted((step.verified, step.cpu) for step in steps if not step.prompt)
    at = [verified for verified, _ in decoding]
    reading = [step for step in steps if step.prompt]
    x = np.array([[1.0, step.verified, step.prompt] for step in reading]).reshape(-1, 3)
    weights = np.linalg.lstsq(x, np.array([step.cpu for step in reading]), rcond=None)[0]
    known: dict[int, float] = {}

    def median(verified: int) -> float:
        for reach in range(max(at) + 1):
            low, high = bisect_left(at, verified - reach), bisect_right(at, verified + reach)
            if high - low >= min(ALIKE, len(at)):
                break
        return statistics.median(cpu for _, cpu in decoding[low:high])

    def price(step: Step) -> float:
        if step.prompt:
            return float(weights @ (1.0, step.verified, step.prompt))
        if step.verified not in known:
            known[step.verified] = median(step.verified)
        return known[step.verified]

    return price


def priced(done: Sequence[Run]) -> list[Run]:
    """Runs with the price of their steps in place of the seconds that these took, by the number of clients."""
    lists = {
        clients: prices([step for run in done if run.concurrency == clients and run.round > 0 for step in run.steps])
        for clients in {run.concurrency for run in done if run.round > 0}
    }
    return [run._replace(seconds=sum(map(lists[run.concurrency], run.steps))) for run in done if run.round > 0]


def fixed(k: int) -> str:
    """Name of the stock server with this K."""
    return f"K={k}"


def held(k: int) -> str:
    """Name of the server with our plug-in, no Redis and this K."""
    return f"ours, K={k}"


class Report:
    """The tables of a list of runs, by the clock or by the CPU time of the engine's thread."""

    def __init__(self, done: Sequence[Run], *, cpu: bool = False) -> None:
        self.cpu = cpu
        if cpu:
            done = [run._replace(seconds=run.cpu) for run in done]
        self.warm = [run for run in done if run.round < 0]
        self.done = [run for run in done if run.round > 0]
        self.servers = list(dict.fromkeys(sorted((r.server for r in self.done), key=_order)))

    def blocks(self, server: str, traffic: str | None, concurrency: int) -> list[Block]:
        """Rounds of a server in order; traffic None: every domain alone, one after the other."""
        chosen = sorted(
            (
                r
                for r in self.done
                if r.server == server
                and r.concurrency == concurrency
                and (r.traffic == traffic or (traffic is None and r.traffic != MIXED))
            ),
            key=lambda r: (r.traffic, r.round),
        )
        return [Block(r.tokens, r.seconds) for r in chosen]

    def ratio(self, ours: str, theirs: str, traffic: str | None, concurrency: int) -> Ratio:
        """Goodput of one server over another's, round by round, as far as both have been played."""
        a, b = self.blocks(ours, traffic, concurrency), self.blocks(theirs, traffic, concurrency)
        n = min(len(a), len(b))
        return paired_ratio(a[:n], b[:n])

    def stock(self) -> list[str]:
        """Servers without us."""
        return [name for name in self.servers if name == PLAIN or name.startswith("K=")]

    def best(self, traffic: str | None, concurrency: int) -> str:
        """The stock server of highest goodput, no speculation included."""
        return max(self.stock(), key=lambda name: goodput(self.blocks(name, traffic, concurrency)))

    def oracle(self, concurrency: int) -> Ratio | None:
        """Ours over an oracle that plays each domain's best stock server there, from runs of every domain alone."""
        domains = sorted({r.traffic for r in self.done if r.traffic != MIXED and r.concurrency == concurrency})
        theirs = [
            block for domain in domains for block in self.blocks(self.best(domain, concurrency), domain, concurrency)
        ]
        ours = self.blocks(ADAPTIVE, None, concurrency)
        return paired_ratio(ours, theirs) if ours and len(ours) == len(theirs) else None

    def __str__(self) -> str:
        cells = list(dict.fromkeys((r.traffic, r.concurrency) for r in self.done))
        head = ["traffic", "clients", *self.servers, "adaptive / best", "/ none"]
        rows = [head, ["---"] * len(head)]
        tpots = [["traffic", "clients", *self.servers], ["---"] * (len(self.servers) + 2)]
        for traffic, concurrency in sorted(cells, key=lambda c: (c[0] != MIXED, c[0], c[1])):
            speeds = {s: goodput(self.blocks(s, traffic, concurrency)) for s in self.servers}
            best = self.best(traffic, concurrency)
            rows.append([
                traffic, str(concurrency), *(f"**{v:.0f}**" if s == best else f"{v:.0f}" for s, v in speeds.items()),
                str(self.ratio(ADAPTIVE, best, traffic, concurrency)),
                str(self.ratio(ADAPTIVE, PLAIN, traffic, concurrency)),
            ])  # fmt: skip
            tpots.append([traffic, str(concurrency), *(self._tpot(s, traffic, concurrency) for s in self.servers)])
        said = [
            f"Tokens per second{' of CPU' if self.cpu else ''}, prompts included; the best stock server in bold; "
            "ratios with paired 95% intervals.",
            _table(rows), "Milliseconds per output token, p50 / p95 over requests, medians over rounds.", _table(tpots),
        ]  # fmt: skip
        for name in self.servers:
            if name.startswith("ours"):
                k = fixed(int(name.rsplit("=", 1)[1]))
                ratios = (
                    f"{self.ratio(name, k, traffic, concurrency)} at {concurrency}"
                    for traffic, concurrency in cells
                    if traffic == MIXED
                )
                said.append(f"The plug-in at the same K ({name} / {k}), mixed: {', '.join(ratios)}.")
        for concurrency in sorted({concurrency for _, concurrency in cells}):
            ratio = self.oracle(concurrency)
            if ratio is not None:
                said.append(f"Adaptive over the best stock server of every domain, {concurrency} clients: {ratio}.")
        said.append(self._warm_up())
        failed = sum(run.failed for run in (*self.warm, *self.done))
        said.append(f"Failed requests: {failed}. Rounds: {max((r.round for r in self.done), default=0)}.")
        return "\n\n".join(line for line in said if line)

    def _tpot(self, server: str, traffic: str, concurrency: int) -> str:
        of = [r for r in self.done if (r.server, r.traffic, r.concurrency) == (server, traffic, concurrency)]
        halves, tails = (statistics.median(1e3 * value for value in values) for values in zip(
            *((r.tpot_p50, r.tpot_p95) for r in of), strict=True
        ))  # fmt: skip
        return f"{halves:.1f} / {tails:.1f}"

    def _warm_up(self) -> str:
        said = []
        for concurrency in sorted({r.concurrency for r in self.warm}):
            first = [r for r in self.warm if r.concurrency == concurrency]
            later = self.blocks(ADAPTIVE, MIXED, concurrency)
            if later:
                shares = [f"{r.tokens / r.seconds / goodput(later):.2f}" for r in first]
                said.append(f"{concurrency} clients {', '.join(shares)}")
        seconds = sum(r.seconds for r in self.warm)
        return f"Warm-up, {seconds:.0f} s, share of the later goodput run by run: {'; '.join(said)}." if said else ""


def _order(server: str) -> tuple[int, str]:
    return (0 if server == PLAIN else 1 if server.startswith("K=") else 2 if server.startswith("ours") else 3, server)


def _table(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
