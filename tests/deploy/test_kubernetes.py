"""The manifests of docs/kubernetes against the schemas of Kubernetes, and against the code they start."""

import re
import tomllib
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import kubernetes_validate
import pytest
import yaml

from controller.app import ASKING, FREE
from controller.settings import ControllerSettings
from controller.supervisor import STOP_SECONDS
from controller.tokens import TokenError, parse
from engine.link.settings import load
from engine.vllm.settings import settings_of
from tests.deploy.manifests import ALL, CONTROLLER, HOW_TO, PODS, ROOT, SECRET, VLLM, container, environment, labels, of

VERSIONS = ("1.28", "1.35")  # from the oldest that clouds still run to a recent one


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("name", "manifest"), ALL, ids=[f"{name}-{one['kind']}" for name, one in ALL])
def test_every_manifest_fits_the_schema_strictly(name: str, manifest: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)


def test_the_checker_refuses_a_field_that_does_not_exist() -> None:
    manifest = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"portz": []}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest, VERSIONS[0], strict=True)


DOCKERFILE = (ROOT / "Dockerfile").read_text()


def test_the_controller_reads_what_its_pods_are_given() -> None:
    flags = dict(zip((flags := container(CONTROLLER)["args"][1:])[::2], flags[1::2], strict=True))
    settings = load(
        ControllerSettings,
        env=environment(CONTROLLER),
        flags={name.removeprefix("--"): value for name, value in flags.items()},
    )
    assert settings.redis_url == "redis://controller:PASSWORD@redis:6379/0"
    assert (settings.tokens_file, settings.open_reads, settings.host) == ("/tokens/tokens", False, "0.0.0.0")
    assert container(CONTROLLER)["ports"] == [{"name": "http", "containerPort": settings.port}]


def test_nobody_steers_with_the_token_that_is_in_the_file() -> None:
    with pytest.raises(TokenError, match=r"line 1: a token of 9 characters; allowed: 16 or more"):
        parse(SECRET["tokens"])
    # Every one of them: an operator who has replaced the first is told of the second.
    with pytest.raises(TokenError, match=r"line 2: a token of 9 characters"):
        parse(SECRET["tokens"].replace("CHANGE-ME", "0123456789abcdef", 1))
    # One for both would make the scraper an admin.
    with pytest.raises(TokenError, match="lines 1 and 2: the same token on both"):
        parse(SECRET["tokens"].replace("CHANGE-ME", "0123456789abcdef"))
    filled = parse(SECRET["tokens"].replace("CHANGE-ME", "0123456789abcdef", 1).replace("CHANGE-ME", "f" * 16))
    assert [(token.name, token.role) for token in filled] == [("ops", "admin"), ("prometheus", "read")]


def test_the_plug_in_reads_what_its_deployment_gives_it() -> None:
    settings = settings_of({}, environment(VLLM))
    assert (settings.pool, settings.engine, settings.redis_url) == (
        "qwen72b", "a-pod", "redis://engine:PASSWORD@redis:6379/0",
    )  # fmt: skip


def test_vllm_is_told_to_load_a_scheduler_that_is_there() -> None:
    (flag,) = [one for one in container(VLLM)["args"] if one.startswith("--scheduler-cls=")]
    module, _, name = flag.partition("=")[2].rpartition(".")
    assert callable(getattr(import_module(module), name))


def probes(pod: str) -> Iterator[dict[str, Any]]:
    for name, probe in container(pod).items():
        if name.endswith("Probe"):
            yield probe["httpGet"]


def test_probes_ask_routes_that_need_no_token_at_a_port_that_is_named() -> None:
    free = {route.path for router in FREE for route in router.routes}  # type: ignore[attr-defined]  # all are HTTP
    asked = list(probes(CONTROLLER))
    assert {probe["path"] for probe in asked} <= free
    assert len(asked) == 2
    for pod in (CONTROLLER, VLLM):
        names = {port["name"] for port in container(pod)["ports"]}
        assert {probe["port"] for probe in probes(pod)} == names


