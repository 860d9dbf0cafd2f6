"""The built sdist and wheel, installed by extras into clean environments and run there. Needs a package index. Slow."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.controller.process import free_port

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
TORCH = "torch==2.13.0"
Installed = Callable[[str], Path]


def run(*command: str | Path, cwd: Path, code: int = 0) -> str:
    """Standard output and error of a command that knows nothing of this checkout."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == code, f"{command}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout + done.stderr


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


def test_the_plug_in_alone_needs_two_packages_and_the_command_says_what_it_lacks(installed: Installed) -> None:
    there = installed("")
    names = set(
        re.findall(r"^(\S+)", run(there / "pip", "list", "--format=freeze", cwd=there).replace("==", " "), re.M)
    )
    assert names - {"pip", "setuptools"} == {"adaptive-k-controller", "msgspec", "redis"}
    run(there / "python", "-c", "import engine.link, engine.vllm, engine.vllm.plugin", cwd=there)
    assert "adaptive-k-controller[controller]" in run(there / "akc", "--version", cwd=there, code=2)


@pytest.fixture(scope="module")
def controller(installed: Installed) -> Path:
    return installed("[controller]")


def test_the_controller_starts_and_answers_though_redis_is_away(controller: Path) -> None:
    assert run(controller / "akc", "--version", cwd=controller).strip() == "0.1.0"
    port = free_port()
    command = [str(controller / "akc"), "controller", "--port", str(port), "--redis-url", "redis://127.0.0.1:1/0"]
    process = subprocess.Popen(command, cwd=controller, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        while True:
            assert process.poll() is None
            try:
                with urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
                    assert answer.status == 200
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
    finally:
        process.terminate()
        assert process.wait(30) == 0
        assert process.stderr is not None
        process.stderr.close()


def test_simulations_play(installed: Installed) -> None:
    there = installed("[simulations]")
    told = run(there / "akc", "simulate", "dip", "--steps", "60", "--seeds", "1", "--rivals", "none", cwd=there)
    assert "dip: medians over 1 seed" in told
    assert "code" in run(there / "akc", "replay", "--help", cwd=there) + told


def test_the_engine_imports_and_names_what_it_does(installed: Installed) -> None:
    there = installed("[engine]")
    assert "--static-draft" in run(there / "akc", "engine", "--help", cwd=there)
    run(there / "python", "-c", "import engine.server, engine.core", cwd=there)
