"""One whole answer of each kind for the OpenAPI document, made of the same records as real ones: they cannot go stale.

All tell of one pool at one moment, so that what is read on one page agrees with the next.
"""

from typing import Any

from controller.api.audit import AuditEntry
from controller.api.domains import DomainSummary, LoadChoice
from controller.api.events import Moment, PlayedThen
from controller.api.health import Health
from controller.api.pools import PoolName, PoolSummary
from controller.api.steer import MeasureView, OrdersView, PinView
from controller.api.whatif import Answer, ExpectedArm, FixedArm
from controller.api.whoami import Who
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

NOW = 1764000000.0
VERSION = (1763990000000, 42)
_SPEEDUP = Interval(1.52, 1.47, 1.57)
_NONE = Interval(1.0, 1.0, 1.0)
_REASON = (
    "eagle at K = 4: 1.52x plain (1.47 to 1.57); best in 83% of draws; K = 5 is 0.8% worse at this load; "
    "last change 14:05 UTC: acceptance at position 3 fell from 0.71 to 0.58"
)
_RECENT = Traffic(60.0, 5640, 1980, 47.5, 118.7, 1.85, _SPEEDUP)

_ENGINE = Engine(
    "engine-0", "9f2c4a7be1d3", "adaptive-k 0.1.0", "NVIDIA H200, bfloat16", NOW - 0.4, 4, 0, 184_302, VERSION,
    "closed", 7_411, 0, 0, None, 0.0231, 0.0322, 2.4, 0.02, 1.03,
)  # fmt: skip

_MEASURED = Measured(
    1.42, 1.37, 1.47, 19, 20, 30.0, 0.5, ("none", 0), NOW - 1800, NOW - 600, False, 2_140.0, 2_155.0
)  # fmt: skip

_CURVE = Curve(
    "eagle",
    412.0,
    Spread(310.0, 0.11, 2_020.0, 4.9),
    [
        Position(1, Interval(0.82, 0.79, 0.85), Interval(0.82, 0.79, 0.85), 60_210, 49_372),
        Position(2, Interval(0.75, 0.71, 0.79), Interval(0.615, 0.57, 0.66), 49_372, 37_029),
    ],
)

_ARMS = [
    Arm("eagle", 4, 118.7, 471.2, _SPEEDUP, 0.83, 0.83, 0.71),
    Arm("eagle", 5, 117.8, 467.4, Interval(1.51, 1.45, 1.57), 0.17, 0.17, 0.22),
    Arm("none", 0, 78.1, 310.0, _NONE, 0.0, 0.0, 0.07),
]

_WANTED = Wanted("eagle", 4, _SPEEDUP)
_LOAD_CHOICE = LoadChoice(4, "eagle", 4, 0.83, _SPEEDUP, None, _WANTED)

_DOMAIN = Domain(
    "code", "greedy", 812_044, 284_910, _RECENT, 4, [_CURVE],
    [Choice(4, "eagle", 4, 0.83, _SPEEDUP, _REASON, 201_332, _ARMS, None, _WANTED, 0.17)], Interval(1.47, 1.40, 1.55),
)  # fmt: skip

_SWITCH = Switch("code", "greedy", 4, ("eagle", 5), ("eagle", 4), 0.83, _REASON)

_SUMMARY = PoolSummary(
    pool="smollm2",
    role="leading",
    problem=None,
    stale=False,
    catching_up=False,
    time=NOW,
    mode="on",
    target="SmolLM2-135M-Instruct",
    drafts=[Draft("eagle", 25_000_000, 0.31), Draft("ngram", 0, 0.02)],
    k_values=[0, 1, 2, 3, 4, 5, 6, 8],
    engines=1,
    running=4,
    waiting=0,
    last_frame=NOW - 0.4,
    frames=Frames(7_411, 3, 0, 0, 0, 0.02),
    evidence=Evidence(0, 0, 0, {"acceptance": 0, "moments": 0, "cost": 2, "account": 0}),
    traffic=PoolTraffic(60.0, 5640, 1980, 47.5, 118.7, 1.85, _SPEEDUP, 11.97, 471.2, 3.97, 1.31),
    explored=0.17,
    budget_steps=6.0,
    policy_version=VERSION,
    policy_expires=NOW + 55,
    decisions=9_120,
    switches=14,
    changes=1,
    measured_gain=_MEASURED,
)

