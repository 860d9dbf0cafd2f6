"""Interleaved blocks over HTTP: every arm gets the same groups, and a deadline ends between groups only."""

import math
import time
from collections import Counter
from typing import Any

import httpx
import pytest

from controller.cli.demo.trial import ADAPTIVE, PLAIN, Arm, Group, groups_alone, interleave
from controller.cli.demo.verdict import Block

ARMS = [ADAPTIVE, PLAIN, Arm("ngram", 4)]
GROUPS = [
    Group([(domain, [{"role": "user", "content": f"{domain} {i}"}]) for domain in ("code", "chat")]) for i in (1, 2, 3)
]


def answer(request: httpx.Request) -> httpx.Response:
    """As the engine explains itself: 8 tokens in 4 steps, 1 row-second."""
    facts: dict[str, Any] = {"tokens": 8, "steps": 4, "draft": "ngram", "drafted": 12, "row_seconds": 1.0}
    return httpx.Response(200, json={"akc": facts})


async def trial(deadline: float, least: int) -> tuple[dict[Arm, list[Any]], list[httpx.Request]]:
    seen: list[httpx.Request] = []

    def record(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return answer(request)

    async with httpx.AsyncClient(transport=httpx.MockTransport(record), base_url="http://engine") as client:
        results = await interleave(client, "m", GROUPS, ARMS, 8, 2, deadline=deadline, least=least)
    return results, seen


@pytest.mark.parametrize(("late", "least", "groups"), [(False, 1, 3), (True, 1, 1), (True, 2, 2), (True, 9, 3)])
async def test_all_arms_get_the_same_groups_however_soon_time_is_up(late: bool, least: int, groups: int) -> None:
    results, seen = await trial(time.monotonic() - 1 if late else math.inf, least)
    assert {arm: len(blocks) for arm, blocks in results.items()} == dict.fromkeys(ARMS, groups)
    bodies = Counter(request.content.split(b'"content":')[1].split(b"}")[0] for request in seen)
    assert set(bodies.values()) == {len(ARMS)}  # every prompt once under every arm
    assert len(bodies) == 2 * groups
    assert results[PLAIN][0].domains["code"].tokens == 8
    # Two rows were charged a second each; two slots share them.
    assert (results[PLAIN][0].block.tokens, results[PLAIN][0].block.seconds) == (16, 1.0)
    assert results[PLAIN][0].steps == {"code": 4, "chat": 4}
    assert results[PLAIN][0].rows == [Block(8, 1.0)] * 2


async def test_prompts_of_one_domain_add_up_and_stay_apart_by_row() -> None:
    groups = groups_alone([[{"role": "user", "content": str(i)}] for i in range(2)], "code", 3)
    group = next(groups)
    assert [messages[0]["content"] for _, messages in (*group.prompts, *next(groups).prompts)] == list("010101")
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://engine") as client:
        (result,) = (await interleave(client, "m", [group], [PLAIN], 8, 3))[PLAIN]
    assert (result.domains, result.steps, result.rows) == ({"code": Block(24, 3.0)}, {"code": 12}, [Block(8, 1.0)] * 3)
    assert result.block == Block(24, 1.0)
