"""The manifests of docs/kubernetes, taken apart."""

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "docs" / "kubernetes").glob("*.yaml"))
HOW_TO = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text()
CONTROLLER, VLLM, LOADER = "adaptive-k-controller", "vllm-qwen72b", "adaptive-k-load-state"

ALL: list[tuple[str, dict[str, Any]]] = [
    (path.name, one) for path in FILES for one in yaml.safe_load_all(path.read_text()) if one
]
MAKERS = {one["metadata"]["name"]: one for _, one in ALL if one["kind"] in ("Deployment", "StatefulSet", "Pod")}
TEMPLATES = {name: one if one["kind"] == "Pod" else one["spec"]["template"] for name, one in MAKERS.items()}
PODS = {name: template["spec"] for name, template in TEMPLATES.items()}


def of(kind: str, name: str) -> dict[str, Any]:
    """The manifest of this kind and name."""
    (found,) = [one for _, one in ALL if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


SECRET: dict[str, str] = of("Secret", "adaptive-k")["stringData"]


def container(pod: str) -> dict[str, Any]:
    """The only container of a pod."""
    (found,) = PODS[pod]["containers"]
    return dict(found)


def labels() -> dict[str, dict[str, str]]:
    """Labels of the pods, by what makes them."""
    return {name: template["metadata"]["labels"] for name, template in TEMPLATES.items()}


def environment(pod: str) -> dict[str, str]:
    """As a pod would see it: values, those of the Secret, and its name as `a-pod`."""
    values = {}
    for one in container(pod)["env"]:
        told = one.get("valueFrom", {})
        if "secretKeyRef" in told:
            values[one["name"]] = SECRET[told["secretKeyRef"]["key"]]
        elif "fieldRef" in told:
            assert told["fieldRef"]["fieldPath"] == "metadata.name"
            values[one["name"]] = "a-pod"
        else:
            values[one["name"]] = one["value"]
    return values
