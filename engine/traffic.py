"""Load over HTTP, as users make it: prompts of several domains, mixed by weight, in a closed loop.

A closed loop keeps `concurrency` requests in flight: the next is sent when one ends, so the server is never flooded and
throughput is what it can do. The order of prompts, domains and temperatures is fixed by the seed.

>>> parse_shares(["code=3", "chat=1"])
{'code': 3.0, 'chat': 1.0}
"""

import asyncio
import itertools
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import httpx
import msgspec
from msgspec import Meta

from engine.heartbeat import Heartbeat

Messages = list[dict[str, str]]

_OK, _BUSY = 200, 429
_HOPELESS = 20  # requests: where the server refuses all of the first ones it will refuse the rest


def parse_shares(items: Sequence[str]) -> dict[str, float]:
    """`NAME=NUMBER` items as a mapping; numbers are 0 or more. Raises `ValueError` that names a bad item."""
    shares = {}
    for item in items:
        name, _, number = item.partition("=")
        try:
            shares[name.strip()] = float(number)
        except ValueError:
            raise ValueError(f"{item!r} is not NAME=NUMBER, as in code=2") from None
        if not name.strip() or not 0 <= shares[name.strip()] < float("inf"):
            raise ValueError(f"{item!r}: a name and a number of 0 or more are needed, as in code=2")
    return shares


class TrafficSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What `akc traffic` can be told.

    `seconds` and `requests`: stop after either (neither: 60 seconds). `mix`: weights as NAME=NUMBER; domains left out
    get none, an empty list means all alike. `max_tokens`: NAME=NUMBER, a plain NUMBER for the rest. `temperatures`: one
    is drawn per request. `labels`: send the domain along, or leave it to the engine's classifier. `ignore_eos`: always
    generate `max_tokens`. `patience`: seconds to wait for a server that is not up yet. `heartbeat`: a file written anew
    after every request that was answered without error.
    """

    url: Annotated[str, Meta(pattern=r"^https?://")] = "http://127.0.0.1:8000"
    seconds: Annotated[float, Meta(gt=0)] | None = None
    requests: Annotated[int, Meta(ge=1)] | None = None
    concurrency: Annotated[int, Meta(ge=1, le=1024)] = 4
    mix: tuple[str, ...] = ()
    max_tokens: tuple[str, ...] = ("128",)
    temperatures: tuple[Annotated[float, Meta(ge=0, le=2)], ...] = (0.0,)
    labels: bool = True
    ignore_eos: bool = False
    seed: int = 0
    patience: Annotated[float, Meta(ge=0)] = 60.0
    timeout: Annotated[float, Meta(gt=0)] = 600.0
    report_every: Annotated[float, Meta(gt=0)] = 10.0
    heartbeat: Path | None = None

    def __post_init__(self) -> None:
        parse_shares(self.mix)
        self.token_limits()

    def token_limits(self) -> dict[str, int]:
        """`max_tokens` by domain, the rest under the empty name."""
        named = parse_shares([item if "=" in item else f"rest={item}" for item in self.max_tokens])
        limits = {name: int(number) for name, number in named.items()}
        for item, limit in limits.items():
            if limit < 1:
                raise ValueError(f"max_tokens of {item} is {limit}; 1 or more are allowed")
        return {"" if name == "rest" else name: limit for name, limit in limits.items()}


class Planned(NamedTuple):
    """One request before it is sent."""

    number: int
    domain: str
    messages: Messages
    max_tokens: int
    temperature: float


class Outcome(NamedTuple):
    """One request after its end. `akc` is the engine's account (empty from others); `error` is "" for success."""

    planned: Planned
    seconds: float
    tokens: int
    text: str
    akc: dict[str, Any]
    error: str


@dataclass
class DomainReport:
    """Sums over one domain's completed requests; `drafts` counts requests by draft."""

    requests: int = 0
    failed: int = 0
    tokens: int = 0
    seconds: float = 0.0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    drafts: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        """Take in one outcome."""
        if outcome.error:
            self.failed += 1
            return
        self.requests += 1
        self.tokens += outcome.tokens
        self.seconds += outcome.seconds
        akc = outcome.akc
        self.steps += akc.get("steps", 0)
        self.drafted += akc.get("drafted", 0)
        self.accepted += akc.get("accepted", 0)
        if "draft" in akc:
            self.drafts[akc["draft"]] += 1


