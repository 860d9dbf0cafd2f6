"""What the controller changed by itself stands in the audit log with its reason."""

import msgspec

from controller.api.audit import LONGEST, entry_of
from controller.view import DecisionRecord, Switch


def entry(*reasons: str, note: str | None = None) -> tuple[str, str]:
    switches = [
        Switch(f"d{n}", "greedy", 2**n, ("ngram", 4), ("ngram", 2), 0.9, reason) for n, reason in enumerate(reasons)
    ]
    made = entry_of("1-0", msgspec.json.encode(DecisionRecord(1.0, (1, 1), note, switches)))
    assert made is not None
    assert made.who == "controller"
    return made.what, made.why


def test_a_learned_change_is_told_with_its_reason() -> None:
    reason = "ngram at K = 2: 1.5x plain; last change 14:05 UTC: acceptance at position 3 fell from 0.71 to 0.58"
    assert entry(reason) == ("d0 (greedy) at load 1: ngram K = 4 to ngram K = 2", reason)


def test_several_changes_each_have_theirs_and_theentry_of_stays_bounded() -> None:
    assert entry("A", "B")[1] == "d0 at load 1: A; d1 at load 2: B"
    many = entry(*["because" * 20] * 40)[1]
    assert len(many) == LONGEST
    assert many.endswith("…")


def test_what_nobody_decided_says_so() -> None:
    assert entry(note="the engines changed") == ("the engines changed", "seen by the controller; nobody decided it")
