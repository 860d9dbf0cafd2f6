"""A small process group: started in order, watched, stopped in reverse order, logs kept."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

_PR_SET_PDEATHSIG = 1


class StartError(RuntimeError):
    """A part of the group ended or did not become ready; the message holds the end of its log."""


def free_port(wanted: int = 0) -> int:
    """A TCP port on loopback that was free a moment ago: the wanted one if it was, else another."""
    with socket.socket() as probe:
        # As servers do: connections of one that stood here a minute ago must not send the next one elsewhere.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            return free_port()
        return int(probe.getsockname()[1])


def _die_with_parent() -> None:
    # Linux only: if the group's owner is killed with -9, its children must not stay behind.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Processes:
    """Child processes by name. A context manager: leaving it stops all that still run."""

    def __init__(self, log_dir: Path) -> None:
        self.log_dir = log_dir
        log_dir.mkdir(parents=True, exist_ok=True)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._again: dict[str, tuple[list[str], dict[str, str]]] = {}
        self.restarts: list[str] = []  # names of the parts that were started again, in order

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str], *, restart: bool = False) -> int:
        """Start `argv` in a session of its own (Ctrl-C reaches only us) with its output in `<name>.log`; its pid.

        `restart`: `check` starts it again when it was killed by a signal, as a supervisor would.
        """
        if restart:
            self._again[name] = (list(argv), dict(env))
        if name in self._running:  # started again after its end, which must be known before its place is taken
            self._running[name].wait(10)
        with open(self.log_dir / f"{name}.log", "ab") as log:
            self._running[name] = subprocess.Popen(  # noqa: S603  (argv is ours)
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env},
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509
            )
        return self._running[name].pid

    def alive(self, name: str) -> bool:
        """Whether the part called `name` is running."""
        return name in self._running and self._running[name].poll() is None

    def check(self) -> None:
        """Raise `StartError` for the first part that ended although nobody stopped it; start again what may be."""
        for name, process in list(self._running.items()):
            if process.poll() is not None and process.returncode < 0 and name in self._again:
                self.restarts.append(name)
                self.start(name, *self._again[name])
            elif process.poll() is not None:
                raise StartError(f"{name} ended with code {process.returncode}:\n{self.log_tail(name)}")

    def log_tail(self, name: str, lines: int = 15) -> str:
        """The last lines of a part's log."""
        text = (self.log_dir / f"{name}.log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def wait_ready(self, name: str, url: str, seconds: float) -> None:
        """Wait until `url` answers 200. Raises `StartError` when the part ends first or `seconds` pass."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.check()
            try:
                if httpx.get(url, timeout=2.0).status_code == httpx.codes.OK:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise StartError(f"{name} did not answer at {url} within {seconds:.0f} s:\n{self.log_tail(name)}")

    def stop(self, seconds: float = 10.0) -> None:
        """Terminate all parts, last started first; kill what has not ended after `seconds`."""
        for process in reversed(self._running.values()):
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(seconds)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        self._running.clear()
