"""What the compose file says of ports, accounts, stop times, privileges and vLLM, held to code and documents."""

import json
import re
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from engine.link.address import sentinels
from engine.link.settings import load
from engine.server.settings import EngineSettings
from engine.vllm.settings import settings_of
from tests.deploy.composed import ROOT, composed, services

ALL = services()


def text(service: str) -> str:
    return json.dumps([ALL[service].get("command"), ALL[service].get("entrypoint"), ALL[service].get("healthcheck")])


def address(service: str, **knobs: str) -> str:
    told = services(**knobs)[service]["environment"]
    return str(told.get("AKC_REDIS_URL") or told["REDIS_URL"])


def users() -> dict[str, list[str]]:
    """Rules of the ACL file by user, passwords left out."""
    lines = composed()["configs"]["users"]["content"].splitlines()
    return {user: [rule for rule in rules if rule[0] != ">"] for _, user, *rules in map(str.split, lines)}


def test_every_port_is_on_loopback_and_redis_has_one_for_a_vllm_that_is_up_already() -> None:
    published = [port for service in ALL.values() for port in service.get("ports", [])]
    assert all(port.startswith("127.0.0.1:") for port in published), published
    assert ALL["redis"]["ports"] == ["127.0.0.1:6379:6379"]
    page = (ROOT / "docs" / "how-to" / "compose.md").read_text()
    (told,) = re.findall(r"redis://\S+:6379/0", page)
    password = urlsplit(address("engine")).password
    assert told == f"redis://engine:{password}@127.0.0.1:6379/0"


@pytest.mark.parametrize(
    ("service", "user"),
    [
        ("controller", "controller"),
        ("controller-2", "controller"),
        ("engine", "engine"),
        ("vllm", "engine"),
        ("simulated", "simulated"),
    ],
)
def test_everybody_has_an_account_of_its_own_kind(service: str, user: str) -> None:
    found = urlsplit(address(service))
    assert (found.username, found.hostname, found.port) == (user, "redis", 6379)
    lines = composed()["configs"]["users"]["content"]
    assert re.search(rf"^user {user} on >{re.escape(str(found.password))} ", lines, re.MULTILINE)


def test_an_engines_password_opens_no_controllers_account() -> None:
    assert urlsplit(address("engine")).password != urlsplit(address("controller")).password


def test_accounts_are_those_of_the_document() -> None:
    page = (ROOT / "docs" / "how-to" / "redis.md").read_text()
    documented = dict(re.findall(r"^ACL SETUSER (\S+) on >PASSWORD (.+)$", page, re.MULTILINE))
    assert documented.keys() == {"engine", "controller"}
    for name, rules in documented.items():
        # Redis 7.0 does not know it and would not start; clients do without.
        assert users()[name] == ["on", *(rule for rule in rules.split() if rule != "+client|setinfo")], name


def test_the_simulations_account_is_an_engines_for_pools_that_say_that_they_are_virtual() -> None:
    own, engine = users()["simulated"], users()["engine"]
    assert {rule for rule in own if rule[0] == "+"} == {rule for rule in engine if rule[0] == "+"} | {"+xrevrange"}
    keys = [rule for rule in own if "akc:" in rule]
    assert all("akc:{virtual-*}:" in rule or rule == "%W~akc:pools" for rule in keys), keys


def test_nobody_logs_in_as_default_which_may_replay_all_that_the_append_only_file_has() -> None:
    assert users()["default"] == ["off", "~*", "&*", "+@all"]


def test_the_sentinel_address_of_the_env_file_can_be_read_and_names_every_sentinel() -> None:
    knobs = dict(re.findall(r"^# (AKC_REDIS_\w+)=(.+)$", (ROOT / ".env").read_text(), re.MULTILINE))
    found = sentinels(address("controller", **knobs))
    assert found is not None
    ours = [name for name in ALL if name.startswith("sentinel")]
    assert found.nodes == [(name, 26379) for name in ours]
    assert f"sentinel monitor {found.service} redis 6379 2" in composed()["configs"]["sentinel"]["content"]
    assert len(ours) == 3


@pytest.mark.parametrize("service", sorted(ALL))
def test_no_password_is_in_a_process_list(service: str) -> None:
    secrets = {"controllers-own", "engines-own"}
    told = services(AKC_REDIS_PASSWORD="controllers-own", AKC_REDIS_ENGINE_PASSWORD="engines-own")[service]
    shown = json.dumps([told.get("command"), told.get("entrypoint"), told.get("healthcheck")])
    assert not [secret for secret in secrets if secret in shown]


