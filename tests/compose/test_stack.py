"""The compose file, really built and brought up on the Docker engine of DOCKER_HOST: services healthy, K decided."""

import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

from tests.commands import documented
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
    AKC_TRAFFIC_SECONDS="600",
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


def ask(max_tokens: int = 8, domain: str = "code") -> int:
    """Completion tokens of one request of the domain."""
    body = {
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "metadata": {"domain": domain},
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


def samples(name: str) -> list[Any]:
    """The engine's own samples of this name."""
    families = text_string_to_metric_families(httpx.get(f"{ENGINE}/metrics", timeout=5).text)
    return [sample for family in families for sample in family.samples if sample.name == name]


def counted() -> int:
    """The tokens of decode steps that the engine itself has counted."""
    return int(sum(sample.value for sample in samples("akc_engine_emitted_tokens_total")))


def played(domain: str) -> "Counter[int]":
    """The domain's row-steps by K, as the engine has counted them: 0 to 6 by themselves, 8 for 7 and 8, and so on."""
    bounds = [
        s for s in samples("akc_engine_row_k_bucket") if s.labels["domain"] == domain and s.labels["le"] != "+Inf"
    ]
    upto = {int(s.labels["le"]): int(s.value) for s in bounds}
    return +Counter({k: n - m for (k, n), m in zip(upto.items(), [0, *upto.values()], strict=False)})


def idle() -> bool:
    status = httpx.get(f"{ENGINE}/debug/status", timeout=5).json()
    return (status["running"], status["waiting"]) == (0, 0)


@contextmanager
def quiet() -> Iterator[None]:
    """Only the test asks the engine, so that counts can be compared."""
    compose("pause", "traffic")
    try:
        until(idle, "no request in flight", 120)
        yield
    finally:
        compose("unpause", "traffic")


def test_k_of_the_engines_own_pool_changes_as_it_is_learned(stack: None) -> None:
    """Nobody has steered, so K has moved by what the controller made of the engine's steps."""

    def moves() -> dict[str, set[tuple[str, int]]]:
        """What each domain was given, by the API's history."""
        found: dict[str, set[tuple[str, int]]] = {}
        for moment in httpx.get(f"{CONTROLLER}/v1/pools/smollm2/history", timeout=5).json():
            for one in moment["domains"]:
                found.setdefault(one["domain"], set()).add((one["draft"], one["k"]))
        return found

    def moved() -> bool:
        return any(len({k for _, k in arms}) >= 2 for arms in moves().values())

    until(moved, "a domain of the pool smollm2 at two K or more, one after the other", 240)
    until(lambda: any(len(played(d)) >= 3 for d in ("code", "math", "chat")), "the engine has played three K", 60)
    records = httpx.get(f"{CONTROLLER}/v1/pools/smollm2/decisions", timeout=5).json()
    assert records
    assert httpx.get(f"{CONTROLLER}/v1/pools/smollm2/orders", timeout=5).json()["revision"] == 0


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


def test_images_say_where_they_come_from_as_the_page_shows(stack: None) -> None:
    """The layers are there: what is built anew is the labels."""
    built = STACK.shell(line_of("compose.md", "AKC_IMAGE_SOURCE"), ROOT)
    assert built.returncode == 0, built.stderr[-3000:]
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    for service in ("controller", "engine"):
        asked = "{{range $name, $value := .Config.Labels}}{{$name}}={{$value}}\n{{end}}"
        told = docker("image", "inspect", "--format", asked, f"adaptive-k-{service}").splitlines()
        labels = dict(line.removeprefix("org.opencontainers.image.").split("=", 1) for line in told if "=" in line)
        assert labels["source"] == "https://HOST/REPOSITORY"
        assert labels["revision"] == head.stdout.strip()
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", labels["created"])


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
    # On a Python that has of vLLM what the stage relies on, msgspec: vLLM's own image has gigabytes. What the stage
    # itself does is the same.
    base, tag = "akc-test-vllm-base", "akc-test-vllm"
    lock = (ROOT / "requirements" / "lock.txt").read_text()
    pins = dict(re.findall(r"^(redis|msgspec)==(\S+)", lock, re.MULTILINE))

    def build(image: str) -> "subprocess.CompletedProcess[str]":
        told = (f"VLLM_IMAGE={image}", f"PYTHON_IMAGE={PYTHON_IMAGE}", f"REVISION={REVISION}")
        arguments = [word for one in told for word in ("--build-arg", one)]
        command = ["docker", "buildx", "build", "--load", "--target", "vllm", "--tag", tag, *arguments, str(ROOT)]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    refused = build(PYTHON_IMAGE)
    assert refused.returncode != 0
    assert "No module named 'msgspec'" in refused.stderr
    subprocess.run(
        ["docker", "buildx", "build", "--load", "--tag", base, "-"],
        input=f"FROM {PYTHON_IMAGE}\nRUN python3 -m pip install --no-cache-dir msgspec=={pins['msgspec']}\n",
        text=True,
        check=True,
        timeout=300,
    )
    built = build(base)
    assert built.returncode == 0, built.stderr[-3000:]
    try:
        run = ("run", "--rm", "--entrypoint", "python3", tag, "-c")
        program = (
            "import os, importlib.metadata as m, engine.vllm.plugin, controller.cli.probe, redis, msgspec;"
            "assert not any(os.path.exists(one) for one in ('/src', '/dist', '/run/vllm.txt'));"
            "plugins = [p.name for p in m.entry_points(group='vllm.general_plugins')];"
            "print(redis.__version__, msgspec.__version__, *plugins)"
        )
        assert docker(*run, program) == f"{pins['redis']} {pins['msgspec']} adaptive_k"
        asked = '{{index .Config.Labels "org.opencontainers.image.revision"}}'
        assert docker("image", "inspect", "--format", asked, tag) == REVISION
    finally:
        docker("image", "rm", "--force", tag, base)


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
    with quiet():
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


def line_of(page: str, text: str) -> str:
    """The command of a document that has this text in it."""
    (found,) = [one.line for one in documented() if one.where.startswith(f"docs/how-to/{page}:") and text in one.line]
    return found


def token(folder: Path) -> str:
    """The token that was made at the first start, read as docs/how-to/compose.md says."""
    told = STACK.shell(line_of("compose.md", "cat /tokens/tokens"), folder)
    assert told.returncode == 0, told.stderr
    (line,) = [line for line in told.stdout.splitlines() if not line.startswith("#")]
    name, role, secret = line.split()
    assert (name, role) == ("admin", "admin")
    return secret


def akc(*words: str) -> "subprocess.CompletedProcess[str]":
    return STACK.execute("controller", "akc", *words, "--pool", "smollm2")


def orders() -> Any:
    return httpx.get(f"{CONTROLLER}/v1/pools/smollm2/orders", timeout=5).json()


def test_only_who_has_the_token_steers_and_the_engine_obeys(stack: None, tmp_path: Path) -> None:
    until(lambda: {"code", "chat"} <= domains().keys(), "the domains known to the controller", 240)
    before = orders()
    nobody = akc("pin", "code", "ngram", "3")
    assert nobody.returncode == 3, nobody.stdout + nobody.stderr
    assert "Give a token" in nobody.stderr
    url, wrong = f"{CONTROLLER}/v1/pools/smollm2/mode", {"Authorization": "Bearer 0123456789abcdef0123"}
    assert httpx.put(url, json={"mode": "off"}, headers=wrong, timeout=5).status_code == 401
    assert orders() == before

    def played_now(domain: str) -> "Counter[int]":
        then = played(domain)
        ask(24, domain)
        until(idle, "no request in flight", 30)
        return played(domain) - then

    def at(domain: str, k: int) -> bool:
        """Whether a request's steps run at K, but those that its end leaves no room for."""
        ks = played_now(domain)
        return max(ks) == k and ks.most_common(1)[0][0] == k

    secret = token(tmp_path)
    with quiet():
        for draft, k in (("ngram", 3), ("none", 0), ("ngram", 5)):
            done = akc("pin", "code", draft, str(k), "--token", secret, "--why", "the compose suite")
            assert done.returncode == 0, done.stderr
            until(lambda k=k: at("code", k), f"code at K = {k}", 60)  # type: ignore[misc]
            assert domains()["code"]["now"]["k"] == k
        assert akc("unpin", "code", "--token", secret).returncode == 0
        # The page's own line, token put in: the static choice, which is none by default, for every domain.
        page = (ROOT / "docs" / "how-to" / "compose.md").read_text()
        (line,) = re.findall(r"`(docker compose exec controller akc mode off [^`]+)`", page)
        assert line.count("TOKEN") == 1
        done = STACK.shell(line.replace("TOKEN", secret), tmp_path)
        assert done.returncode == 0, done.stderr
        for domain in ("code", "chat"):
            until(lambda domain=domain: at(domain, 0), f"{domain} without speculation", 60)  # type: ignore[misc]
        on = {"Authorization": f"Bearer {secret}"}
        assert httpx.put(url, json={"mode": "on"}, headers=on, timeout=5).status_code == 200
    audit = httpx.get(f"{CONTROLLER}/v1/pools/smollm2/audit", params={"who": "admin"}, timeout=5).json()
    assert [act["why"] for act in audit].count("the compose suite") == 3
    assert len(audit) == 6


def test_what_was_learned_is_dumped_and_loaded_in_the_containers(stack: None, tmp_path: Path) -> None:
    """docs/how-to/upgrade.md, line by line, while the engine goes on."""
    dump, stop, load, start = (line_of("upgrade.md", text) for text in (" dump ", " stop ", " load ", " start "))

    def run(line: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
        done = STACK.shell(line, tmp_path)
        assert done.returncode == code, f"{line}\n{done.stdout}\n{done.stderr}"
        return done

    secret = token(tmp_path)
    with quiet():
        assert akc("pin", "chat", "ngram", "2", "--token", secret).returncode == 0
        until(lambda: learned()[0] == counted(), "every token learned", 60)
        kept = learned()[0]
        assert "pool smollm2 as of" in run(dump).stderr
        assert akc("unpin", "chat", "--token", secret).returncode == 0
        assert ask(32) > 1
        until(lambda: learned()[0] == counted() > kept, "what came after the file learned, too", 60)
        led = run(load, code=1)
        assert "a controller leads pool 'smollm2'" in led.stderr
        assert [pin["domain"] for pin in orders()["pins"]] == []
        run(stop)
        assert "pool smollm2 goes on from -" in run(load).stdout
        run(start)
        until(lambda: ready() == 200 and learned()[0] > 0, "the pool is led again", 60)
        # Orders are the file's; counts are the engine's running totals again, not one of them missing or twice.
        assert [(pin["domain"], pin["draft"], pin["k"]) for pin in orders()["pins"]] == [("chat", "ngram", 2)]
        until(lambda: learned()[0] == counted(), "what came after the file learned anew", 60)
        assert akc("unpin", "chat", "--token", secret).returncode == 0


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


def engines() -> list[Any]:
    found: list[Any] = httpx.get(f"{CONTROLLER}/v1/pools/smollm2/engines", timeout=5).json()
    return found


def test_an_engine_whose_container_is_made_anew_keeps_its_name_and_what_it_told(stack: None) -> None:
    until(idle, "no request in flight", 120)  # the test above has stopped the traffic
    until(lambda: learned()[0] == counted(), "every token learned", 60)
    before, known = learned()[0], engines()
    compose("up", "--detach", "--no-deps", "--force-recreate", "--wait", "--wait-timeout", "300", "engine")
    until(lambda: len(engines()) == len(known) + 1, "another incarnation", 30)
    assert {one["engine"] for one in engines()} == {"engine"}
    assert ask(16) > 1
    until(lambda: learned()[0] == before + counted(), "its tokens beside those of the one before", 60)


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


def test_a_file_brings_back_what_was_learned_after_all_volumes_are_gone(stack: None, tmp_path: Path) -> None:
    before = learned()[0]
    assert before > 0
    for line in (
        line_of("upgrade.md", " dump "),
        "docker compose down --volumes",
        "docker compose up --detach --wait redis",
    ):
        done = STACK.shell(line, tmp_path)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    with redis.Redis(port=REDIS_PORT, username="controller", password="adaptive-k") as client:
        assert list(client.scan_iter("akc:*")) == []
    loaded = STACK.shell(line_of("upgrade.md", " load "), tmp_path)
    assert loaded.returncode == 0, loaded.stderr
    compose("up", "--detach", "--wait", "--wait-timeout", "120", "controller")
    until(lambda: learned()[0] > 0, "the pool is there again", 60)
    assert learned()[0] == before
