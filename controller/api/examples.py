"""One whole answer of each kind for the OpenAPI document, made of the same records as real ones: they cannot go stale.

All tell of one pool at one moment, so that what is read on one page agrees with the next: mode on, chat pinned a minute
ago and not asked for since, code moved to another K five minutes ago, a measurement half done and between two windows.
"""

from typing import Any

import msgspec

from controller.api.audit import AuditEntry, entry_of
from controller.api.domains import DomainSummary, LoadChoice
from controller.api.events import Moment, PlayedThen
from controller.api.health import Health
from controller.api.pools import PoolName, PoolSummary
from controller.api.steer import MeasureView, OrdersView, PinView
from controller.api.whatif import Answer, ExpectedArm, FixedArm
from controller.api.whoami import Who
from controller.audit import Act
from controller.published import Published
from controller.steering import Measure, Pin
from controller.view import (
    Arm,
    Choice,
    Curve,
    DecisionRecord,
    Domain,
    Draft,
    Engine,
    Evidence,
    Frames,
    Interval,
    Measured,
    PoolTraffic,
    Position,
    Spread,
    Switch,
    Traffic,
    Wanted,
)
from engine.link.messages import DraftChoice, Policy, PolicyCell, StaticChoice
from engine.link.router import Route, RoutedPool

NOW = 1763993400.0  # 14:10 UTC
VERSION = (1763983400000, 9_912)
STATIC = StaticChoice("ngram", 2)
_KS = [0, 1, 2, 3, 4, 5, 6, 8]
_SPEEDUP = Interval(1.52, 1.47, 1.57)
_NONE = Interval(1.0, 1.0, 1.0)
_REASON = (
    "eagle at K = 4: 1.52x plain (1.47 to 1.57); best in 83% of draws; K = 5 is 0.8% worse at this load; "
    "last change 14:05 UTC: acceptance at position 3 fell from 0.71 to 0.58"
)
_RECENT = Traffic(60.0, 5640, 1980, 47.5, 118.7, 1.85, _SPEEDUP)
_QUIET = Traffic(60.0, 0, 0, 0.0, None, None, None)

# Best in 83% and 17% of draws: squared, of requests that explore (one in five), 96% and 4%; the others take the best.
POLICY = Policy(
    pool="smollm2",
    version=VERSION,
    issued=NOW - 2.4,
    expires=NOW + 57.6,
    static=STATIC,
    k_values=_KS,
    mode="on",
    cells=[
        PolicyCell(
            domain="code",
            regime="greedy",
            load=4,
            drafts=[
                DraftChoice(
                    "eagle", 1.0, [(4, 0.96), (5, 0.04)], [337.8, 309.0, 239.0], [74.2, 103.0, 173.0],
                    [(4, 0.0240), (5, 0.0249)],
                ),
                DraftChoice("none", 0.0, [(0, 1.0)], seconds=[(0, 0.0128)]),
            ],
            expected_speedup=1.52,
        ),
        PolicyCell(
            domain="chat",
            regime="greedy",
            load=4,
            drafts=[
                DraftChoice("ngram", 1.0, [(3, 1.0)], [96.0, 71.0, 52.0], [84.0, 50.0, 42.0]),
                DraftChoice("none", 0.0, [(0, 1.0)], seconds=[(0, 0.0128)]),
            ],
        ),
    ],
)  # fmt: skip

_PIN = Pin("chat", "ngram", 3, "greedy", NOW + 3600, "load test", "ops", NOW - 60)
_MEASURE = Measure(1, NOW - 2600, 100.0, 20, 0.1, "none", "ops", "first day")
_IN_FORCE = Published(POLICY, ("ngram", 2), [("chat", "greedy")]).in_force([("code", "greedy"), ("chat", "greedy")])
_CODE, _CHAT = _IN_FORCE["code", "greedy", 4], _IN_FORCE["chat", "greedy", 4]
_EXPLORED = round(_CODE.explored, 4)

