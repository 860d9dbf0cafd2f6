"""A controller as a process of its own, for tests that kill it or ask it over HTTP."""

import os
import socket
import subprocess
import sys
from pathlib import Path

PROGRAM = """
from controller.app import run
from controller.settings import ControllerSettings
from engine.link.settings import load
run(load(ControllerSettings))
"""


def start(server: str, log: Path, **more: str) -> "subprocess.Popen[bytes]":
    environment = {
        **os.environ, "REDIS_URL": server, "AKC_PORT": "0", "AKC_DRAWS": "32", "AKC_DECIDE_SECONDS": "0.03",
        "AKC_POLICY_SECONDS": "30", "AKC_LEASE_SECONDS": "1", "OMP_NUM_THREADS": "1", **more,
    }  # fmt: skip
    with open(log, "ab") as output:
        return subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=output, stderr=output, env=environment)


def free_port() -> int:
    """A port of loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
