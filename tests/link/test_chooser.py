"""Carrying out a policy: draws that match what was published, rows that move together, limits that are kept."""

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from engine.link import DraftInfo, EngineDescription, RowOutcome, StaticChoice, StepOutcome, Ticket
from engine.link.chooser import Chooser
from engine.link.messages import Policy, ProbePlan
from engine.link.table import Table

NOW = 1_700_000_000.0
MakePolicy = Callable[..., Policy]
ALWAYS_4 = {"ngram": (1.0, [(4, 1.0)])}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def chooser(describe: EngineDescription, clock: Clock) -> Chooser:
    return Chooser(describe, clock=clock, rng=random.Random(7))


def admit(chooser: Chooser, n: int, domain: str = "code", batch: int = 1) -> list[Ticket]:
    return [chooser.admit(domain, "greedy", batch) for _ in range(n)]


def within(count: int, n: int, p: float) -> bool:
    """Whether a binomial count lies within 4 standard deviations (false alarm 6e-5)."""
    return abs(count - n * p) <= 4 * math.sqrt(n * p * (1 - p))


def test_without_a_policy_the_static_choice_holds(chooser: Chooser) -> None:
    (ticket,) = admit(chooser, 1)
    assert (ticket.draft, ticket.origin, ticket.version) == ("ngram", "policy", None)
    assert chooser.plan([ticket], 1) == [4]
    assert ticket.variant == "static"
    assert chooser.version is None


def test_a_policy_ages_from_its_issue_on_and_has_no_age_once_expired(
    chooser: Chooser, make_policy: MakePolicy, clock: Clock
) -> None:
    assert chooser.age is None
    chooser.use(make_policy({("code", 1): ALWAYS_4}, issued=NOW, expires=NOW + 60), NOW + 5)
    clock.now = 10.0
    assert chooser.age == chooser.status()["policy_age"] == pytest.approx(15.0)
    clock.now = 55.0
    assert (chooser.age, chooser.version) == (None, None)
    chooser.use(make_policy({("code", 1): ALWAYS_4}, issued=NOW, expires=NOW + 60), NOW - 3)  # its clock is ahead
    assert chooser.age == 0.0


def test_drafts_and_origins_are_drawn_with_the_published_probabilities(
    chooser: Chooser, make_policy: MakePolicy
) -> None:
    arms = {"ngram": (0.3, [(4, 1.0)]), "model": (0.6, [(2, 1.0)]), "none": (0.1, [(0, 1.0)])}
    chooser.use(make_policy({("code", 1): arms}, nonadaptive=0.25), NOW)
    tickets = admit(chooser, 8000)
    exploring = [t for t in tickets if t.origin == "policy"]
    assert within(len(exploring), 8000, 0.25)
    drafts = Counter(t.draft for t in exploring)
    assert all(within(drafts[d], len(exploring), p) for d, (p, _) in arms.items())
    assert {t.draft: t.probability for t in exploring} == pytest.approx({"ngram": 0.3, "model": 0.6, "none": 0.1})
    # The others would teach nothing by it: they start from the best arm.
    assert {(t.origin, t.draft, t.probability) for t in tickets if t not in exploring} == {("request", "model", 1.0)}


def test_a_shared_quantile_gives_all_requests_of_a_version_one_draft(chooser: Chooser, make_policy: MakePolicy) -> None:
    arms = {"none": (0.1, [(0, 1.0)]), "ngram": (0.2, [(4, 1.0)]), "model": (0.7, [(2, 1.0)])}
    drawn = {}
    for n, u in enumerate((0.0, 0.0999, 0.1, 0.2999, 0.3001, 1.0), 1):
        chooser.use(make_policy({("code", 1): arms}, version=(1, n), nonadaptive=1.0, draw=u, allowance=10), NOW)
        tickets = admit(chooser, 20)
        (drawn[u],) = {t.draft for t in tickets}
        assert {t.probability for t in tickets} == {arms[drawn[u]][0]}
        # What is explored is charged: anything but the cell's most probable arm.
        chooser.plan(tickets[:5], 5)
        assert chooser.status()["explored"] == (0 if drawn[u] == "model" else 5)
    assert drawn == {0.0: "none", 0.0999: "none", 0.1: "ngram", 0.2999: "ngram", 0.3001: "model", 1.0: "model"}


