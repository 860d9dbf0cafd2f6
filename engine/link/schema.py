"""JSON Schemas of the wire, written from the message types: `python -m engine.link.schema [--check] [FOLDER]`."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from engine.link.messages import Frame, Offer, Policy

FOLDER = Path(__file__).parents[2] / "docs" / "reference" / "schema"
MESSAGES = {"frame": Frame, "policy": Policy, "offer": Offer}


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of the message `frame`, `policy` or `offer`."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(MESSAGES[name])}


def text(name: str) -> str:
    """The schema file's content."""
    return json.dumps(schema(name), indent=2, sort_keys=True) + "\n"


def stale(folder: Path) -> list[Path]:
    """Files of `folder` that differ from what would be written now."""
    files = [(folder / f"{name}.json", name) for name in MESSAGES]
    return [path for path, name in files if not path.exists() or path.read_text(encoding="utf-8") != text(name)]


def main(argv: Sequence[str]) -> int:
    """Write the files, or with `--check` only say which are stale; the exit status is 1 if any is."""
    arguments = [a for a in argv if a != "--check"]
    folder = Path(arguments[0]) if arguments else FOLDER
    outdated = stale(folder)
    if "--check" in argv:
        for path in outdated:
            print(f"{path} is stale; run: python -m engine.link.schema")
        return 1 if outdated else 0
    folder.mkdir(parents=True, exist_ok=True)
    for path in outdated:
        path.write_text(text(path.stem), encoding="utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
