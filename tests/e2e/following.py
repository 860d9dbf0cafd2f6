"""A link that decodes until it follows a controller's policy."""

import random
import subprocess
import time
from pathlib import Path

from engine.link import Link
from tests.controller.test_with_link import step


def until_followed(link: Link, controller: "subprocess.Popen[bytes]", log: Path) -> None:
    """Serve requests on `link` until it has a policy of the controller, which logs to `log`, and close it."""
    rng, deadline = random.Random(1), time.monotonic() + 60
    while link.status()["version"] is None:
        ticket = link.admit("code", "greedy", 1)
        for _ in range(40):
            step(link, [ticket], rng)
        link.finish(ticket)
        assert time.monotonic() < deadline, (link.status(), log.read_text()[-3000:])
        assert controller.poll() is None
    link.close(5.0)
