"""The compose file, really built and brought up on the Docker engine of DOCKER_HOST: services healthy, K decided."""

import os
import re
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

from tests.compose.stack import ROOT, Stack, docker
from tests.deploy.composed import services as declared

pytestmark = pytest.mark.slow
CONTROLLER, ENGINE, REDIS_PORT = "http://127.0.0.1:18080", "http://127.0.0.1:18000", 18379
REVISION = "0123456789abcdef0123456789abcdef01234567"
STACK = Stack(
    "akc-test",
    AKC_CONTROLLER_PORT="18080",
    AKC_ENGINE_PORT="18000",
    AKC_REDIS_PORT=str(REDIS_PORT),
    AKC_TRAFFIC_SECONDS="400",
    AKC_IMAGE_REVISION=REVISION,
)
compose, until = STACK.compose, STACK.until
PYTHON_IMAGE = os.environ.get("AKC_PYTHON_IMAGE") or declared()["controller"]["build"]["args"]["PYTHON_IMAGE"]


@pytest.fixture(scope="module")
def stack() -> Iterator[None]:
    # As on a machine that has never built them; layers may be cached.
    subprocess.run(["docker", "image", "rm", "--force", "adaptive-k-controller", "adaptive-k-engine"], check=False)
    with STACK.up():
        yield


def domains() -> dict[str, Any]:
    answer = httpx.get(f"{CONTROLLER}/v1/pools/smollm2/domains", timeout=5)
    return {d["domain"]: d for d in answer.json() if d["regime"] == "greedy"} if answer.status_code == 200 else {}


def test_all_services_are_healthy_and_the_status_page_shows_decisions(stack: None) -> None:
    # Traffic is once its first request has been answered, the simulation once Redis has taken what it plays.
    names = {"redis", "controller", "engine", "traffic", "simulated"}
    until(
        lambda: {name: one["Health"] for name, one in STACK.services().items()} == dict.fromkeys(names, "healthy"),
        "all services healthy, and no others there",
        120,
    )
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
    base = int(docker("image", "inspect", "--format", "{{.Size}}", PYTHON_IMAGE))
    own = int(docker("image", "inspect", "--format", "{{.Size}}", "adaptive-k-controller"))
    assert own - base <= 250_000_000
    for service in ("controller", "engine"):
        assert STACK.execute(service, "id", "-u").stdout.strip() == "10001"
        written = STACK.execute(service, "touch", "/venv/x")
        assert written.returncode != 0
        assert "Read-only file system" in written.stderr


@pytest.mark.parametrize("service", ["controller", "engine"])
def test_images_hold_no_build_tools_and_say_what_they_are(stack: None, service: str) -> None:
    for module in ("setuptools", "wheel"):
        tried = STACK.execute(service, "python", "-c", f"import {module}")
        assert f"ModuleNotFoundError: No module named '{module}'" in tried.stderr
    for label, value in (("licenses", "Apache-2.0"), ("revision", REVISION)):
        asked = f'{{{{index .Config.Labels "org.opencontainers.image.{label}"}}}}'
        assert docker("image", "inspect", "--format", asked, f"adaptive-k-{service}") == value


def test_the_engine_image_has_what_the_lock_names_and_a_cpu_build_of_torch(stack: None) -> None:
    lock = (ROOT / "requirements" / "engine.txt").read_text()
    program = "import importlib.metadata as m; print(*[f'{d.name}=={d.version}' for d in m.distributions()])"
    listed = STACK.execute("engine", "python", "-c", program).stdout
    installed = {name.lower().replace("_", "-"): version for name, version in re.findall(r"(\S+)==(\S+)", listed)}
    beside = {"torch", "pip", "adaptive-k-controller"}
    assert beside <= installed.keys()
    for name in installed.keys() - beside:
        # Some packages have one line for Python 3.11 and another for later ones.
        assert installed[name] in re.findall(rf"^{name}==(\S+)", lock, re.MULTILINE), name
    told = STACK.execute("engine", "python", "-c", "import torch; print(torch.version.cuda)")
    assert told.stdout.strip() == "None"


def test_the_plug_ins_image_has_it_and_nothing_of_its_sources(stack: None) -> None:
    # On a plain Python: vLLM's own image has gigabytes. What the stage itself does is the same.
    tag = "akc-test-vllm"
    arguments = ("--build-arg", f"VLLM_IMAGE={PYTHON_IMAGE}", "--build-arg", f"PYTHON_IMAGE={PYTHON_IMAGE}")
    docker(
        "buildx",
        "build",
        "--load",
        "--target",
        "vllm",
        "--tag",
        tag,
        *arguments,
        "--build-arg",
        f"REVISION={REVISION}",
        str(ROOT),
    )
    try:
        run = ("run", "--rm", "--entrypoint", "python3", tag, "-c")
        program = (
            "import os, importlib.metadata as m, engine.vllm.plugin, controller.cli.probe, redis;"
            "assert not os.path.exists('/src') and not os.path.exists('/dist');"
            "print(redis.__version__, *[p.name for p in m.entry_points(group='vllm.general_plugins')])"
        )
        (pin,) = re.findall(r"^redis==(\S+)", (ROOT / "requirements" / "lock.txt").read_text(), re.MULTILINE)
        assert docker(*run, program) == f"{pin} adaptive_k"
        asked = '{{index .Config.Labels "org.opencontainers.image.revision"}}'
        assert docker("image", "inspect", "--format", asked, tag) == REVISION
    finally:
        docker("image", "rm", "--force", tag)


def test_akc_is_found_in_both_images(stack: None) -> None:
    told = STACK.execute("controller", "akc", "status")
    assert told.returncode == 0, told.stderr
    assert "smollm2" in told.stdout
    assert STACK.execute("engine", "sh", "-c", "command -v akc").stdout.strip() == "/venv/bin/akc"


