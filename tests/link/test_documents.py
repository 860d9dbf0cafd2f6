"""The examples in the reference are messages that this code reads, and numbers that agree with each other."""

import re
from pathlib import Path

import pytest

from engine.link import DraftInfo
from engine.link.messages import Frame, Policy, decode_frame, decode_policy
from engine.link.table import Table

WIRE = Path(__file__).parents[2] / "docs" / "reference" / "wire.md"


@pytest.fixture
def examples() -> tuple[Frame, Policy]:
    frame, policy = re.findall(r"```json\n(.*?)```", WIRE.read_text(encoding="utf-8"), flags=re.DOTALL)
    return decode_frame(frame.encode()), decode_policy(policy.encode())


def test_the_example_frame_obeys_the_counting_rules(examples: tuple[Frame, Policy]) -> None:
    frame, policy = examples
    assert frame.full
    assert frame.applied == policy.version
    assert frame.describe is not None
    assert frame.describe.drafts[1] == DraftInfo("ngram", "ngram", 8)
    for cell in frame.acceptance:
        assert all(a <= s for s, a in zip(cell.seen, cell.accepted, strict=True))
        assert all(s <= a for s, a in zip(cell.seen[1:], cell.accepted, strict=False))
    # Every row of every step emits one token more than it accepted.
    assert frame.account[0].tokens == frame.account[0].row_steps + sum(sum(c.accepted) for c in frame.acceptance)
    assert frame.account[0].row_seconds == pytest.approx(2 * frame.cost[0].seconds)
    assert frame.cost[0].count == frame.steps == sum(frame.cost[0].hist.values())
    assert frame.moments[0].s == frame.acceptance[0].seen


def test_the_example_policy_can_be_obeyed(examples: tuple[Frame, Policy]) -> None:
    frame, policy = examples
    assert frame.describe is not None
    table = Table(policy, {d.name: d.max_k for d in frame.describe.drafts}, frame.describe.k_values)
    cell = table.cell("code", "greedy", 2)
    assert cell is not None
    choice = cell.draw(0.5)
    assert [choice.at(u) for u in (0.0, 0.09, 0.11, 0.79, 0.81, 0.999)] == [2, 2, 4, 4, 6, 6]
    other = table.cell("poetry", "greedy", 1)
    assert other is not None
    assert other.best.draft == "none"
