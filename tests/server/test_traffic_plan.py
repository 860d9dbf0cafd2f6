"""Traffic before it is sent: the seeded order, the mix, and settings that make no sense."""

from collections import Counter
from itertools import islice

import pytest

from engine.link.settings import SettingsError, load
from engine.traffic import DomainReport, Messages, Outcome, Planned, Report, TrafficSettings, parse_shares, plan

PROMPTS: dict[str, list[str | Messages]] = {
    "code": ["def f", "def g", "def h"],
    "chat": [[{"role": "user", "content": "Hi"}]],
}


def test_the_same_seed_gives_the_same_order_and_another_seed_another() -> None:
    def first(seed: int) -> list[Planned]:
        return list(islice(plan(PROMPTS, TrafficSettings(seed=seed, temperatures=(0.0, 1.0))), 50))

    assert first(1) == first(1)
    assert first(1) != first(2)


def test_every_prompt_of_a_domain_comes_once_before_any_comes_again() -> None:
    settings = TrafficSettings(mix=("code=1",), seed=3)
    texts = [planned.messages[0]["content"] for planned in islice(plan(PROMPTS, settings), 9)]
    assert [sorted(texts[i : i + 3]) for i in (0, 3, 6)] == [["def f", "def g", "def h"]] * 3


def test_the_mix_weighs_the_domains() -> None:
    settings = TrafficSettings(mix=("code=3", "chat=1"))
    counts = Counter(planned.domain for planned in islice(plan(PROMPTS, settings), 4000))
    assert counts["code"] / 4000 == pytest.approx(0.75, abs=0.03)  # four standard errors of 0.0068


def test_limits_by_domain() -> None:
    settings = load(TrafficSettings, env={"AKC_MAX_TOKENS": "16,code=64"})
    limits = {p.domain: p.max_tokens for p in islice(plan(PROMPTS, settings), 50)}
    assert limits == {"code": 64, "chat": 16}


@pytest.mark.parametrize("item", ["code", "code=", "=1", "code=-1", "code=x", "code=inf", "code=nan"])
def test_shares_that_are_none_are_named(item: str) -> None:
    with pytest.raises(ValueError, match="code=2"):
        parse_shares([item])


def test_settings_refuse_what_cannot_be_sent() -> None:
    with pytest.raises(SettingsError, match="max_tokens of code is 0"):
        load(TrafficSettings, env={}, flags={"max_tokens": "code=0"})
    with pytest.raises(ValueError, match="prompts exist for chat, code"):
        next(plan(PROMPTS, TrafficSettings(mix=("math=1",))))
    with pytest.raises(ValueError, match="every weight"):
        next(plan(PROMPTS, TrafficSettings(mix=("code=0",))))


def test_rates_are_ratios_of_sums() -> None:
    planned = Planned(0, "code", [], 10, 0.0)
    report = Report(seconds=10.0, domains={"code": DomainReport()})
    report.domains["code"].add(Outcome(planned, 2.0, 30, "", {"draft": "ngram", "steps": 10, "accepted": 15}, ""))
    report.domains["code"].add(Outcome(planned, 8.0, 70, "", {"draft": "ngram", "steps": 10, "accepted": 5}, ""))
    report.domains["code"].add(Outcome(planned, 1.0, 0, "", {}, "status 500"))
    assert report.failed == 1
    row = report.table().splitlines()[1].split()
    assert row == ["code", "2", "1", "10.0", "10.0", "1.00", "ngram:2"]