def test_services_and_policies_choose_pods_that_are_there_and_their_ports() -> None:
    for _, one in ALL:
        spec, kind = one.get("spec", {}), one["kind"]
        if kind not in ("Service", "NetworkPolicy", "PodDisruptionBudget"):
            continue
        chosen = spec["selector"] if kind == "Service" else (spec.get("podSelector") or spec["selector"])["matchLabels"]
        pods = [name for name, has in labels().items() if chosen.items() <= has.items()]
        assert pods, one["metadata"]["name"]
        ports = [port for pod in pods for port in container(pod).get("ports", [])]
        known = {port["name"] for port in ports} | {port["containerPort"] for port in ports}
        for port in spec.get("ports", []):
            assert port["targetPort"] in known
        for rule in spec.get("ingress", []):
            assert {port["port"] for port in rule["ports"]} <= known


def test_every_pod_that_speaks_to_redis_may() -> None:
    for pod, has in labels().items():
        policies = [
            one["spec"]
            for _, one in ALL
            if one["kind"] == "NetworkPolicy" and one["spec"]["podSelector"]["matchLabels"].items() <= has.items()
        ]
        port = int(environment(pod)["AKC_REDIS_URL"].rpartition(":")[2].partition("/")[0])
        open_ports = {p["port"] for policy in policies for rule in policy["egress"] for p in rule["ports"]}
        assert {port, 53} <= open_ports, pod


def test_every_replica_has_a_name_and_is_left_the_time_it_takes_to_end() -> None:
    replicas = of("StatefulSet", CONTROLLER)["spec"]
    headless = of("Service", replicas["serviceName"])["spec"]
    assert headless["clusterIP"] == "None"
    assert headless["selector"] == replicas["selector"]["matchLabels"]
    assert f"{CONTROLLER}-0.{replicas['serviceName']}:{container(CONTROLLER)['ports'][0]['containerPort']}" in HOW_TO
    assert replicas["replicas"] > of("PodDisruptionBudget", CONTROLLER)["spec"]["minAvailable"]
    uvicorn = int(re.findall(r"timeout_graceful_shutdown=(\d+)", (ROOT / "controller" / "app.py").read_text())[0])
    assert PODS[CONTROLLER]["terminationGracePeriodSeconds"] >= STOP_SECONDS + uvicorn


def test_no_pod_may_become_more_than_it_is() -> None:
    for pod, spec in PODS.items():
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, pod
        assert container(pod)["securityContext"]["allowPrivilegeEscalation"] is False
        assert (spec["automountServiceAccountToken"], spec["enableServiceLinks"]) == (False, False)


def test_images_are_targets_of_the_dockerfile_in_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    targets = set(re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE))
    used = {container(pod)["image"] for pod in PODS}
    assert used == {f"adaptive-k-{name}:{version}" for name in ("controller", "vllm")}
    for image in used:
        assert image.removeprefix("adaptive-k-").partition(":")[0] in targets
        # The page builds and pushes them under the name that the manifests' lines are to get.
        for verb in ("--tag", "push"):
            assert f"{verb} REGISTRY/{image}" in HOW_TO


def test_prometheus_finds_the_controllers_and_shows_a_token() -> None:
    (job,) = yaml.safe_load(HOW_TO.partition("```yaml\n")[2].partition("```")[0])
    assert job["authorization"]["credentials_file"]
    kept = {rule["source_labels"][0]: rule["regex"] for rule in job["relabel_configs"] if rule.get("action") == "keep"}
    assert kept == {
        "__meta_kubernetes_pod_label_app_kubernetes_io_component": labels()[CONTROLLER]["app.kubernetes.io/component"],
        "__meta_kubernetes_pod_container_port_name": container(CONTROLLER)["ports"][0]["name"],
    }
    # Of `role: read`, as /metrics asks for one where reads are not open; and the way there is open.
    assert "/metrics" in {route.path for router in ASKING for route in router.routes}
    sources = of("NetworkPolicy", CONTROLLER)["spec"]["ingress"][0]["from"]
    assert {"kubernetes.io/metadata.name": "monitoring"} in [
        source["namespaceSelector"]["matchLabels"] for source in sources if "namespaceSelector" in source
    ]