def test_exploiting_goes_to_the_likeliest_draft_whatever_the_shared_quantile(
    chooser: Chooser, make_policy: MakePolicy
) -> None:
    arms = {"ngram": (0.2, [(4, 1.0)]), "model": (0.8, [(2, 1.0)])}
    chooser.use(make_policy({("code", 1): arms}, draw=0.1, allowance=0), NOW)
    chooser.plan([], 0)
    assert {t.draft for t in admit(chooser, 20)} == {"model"}


def test_the_engine_s_own_share_of_nonadaptive_requests_wins(
    describe: EngineDescription, clock: Clock, make_policy: MakePolicy
) -> None:
    chooser = Chooser(describe, clock=clock, rng=random.Random(1), nonadaptive=1.0)
    chooser.use(make_policy({("code", 1): ALWAYS_4}, nonadaptive=0.0), NOW)
    assert {t.origin for t in admit(chooser, 50)} == {"policy"}


def test_k_is_drawn_once_a_window_with_the_published_probabilities(chooser: Chooser, make_policy: MakePolicy) -> None:
    arms = {"ngram": (1.0, [(0, 0.1), (2, 0.3), (4, 0.6)])}
    chooser.use(make_policy({("code", 1): arms}, window=8, nonadaptive=1.0), NOW)
    tickets = admit(chooser, 1)
    chooser.plan(tickets, 1)  # the first window began before: align
    windows = [[chooser.plan(tickets, 1)[0] for _ in range(8)] for _ in range(4000)]
    counts: Counter[int] = Counter()
    for window in windows:
        changes = sum(a != b for a, b in pairwise(window))
        assert changes <= 1  # one draw per 8 steps
        counts[window[-1]] += 1
    assert all(within(counts[k], 4000, p) for k, p in arms["ngram"][1])


def test_rows_move_together_at_the_same_quantile(chooser: Chooser, make_policy: MakePolicy) -> None:
    """One uniform for all: a row at its 0.9 quantile never stands beside one at its 0.1 quantile."""
    code = {"ngram": (1.0, [(2, 0.5), (8, 0.5)])}
    chat = {"ngram": (1.0, [(0, 0.5), (4, 0.5)])}
    chooser.use(make_policy({("code", 4): code, ("chat", 4): chat}, window=1, nonadaptive=1.0), NOW)
    tickets = [*admit(chooser, 3, "code", 6), *admit(chooser, 3, "chat", 6)]
    planned = Counter(tuple(chooser.plan(tickets, 6)) for _ in range(500))
    assert set(planned) == {(2, 2, 2, 0, 0, 0), (8, 8, 8, 4, 4, 4)}


def test_k_does_not_follow_a_batch_that_flickers_across_a_bucket_s_boundary(
    chooser: Chooser, make_policy: MakePolicy
) -> None:
    cells = {("code", load): {"ngram": (1.0, [(k, 1.0)])} for load, k in ((1, 8), (4, 2))}
    chooser.use(make_policy(cells, nonadaptive=1.0), NOW)
    tickets = admit(chooser, 1)
    flickers = [chooser.plan(tickets, batch)[0] for batch in (3, 4, 3, 4, 4, 3) * 10]
    assert set(flickers) == {8}
    # A batch that stays moves K at the 16th of its steps.
    assert [chooser.plan(tickets, 4)[0] for _ in range(17)] == [8] * 15 + [2] * 2


def test_the_load_bucket_s_cell_counts_and_else_the_next_lower_one(chooser: Chooser, make_policy: MakePolicy) -> None:
    cells = {("code", load): {"ngram": (1.0, [(k, 1.0)])} for load, k in ((1, 8), (4, 2))}
    cells["other", 1] = {"ngram": (1.0, [(1, 1.0)])}
    cells["late", 8] = ALWAYS_4
    chooser.use(make_policy(cells, nonadaptive=1.0), NOW)
    tickets = admit(chooser, 1)
    assert [chooser.plan(tickets, batch)[0] for batch in (1, 3, 7, 16, 1)] == [8, 8, 2, 2, 8]
    assert chooser.plan(admit(chooser, 1, "late", 1), 1) == [1]  # no cell at or below load 1: `other`
    assert chooser.plan(admit(chooser, 1, "unheard", 1), 1) == [1]