def test_passwords_that_ship_are_of_the_letters_that_redis_is_started_with() -> None:
    given = re.findall(r"^AKC_REDIS_(?:ENGINE_)?PASSWORD=(.*)$", (ROOT / ".env").read_text(), re.MULTILINE)
    assert len(given) == 2
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+", password) for password in given)
    assert "*[!A-Za-z0-9_-]*" in text("redis")


@pytest.mark.parametrize("service", ["engine", "controller", "controller-2"])
def test_docker_waits_longer_than_they_take_to_end(service: str) -> None:
    grace = ALL[service]["stop_grace_period"]
    assert float(grace.removesuffix("s")) > EngineSettings().drain + 5


@pytest.mark.parametrize("service", sorted(ALL))
def test_nobody_gains_privileges(service: str) -> None:
    assert ALL[service]["security_opt"] == ["no-new-privileges:true"]
    # Redis's own entrypoint starts as root, takes over its folder and gives root up, which needs capabilities.
    if not service.startswith(("redis", "sentinel")):
        assert ALL[service]["cap_drop"] == ["ALL"]


@pytest.mark.parametrize("service", sorted(ALL))
def test_every_service_says_whether_it_is_well(service: str) -> None:
    assert ALL[service]["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
    assert {"interval", "timeout", "retries"} <= ALL[service]["healthcheck"].keys()


@pytest.mark.parametrize("service", sorted(ALL))
def test_nobody_writes_to_the_root_file_system(service: str) -> None:
    # Redis's entrypoint and vLLM (caches, compiled kernels in the home folder) do.
    if service.startswith(("redis", "sentinel", "vllm")):
        assert "read_only" not in ALL[service]
        return
    assert ALL[service]["read_only"] is True
    assert "/tmp" in ALL[service]["tmpfs"]


@pytest.mark.parametrize("service", ["engine", "vllm"])
def test_an_engine_keeps_its_name_when_its_container_is_made_anew(service: str) -> None:
    given = {name: value for name, value in ALL[service]["environment"].items() if name.startswith("AKC_")}
    read = settings_of({}, given) if service == "vllm" else load(EngineSettings, env=given)
    assert read.engine_id == service


def test_images_that_another_service_builds_are_never_pulled() -> None:
    built = {service["image"] for service in ALL.values() if "build" in service}
    users_ = {name: one for name, one in ALL.items() if one["image"] in built and "build" not in one}
    assert users_.keys() == {"traffic", "simulated"}
    for name, one in users_.items():
        assert one["pull_policy"] == "never", name


def test_prometheus_asks_every_controller() -> None:
    config = yaml.safe_load((ROOT / "docs" / "monitoring" / "prometheus.yml").read_text())
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in config["scrape_configs"]}
    assert targets["adaptive-k"] == [f"{name}:8080" for name in ALL if name.startswith("controller")]


def vllm_of(where: str) -> tuple[list[str], dict[str, Any]]:
    """Arguments after `vllm serve` and the environment."""
    if where == "compose":
        return ALL["vllm"]["command"], ALL["vllm"]["environment"]
    manifests = yaml.safe_load_all((ROOT / "docs" / "kubernetes" / "vllm.yaml").read_text())
    (deployment,) = [one for one in manifests if one["kind"] == "Deployment"]
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    return container["args"], {one["name"]: one.get("value") for one in container["env"]}


@pytest.mark.parametrize("where", ["compose", "kubernetes"])
def test_vllm_is_told_the_reference_pair_in_todays_words(where: str) -> None:
    model, *flags = vllm_of(where)[0]
    assert model == "Qwen/Qwen2.5-72B-Instruct-AWQ"  # `vllm serve MODEL`; as a flag it is deprecated
    given = dict(flag.split("=", 1) for flag in flags)
    assert "--model" not in given
    assert given["--scheduler-cls"] == "engine.vllm.AdaptiveScheduler"
    assert json.loads(given["--speculative-config"]) == {
        "method": "draft_model",
        "model": "Qwen/Qwen2.5-1.5B-Instruct",
        "num_speculative_tokens": 8,
        "use_heterogeneous_vocab": True,  # one tokenizer, two paddings: vLLM refuses the pair without
    }


@pytest.mark.parametrize("where", ["compose", "kubernetes"])
def test_vllm_chooses_among_few_k_and_the_largest_is_the_configured_one(where: str) -> None:
    arguments, environment = vllm_of(where)
    (config,) = [json.loads(one.split("=", 1)[1]) for one in arguments if one.startswith("--speculative-config")]
    given = {name: str(value) for name, value in environment.items() if name == "AKC_K_VALUES"}
    values = settings_of({}, given).k_values
    assert values == [0, 2, 4, 8]
    assert config["num_speculative_tokens"] == max(values)
