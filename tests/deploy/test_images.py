"""The Dockerfile: everything pinned, the same pins everywhere, and the build of torch that a laptop should get."""

import re
import subprocess
import sys
import threading
import tomllib
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.deploy.composed import ROOT, services

DOCKERFILE = (ROOT / "Dockerfile").read_text()
PIN = re.compile(r"^([\w.-]+)==(\S+)", re.MULTILINE)
TORCH_ARGS = "--extra-index-url https://download.pytorch.org/whl/cpu"


def locked(name: str) -> set[tuple[str, str]]:
    return set(PIN.findall((ROOT / "requirements" / name).read_text()))


def argument(name: str) -> str:
    """The default of a build argument."""
    (found,) = re.findall(rf'^ARG {name}="?([^"\n]+?)"?$', DOCKERFILE, re.MULTILINE)
    return str(found)


def stage(name: str) -> str:
    (found,) = re.findall(rf"^FROM \S+ AS {name}\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL)
    return str(found)


def test_the_engines_lock_holds_what_torch_depends_on_and_comes_before_it() -> None:
    names = {name for name, _ in locked("engine.txt")}
    assert {"sympy", "mpmath", "networkx", "filelock", "fsspec", "jinja2", "typing-extensions"} <= names
    for name in ("engine.txt", "controller.txt", "build.txt", "vllm.txt"):
        assert locked(name) <= locked("lock.txt"), name
    steps = stage("build-engine")
    assert steps.index("-r requirements/engine.txt") < steps.index("torch==")
    makefile = re.search(r"^TORCH +:= (torch==\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert makefile is not None
    assert f"${{TORCH_PIP_ARGS}} {makefile[1]}\n" in steps


def test_redis_py_is_one_version_in_the_lock_the_vllm_image_and_the_plug_ins_tests() -> None:
    (pin,) = [version for name, version in locked("lock.txt") if name == "redis"]
    assert ("redis", pin) in locked("vllm.txt")
    assert re.findall(r'"redis==([\d.]+)"', (ROOT / ".ci" / "run").read_text()) == [pin]


def test_the_vllm_image_adds_what_its_lock_names_by_hash_and_leaves_vllms_own_alone() -> None:
    # What async-timeout is for, Python has had since 3.11.3.
    assert {name for name, _ in locked("vllm.txt")} == {"redis", "async-timeout"}
    steps = stage("vllm")
    assert "-r /run/vllm.txt" in steps
    installs = re.findall(r"pip install (.*?)(?: \\)?$", steps, re.MULTILINE)
    assert len(installs) == 2
    assert all("--no-deps" in one for one in installs)


def test_whatever_comes_from_an_index_has_a_hash_but_torch_whose_builds_differ() -> None:
    installs = re.findall(r"pip install (.*?)(?: \\| &&|$)", DOCKERFILE, re.MULTILINE)
    assert len(installs) >= 7
    own, torch = re.compile(r"/(?:dist|mnt)/\*\.whl$"), re.compile(r"\$\{TORCH_PIP_ARGS\} torch==[\d.]+$")
    others = [one for one in installs if not own.search(one) and not torch.search(one)]
    assert len(others) == 4
    for one in others:
        assert "--require-hashes -r " in one, one


def test_images_of_others_are_pinned_to_a_whole_version_and_compose_has_the_dockerfiles() -> None:
    all_ = services()
    foreign = {one["image"] for one in all_.values() if not one["image"].startswith("adaptive-k-")}
    foreign |= {argument("PYTHON_IMAGE"), argument("VLLM_IMAGE")}
    assert len(foreign) == 5
    for image in foreign:
        assert re.search(r":v?\d+\.\d+\.\d+(-|$)", image), image
    for name, one in all_.items():
        if "build" in one:
            assert one["build"]["args"]["PYTHON_IMAGE"] == argument("PYTHON_IMAGE"), name
    assert all_["vllm"]["build"]["args"]["VLLM_IMAGE"] == argument("VLLM_IMAGE")


def test_every_image_has_labels_and_the_projects_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert argument("VERSION") == version
    for name in ("controller", "engine", "vllm"):
        told = dict(re.findall(r'opencontainers\.image\.(\w+)="([^"]*)"', stage(name)))
        assert told["version"] == "${VERSION}"
        assert (told["source"], told["revision"], told["created"]) == ("${SOURCE}", "${REVISION}", "${CREATED}")
        assert told["licenses"] == "Apache-2.0"
        declared = re.findall(r"^ARG (.+)$", stage(name), re.MULTILINE)[-1].split()
        assert set(declared) == {"VERSION", "SOURCE", "REVISION", "CREATED"}
    for one in services(AKC_IMAGE_SOURCE="s", AKC_IMAGE_REVISION="r", AKC_IMAGE_CREATED="c").values():
        if "build" in one:
            args = one["build"]["args"]
            assert (args["SOURCE"], args["REVISION"], args["CREATED"]) == ("s", "r", "c")


def test_torch_is_asked_for_at_pytorchs_cpu_index_by_default() -> None:
    assert argument("TORCH_PIP_ARGS") == TORCH_ARGS
    assert services()["engine"]["build"]["args"]["TORCH_PIP_ARGS"] == TORCH_ARGS


@pytest.fixture
def indexes(tmp_path: Path) -> Iterator[str]:
    """Two package indexes: `main` has demo 2.13.0, as the default index has torch; `cpu` has 2.13.0+cpu."""
    for index, version in (("main", "2.13.0"), ("cpu", "2.13.0+cpu")):
        folder = tmp_path / index / "demo"
        folder.mkdir(parents=True)
        with zipfile.ZipFile(folder / f"demo-{version}-py3-none-any.whl", "w") as wheel:
            info = f"demo-{version}.dist-info"
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: demo\nVersion: {version}\n")
            wheel.writestr(
                f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            wheel.writestr(f"{info}/RECORD", "")

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def chosen(indexes: str, arguments: str, into: Path) -> list[str]:
    """The wheels that pip takes for `demo==2.13.0` when told these arguments."""
    told = [*arguments.split(), "--index-url", f"{indexes}/main/", "--isolated", "--retries", "0", "--no-cache-dir"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", *told, "--dest", str(into), "demo==2.13.0"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return [path.name for path in into.iterdir()]


def test_pip_prefers_the_cpu_build_and_takes_the_other_where_its_index_cannot_be_reached(
    indexes: str, tmp_path: Path
) -> None:
    here = TORCH_ARGS.replace("https://download.pytorch.org/whl", indexes)
    assert chosen(indexes, here, tmp_path / "a") == ["demo-2.13.0+cpu-py3-none-any.whl"]
    away = TORCH_ARGS.replace("https://download.pytorch.org", "http://127.0.0.1:1")
    assert chosen(indexes, away, tmp_path / "b") == ["demo-2.13.0-py3-none-any.whl"]