@dataclass
class Report:
    """All domains, the wall seconds of the run, and how often the server was busy (429)."""

    seconds: float = 0.0
    busy: int = 0
    domains: dict[str, DomainReport] = field(default_factory=dict)

    @property
    def failed(self) -> int:
        """Requests that got no answer."""
        return sum(domain.failed for domain in self.domains.values())

    def table(self) -> str:
        """Rates by domain as text. `tok/s/req` is the mean rate one user sees; accepted is per decode step."""
        head = (
            f"{'domain':<10} {'requests':>8} {'failed':>6} {'tok/s':>8} {'tok/s/req':>9} {'accepted/step':>13}  drafts"
        )
        rows = [head]
        for name, d in sorted(self.domains.items()):
            rate = d.tokens / self.seconds if self.seconds else 0.0
            user = d.tokens / d.seconds if d.seconds else 0.0
            kept = f"{d.accepted / d.steps:13.2f}" if d.steps else f"{'-':>13}"
            drafts = " ".join(f"{draft}:{count}" for draft, count in d.drafts.most_common())
            rows.append(f"{name:<10} {d.requests:>8} {d.failed:>6} {rate:>8.1f} {user:>9.1f} {kept}  {drafts}")
        return "\n".join(rows)


def plan(prompts: Mapping[str, Sequence[str | Messages]], settings: TrafficSettings) -> Iterator[Planned]:
    """The endless seeded sequence of requests. Prompts of a domain come in a shuffled order, each once per round.

    Raises `ValueError` when the mix names a domain without prompts, or nothing has a weight.
    """
    mix = parse_shares(settings.mix) or dict.fromkeys(prompts, 1.0)
    for name in mix:
        if not prompts.get(name):
            raise ValueError(f"the mix names {name!r}; prompts exist for {', '.join(sorted(prompts))}")
    if not any(mix.values()):
        raise ValueError("every weight of the mix is 0; at least one must be above")
    rng = random.Random(settings.seed)
    limits = settings.token_limits()
    rounds = {name: _rounds(prompts[name], random.Random(f"{settings.seed}/{name}")) for name in mix}
    for number in itertools.count():
        domain = rng.choices(list(mix), list(mix.values()))[0]
        prompt = next(rounds[domain])
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        limit = limits.get(domain, limits.get("", 128))
        yield Planned(number, domain, messages, limit, rng.choice(settings.temperatures))


def _rounds(items: Sequence[str | Messages], rng: random.Random) -> Iterator[str | Messages]:
    while True:
        yield from rng.sample(list(items), len(items))


async def wait_up(client: httpx.AsyncClient, patience: float) -> str:
    """The name of the served model, once the server answers. Raises `ConnectionError` after `patience` seconds."""
    deadline = time.monotonic() + patience
    while True:
        try:
            answer = await client.get("/v1/models", timeout=5.0)
            if answer.status_code == _OK:
                return str(answer.json()["data"][0]["id"])
            why = f"status {answer.status_code}"
        except httpx.TransportError as error:
            why = repr(error)
        if time.monotonic() >= deadline:
            raise ConnectionError(f"{client.base_url} did not answer within {patience:.0f} s: {why}")
        await asyncio.sleep(0.2)


async def send(
    client: httpx.AsyncClient, model: str, planned: Planned, settings: TrafficSettings, report: Report
) -> Outcome:
    """Send one request; a busy server is asked again after the time it names. Never raises for what the server does."""
    body: dict[str, Any] = {
        "model": model,
        "messages": planned.messages,
        "max_tokens": planned.max_tokens,
        "temperature": planned.temperature,
        "seed": settings.seed + planned.number,
        "ignore_eos": settings.ignore_eos,
    }
    if settings.labels:
        body["vllm_xargs"] = {"domain": planned.domain}  # vLLM knows no other place
    start = time.perf_counter()
    while True:
        try:
            answer = await client.post("/v1/chat/completions", json=body, headers={"X-AKC-Explain": "1"})
        except httpx.TransportError as error:
            return Outcome(planned, time.perf_counter() - start, 0, "", {}, repr(error))
        if answer.status_code != _BUSY:
            break
        report.busy += 1
        await asyncio.sleep(min(30.0, float(answer.headers.get("retry-after", 1))))
    seconds = time.perf_counter() - start
    if answer.status_code != _OK:
        return Outcome(planned, seconds, 0, "", {}, f"status {answer.status_code}: {answer.text[:300]}")
    data = answer.json()
    text = data["choices"][0]["message"]["content"]
    return Outcome(planned, seconds, data["usage"]["completion_tokens"], text, data.get("akc", {}), "")


