"""A controller that logs JSON: every line of the process is an object, and says which pool it is about."""

import json
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

from redis.asyncio import Redis

from engine.link.messages import Keys
from tests.controller.engines import CountingEngine
from tests.controller.process import start

Until = Callable[[Callable[[], object]], Awaitable[None]]


async def test_every_line_is_json_and_a_pool_s_lines_name_it_and_its_policy(
    client: "Redis", server: str, engine: CountingEngine, tmp_path: Path, until: Until
) -> None:
    log = tmp_path / "log"
    process = start(server, log, AKC_LOG_FORMAT="json")
    try:
        await until(lambda: client.exists(Keys("p").policy))
        await client.hset(Keys("p").orders, mapping={"revision": 1, "orders": b"not json"})
        await until(lambda: "cannot be read" in log.read_text())
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {"time", "level", "logger", "message"} <= set.intersection(*(set(line) for line in lines))
    assert {"uvicorn.error", "controller"} <= {line["logger"] for line in lines}
    leading = next(line for line in lines if "leading with epoch" in line["message"])
    assert leading["pool"] == "p"
    assert "policy_version" not in leading
    unread = next(line for line in lines if "cannot be read" in line["message"])
    assert (unread["level"], unread["pool"]) == ("error", "p")
    epoch, n = unread["policy_version"]
    assert str(epoch) in leading["message"]
    assert n >= 1
