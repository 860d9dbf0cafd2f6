"""The manifests of docs/kubernetes against the schemas of Kubernetes, and against the code they start."""

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from controller.settings import ControllerSettings
from controller.tokens import parse
from engine.link.settings import load
from engine.vllm.settings import settings_of

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "docs" / "kubernetes").glob("*.yaml"))
VERSIONS = ("1.28", "1.35")  # from the oldest that clouds still run to a recent one


def documents(path: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


ALL = [(path.name, one) for path in FILES for one in documents(path)]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("name", "manifest"), ALL, ids=[f"{name}-{one['kind']}" for name, one in ALL])
def test_every_manifest_fits_the_schema_strictly(name: str, manifest: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)


def test_the_checker_refuses_a_field_that_does_not_exist() -> None:
    manifest = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"portz": []}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest, VERSIONS[0], strict=True)


def container(kind: str) -> dict[str, Any]:
    (found,) = [one for _, one in ALL if one["kind"] == "Deployment" and kind in one["metadata"]["name"]]
    spec: dict[str, Any] = found["spec"]["template"]["spec"]["containers"][0]
    return spec


SECRET = next(one for _, one in ALL if one["kind"] == "Secret")["stringData"]


def environment(kind: str) -> dict[str, str]:
    """As a pod would see it: values, and those of the Secret."""
    values = {}
    for one in container(kind)["env"]:
        told = one.get("valueFrom", {})
        values[one["name"]] = one.get("value") or SECRET.get(told.get("secretKeyRef", {}).get("key"), "a-pod")
    return values


def test_the_controller_reads_what_its_deployment_gives_it() -> None:
    settings = load(ControllerSettings, env=environment("controller"))
    assert settings.redis_url == "redis://controller:PASSWORD@redis:6379/0"
    assert (settings.tokens_file, settings.open_reads) == ("/tokens/tokens", False)
    assert [(t.name, t.role) for t in parse(SECRET["tokens"])] == [("ops", "admin"), ("dashboards", "read")]


def test_the_plug_in_reads_what_its_deployment_gives_it() -> None:
    settings = settings_of({}, environment("vllm"))
    assert (settings.pool, settings.engine, settings.redis_url) == (
        "qwen72b", "a-pod", "redis://engine:PASSWORD@redis:6379/0",
    )  # fmt: skip


def test_probes_ask_what_is_there() -> None:
    probes = container("controller")
    assert probes["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert probes["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_secrets_and_selectors_are_there_for_whoever_names_them() -> None:
    labels = {
        frozenset(one["spec"]["template"]["metadata"]["labels"].items())
        for _, one in ALL
        if one["kind"] == "Deployment"
    }
    for _, one in ALL:
        if one["kind"] == "Service":
            assert any(set(one["spec"]["selector"].items()) <= of for of in labels), one["metadata"]["name"]
        if one["kind"] in ("NetworkPolicy", "PodDisruptionBudget"):
            chosen = (one["spec"].get("podSelector") or one["spec"]["selector"])["matchLabels"]
            assert any(set(chosen.items()) <= of for of in labels), one["metadata"]["name"]
