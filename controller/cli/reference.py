"""`python -m controller.cli.reference [FILE]`: writes the tables of docs/reference/cli.md from the commands."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import typer

from controller.api.reference import filled
from controller.cli.exits import EXITS

DOCUMENT = Path("docs/reference/cli.md")
CODES = sorted({code for codes in EXITS.values() for code in codes})


class Command(NamedTuple):
    """A command by its words after `akc`: what it does, and a line that shows it."""

    name: str
    about: str
    example: str
    json: bool


def commands(group: Any, before: str = "") -> Iterator[Command]:
    """All commands of Typer's group and of those in it. Raises `ValueError` for one whose help has no example."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
            continue
        about, _, example = " ".join((command.help or "").split()).partition(" Example: ")
        if not example.startswith(f"akc {before}{name}"):
            raise ValueError(f"the help of 'akc {before}{name}' ends with no 'Example: akc {before}{name} ...'")
        prints = any("--json" in parameter.opts for parameter in command.params)
        yield Command(before + name, about, example, prints)


def all_commands() -> list[Command]:
    """Every command of `akc`."""
    from controller.cli.commands import app

    return list(commands(typer.main.get_command(app)))


def written(text: str) -> str:
    """The document with the tables as the code has them now."""
    found = ["| command | what it does | for example |", "| --- | --- | --- |"]
    found += [f"| `akc {one.name}` | {one.about} | `{one.example}` |" for one in all_commands()]
    alike: dict[tuple[str, ...], list[str]] = {}
    for one in all_commands():
        row = tuple(EXITS[one.name].get(code, "-") for code in CODES)
        alike.setdefault(row, []).append(f"`{one.name}`")
    codes = [f"| command | {' | '.join(map(str, CODES))} |", "| --- " * (1 + len(CODES)) + "|"]
    codes += [f"| {', '.join(names)} | {' | '.join(row)} |" for row, names in alike.items()]
    return filled(text, {"commands": "\n".join(found), "exits": "\n".join(codes)})


def main() -> None:
    """Rewrite the document, or the one named."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else DOCUMENT
    path.write_text(written(path.read_text()))


if __name__ == "__main__":
    main()