def test_regime_is_kept_and_an_unknown_one_is_an_error(chooser: Chooser, make_policy: MakePolicy) -> None:
    chooser.use(make_policy({("code", 1): {"model": (1.0, [(6, 1.0)])}}), NOW)  # greedy only
    ticket = chooser.admit("code", "sampled", 1)
    assert (ticket.draft, ticket.version) == ("ngram", None)
    with pytest.raises(ValueError, match="regime is 'warm'; allowed are 'greedy' and 'sampled'"):
        chooser.admit("code", "warm", 1)  # type: ignore[arg-type]  # the point of the test


def test_drafts_and_k_that_the_engine_lacks_are_replaced(chooser: Chooser, make_policy: MakePolicy) -> None:
    arms = {"eagle": (0.5, [(4, 1.0)]), "model": (0.5, [(3, 0.25), (5, 0.25), (8, 0.5)])}
    chooser.use(make_policy({("code", 1): arms}, window=1, nonadaptive=1.0), NOW)
    tickets = admit(chooser, 20)
    assert {t.draft for t in tickets} == {"model"}
    seen = Counter(chooser.plan(tickets[:1], 1)[0] for _ in range(2000))
    assert set(seen) == {2, 4, 6}  # 3 -> 2, 5 -> 4, 8 -> the draft's largest
    assert within(seen[6], 2000, 0.5)


def test_after_expiry_the_static_choice_and_when_stale_the_most_probable_arm(
    chooser: Chooser, clock: Clock, make_policy: MakePolicy
) -> None:
    arms = {"ngram": (0.4, [(0, 0.5), (8, 0.5)]), "model": (0.6, [(2, 0.3), (6, 0.7)])}
    chooser.use(make_policy({("code", 1): arms}, window=1, nonadaptive=1.0, expires=NOW + 100), NOW + 10)
    clock.now = 39.0  # 49 s after issue: fresh
    tickets = admit(chooser, 200)
    assert {t.draft for t in tickets} == {"ngram", "model"}
    clock.now = 41.0  # past the middle of its life
    assert {(t.draft, t.probability) for t in admit(chooser, 50)} == {("model", 1.0)}
    old = next(t for t in tickets if t.draft == "ngram")
    model = next(t for t in tickets if t.draft == "model")
    assert {tuple(chooser.plan([model, old], 2)) for _ in range(50)} == {(6, 0)}
    clock.now = 91.0
    assert chooser.version is None
    assert {(t.draft, t.version) for t in admit(chooser, 20)} == {("ngram", None)}
    assert chooser.plan([model, old], 2) == [4, 4]


def test_the_exploration_allowance_is_never_exceeded_and_opens_anew_with_a_version(
    chooser: Chooser, make_policy: MakePolicy
) -> None:
    arms = {"ngram": (1.0, [(0, 0.45), (4, 0.55)])}
    cells = {("code", 1): arms}
    chooser.use(make_policy(cells, window=1, nonadaptive=1.0, allowance=10), NOW)
    tickets = admit(chooser, 3)
    explored = sum(k == 0 for _ in range(300) for k in chooser.plan(tickets, 3))
    assert explored == 9  # a fourth step of three rows would make 12
    assert chooser.status()["explored"] == 9
    chooser.use(make_policy(cells, version=(1, 2), window=1, nonadaptive=1.0, allowance=10), NOW)
    assert sum(k == 0 for _ in range(300) for k in chooser.plan(tickets, 3)) == 9
    chooser.use(make_policy(cells, version=(1, 3), window=1, nonadaptive=1.0, allowance=0), NOW)
    assert {tuple(chooser.plan(tickets, 3)) for _ in range(100)} == {(4, 4, 4)}


def test_a_plain_probe_holds_the_whole_batch_at_zero_for_m_steps(chooser: Chooser, make_policy: MakePolicy) -> None:
    chooser.use(make_policy({("code", 1): ALWAYS_4}, probe=ProbePlan(every=5, steps=2)), NOW)
    tickets = admit(chooser, 2)
    planned, probing = [], []
    for _ in range(16):
        planned.append(chooser.plan(tickets, 2)[0])
        probing.append(chooser.probing)
    assert planned == [4] * 5 + [0, 0] + [4] * 5 + [0, 0] + [4] * 2
    assert probing == [k == 0 for k in planned]


