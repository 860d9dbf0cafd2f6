"""The reference of the command line says what the commands do."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from controller.cli.exits import EXITS
from controller.cli.reference import DOCUMENT, all_commands, commands, written


def test_the_tables_in_the_document_are_those_of_the_commands() -> None:
    text = DOCUMENT.read_text()
    assert written(text) == text, "make reference"


def test_every_command_has_its_exit_codes_told() -> None:
    assert {command.name for command in all_commands()} == set(EXITS)


def test_what_asks_a_controller_prints_json_too() -> None:
    printing = {command.name for command in all_commands() if command.json}
    assert printing >= {"status", "watch", "explain", "pin", "unpin", "mode", "reset", "draft", "route"}


def test_a_command_without_an_example_is_refused() -> None:
    with pytest.raises(ValueError, match="the help of 'akc a' ends with no 'Example: akc a"):
        list(commands(SimpleNamespace(commands={"a": SimpleNamespace(help="Does it.", params=[])})))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_can_be_shown(shell: str) -> None:
    # Typer finds out which shell it runs in, or takes its name where that is switched off; it looks when it is loaded.
    named = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    program = "from controller.cli.commands import app; app(prog_name='akc')"
    line = [sys.executable, "-c", program, "--show-completion", shell]
    done = subprocess.run(line, env=named, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "_AKC_COMPLETE" in done.stdout