_ENGINE = Engine(
    "engine-0", "9f2c4a7be1d3", "adaptive-k 0.1.0", "NVIDIA H200, bfloat16", NOW - 0.4, 4, 0, 184_302, VERSION,
    "closed", 7_411, 0, 0, None, 0.0231, 0.0322, 2.0, 0.02, 1.03,
)  # fmt: skip

_MEASURED = Measured(
    1.42, 1.37, 1.47, 5, _MEASURE.pairs, _MEASURE.window, _MEASURE.share, ("none", 0), _MEASURE.at, _MEASURE.until,
    True, 948.0, 957.0,
)  # fmt: skip

_CURVE = Curve(
    "eagle",
    412.0,
    Spread(310.0, 0.11, 2_020.0, 4.9),
    [
        Position(1, Interval(0.82, 0.79, 0.85), Interval(0.82, 0.79, 0.85), 60_210, 49_372),
        Position(2, Interval(0.75, 0.71, 0.79), Interval(0.615, 0.57, 0.66), 49_372, 37_029),
        Position(3, Interval(0.58, 0.53, 0.63), Interval(0.357, 0.31, 0.40), 37_029, 25_921),
    ],
)

_ARMS = [
    Arm("eagle", 4, 118.7, 471.2, _SPEEDUP, _CODE.shares["eagle", 4], 0.83, 0.71),
    Arm("eagle", 5, 117.8, 467.4, Interval(1.51, 1.45, 1.57), _CODE.shares["eagle", 5], 0.17, 0.27),
    Arm("none", 0, 78.1, 310.0, _NONE, 0.0, 0.0, 0.02),
]

_WANTED = Wanted("eagle", 4, _SPEEDUP)
_LOAD_CHOICE = LoadChoice(4, *_CODE.top, _CODE.shares[_CODE.top], _SPEEDUP, _CODE.held, _WANTED)
_PINNED = LoadChoice(
    4, *_CHAT.top, _CHAT.shares[_CHAT.top], Interval(1.12, 1.05, 1.19), _CHAT.held,
    Wanted("eagle", 2, Interval(1.26, 1.20, 1.32)),
)  # fmt: skip
_CODE_MEASURED = Interval(1.47, 1.40, 1.55)

_DOMAIN = Domain(
    "code", "greedy", 812_044, 284_910, _RECENT, 4, [_CURVE],
    [
        Choice(
            4, *_CODE.top, _CODE.shares[_CODE.top], _SPEEDUP, _REASON, 284_910, _ARMS, _CODE.held, _WANTED,
            _EXPLORED,
        )
    ],
    _CODE_MEASURED,
)  # fmt: skip

_SWITCH = Switch("code", "greedy", 4, ("eagle", 5), ("eagle", 4), 0.96, _REASON)
_RECORD = DecisionRecord(NOW - 300, (VERSION[0], VERSION[1] - 296), None, [_SWITCH])

_SUMMARY = PoolSummary(
    pool="smollm2",
    role="leading",
    problem=None,
    stale=False,
    catching_up=False,
    time=NOW,
    mode=POLICY.mode,
    target="SmolLM2-135M-Instruct",
    drafts=[Draft("eagle", 25_000_000, 0.31), Draft("ngram", 0, 0.02)],
    k_values=_KS,
    engines=1,
    running=4,
    waiting=0,
    last_frame=NOW - 0.4,
    frames=Frames(7_411, 3, 0, 0, 0, 0.02),
    evidence=Evidence(0, 0, 0, {"acceptance": 0, "moments": 0, "cost": 2, "account": 0}),
    traffic=PoolTraffic(60.0, 5640, 1980, 47.5, 118.7, 1.85, _SPEEDUP, 11.97, 471.2, 3.97, 1.31),
    explored=_EXPLORED,
    budget_steps=6.0,
    policy_version=VERSION,
    policy_expires=POLICY.expires,
    decisions=VERSION[1],
    switches=14,
    changes=1,
    measured_gain=_MEASURED,
)

