"""A setting that cannot be used ends `akc controller` with one line: which setting, its value, what is allowed."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from controller.cli.commands import app


@pytest.mark.parametrize(
    ("words", "environment", "said"),
    [
        (
            ("--log-level", "loud"),
            {},
            "akc: log_level is 'loud' (command line); allowed: 'critical' or 'debug' or 'error' or 'info' or 'warning'",
        ),
        (
            (),
            {"AKC_DRAWS": "8"},
            "akc: draws is '8' (variable AKC_DRAWS); allowed: whole number from 32 to 8192",
        ),
        (
            ("--redis-url", "redis://here:port"),
            {},
            "akc: redis_url is 'redis://here:port': Port could not be cast to integer value as 'port'",
        ),
        (
            ("--redis-url", "redis+sentinel://me:secret@here"),
            {},
            "akc: redis_url is 'redis+sentinel://me:***@here': the address names no service; allowed: ?service=NAME",
        ),
        (
            (),
            {"AKC_REDIS_CA_FILE": "/nowhere/ca.pem"},
            "akc: redis_ca_file is '/nowhere/ca.pem': [Errno 2] No such file or directory; allowed: a PEM file",
        ),
        (
            (),
            {"AKC_TOKENS_FILE": "/dev/null/tokens"},
            "akc: tokens_file '/dev/null/tokens' is not there and cannot be made: ",
        ),
    ],
)
def test_a_mistake_is_one_line_with_code_2(words: tuple[str, ...], environment: dict[str, str], said: str) -> None:
    result = CliRunner().invoke(app, ["controller", *words], env=environment)
    assert result.exit_code == 2, result.exception
    (line,) = result.output.splitlines()
    assert line.startswith(said)


def test_a_mistake_in_the_file_names_it(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("max_listeners = 9\nmax_connections = 9\n")
    result = CliRunner().invoke(app, ["controller", "--config", str(file)])
    assert result.exit_code == 2
    (line,) = result.output.splitlines()
    assert "max_listeners is 9; allowed: less than max_connections (9)" in line
