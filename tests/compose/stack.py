"""A project of the compose file on the Docker engine of DOCKER_HOST, and what tests ask of it."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).parents[2]


def docker(*arguments: str, seconds: float = 300) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, f"{' '.join(arguments)}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout.strip()


class Stack:
    """`project` with knobs of `.env` given in the environment, as a user's shell would."""

    def __init__(self, project: str, **knobs: str) -> None:
        self.project = project
        self.env = {**os.environ, **knobs}
        self.ours = ("--filter", f"label=com.docker.compose.project={project}")

    def run(self, *arguments: str, seconds: float = 1500) -> "subprocess.CompletedProcess[str]":
        command = ["docker", "compose", "--project-name", self.project, *arguments]
        return subprocess.run(
            command, cwd=ROOT, env=self.env, capture_output=True, text=True, timeout=seconds, check=False
        )

    def compose(self, *arguments: str, seconds: float = 1500) -> str:
        done = self.run(*arguments, seconds=seconds)
        assert done.returncode == 0, f"{' '.join(arguments)}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def execute(self, service: str, *command: str) -> "subprocess.CompletedProcess[str]":
        """A command in a service's container."""
        return self.run("exec", "-T", service, *command, seconds=60)

    def shell(self, line: str, folder: Path) -> "subprocess.CompletedProcess[str]":
        """A line of a document that says `docker compose`, as from a shell in `folder` that means this project."""
        names = {"COMPOSE_PROJECT_NAME": self.project, "COMPOSE_FILE": str(ROOT / "docker-compose.yml")}
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", line],
            cwd=folder, env={**self.env, **names}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip

    def container(self, service: str) -> str:
        return docker("ps", "--quiet", *self.ours, "--filter", f"label=com.docker.compose.service={service}")

    def network(self) -> str:
        return docker("network", "ls", "--quiet", *self.ours)

    def services(self) -> dict[str, Any]:
        rows = [json.loads(line) for line in self.compose("ps", "--all", "--format", "json").splitlines()]
        return {row["Service"]: row for row in rows}

    def until(self, seen: Callable[[], bool], what: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if seen():
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.5)
        logs = self.compose("logs", "--tail", "40")
        pytest.fail(f"not within {seconds} s: {what}\n{self.compose('ps', '--all')}\n{logs}")

    @contextmanager
    def up(self, *arguments: str) -> Iterator[None]:
        """`docker compose up --detach` with these arguments; afterwards nothing is left."""
        if shutil.which("docker") is None:
            pytest.fail("the compose suite needs the docker command and an engine (DOCKER_HOST)")
        self.compose("down", "--volumes", "--timeout", "10")  # what an interrupted run may have left
        try:
            self.compose("up", "--detach", *arguments)
            yield
        finally:
            self.compose("down", "--volumes", "--timeout", "10")
            left = docker("ps", "--all", "--quiet", *self.ours) + docker("volume", "ls", "--quiet", *self.ours)
            assert left + self.network() == ""