def switching(describe: EngineDescription, clock: Clock, switch: Callable[[Ticket, str], bool]) -> Chooser:
    return Chooser(
        msgspec.structs.replace(describe, switches=True),
        clock=clock,
        rng=random.Random(7),
        nonadaptive=1.0,
        switch=switch,
    )


def test_an_engine_that_switches_draws_draft_and_k_by_window(
    describe: EngineDescription, clock: Clock, make_policy: MakePolicy
) -> None:
    moves: list[tuple[str, str]] = []

    def switch(ticket: Ticket, draft: str) -> bool:
        moves.append((ticket.draft, draft))
        ticket.take(draft)
        return True

    chooser = switching(describe, clock, switch)
    arms = {"ngram": (0.25, [(2, 0.5), (8, 0.5)]), "model": (0.75, [(4, 1.0)])}
    chooser.use(make_policy({("code", 1): arms}, window=5, draw=0.1), NOW)
    tickets = admit(chooser, 3)
    played: Counter[tuple[str, int]] = Counter()
    for _ in range(4000):
        planned = chooser.plan(tickets, 3)
        assert len({(t.draft, k) for t, k in zip(tickets, planned, strict=True)}) == 1  # rows move together
        played[tickets[0].draft, planned[0]] += 1
    # A golden-ratio sequence of 800 windows: shares to within a few windows.
    for arm, share in ((("ngram", 2), 0.125), (("ngram", 8), 0.125), (("model", 4), 0.75)):
        assert abs(played[arm] / 5 - 800 * share) <= 3
    assert all(old != new for old, new in moves)


@pytest.mark.parametrize("switches", [False, True])
def test_adaptive_requests_keep_to_the_best_arm_while_the_others_follow_the_window(
    describe: EngineDescription, clock: Clock, make_policy: MakePolicy, switches: bool
) -> None:
    """Their steps do not feed the curve: exploring would cost and teach nothing.

    Most probable: `model` at K = 4, .6 * .7. A cell's two drafts take u below .4 and above; of 1,000 windows of one
    step the golden-ratio sequence gives every arm its share to within a few.
    """

    def switch(ticket: Ticket, draft: str) -> bool:
        ticket.take(draft)
        return True

    chooser = Chooser(
        msgspec.structs.replace(describe, switches=switches),
        clock=clock,
        rng=random.Random(3),
        nonadaptive=0.5,
        switch=switch,
    )
    arms = {"ngram": (0.4, [(2, 0.5), (8, 0.5)]), "model": (0.6, [(4, 0.7), (6, 0.3)])}
    chooser.use(make_policy({("code", 1): arms}, window=1), NOW)
    tickets = admit(chooser, 60)
    adaptive = [t for t in tickets if t.origin == "request"]
    exploring = [t for t in tickets if t.origin == "policy"]
    assert min(len(adaptive), len(exploring)) > 15
    assert {(t.draft, t.probability) for t in adaptive} == {("model", 1.0)}
    played: Counter[tuple[str, int]] = Counter()
    for _ in range(1000):
        chooser.plan(tickets, 1)
        assert {(t.draft, t.k, t.explores) for t in adaptive} == {("model", 4, False)}
        now = {(t.draft, t.k) for t in exploring}
        assert all(t.explores == ((t.draft, t.k) != ("model", 4)) for t in exploring)
        played.update(now)
        if switches:
            assert len(now) == 1
    # Where a draft is held from admission, both are in the batch and each takes its own K at the window's quantile.
    shares = {("ngram", 2): 0.5, ("ngram", 8): 0.5, ("model", 4): 0.7, ("model", 6): 0.3}
    draft = {"ngram": 0.4, "model": 0.6} if switches else {"ngram": 1.0, "model": 1.0}
    assert played.keys() == shares.keys()
    for (name, k), share in shares.items():
        assert abs(played[name, k] - 1000 * draft[name] * share) <= 5
    assert chooser.status()["explored"] == sum(
        n * (len(exploring) if switches else sum(t.draft == name for t in exploring))
        for (name, k), n in played.items()
        if (name, k) != ("model", 4)
    )


