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
from prometheus_client.parser import text_string_to_metric_families

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
OURS = ("--filter", "label=com.docker.compose.project=akc-test")
CONTROLLER, ENGINE = "http://127.0.0.1:18080", "http://127.0.0.1:18000"
ENV = {**os.environ, "AKC_CONTROLLER_PORT": "18080", "AKC_ENGINE_PORT": "18000", "AKC_TRAFFIC_SECONDS": "300"}


def compose(*arguments: str, seconds: float = 1500) -> str:
    command = ["docker", "compose", "--project-name", "akc-test", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=ENV, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


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
    compose("down", "--volumes", "--timeout", "10")  # what an interrupted run may have left: counts start at 0
    try:
        compose("up", "--detach", "--wait", "--wait-timeout", "900", "redis", "controller", "engine")
        compose("up", "--detach", "traffic", "simulated")
        yield
    finally:
        compose("down", "--volumes", "--timeout", "10")
        left = docker("ps", "--all", "--quiet", *OURS) + docker("volume", "ls", "--quiet", *OURS)
        assert left + docker("network", "ls", "--quiet", *OURS) == ""


def services() -> dict[str, Any]:
    rows = [json.loads(line) for line in compose("ps", "--all", "--format", "json").splitlines()]
    return {row["Service"]: row for row in rows}


def domains() -> dict[str, Any]:
    answer = httpx.get(f"{CONTROLLER}/v1/pools/smollm2/domains", timeout=5)
    return {d["domain"]: d for d in answer.json() if d["regime"] == "greedy"} if answer.status_code == 200 else {}


def test_all_services_are_healthy_and_the_status_page_shows_decisions(stack: None) -> None:
    # Traffic is once its first request has been answered, the simulation once the controller knows its pool.
    names = ("redis", "controller", "engine", "traffic", "simulated")
    until(lambda: {services()[name]["Health"] for name in names} == {"healthy"}, "all services healthy", 100)
    until(lambda: {"code", "math", "chat"} <= domains().keys(), "all three domains known to the controller", 240)
    until(lambda: all(domains()[d]["now"] for d in ("code", "math", "chat")), "a choice for each domain", 120)
    page = httpx.get(f"{CONTROLLER}/status", timeout=5)
    assert page.status_code == 200
    assert "smollm2" in page.text
    assert "code" in page.text
    for path, least in (("/", 100), ("/static/app.js", 1_000), ("/static/plotly.min.js", 1_000_000)):
        answer = httpx.get(f"{CONTROLLER}{path}", timeout=30)
        assert answer.status_code == 200
        assert len(answer.content) >= least


def ask(max_tokens: int = 8) -> int:
    """Completion tokens of one request of the domain `code`."""
    body = {
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "metadata": {"domain": "code"},
    }
    answer = httpx.post(f"{ENGINE}/v1/chat/completions", json=body, timeout=120)
    assert answer.status_code == 200
    return int(answer.json()["usage"]["completion_tokens"])


def learned() -> tuple[int, int]:
    """What the controller has counted: tokens of decode steps, and decisions."""
    pool = httpx.get(f"{CONTROLLER}/v1/pools/smollm2", timeout=5).json()
    rows = httpx.get(f"{CONTROLLER}/v1/pools/smollm2/domains", timeout=5)
    tokens = sum(row["tokens"] for row in rows.json()) if rows.status_code == 200 else 0
    return tokens, pool.get("decisions") or 0  # a controller that has just been started again knows nothing yet


def counted() -> int:
    """The tokens of decode steps that the engine itself has counted."""
    families = text_string_to_metric_families(httpx.get(f"{ENGINE}/metrics", timeout=5).text)
    samples = (sample for family in families for sample in family.samples)
    return int(sum(s.value for s in samples if s.name == "akc_engine_emitted_tokens_total"))


def idle() -> bool:
    status = httpx.get(f"{ENGINE}/debug/status", timeout=5).json()
    return (status["running"], status["waiting"]) == (0, 0)


def test_the_simulated_pool_is_named_so_and_k_parts_ways_by_domain(stack: None) -> None:
    def chosen() -> dict[str, int]:
        rows = httpx.get(f"{CONTROLLER}/v1/pools/virtual-published-72b/domains", timeout=5)
        return {d["domain"]: d["now"]["k"] for d in rows.json() if d["now"]} if rows.status_code == 200 else {}

    def parted() -> bool:
        ks = chosen()
        return {"code", "math", "chat"} <= ks.keys() and min(ks["code"], ks["math"]) >= 6 and ks["chat"] in (3, 4)

    until(parted, "K = 6 to 8 on code and math, 3 or 4 on chat", 240)
    pool = httpx.get(f"{CONTROLLER}/v1/pools/virtual-published-72b", timeout=5).json()
    assert pool["target"] == "virtual published-72b"


def test_images_are_small_and_run_as_nobody_on_a_file_system_nobody_writes_to(stack: None) -> None:
    base = int(docker("image", "inspect", "--format", "{{.Size}}", "python:3.11-slim"))
    own = int(docker("image", "inspect", "--format", "{{.Size}}", "adaptive-k-controller"))
    assert own - base <= 250_000_000
    for service in ("controller", "engine"):
        assert compose("exec", "-T", service, "id", "-u").strip() == "10001"
        told = compose("exec", "-T", service, "sh", "-c", "touch /venv/x 2>&1; which gcc make; true")
        assert "Read-only file system" in told
        assert "gcc" not in told
    label = '{{index .Config.Labels "org.opencontainers.image.licenses"}}'
    assert docker("image", "inspect", "--format", label, "adaptive-k-engine") == "Apache-2.0"


@pytest.mark.parametrize("profile", ["monitoring", "ha", "vllm"])
def test_every_profile_is_a_valid_file(profile: str) -> None:
    compose("--profile", profile, "config", "--quiet")


def test_the_engine_answers_through_the_openai_endpoint(stack: None) -> None:
    assert ask() >= 1


def test_redis_off_the_network_for_twenty_seconds_costs_no_request_and_no_count(stack: None) -> None:
    until(lambda: min(learned()) > 0, "tokens counted and a policy decided", 240)
    container = docker("ps", "--quiet", *OURS, "--filter", "label=com.docker.compose.service=redis")
    network = docker("network", "ls", "--quiet", *OURS)
    docker("network", "disconnect", network, container)
    gone = time.monotonic()
    served = 0
    while time.monotonic() < gone + 20:
        served += ask() >= 1
    assert served > 0
    before = learned()[0]
    docker("network", "connect", "--alias", "redis", network, container)
    until(lambda: learned()[0] > before, "counts after Redis is back", 60)


def test_the_controller_killed_goes_on_with_exactly_what_the_engine_has_counted(stack: None) -> None:
    until(lambda: min(learned()) > 0, "tokens counted and a policy decided", 240)
    before = learned()
    compose("kill", "--signal", "SIGKILL", "controller")
    assert ask(32) > 1  # the engine goes on, and counts while nobody listens
    compose("up", "--detach", "--wait", "--wait-timeout", "120", "controller")
    until(lambda: all(now > then for now, then in zip(learned(), before, strict=True)), f"more than {before}", 60)
    assert ask(32) > 1
    # While requests are in flight the engine is ahead. When nothing is, not a token may be missing or counted twice.
    compose("stop", "traffic")
    until(idle, "no request in flight", 120)
    total = counted()
    assert total > before[0]
    until(lambda: learned()[0] >= total, f"all {total} tokens of the engine learned", 60)
    assert (learned()[0], counted()) == (total, total)