async def run_traffic(
    prompts: Mapping[str, Sequence[str | Messages]],
    settings: TrafficSettings,
    *,
    stop: asyncio.Event | None = None,
    on_outcome: Callable[[Outcome, Report], None] | None = None,
) -> Report:
    """Keep `settings.concurrency` requests in flight until time, number or `stop` ends it; requests in flight finish.

    `prompts`: domain to prompts, each a string or chat messages. `on_outcome` is called after every request. Raises
    `ConnectionError` when the server does not come up in time, or refuses every one of the first 20 requests.
    """
    report = Report(domains={})
    limit = settings.requests
    seconds = settings.seconds if settings.seconds is not None or limit is not None else 60.0
    source = itertools.islice(plan(prompts, settings), limit)
    pool = httpx.Limits(max_connections=settings.concurrency)
    async with httpx.AsyncClient(base_url=settings.url, timeout=settings.timeout, limits=pool) as client:
        model = await wait_up(client, settings.patience)
        start = time.perf_counter()
        hopeless: list[str] = []
        refused = 0

        async def worker() -> None:
            nonlocal refused
            while not (hopeless or (stop is not None and stop.is_set())):
                if seconds is not None and time.perf_counter() - start >= seconds:
                    return
                planned = next(source, None)
                if planned is None:
                    return
                outcome = await send(client, model, planned, settings, report)
                report.domains.setdefault(planned.domain, DomainReport()).add(outcome)
                report.seconds = time.perf_counter() - start
                if on_outcome is not None:
                    on_outcome(outcome, report)
                refused += outcome.error.startswith("status 4")
                if refused == _HOPELESS == sum(d.requests + d.failed for d in report.domains.values()):
                    hopeless.append(outcome.error)

        await asyncio.gather(*(worker() for _ in range(settings.concurrency)))
    if hopeless:
        raise ConnectionError(f"the first {_HOPELESS} requests were all refused: {hopeless[0]}")
    return report


async def _main(
    prompts: Mapping[str, Sequence[str | Messages]], settings: TrafficSettings, heart: Heartbeat | None
) -> Report:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    shown = time.monotonic()

    def show(outcome: Outcome, report: Report) -> None:
        nonlocal shown
        if outcome.error:
            print(f"request {outcome.planned.number} ({outcome.planned.domain}): {outcome.error}", flush=True)
        elif heart is not None:
            heart.beat()
        if time.monotonic() - shown >= settings.report_every:
            shown = time.monotonic()
            print(f"after {report.seconds:.0f} s\n{report.table()}", flush=True)

    return await run_traffic(prompts, settings, stop=stop, on_outcome=show)


def run(settings: TrafficSettings) -> int:
    """What `akc traffic` does: real prompts, a table every `report_every` seconds and at the end; 0: all went well."""
    from engine.models import FetchError, load_prompts

    try:
        heart = Heartbeat(settings.heartbeat) if settings.heartbeat is not None else None
    except OSError as error:
        print(f"akc traffic: heartbeat is {str(settings.heartbeat)!r}, which cannot be written: {error}", flush=True)
        return 2
    try:
        prompts = {domain: [prompt.messages for prompt in found] for domain, found in load_prompts().items()}
        report = asyncio.run(_main(prompts, settings, heart))
    except (OSError, FetchError, ValueError) as error:
        print(f"akc traffic: {error}", flush=True)
        return 1
    print(f"{report.seconds:.1f} s, {report.busy} times busy\n{report.table()}", flush=True)
    return 1 if report.failed else 0
