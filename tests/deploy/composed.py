"""The compose file as Docker Compose reads it, with its own defaults: no engine, no `.env`."""

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yml"
_VARIABLE = re.compile(r"\$\$|\$\{(\w+):-([^${}]*)\}")


def composed(**knobs: str) -> dict[str, Any]:
    """The file with `knobs` in place of defaults.

    >>> composed(AKC_POOL="mine")["services"]["engine"]["command"][-1]
    'mine'
    """

    def value(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else knobs.get(found[1]) or found[2]

    whole: dict[str, Any] = yaml.safe_load(_VARIABLE.sub(value, FILE.read_text()))
    return whole


def services(**knobs: str) -> dict[str, dict[str, Any]]:
    """Services by name."""
    found: dict[str, dict[str, Any]] = composed(**knobs)["services"]
    return found
