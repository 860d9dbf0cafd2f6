"""The compose file, really built and brought up on the Docker engine of DOCKER_HOST: services healthy, K decided."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
CONTROLLER, ENGINE = "http://127.0.0.1:18080", "http://127.0.0.1:18000"
ENV = {**os.environ, "AKC_CONTROLLER_PORT": "18080", "AKC_ENGINE_PORT": "18000", "AKC_TRAFFIC_SECONDS": "120"}


def compose(*arguments: str, seconds: float = 1500) -> str:
    command = ["docker", "compose", "--project-name", "akc-test", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=ENV, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def until(seen: Callable[[], bool], what: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if seen():
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    pytest.fail(f"not within {seconds} s: {what}\n{compose('ps')}\n{compose('logs', '--tail', '40')}")


@pytest.fixture(scope="module")
def stack() -> Iterator[None]:
    if shutil.which("docker") is None:
        pytest.fail("the compose suite needs the docker command and an engine (DOCKER_HOST)")
    compose("build")
    try:
        compose("up", "--detach", "--wait", "--wait-timeout", "900", "redis", "controller", "engine")
        compose("up", "--detach", "traffic")
        yield
    finally:
        compose("down", "--volumes", "--timeout", "10")


def services() -> dict[str, Any]:
    rows = [json.loads(line) for line in compose("ps", "--all", "--format", "json").splitlines()]
    return {row["Service"]: row for row in rows}


def domains() -> dict[str, Any]:
    answer = httpx.get(f"{CONTROLLER}/v1/pools/smollm2/domains", timeout=5)
    return {d["domain"]: d for d in answer.json() if d["regime"] == "greedy"} if answer.status_code == 200 else {}


def test_all_services_are_healthy_and_the_status_page_shows_decisions(stack: None) -> None:
    health = {name: row["Health"] for name, row in services().items() if name != "traffic"}
    assert health == {"redis": "healthy", "controller": "healthy", "engine": "healthy"}
    until(lambda: {"code", "math", "chat"} <= domains().keys(), "all three domains known to the controller", 240)
    until(lambda: all(domains()[d]["now"] for d in ("code", "math", "chat")), "a choice for each domain", 120)
    page = httpx.get(f"{CONTROLLER}/", timeout=5)
    assert page.status_code == 200
    assert "smollm2" in page.text
    assert "code" in page.text


def test_the_engine_answers_through_the_openai_endpoint(stack: None) -> None:
    body = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8, "temperature": 0}
    answer = httpx.post(f"{ENGINE}/v1/chat/completions", json=body, timeout=120)
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] >= 1


def test_the_controller_killed_comes_back_with_its_counts(stack: None) -> None:
    until(lambda: domains().get("code", {}).get("tokens", 0) > 0, "tokens counted", 240)
    before = domains()["code"]["tokens"]
    compose("kill", "controller")
    compose("up", "--detach", "--wait", "--wait-timeout", "120", "controller")
    until(lambda: domains().get("code", {}).get("tokens", 0) >= before, f"at least {before} tokens of code", 60)
