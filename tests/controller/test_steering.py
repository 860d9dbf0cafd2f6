"""Orders without Redis or HTTP: what they may say, and what they do to cells. Numbers by hand."""

import msgspec
import pytest

from controller import steering
from controller.learner.config import PoolSpec
from controller.steering import OrderError, Orders, Pin
from engine.link.messages import DraftChoice, DraftInfo, PolicyCell, StaticChoice

SPEC = PoolSpec((DraftInfo("ngram", "ngram", 4), DraftInfo("small", "model", 8)), (0, 2, 4, 8), 8)
CHAT = Pin("chat", "ngram", 2, by="ops", at=1.0)


def cell(domain: str, regime: str = "greedy") -> PolicyCell:
    drafts = [
        DraftChoice("none", 0.1, [(0, 1.0)], seconds=[(0, 0.02)]),
        DraftChoice("ngram", 0.2, [(2, 0.5), (4, 0.5)], [3.0], [1.0], [(0, 0.02), (2, 0.03)]),
        DraftChoice("small", 0.7, [(8, 1.0)], [5.0], [1.0], [(0, 0.02), (8, 0.05)]),
    ]
    return PolicyCell(domain, regime, 4, drafts, 0.2, 0.5, 1.4)  # type: ignore[arg-type]


def test_a_pin_leaves_one_arm_that_no_request_s_luck_moves() -> None:
    held, other = steering.pinned([cell("chat"), cell("code")], [CHAT])
    assert [(c.draft, c.p, c.k) for c in held.drafts if c.p] == [("ngram", 1.0, [(2, 1.0)])]
    assert held.nonadaptive == 1.0
    assert all(c.seconds == [] for c in held.drafts)
    assert (held.draw, held.expected_speedup) == (None, None)
    assert other == cell("code")


def test_a_pin_of_one_regime_leaves_the_other_alone() -> None:
    pin = msgspec.structs.replace(CHAT, regime="sampled")
    cells = [cell("chat"), cell("chat", "sampled")]
    assert [c.nonadaptive for c in steering.pinned(cells, [pin])] == [0.2, 1.0]


def test_a_pin_to_a_draft_that_has_gone_waits() -> None:
    assert steering.pinned([cell("chat")], [Pin("chat", "eagle", 2)]) == [cell("chat")]


@pytest.mark.parametrize(
    ("pin", "said"),
    [
        (Pin("chat", "eagle", 2), "draft is 'eagle'; allowed: 'none', 'ngram', 'small'"),
        (Pin("chat", "ngram", 8), "k is 8 for draft 'ngram'; allowed: 0, 2, 4"),
        (Pin("chat", "none", 2), "k is 2 without a draft; allowed: 0"),
        (Pin("chat", "ngram", 2, until=9.0), "until is 9.0, which is past; now is 10.0"),
    ],
)
def test_what_a_pin_may_say(pin: Pin, said: str) -> None:
    with pytest.raises(OrderError, match=said.replace("(", r"\(")):
        steering.with_pin(Orders(), pin, SPEC, now=10.0)


def test_pins_run_out_are_replaced_and_are_taken_away() -> None:
    orders = steering.with_pin(Orders(), msgspec.structs.replace(CHAT, until=20.0), SPEC, now=10.0)
    assert orders.standing(19.9)
    assert not orders.standing(20.0)
    later = steering.with_pin(orders, Pin("chat", "small", 8), SPEC, now=11.0)
    assert [(pin.draft, pin.k) for pin in later.pins] == [("small", 8)]
    assert steering.without_pin(later, "chat", None, 12.0).pins == ()
    with pytest.raises(OrderError, match="domain 'code' is not pinned; pinned are 'chat'"):
        steering.without_pin(later, "code", None, 12.0)


def test_freeing_one_regime_keeps_the_other_pinned() -> None:
    orders = steering.without_pin(Orders(pins=(CHAT,)), "chat", "greedy", 2.0)
    assert [(pin.regime, pin.k) for pin in orders.pins] == [("sampled", 2)]


def test_a_draft_that_is_pinned_cannot_be_retired_nor_a_retired_one_pinned() -> None:
    with pytest.raises(OrderError, match="'ngram' is what 'chat' is pinned to"):
        steering.with_retired(Orders(pins=(CHAT,)), "ngram", True, ["ngram"], 2.0)
    retired = steering.with_retired(Orders(), "ngram", True, ["ngram", "small"], 2.0)
    assert retired.retired == ("ngram",)
    with pytest.raises(OrderError, match="'ngram' is retired"):
        steering.with_pin(retired, CHAT, None, 2.0)
    assert steering.with_retired(retired, "ngram", False, ["small"], 2.0).retired == ()
    with pytest.raises(OrderError, match="draft 'x' is loaded by no engine; loaded are 'ngram', 'small'"):
        steering.with_retired(retired, "x", True, ["small"], 2.0)


def test_shares_belong_to_the_modes_that_have_them() -> None:
    assert steering.with_mode(Orders(), "canary", 0.5).share == 0.5
    with pytest.raises(OrderError, match=r"share is 0\.5 in mode 'on'"):
        steering.with_mode(Orders(), "on", 0.5)
    with pytest.raises(OrderError, match=r"share is 0\.02 in mode 'shadow\+probe'; allowed: 0 to 0\.01"):
        steering.with_mode(Orders(), "shadow+probe", 0.02)
    half = steering.with_mode(Orders(), "canary", 0.5)
    assert steering.with_mode(half, "shadow+probe", None).share == 0.01  # a canary's share is none of probes
    assert steering.with_mode(half, "canary", None).share == 0.5


def test_resets_are_numbered_and_the_newest_kept() -> None:
    orders = Orders()
    for _ in range(70):
        orders = steering.with_reset(orders, "chat", None, ["chat"], [])
    assert (len(orders.resets), orders.resets[0].number, orders.resets[-1].number) == (64, 7, 70)
    with pytest.raises(OrderError, match="names a domain, a draft or both"):
        steering.with_reset(orders, None, None, [], [])


def test_a_fixed_window_leaves_one_choice_for_everybody_and_the_shares_that_explore() -> None:
    (held,) = steering.fixed([cell("chat")], StaticChoice("ngram", 4))
    assert [(c.draft, c.p, c.k) for c in held.drafts] == [
        ("none", 0.0, [(0, 1.0)]),
        ("ngram", 1.0, [(4, 1.0)]),
        ("small", 0.0, [(4, 1.0)]),  # for requests that hold it where engines cannot change a draft
    ]
    assert (held.nonadaptive, held.draw, held.expected_speedup) == (0.2, None, None)
    assert all(c.seconds == [] for c in held.drafts)
    (plain,) = steering.fixed([cell("chat")], StaticChoice())
    assert [(c.draft, c.p, c.k) for c in plain.drafts if c.p] == [("none", 1.0, [(0, 1.0)])]
    assert all(c.k == [(0, 1.0)] for c in plain.drafts)