_ORDERS = OrdersView(
    3, "canary", 0.1, [PinView("chat", "ngram", 3, "greedy", NOW + 3600, "load test", "ops", NOW - 60)], ["small"],
    MeasureView(NOW - 120, NOW + 480, 20, 30.0, 0.5, "none", "first day", "ops"),
)  # fmt: skip

_MOMENT = Moment(
    NOW, 471.2, _SPEEDUP, 310.0, 402.5, 3.97, 4, 0,
    [PlayedThen("code", "greedy", "eagle", 4, 118.7, 1.85, 4, [0.82, 0.75, 0.58])],
)  # fmt: skip

_NO_LOSS, _LOSS = Interval(0.0, 0.0, 0.0), Interval(0.01, 0.0, 0.03)
_FIXED = FixedArm("eagle", 4, Interval(1.30, 1.22, 1.36), Interval(1.31, 1.25, 1.37), Interval(0.01, 0.0, 0.03))
_ANSWER = Answer(
    8, 11.2, {"code": 0.75, "chat": 0.25},
    [
        ExpectedArm("code", "greedy", "eagle", 3, 702.0, Interval(1.31, 1.25, 1.37), _NO_LOSS, False, False),
        ExpectedArm("code", "greedy", "eagle", 4, 695.0, Interval(1.30, 1.22, 1.36), _LOSS, True, True),
    ],
    _FIXED,
)  # fmt: skip

_ROUTE = Route(
    "SmolLM2-135M-Instruct", "code", "greedy",
    [RoutedPool("smollm2", 1.0, 118.7, 112.0, 125.8, 1.52, "eagle", 4, 4, 412.0, NOW)],
)  # fmt: skip

# By what a route says that it returns.
EXAMPLES: dict[Any, Any] = {
    Health: Health(status="ok", pools={"smollm2": "leading"}),
    Who: Who("ops", "admin"),
    list[PoolName]: [PoolName("smollm2", "leading", None)],
    PoolSummary: _SUMMARY,
    list[Engine]: [_ENGINE],
    list[DomainSummary]: [
        DomainSummary(
            "code", "greedy", 812_044, 284_910, _RECENT, _LOAD_CHOICE,
            [_LOAD_CHOICE], Interval(1.47, 1.40, 1.55),
        )
    ],
    list[Domain]: [_DOMAIN],
    list[DecisionRecord]: [DecisionRecord(NOW - 300, VERSION, None, [_SWITCH])],
    list[Moment]: [_MOMENT],
    list[AuditEntry]: [
        AuditEntry("1763999940000-0", NOW - 60, "ops", "pin chat (greedy) to ngram at K = 3", "load test"),
        AuditEntry(
            "1763999700000-0", NOW - 300, "controller", "code (greedy) at load 4: eagle K = 5 to eagle K = 4", "learned"
        ),
    ],
    OrdersView: _ORDERS,
    Answer: _ANSWER,
    list[Route]: [_ROUTE],
}  # fmt: skip

POLICY = Policy(
    pool="smollm2",
    version=VERSION,
    issued=NOW,
    expires=NOW + 60,
    static=StaticChoice("ngram", 2),
    k_values=[0, 1, 2, 3, 4, 5, 6, 8],
    cells=[
        PolicyCell(
            domain="code",
            regime="greedy",
            load=4,
            drafts=[
                DraftChoice("eagle", 1.0, [(4, 0.83), (5, 0.17)], [337.8, 309.0], [74.2, 103.0], [(4, 0.03)]),
                DraftChoice("none", 0.0, [(0, 1.0)]),
            ],
        )
    ],
)  # fmt: skip
