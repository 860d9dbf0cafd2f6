"""Traffic against a real server: busy, unlabelled, stopped, as a command, and the heartbeat that says it is at work."""

import asyncio
import os
import socket
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from controller.cli.commands import app
from engine import heartbeat, traffic
from engine.models import Prompt
from engine.traffic import Messages, TrafficSettings, run_traffic
from tests.server.conftest import Served
from tests.server.gate import Gate


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


def test_traffic_ends_where_the_server_refuses_everything(gated: tuple[Served, Gate]) -> None:
    served, _ = gated
    settings = TrafficSettings(url=served.url, requests=1000, concurrency=1, max_tokens=("1000000",))
    seen: list[str] = []
    with pytest.raises(ConnectionError, match="the first 20 requests were all refused: status 400"):
        asyncio.run(run_traffic({"x": ["Hello"]}, settings, on_outcome=lambda o, _: seen.append(o.error)))
    assert len(seen) == 20


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


@pytest.fixture
def one_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = {"chat": [Prompt("chat", "1", "Hi", [{"role": "user", "content": "Hi"}])]}
    monkeypatch.setattr("engine.models.load_prompts", lambda: prompts)


@pytest.mark.usefixtures("one_prompt")
def test_the_heartbeat_is_written_anew_after_every_answer_and_not_after_errors(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, ages = tmp_path / "alive", []
    send = traffic.send

    async def look_then_send(*args: object) -> traffic.Outcome:
        ages.append(path.stat().st_mtime_ns if path.exists() else None)
        return await send(*args)  # type: ignore[arg-type]  # the same ones

    monkeypatch.setattr(traffic, "send", look_then_send)
    fields = {"url": served.url, "requests": 3, "concurrency": 1, "heartbeat": path}
    assert traffic.run(TrafficSettings(**fields, max_tokens=("9999",))) == 1  # type: ignore[arg-type]
    assert ages == [None] * 3  # three requests refused, none answered
    assert not path.exists()
    assert traffic.run(TrafficSettings(**fields, max_tokens=("2",))) == 0  # type: ignore[arg-type]
    assert ages[3] is None
    first, second = ages[4:]
    assert first is not None
    assert second is not None
    assert first <= second <= path.stat().st_mtime_ns
    assert path.read_text() == "3"
    assert [entry.name for entry in tmp_path.iterdir()] == ["alive"]  # nothing half written is left


@pytest.mark.usefixtures("one_prompt")
def test_the_command_takes_the_heartbeats_path(served: Served, tmp_path: Path) -> None:
    path = tmp_path / "alive"
    arguments = ["traffic", "--url", served.url, "--seconds", "0.1", "--max-tokens", "1", "--heartbeat", str(path)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert int(path.read_text()) >= 1


@pytest.mark.parametrize("where", ["no/such/folder/alive", "."])
def test_a_heartbeat_that_cannot_be_written_is_an_error_before_anything_is_sent(where: str, tmp_path: Path) -> None:
    path = str(tmp_path / where)
    result = CliRunner().invoke(app, ["traffic", "--url", "http://127.0.0.1:1", "--heartbeat", path])
    assert result.exit_code == 2
    assert f"heartbeat is {path!r}, which cannot be written: " in result.output
    assert list(tmp_path.iterdir()) == []


def test_the_health_check_fails_without_the_file_and_when_it_is_old(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "alive"
    assert heartbeat.main(str(path), "60") == 1
    assert "No such file" in capsys.readouterr().err
    heartbeat.Heartbeat(path).beat()
    assert heartbeat.main(str(path), "60") == 0
    written = time.time() - 61
    os.utime(path, (written, written))
    assert heartbeat.main(str(path), "60") == 1
    assert f"{path} is 61 s old; allowed: 60" in capsys.readouterr().err
