"""Beginnings and ends: clients that leave, queues that fill, engines that break, servers that are told to stop."""

import functools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import httpx

from tests.server.conftest import Served
from tests.server.gate import LONG, Gate, free_port, until


def test_a_client_that_leaves_a_stream_frees_its_row(gated: tuple[Served, Gate]) -> None:
    served, gate = gated
    with served.client() as http:
        with http.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            gate.open.clear()
        gate.open.set()
        until(lambda: served.host.load() == (0, 0))
        steps = served.host.desk.meter.tokens["code", "ngram"]
        assert http.post("/v1/completions", json={**LONG, "max_tokens": 2}).status_code == 200
    assert steps < 240


def test_a_client_that_leaves_before_its_whole_answer_frees_its_row(gated: tuple[Served, Gate]) -> None:
    served, gate = gated
    gate.open.clear()
    body = json.dumps(LONG).encode()
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            + f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        until(lambda: served.host.load()[0] == 1)
    # The client has gone; while the engine still stands at the gate, the server marks the request.
    gone = 'akc_engine_http_answers_total{path="/v1/completions",status="499"} 1.0'
    with served.client() as http:
        until(lambda: gone in http.get("/metrics").text)
        gate.open.set()
        until(lambda: served.host.load() == (0, 0))


def test_a_full_queue_answers_429_with_a_time_to_wait(gated: tuple[Served, Gate]) -> None:
    served, gate = gated
    gate.reached.clear()
    gate.open.clear()
    answers: list[httpx.Response] = []

    def ask() -> None:
        with served.client() as http:
            answers.append(http.post("/v1/completions", json={**LONG, "max_tokens": 4}))

    # The first request stands in its step at the gate, two wait: the engine looks at the queue between steps only.
    threads = [threading.Thread(target=ask) for _ in range(3)]
    for count, thread in enumerate(threads, 1):
        thread.start()
        until(functools.partial(lambda n: sum(served.host.load()) == n, count))
        if count == 1:
            until(gate.reached.is_set)
    with served.client() as http:
        refused = http.post("/v1/completions", json=LONG)
    assert refused.status_code == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert refused.json()["error"]["type"] == "rate_limit_error"
    gate.open.set()
    for thread in threads:
        thread.join()
    assert [answer.status_code for answer in answers] == [200] * 3


def test_what_breaks_and_what_is_switched_off_is_said_in_openais_shape(serve: Callable[..., Served]) -> None:
    served = serve(pins=False)

    def broken(text: str) -> list[int]:
        raise RuntimeError(f"out of ink for {text}")

    with served.client() as http:
        pinned = {"prompt": "x", "vllm_xargs": {"akc_draft": "none", "akc_k": 0}}
        answer = http.post("/v1/completions", json=pinned)
        assert answer.status_code == 400
        assert "switched off" in answer.json()["error"]["message"]
        served.host.encode = broken  # type: ignore[method-assign]
        answer = http.post("/v1/completions", json={"prompt": "x"})
        assert answer.status_code == 500
        assert answer.json()["error"]["type"] == "server_error"
        assert "ink" not in answer.text


def test_requests_in_flight_and_later_ones_hear_that_the_engine_broke(serve: Callable[..., Served]) -> None:
    served = serve()
    engine = served.host._engine
    broken = threading.Event()

    def step() -> bool:
        broken.set()
        raise RuntimeError("the memory is on fire")

    served.host.on_failure = None  # the server must stay up for this test to look at it
    engine.step = step  # type: ignore[method-assign]
    with served.client() as http:
        answer = http.post("/v1/completions", json=LONG)
        assert answer.status_code in {500, 503}
        assert answer.json()["error"]["code"] == "engine_stopped"
        until(lambda: served.host.failure is not None)
        health = http.get("/health")
        assert health.status_code == 503
        assert "on fire" in health.json()["why"]
        assert http.post("/v1/completions", json=LONG).status_code == 503


def test_a_request_that_outlasts_the_drain_hears_of_the_shutdown(serve: Callable[..., Served]) -> None:
    served = serve(drain=0.0)
    gate = Gate()
    served.host.desk.link = gate
    gate.open.clear()
    answers: list[httpx.Response] = []

    def ask() -> None:
        with served.client() as http:
            answers.append(http.post("/v1/completions", json=LONG))

    thread = threading.Thread(target=ask)
    thread.start()
    until(gate.reached.is_set)
    served.stop()
    thread.join()
    gate.open.set()
    assert answers[0].status_code == 500
    assert answers[0].json()["error"]["message"] == "the engine is shutting down"


def test_the_process_serves_and_ends_cleanly_on_a_signal(model_folder: Path, tmp_path: Path) -> None:
    port = free_port()
    code = (
        "from engine.server import EngineSettings, run\n"
        f"run(EngineSettings(target={str(model_folder)!r}, offline=True, port={port}, max_len=64, max_batch=1, "
        "dtype='float32', threads=1, drain=1.0))\nprint('closed')"
    )
    log = tmp_path / "log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=sink, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": "."}
        )
    try:

        def up() -> bool:
            assert process.poll() is None, log.read_text()
            try:
                return httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
            except httpx.TransportError:
                return False

        until(up, 60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
    assert "closed" in log.read_text()