def test_an_adaptive_request_follows_the_best_arm_to_a_new_version(
    describe: EngineDescription, clock: Clock, make_policy: MakePolicy
) -> None:
    def switch(ticket: Ticket, draft: str) -> bool:
        ticket.take(draft)
        return True

    for switches, then in ((True, ("model", 4)), (False, ("ngram", 8))):
        chooser = Chooser(
            msgspec.structs.replace(describe, switches=switches),
            clock=clock,
            rng=random.Random(3),
            nonadaptive=0.0,
            switch=switch,
        )
        arms = {"ngram": (0.7, [(2, 0.4), (8, 0.6)]), "model": (0.3, [(4, 1.0)])}
        chooser.use(make_policy({("code", 1): arms}), NOW)
        (ticket,) = admit(chooser, 1)
        assert (chooser.plan([ticket], 1), ticket.draft) == ([8], "ngram")
        arms = {"ngram": (0.3, [(2, 0.4), (8, 0.6)]), "model": (0.7, [(4, 1.0)])}
        chooser.use(make_policy({("code", 1): arms}, version=(1, 2)), NOW)
        assert (*chooser.plan([ticket], 1), ticket.draft) == (then[1], then[0])


def test_a_request_stays_with_its_draft_where_the_switch_is_refused(
    describe: EngineDescription, clock: Clock, make_policy: MakePolicy
) -> None:
    chooser = switching(describe, clock, lambda ticket, draft: False)
    chooser.use(make_policy({("code", 1): {"ngram": (0.5, [(2, 1.0)]), "model": (0.5, [(4, 1.0)])}}, window=1), NOW)
    (ticket,) = admit(chooser, 1)
    held = ticket.draft
    assert {chooser.plan([ticket], 1)[0] for _ in range(100)} == {2 if held == "ngram" else 4}
    assert ticket.draft == held


def test_without_a_policy_a_switched_request_goes_back_to_the_static_draft(
    describe: EngineDescription, clock: Clock, make_policy: MakePolicy
) -> None:
    def switch(ticket: Ticket, draft: str) -> bool:
        ticket.take(draft)
        return True

    chooser = switching(describe, clock, switch)
    chooser.use(make_policy({("code", 1): {"model": (1.0, [(6, 1.0)])}}, expires=NOW + 10), NOW)
    (ticket,) = admit(chooser, 1)
    assert (chooser.plan([ticket], 1), ticket.draft) == ([6], "model")
    clock.now = 11.0
    assert (chooser.plan([ticket], 1), ticket.draft, ticket.variant) == ([4], "ngram", "static")


def test_a_guarded_static_choice_is_probed_too_ever_more_rarely(describe: EngineDescription, clock: Clock) -> None:
    chooser = Chooser(describe, clock=clock, rng=random.Random(7), guarded=True)
    (ticket,) = admit(chooser, 1)
    planned = [chooser.plan([ticket], 1)[0] for _ in range(6000)]
    starts = [i for i, (before, now) in enumerate(pairwise([4, *planned])) if (before, now) == (4, 0)]
    # 128 steps, 8 of probe, 256, 8, 512, 8, 1024, 8, 2048, 8, and so on with 2048.
    assert starts == [128, 392, 912, 1944, 4000]
    assert planned.count(0) == 8 * 5
    plain = Chooser(describe, clock=clock, rng=random.Random(7))
    assert {plain.plan(admit(plain, 1), 1)[0] for _ in range(3000)} == {4}


@pytest.mark.parametrize("mode", ["off", "shadow"])
def test_off_and_shadow_change_nothing(chooser: Chooser, make_policy: MakePolicy, mode: str) -> None:
    policy = make_policy({("code", 1): {"model": (1.0, [(1, 1.0)])}}, mode=mode, probe=ProbePlan(2, 2), share=1.0)
    chooser.use(policy, NOW)
    tickets = admit(chooser, 5)
    assert {(t.draft, t.origin) for t in tickets} == {("ngram", "policy")}
    assert {k for _ in range(20) for k in chooser.plan(tickets, 5)} == {4}
    assert chooser.version == (1, 1)


@pytest.mark.parametrize(("mode", "origins"), [("canary", {"policy", "request"}), ("shadow+probe", {"probe"})])
def test_canary_and_probing_shadow_act_on_their_share_of_requests(
    chooser: Chooser, make_policy: MakePolicy, mode: str, origins: set[str]
) -> None:
    policy = make_policy({("code", 1): {"model": (1.0, [(1, 1.0)])}}, mode=mode, share=0.1, nonadaptive=0.5)
    chooser.use(policy, NOW)
    tickets = admit(chooser, 3000)
    acting = [t for t in tickets if t.draft == "model"]
    assert within(len(acting), 3000, 0.1)
    assert {t.origin for t in acting} == origins
    rest = next(t for t in tickets if t.draft == "ngram")
    assert chooser.plan([acting[0], rest], 2) == [1, 4]
    assert (acting[0].variant, rest.variant) == ("adaptive", "static")