def redis_cli(user: str, password: str, *command: str) -> "subprocess.CompletedProcess[str]":
    return STACK.execute("redis", "redis-cli", "-e", "--user", user, "--pass", password, "--no-auth-warning", *command)


def test_redis_answers_on_this_machine_and_only_those_with_an_account(stack: None) -> None:
    with redis.Redis(port=REDIS_PORT, username="engine", password="adaptive-k-engine") as client:
        assert client.ping()
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.get("akc:{smollm2}:checkpoint")
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.delete("akc:{smollm2}:policy")
    with redis.Redis(port=REDIS_PORT) as nobody, pytest.raises(redis.exceptions.AuthenticationError):
        nobody.ping()
    for user, other in (("engine", "adaptive-k"), ("controller", "adaptive-k-engine")):
        assert "WRONGPASS" in redis_cli(user, other, "ping").stderr
    with redis.Redis(port=REDIS_PORT, username="simulated", password="adaptive-k-engine") as client:
        assert client.xrevrange("akc:{virtual-published-72b}:frames", count=1)
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.xrevrange("akc:{smollm2}:frames", count=1)


def test_the_health_check_of_redis_fails_where_redis_answers_with_an_error(stack: None) -> None:
    kind, check = declared()["redis"]["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    assert STACK.execute("redis", "sh", "-c", check).returncode == 0
    assert check.count("--pass health") == 1
    for wrong in (check.replace("--pass health", "--pass other"), check.replace("ping", "get akc:pools")):
        assert STACK.execute("redis", "sh", "-c", wrong).returncode != 0, wrong


def test_the_documented_commands_show_the_wire(stack: None) -> None:
    page = (ROOT / "docs" / "how-to" / "redis-cli.md").read_text()
    (prefix,) = re.findall(r"`docker compose exec redis (redis-cli [^`]+)`", page)
    look = page.partition("## Look\n")[2].partition("```sh\n")[2].partition("```")[0]
    commands = [line for line in look.splitlines() if "SUBSCRIBE" not in line]
    assert len(commands) >= 8
    for line in commands:
        command = line.partition("  #")[0].replace("{default}", "{smollm2}").replace("redis-cli", f"{prefix} -e", 1)
        done = STACK.execute("redis", "sh", "-c", command)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        if "dead" not in line and "audit" not in line:
            assert done.stdout.strip(), command


def test_a_password_that_would_break_addresses_is_refused_by_name() -> None:
    bad = Stack("akc-test-password", AKC_REDIS_PASSWORD="p@ss/word", AKC_REDIS_PORT="18381")
    try:
        done = bad.run("run", "--rm", "--no-deps", "redis", seconds=60)
        assert done.returncode == 1
        assert "AKC_REDIS_PASSWORD or AKC_REDIS_ENGINE_PASSWORD is not of letters, digits, _ and - alone" in done.stderr
    finally:
        bad.compose("down", "--volumes")


@pytest.mark.parametrize("profile", ["monitoring", "ha", "vllm"])
def test_every_profile_is_a_valid_file(profile: str) -> None:
    compose("--profile", profile, "config", "--quiet")


def test_the_engine_answers_through_the_openai_endpoint(stack: None) -> None:
    assert ask() >= 1


def ready() -> int:
    return httpx.get(f"{CONTROLLER}/readyz", timeout=10).status_code


def test_redis_off_the_network_for_twenty_seconds_costs_no_request_and_no_count(stack: None) -> None:
    until(lambda: min(learned()) > 0, "tokens counted and a policy decided", 240)
    compose("pause", "traffic")  # only this test asks from here on, so that counts can be compared
    try:
        until(idle, "no request in flight", 120)
        docker("network", "disconnect", STACK.network(), STACK.container("redis"))
        gone = time.monotonic()
        until(lambda: ready() == 503, "the controller says that Redis is gone", 18)
        learned_then, counted_then = learned()[0], counted()
        served = 0
        while time.monotonic() < gone + 20:
            served += ask() >= 1
        assert served > 0
        assert ready() == 503
        assert learned()[0] == learned_then  # it has heard of nothing that was served meanwhile
        assert counted() > counted_then
        docker("network", "connect", "--alias", "redis", STACK.network(), STACK.container("redis"))
        until(lambda: ready() == 200, "Redis is back", 60)
        total = counted()
        until(lambda: learned()[0] >= total, f"all {total} tokens of the engine learned", 60)
        assert (learned()[0], counted()) == (total, total)
    finally:
        compose("unpause", "traffic")


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


def test_what_was_learned_outlives_redis_and_the_controller_killed_together(stack: None) -> None:
    compose("stop", "engine", "simulated")  # an engine that is still there would tell everything again
    until(lambda: learned()[0] > 0, "the controller answers", 30)
    before = learned()
    compose("kill", "--signal", "SIGKILL", "controller", "redis")
    compose("up", "--detach", "--wait", "--wait-timeout", "120", "redis", "controller")
    until(lambda: learned()[0] > 0, "the pool is there again", 60)
    assert learned()[0] == before[0]


def test_down_keeps_what_was_learned_and_the_token(stack: None) -> None:
    before = learned()[0]
    token = STACK.execute("controller", "cat", "/tokens/tokens").stdout
    assert before > 0
    assert token
    compose("down")
    compose("up", "--detach", "--wait", "--wait-timeout", "120", "redis", "controller")
    until(lambda: learned()[0] > 0, "the pool is there again", 60)
    assert learned()[0] == before
    assert STACK.execute("controller", "cat", "/tokens/tokens").stdout == token
