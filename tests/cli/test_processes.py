"""The demo's process group: who is started again, who ends the demo, and that nobody is left behind."""

import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from controller.cli.demo.processes import Processes, StartError, free_port

FOREVER = [sys.executable, "-c", "import signal; signal.pause()"]


def ended(group: Processes, name: str) -> None:
    group._running[name].wait(10)


def test_a_part_that_was_killed_is_started_again_where_that_was_asked_for(tmp_path: Path) -> None:
    with Processes(tmp_path) as group:
        first = group.start("controller", FOREVER, {}, restart=True)
        os.kill(first, signal.SIGKILL)
        ended(group, "controller")
        group.check()
        assert group.alive("controller")
        assert group._running["controller"].pid != first
        assert group.restarts == ["controller"]
        group.check()
        assert group.restarts == ["controller"]
        second = group._running["controller"]
    assert second.poll() is not None  # leaving the group stops it


def test_a_part_that_gives_up_by_itself_ends_the_demo_with_its_last_words(tmp_path: Path) -> None:
    with Processes(tmp_path) as group:
        group.start(
            "controller", [sys.executable, "-c", "print('no Redis here'); raise SystemExit(3)"], {}, restart=True
        )
        ended(group, "controller")
        with pytest.raises(StartError, match=r"controller ended with code 3:\nno Redis here"):
            group.check()


def test_a_killed_part_that_nobody_restarts_ends_the_demo(tmp_path: Path) -> None:
    with Processes(tmp_path) as group:
        os.kill(group.start("engine", FOREVER, {}), signal.SIGKILL)
        ended(group, "engine")
        with pytest.raises(StartError, match="engine ended with code -9"):
            group.check()


def test_a_port_is_the_wanted_one_unless_somebody_has_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert free_port(port) not in (0, port)
    assert free_port(port) == port