CURVE = {
    "alpha": [8.0] * 8,
    "beta": [2.0] * 8,
    "seconds": [(0, 1.0), (1, 1.15), (2, 1.3), (4, 1.6), (6, 1.9), (8, 2.2)],
}


def feed(chooser: Chooser, ticket: Ticket, outcomes: Sequence[tuple[int, int]]) -> None:
    for drafted, accepted in outcomes:
        row = RowOutcome(ticket, drafted, accepted, min(accepted + 1, drafted), accepted + 1)
        chooser.observe(StepOutcome(1.0, [row], drafted + 1))


@pytest.fixture
def adaptive(chooser: Chooser, make_policy: MakePolicy) -> Chooser:
    arms = {"ngram": (1.0, [(4, 1.0)])}
    chooser.use(make_policy({("code", 1): arms}, nonadaptive=0.0, curve=CURVE), NOW)
    return chooser


def test_a_lucky_request_raises_its_own_k(adaptive: Chooser) -> None:
    (ticket,) = admit(adaptive, 1)
    assert adaptive.plan([ticket], 1) == [4]
    feed(adaptive, ticket, [(4, 4)] * 16)
    assert adaptive.plan([ticket], 1)[0] > 4


def test_an_unlucky_request_lowers_its_own_k(chooser: Chooser, make_policy: MakePolicy) -> None:
    prices = {**CURVE, "seconds": [(0, 1.0), (1, 1.3), (2, 1.6), (4, 2.2), (6, 2.8)]}
    chooser.use(make_policy({("code", 1): ALWAYS_4}, nonadaptive=0.0, curve=prices), NOW)
    (ticket,) = admit(chooser, 1)
    assert chooser.plan([ticket], 1) == [4]
    feed(chooser, ticket, [(4, 0)] * 16)
    assert chooser.plan([ticket], 1)[0] < 4


def test_a_typical_request_stays_with_the_window_s_draw(adaptive: Chooser) -> None:
    (ticket,) = admit(adaptive, 1)
    adaptive.plan([ticket], 1)
    rng = random.Random(5)
    for _ in range(10):  # draws from the domain's own curve
        accepted = 0
        while accepted < 4 and rng.random() < 0.8:
            accepted += 1
        feed(adaptive, ticket, [(4, accepted)])
    assert adaptive.plan([ticket], 1) == [4]


def test_a_request_at_zero_comes_back_as_its_evidence_fades(chooser: Chooser, make_policy: MakePolicy) -> None:
    prices = {**CURVE, "seconds": [(0, 1.0), (1, 1.3), (2, 1.6), (4, 2.2), (6, 2.8)]}
    chooser.use(make_policy({("code", 1): ALWAYS_4}, nonadaptive=0.0, curve=prices), NOW)
    (ticket,) = admit(chooser, 1)
    chooser.plan([ticket], 1)
    feed(chooser, ticket, [(4, 0)] * 40)
    assert chooser.plan([ticket], 1) == [0]
    feed(chooser, ticket, [(0, 0)] * 200)
    assert chooser.plan([ticket], 1)[0] in {2, 4}  # equal in value to 0.2%


def test_nonadaptive_requests_never_move(chooser: Chooser, make_policy: MakePolicy) -> None:
    chooser.use(make_policy({("code", 1): ALWAYS_4}, nonadaptive=1.0, curve=CURVE), NOW)
    (ticket,) = admit(chooser, 1)
    feed(chooser, ticket, [(4, 0)] * 40)
    assert chooser.plan([ticket], 1) == [4]
    assert ticket.evidence is None


