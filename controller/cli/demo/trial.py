"""Blocks of requests under one arm, sent over HTTP to the running engine exactly as a user's client would."""

import asyncio
import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from controller.cli.demo.verdict import Block


@dataclass(frozen=True)
class Arm:
    """A fixed (draft, K), or the policy's choice when `draft` is None."""

    draft: str | None
    k: int | None

    def __str__(self) -> str:
        if self.draft is None:
            return "adaptive"
        return "plain" if self.k == 0 else f"{self.draft} K={self.k}"

    @property
    def pin(self) -> dict[str, str | int]:
        """What the request's body says to hold the engine to this arm."""
        return {} if self.draft is None or self.k is None else {"akc_draft": self.draft, "akc_k": self.k}


ADAPTIVE = Arm(None, None)
PLAIN = Arm("none", 0)


@dataclass(frozen=True)
class Group:
    """Prompts that are decoded together: pairs (domain, chat messages)."""

    prompts: Sequence[tuple[str, list[dict[str, str]]]]


@dataclass(frozen=True)
class BlockResult:
    """One group under one arm: by domain and by prompt (in the group's order) the tokens and the seconds its rows were
    charged (each row the whole step), by domain the steps, and the steps and the tokens drafted by (domain, draft of
    most of the request's steps); and the block in all, whose seconds are the row-seconds shared by the slots.

    So many seconds would the block take if another request took over every slot that falls free, as it does on a loaded
    server. The wall clock of a block would only show its slowest row: the others wait for it with their slots empty.
    """

    block: Block
    domains: dict[str, Block]
    steps: dict[str, int]
    rows: list[Block]
    played: dict[tuple[str, str], tuple[int, int]]


def groups_of(prompts: Mapping[str, Sequence[list[dict[str, str]]]], domains: Sequence[str]) -> Iterator[Group]:
    """Groups of one prompt per domain, going round each domain's prompts for ever."""
    for rows in zip(*(itertools.cycle(prompts[d]) for d in domains), strict=True):
        yield Group(list(zip(domains, rows, strict=True)))


def groups_alone(prompts: Sequence[list[dict[str, str]]], domain: str, size: int) -> Iterator[Group]:
    """Groups of `size` prompts of one domain, one after the other, going round for ever."""
    endless = itertools.cycle(prompts)
    while True:
        yield Group([(domain, next(endless)) for _ in range(size)])


async def complete(
    client: httpx.AsyncClient, model: str, messages: list[dict[str, str]], domain: str, arm: Arm, max_tokens: int
) -> dict[str, object]:
    """One greedy chat completion of exactly `max_tokens` tokens; the engine's account of it under the key `akc`."""
    answer = await client.post(
        "/v1/chat/completions",
        headers={"X-AKC-Explain": "1"},
        json={
            "model": model,
            "messages": messages,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "vllm_xargs": {"domain": domain, **arm.pin},
        },
    )
    answer.raise_for_status()
    body: dict[str, object] = answer.json()
    return body


def facts(body: dict[str, object]) -> dict[str, Any]:
    """The engine's account of one answer: steps, drafted, accepted, tokens, row_seconds, draft, domain."""
    akc = body.get("akc")
    if not isinstance(akc, dict):
        raise TypeError(f"the engine's answer has no account of itself (field akc): {body!r}")
    return akc


async def run_block(
    client: httpx.AsyncClient, model: str, group: Group, arm: Arm, max_tokens: int, concurrency: int
) -> BlockResult:
    """Decode the group's prompts under `arm`, `concurrency` at a time."""
    gate = asyncio.Semaphore(concurrency)

    async def one(domain: str, messages: list[dict[str, str]]) -> dict[str, object]:
        async with gate:
            return await complete(client, model, messages, domain, arm, max_tokens)

    bodies = await asyncio.gather(*(one(domain, messages) for domain, messages in group.prompts))
    domains: dict[str, Block] = {}
    steps: Counter[str] = Counter()
    rows: list[Block] = []
    played: dict[tuple[str, str], tuple[int, int]] = {}
    for (domain, _), body in zip(group.prompts, bodies, strict=True):
        akc = facts(body)
        rows.append(Block(akc["tokens"], akc["row_seconds"]))
        so_far = domains.get(domain, Block(0, 0.0))
        domains[domain] = Block(so_far.tokens + rows[-1].tokens, so_far.seconds + rows[-1].seconds)
        steps[domain] += akc["steps"]
        ran, drafted = played.get((domain, akc["draft"]), (0, 0))
        played[domain, akc["draft"]] = ran + akc["steps"], drafted + akc["drafted"]
    slots = min(concurrency, len(rows))
    whole = Block(sum(r.tokens for r in rows), sum(r.seconds for r in rows) / slots)
    return BlockResult(whole, domains, dict(steps), rows, played)


async def interleave(
    client: httpx.AsyncClient,
    model: str,
    groups: Sequence[Group],
    arms: Sequence[Arm],
    max_tokens: int,
    concurrency: int,
    *,
    deadline: float = math.inf,
    least: int = 1,
    watch: Callable[[], None] = lambda: None,
) -> dict[Arm, list[BlockResult]]:
    """Every arm over every group; the order of the arms turns by one from group to group, so none is always first.

    `deadline` (of `time.monotonic`): after `least` groups, a group that would probably end later is not begun.
    `watch` is called before every block; what it raises ends the trial.
    """
    results: dict[Arm, list[BlockResult]] = {arm: [] for arm in arms}
    longest = 0.0
    for turn, group in enumerate(groups):
        began = time.monotonic()
        if turn >= least and began + longest > deadline:
            break
        for i in range(len(arms)):
            watch()
            arm = arms[(turn + i) % len(arms)]
            results[arm].append(await run_block(client, model, group, arm, max_tokens, concurrency))
        longest = max(longest, time.monotonic() - began)
    return results
