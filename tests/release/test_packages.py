"""The built sdist and wheel, installed by extras into clean environments and run there. Needs a package index. Slow."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
import venv
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.controller.process import free_port
from tests.server.tiny import MAX_LEN, make_model

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
TORCH = "torch==2.13.0"
Installed = Callable[[str], Path]


def alone() -> dict[str, str]:
    """The environment of a command that knows nothing of this checkout."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def run(*command: str | Path, cwd: Path, code: int = 0) -> str:
    """Standard output and error of a command that knows nothing of this checkout."""
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=alone(), capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == code, f"{command}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout + done.stderr


@contextmanager
def answering(command: Sequence[str | Path], url: str, cwd: Path) -> Iterator[None]:
    """A server of the environment, from when it answers at `url` until the block ends; it must end in order."""
    process = subprocess.Popen(list(map(str, command)), cwd=cwd, env=alone(), stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 120
        while True:
            assert process.poll() is None, process.communicate()
            try:
                with urlopen(url, timeout=5) as answer:
                    assert answer.status == 200
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        yield
    finally:
        process.terminate()
        assert process.wait(30) == 0
        assert process.stderr is not None
        process.stderr.close()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with both, built from a copy: what setuptools leaves beside the sources declares entry points."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in ("controller", "engine", "simulations"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, source, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """`installed(extras)`: the folder with the commands of an environment that has the wheel with these extras."""
    constraints = tmp_path_factory.mktemp("constraints") / "lock.txt"
    locked = re.findall(r"^[\w.-]+==\S+(?: ;[^\\\n]*)?", (ROOT / "requirements" / "lock.txt").read_text(), re.MULTILINE)
    constraints.write_text("\n".join([*locked, TORCH]))
    (wheel,) = built.glob("*.whl")

    def install(extras: str) -> Path:
        folder = tmp_path_factory.mktemp("venv")
        venv.create(folder, with_pip=True)
        target = f"adaptive-k-controller{extras} @ {wheel.as_uri()}"
        run(folder / "bin" / "pip", "install", "--quiet", "-c", constraints, target, cwd=folder)
        return folder / "bin"

    return install


def test_both_hold_what_the_code_reads_and_none_of_the_tests(built: Path) -> None:
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    inside = set(zipfile.ZipFile(wheel).namelist())
    with tarfile.open(sdist) as archive:
        source = {name.partition("/")[2] for name in archive.getnames()}
    for path in (
        "simulations/scenarios/dip.toml", "controller/dashboard/static/app.js", "controller/py.typed",
        "simulations/traces/smollm2.parquet", "engine/py.typed",
    ):  # fmt: skip
        assert path in inside, path
        assert path in source, path
    assert not [name for name in inside if name.startswith("tests")]
    assert any(name.endswith("licenses/LICENSE") for name in inside)


@pytest.mark.parametrize("extras", ["", "[vllm]"])
def test_the_plug_in_alone_needs_two_packages_and_the_command_says_what_it_lacks(
    installed: Installed, extras: str
) -> None:
    there = installed(extras)
    names = set(
        re.findall(r"^(\S+)", run(there / "pip", "list", "--format=freeze", cwd=there).replace("==", " "), re.M)
    )
    assert names - {"pip", "setuptools"} == {"adaptive-k-controller", "msgspec", "redis"}
    run(there / "python", "-c", "import engine.link, engine.vllm, engine.vllm.plugin", cwd=there)
    assert run(there / "akc", "--version", cwd=there).strip() == VERSION
    assert "adaptive-k-controller[controller]" in run(there / "akc", "status", cwd=there, code=2)


def test_no_extra_is_unknown(built: Path) -> None:
    """pip only warns of an extra that is not there, and installs without it."""
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [one for one in archive.namelist() if one.endswith(".dist-info/METADATA")]
        told = re.findall(r"^Provides-Extra: (\S+)$", archive.read(name).decode(), re.MULTILINE)
    assert set(told) == {"controller", "engine", "vllm", "simulations", "demo", "dev"}


def test_the_sdist_installs_the_same_files_as_the_wheel(built: Path, tmp_path: Path) -> None:
    """As pip would where there is no wheel: it builds one, with what the sdist holds alone."""
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    venv.create(tmp_path / "venv", with_pip=True)
    there = tmp_path / "venv" / "bin"
    run(there / "pip", "install", "--quiet", "--no-deps", sdist, cwd=tmp_path)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        inside = [name for name in archive.namelist() if ".dist-info/" not in name]
        assert inside
        for name in inside:
            assert (site / name).read_bytes() == archive.read(name), name
    assert run(there / "akc", "--version", cwd=tmp_path).strip() == VERSION


@pytest.fixture(scope="module")
def controller(installed: Installed) -> Path:
    return installed("[controller]")


def test_the_controller_starts_and_answers_though_redis_is_away(controller: Path) -> None:
    assert run(controller / "akc", "--version", cwd=controller).strip() == VERSION
    port = free_port()
    command: list[str | Path] = [
        controller / "akc",
        "controller",
        "--port",
        str(port),
        "--redis-url",
        "redis://127.0.0.1:1/0",
    ]
    with answering(command, f"http://127.0.0.1:{port}/healthz", cwd=controller):
        pass


def test_simulations_play(installed: Installed) -> None:
    there = installed("[simulations]")
    told = run(there / "akc", "simulate", "dip", "--steps", "60", "--seeds", "1", "--rivals", "none", cwd=there)
    assert "dip: medians over 1 seed" in told
    assert "code" in run(there / "akc", "replay", "--help", cwd=there) + told


def test_the_engine_loads_a_folder_and_answers_with_its_n_gram_draft(installed: Installed, tmp_path: Path) -> None:
    there = installed("[engine]")
    port, model = free_port(), make_model(tmp_path / "tiny")
    command: list[str | Path] = [
        there / "akc",
        "engine",
        "--offline",
        "--target",
        model,
        "--draft",
        "ngram",
        "--port",
        str(port),
    ]
    command += ["--max-len", str(MAX_LEN), "--static-draft", "ngram", "--static-k", "3", "--threads", "1"]
    with answering(command, f"http://127.0.0.1:{port}/health", cwd=there):
        body = {"prompt": "def add(a, b):", "max_tokens": 24, "temperature": 0, "ignore_eos": True}
        asked = Request(
            f"http://127.0.0.1:{port}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", "X-AKC-Explain": "1"},
        )
        with urlopen(asked, timeout=60) as answer:
            told = json.load(answer)
    assert told["usage"]["completion_tokens"] == 24
    assert (told["akc"]["draft"], told["akc"]["drafted"] > 0) == ("ngram", True)