_ORDERS = OrdersView(
    4, "on", 0.01, [PinView(_PIN.domain, _PIN.draft, _PIN.k, _PIN.regime, _PIN.until, _PIN.note, _PIN.by, _PIN.at)],
    ["small"],
    MeasureView(
        _MEASURE.at, _MEASURE.until, _MEASURE.windows, _MEASURE.window, _MEASURE.share, _MEASURE.against,
        _MEASURE.note, _MEASURE.by,
    ),
)  # fmt: skip

_MOMENT = Moment(
    NOW, 471.2, _SPEEDUP, 310.0, 406.1, 3.97, 4, 0,
    [PlayedThen("code", "greedy", "eagle", 4, 118.7, 1.85, 4, [0.82, 0.75, 0.58])], _MEASURED.running, False,
)  # fmt: skip

_NO_LOSS, _LITTLE, _LOSS = Interval(0.0, 0.0, 0.0), Interval(0.01, 0.0, 0.03), Interval(0.02, 0.0, 0.04)
_LEARNED = Interval(1.22, 1.17, 1.27)
_FIXED = FixedArm(STATIC.draft, STATIC.k, Interval(1.09, 1.05, 1.13), _LEARNED, Interval(0.107, 0.07, 0.14))
_ANSWER = Answer(
    8, 11.2, {"code": 0.75, "chat": 0.25},
    [
        ExpectedArm("chat", "greedy", "eagle", 2, 702.0, Interval(1.08, 1.02, 1.14), _NO_LOSS, False, True),
        ExpectedArm("chat", "greedy", "ngram", 3, 688.0, Interval(0.99, 0.93, 1.05), _LOSS, True, False),
        ExpectedArm("code", "greedy", "eagle", 4, 702.0, Interval(1.28, 1.22, 1.34), _NO_LOSS, True, True),
        ExpectedArm("code", "greedy", "eagle", 3, 695.0, Interval(1.26, 1.20, 1.32), _LITTLE, False, False),
    ],
    _FIXED,
)  # fmt: skip

_ROUTE = Route(
    "SmolLM2-135M-Instruct", "code", "greedy",
    [RoutedPool("smollm2", 1.0, 118.7, 112.0, 125.8, 1.52, "eagle", 4, 4, 412.0, NOW)],
)  # fmt: skip


def _log() -> list[AuditEntry]:
    """What led here, as the log would tell it: newest first."""
    measure = "measure the gain over no speculation: 100 minutes in 20 windows, 10.0% of the time without the policy"
    entries: list[Act | DecisionRecord] = [
        Act(_PIN.at, _PIN.by, _PIN.told, _PIN.note, 4),
        _RECORD,
        Act(_MEASURE.at, _MEASURE.by, measure, _MEASURE.note, 3),
        Act(NOW - 6_500, "ops", "retire draft small", "eagle keeps more", 2),
        Act(NOW - 7_000, "ops", "mode on", "shadow looked right", 1),
    ]
    told = (entry_of(f"{int(1000 * entry.time)}-0", msgspec.json.encode(entry)) for entry in entries)
    return [entry for entry in told if entry is not None]


# By what a route says that it returns.
EXAMPLES: dict[Any, Any] = {
    Health: Health(status="ok", pools={"smollm2": "leading"}),
    Who: Who("ops", "admin"),
    list[PoolName]: [PoolName("smollm2", "leading", None)],
    PoolSummary: _SUMMARY,
    list[Engine]: [_ENGINE],
    list[DomainSummary]: [
        DomainSummary("code", "greedy", 812_044, 284_910, _RECENT, _LOAD_CHOICE, [_LOAD_CHOICE], _CODE_MEASURED),
        DomainSummary("chat", "greedy", 190_212, 96_408, _QUIET, None, [_PINNED], Interval(1.24, 1.15, 1.34)),
    ],
    list[Domain]: [_DOMAIN],
    list[DecisionRecord]: [_RECORD],
    list[Moment]: [_MOMENT],
    list[AuditEntry]: _log(),
    OrdersView: _ORDERS,
    Answer: _ANSWER,
    list[Route]: [_ROUTE],
}