def test_without_prices_nobody_moves(chooser: Chooser, make_policy: MakePolicy) -> None:
    chooser.use(make_policy({("code", 1): ALWAYS_4}, nonadaptive=0.0), NOW)
    (ticket,) = admit(chooser, 1)
    chooser.plan([ticket], 1)
    feed(chooser, ticket, [(4, 0)] * 40)
    assert chooser.plan([ticket], 1) == [4]


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        ({"ngram": (0.5, [(4, 1.0)])}, "code/greedy at load 1: probabilities of the drafts sum to 0.5, needed is 1"),
        ({"ngram": (1.0, [(4, 0.5)])}, "code/greedy at load 1: probabilities of K for 'ngram' sum to 0.5"),
        ({"ngram": (1.0, [])}, "probabilities of K for 'ngram' sum to 0"),
    ],
)
def test_a_policy_that_contradicts_itself_is_refused(
    chooser: Chooser, make_policy: MakePolicy, arms: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        chooser.use(make_policy({("code", 1): arms}), NOW)


def test_uneven_posteriors_are_refused(make_policy: MakePolicy) -> None:
    policy = make_policy({("code", 1): ALWAYS_4}, curve={"alpha": [1.0], "beta": []})
    with pytest.raises(ValueError, match="has 1 alpha and 0 beta"):
        Table(policy, {"ngram": 8}, [4])


def survival(cells: dict[int, list[int]]) -> list[float]:
    """Running product of accepted / seen by position."""
    product, result = 1.0, []
    for i in sorted(cells):
        seen, accepted = cells[i]
        product *= accepted / seen
        result.append(product)
    return result


def test_the_curve_of_nonadaptive_requests_is_unbiased_where_a_choice_per_step_would_not_be(
    describe: EngineDescription, make_policy: MakePolicy
) -> None:
    """Half of the requests are easy (.95 per position), half hard (.55); K is drawn from {2, 8} per window,
    and adaptive requests start from 8, the likelier.

    Expected survival(8) of a request's step is (.95^8 + .55^8) / 2 = .336. Easy requests soon run by their own
    evidence, so steps that "did not move" are mostly those of hard ones: fed by them, the curve is far too low.
    Chained conditional rates (accepted / seen, multiplied) are exact for the pooled non-adaptive steps, since every
    such step has the same chance of each K, whatever its request.
    """
    chooser = Chooser(describe, clock=Clock(), rng=random.Random(11))
    seconds = [(0, 1.0), (2, 1.2), (8, 2.2)]
    arms = {"ngram": (1.0, [(2, 0.4), (8, 0.6)])}
    curve = {"alpha": [7.5] * 8, "beta": [2.5] * 8, "seconds": seconds}
    chooser.use(make_policy({("code", 1): arms}, window=4, nonadaptive=0.5, curve=curve), NOW)
    rng = random.Random(12)
    nonadaptive: dict[int, list[int]] = {i: [0, 0] for i in range(8)}
    unmoved: dict[int, list[int]] = {i: [0, 0] for i in range(8)}
    for number in range(3000):
        (ticket,) = admit(chooser, 1)
        chance = (0.95, 0.55)[number % 2]
        for _ in range(40):
            (k,) = chooser.plan([ticket], 1)
            accepted = 0
            while accepted < k and rng.random() < chance:
                accepted += 1
            seen = min(accepted + 1, k)
            into = []
            if ticket.origin == "policy":
                into.append(nonadaptive)
            elif ticket.evidence is not None and ticket.evidence.own_k is None:
                into.append(unmoved)
            for cells in into:
                for i in range(seen):
                    cells[i][0] += 1
                    cells[i][1] += i < accepted
            chooser.observe(StepOutcome(1.0, [RowOutcome(ticket, k, accepted, seen, accepted + 1)], k + 1))
    truth = [(0.95**i + 0.55**i) / 2 for i in range(1, 9)]
    # 1,500 requests: the share of easy ones among them varies by 1/sqrt(1500) * .5 = .013, so 3 sigma is .04 at depth.
    assert survival(nonadaptive) == pytest.approx(truth, abs=0.04)
    assert survival(unmoved)[-1] < truth[-1] - 0.08


def test_static_drafts_of_a_policy_need_to_be_loaded(clock: Clock, make_policy: MakePolicy) -> None:
    describe = EngineDescription("t", "t", "cpu", [DraftInfo("model", "model", 6)], [0, 2], StaticChoice("model", 2), 1)
    chooser = Chooser(describe, clock=clock, rng=random.Random(1))
    chooser.use(make_policy({}, mode="off"), NOW)  # its static choice is ngram, which is not here
    (ticket,) = admit(chooser, 1)
    assert ticket.draft == "model"
    assert chooser.plan([ticket], 1) == [2]
