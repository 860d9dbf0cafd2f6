"""What can be seen of a pool: plain records that the loop fills after every commit and the API returns as they are."""

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from controller.published import Held
from controller.reported import Reported, Sums

Probability = Annotated[float, Field(ge=0, le=1, examples=[0.83])]
UnixSeconds = Annotated[float, Field(description="Unix time, seconds", examples=[1764000000.0])]
PolicyVersion = Annotated[tuple[int, int], Field(description="(epoch, n), ordered", examples=[(1764000000000, 42)])]
DomainName = Annotated[str, Field(examples=["code"])]
RegimeName = Annotated[str, Field(description="`greedy` or `sampled`", examples=["greedy"])]
DraftName = Annotated[str, Field(description="`none`: no speculation", examples=["ngram"])]
HeldBy = Annotated[
    Held | None,
    Field(description="why the arm in force is not the learned one: a pin, the mode, a measurement; null: it is"),
]


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with the interval that holds it with probability 0.9."""

    value: Annotated[float, Field(examples=[1.52])]
    low: Annotated[float, Field(examples=[1.47])]
    high: Annotated[float, Field(examples=[1.57])]


@dataclass(frozen=True, slots=True)
class Engine:
    """One incarnation of one engine, as of its last frame."""

    engine: Annotated[str, Field(examples=["engine-0"])]
    incarnation: str
    software: str
    hardware: str
    last_seen: UnixSeconds
    running: Annotated[int, Field(description="requests being decoded")]
    waiting: Annotated[int, Field(description="requests queued")]
    steps: int
    applied: PolicyVersion | None
    breaker: Annotated[str, Field(description="`closed`, `open` or `half-open`", examples=["closed"])]
    frames: int
    missed: Annotated[int, Field(description="frames that never arrived; later ones brought their counts")]
    lost: Annotated[int, Field(description="steps the engine could not record")]
    ended: UnixSeconds | None
    step_p50: Annotated[
        float | None, Field(description="seconds that half of its steps of the last minute took at most")
    ] = None
    step_p95: Annotated[
        float | None, Field(description="seconds that 95% of its steps of the last minute took at most")
    ] = None
    policy_age: Annotated[
        float | None, Field(description="seconds since the policy that it follows was issued; null: it follows none")
    ] = None
    lag_seconds: Annotated[
        float | None, Field(description="from its newest frame's arrival in Redis to being learned from")
    ] = None
    slowness: Annotated[
        float | None,
        Field(description="how many times the usual seconds its steps take now; prices and speedups leave it out"),
    ] = None


@dataclass(frozen=True, slots=True)
class Frames:
    """What became of the frames read so far, over the pool's whole life."""

    learned: int = 0
    ignored: Annotated[int, Field(description="repeated or late; their counts were already in")] = 0
    deferred: Annotated[int, Field(description="from unknown engines before their first full frame")] = 0
    rejected: Annotated[int, Field(description="in the dead-letter stream, with the reason")] = 0
    missed: Annotated[int, Field(description="never arrived; later frames brought their counts")] = 0
    lag_seconds: Annotated[float, Field(description="from arrival in Redis to being learned from")] = 0.0


@dataclass(frozen=True, slots=True)
class Evidence:
    """What did not count as it was reported, over the pool's whole life. A change is one cell's in one frame."""

    merged: Annotated[int, Field(description="changes counted under domain `other`: more domains than are kept apart")]
    dropped: Annotated[int, Field(description="changes left out: their draft is beyond the cap on drafts")]
    rebased: Annotated[
        int, Field(description="incarnations back after their cells had been let go; counted from their return on")
    ]
    rejected: Annotated[
        dict[str, int],
        Field(
            description="changes not learned from because they contradict themselves, by kind of cell; empty before "
            "any engine has described itself",
            examples=[{"acceptance": 0, "moments": 0, "cost": 2, "account": 0}],
        ),
    ]


@dataclass(frozen=True, slots=True)
class Traffic:
    """What was served within the last `window_seconds`, from the engines' accounts. Every ratio is one of sums.

    `tokens_per_second` is what one request gets while it is being decoded; `accepted_per_step` counts draft tokens.
    """

    window_seconds: float
    tokens: int
    row_steps: int
    row_seconds: float
    tokens_per_second: float | None
    accepted_per_step: float | None
    speedup: Annotated[Interval | None, Field(description="over plain decoding at the same load; null: not known yet")]


@dataclass(frozen=True, slots=True)
class PoolTraffic(Traffic):
    """The same for the whole pool, and per second of the engines' steps."""

    busy_seconds: Annotated[float, Field(description="seconds of all engines' steps")]
    tokens_per_busy_second: float | None
    mean_rows: Annotated[float | None, Field(description="decode rows of a step, weighed by time")]
    static: Annotated[
        float | None,
        Field(
            description="speedup over plain that the operators' static choice is estimated to bring for these tokens"
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class Position:
    """Acceptance at one position: P(kept, given that all tokens before were kept)."""

    position: int
    acceptance: Interval
    survival: Annotated[Interval, Field(description="P(this and all before are kept)")]
    seen: Annotated[int, Field(description="raw count over the pool's life, origins that feed the curve")]
    accepted: int


@dataclass(frozen=True, slots=True)
class Spread:
    """How much requests differ in how their steps' first draft token is kept, from what was counted lately. `segments`:
    requests, long ones in pieces of 64 steps; `observed`: steps; each is worth 1 / `design_effect` independent ones."""

    segments: float
    sd: Annotated[float | None, Field(description="of acceptance between segments, chance taken out; null: not known")]
    observed: float
    design_effect: Annotated[float, Field(ge=1, examples=[2.3])]


@dataclass(frozen=True, slots=True)
class Curve:
    """A draft's acceptance in one domain and regime. `effective_n`: independent observations it is worth now."""

    draft: DraftName
    effective_n: float
    spread: Spread
    positions: list[Position]


@dataclass(frozen=True, slots=True)
class Arm:
    """One (draft, K) at one load. `goodput`: tokens a second of one row, `batch_goodput`: of the whole batch.

    `probability`: share of requests that are given it under the policy as published; `best`: probability of being the
    best arm; `played`: share of the row-steps that followed the policy so far. `identified`: whether what is played in
    the pool's mode shows its acceptance; where false, `speedup` is prior, or what was known before that mode.
    """

    draft: DraftName
    k: int
    goodput: float
    batch_goodput: float
    speedup: Interval
    probability: Probability
    best: Probability
    played: Probability
    identified: bool = True


@dataclass(frozen=True, slots=True)
class Wanted:
    """The arm that the learner would choose."""

    draft: DraftName
    k: int
    speedup: Interval


@dataclass(frozen=True, slots=True)
class Choice:
    """The answer for one load bucket: the arm in force, why, and all arms, those played most first."""

    load: Annotated[int, Field(description="lower bound of the decode batch sizes it is for", examples=[4])]
    draft: DraftName
    k: Annotated[int, Field(description="of the arm that most requests are given", examples=[4])]
    probability: Annotated[Probability, Field(description="share of requests that are given it")]
    speedup: Annotated[Interval | None, Field(description="null: a static K that the pool has not prepared")]
    reason: Annotated[
        str,
        Field(
            examples=[
                "eagle at K = 4: 1.52x plain (1.47 to 1.57); best in 83% of draws; K = 5 is 0.8% worse at this load; "
                "last change 14:05 UTC: acceptance at position 3 fell from 0.71 to 0.58"
            ]
        ),
    ]
    row_steps: Annotated[int, Field(description="served at this load over the pool's life")]
    arms: list[Arm]
    held: HeldBy = None
    would_choose: Annotated[Wanted | None, Field(description="what the learner would choose, also where it rules")] = (
        None
    )
    explored: Annotated[
        Probability, Field(description="share of requests given another arm than the policy's most probable one")
    ] = 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    """The gain as measured by windows in which all requests play a fixed choice (`against`: draft, K), in random order
    within pairs. `ratio`: of the speeds at which requests are decoded, policy over fixed, with its 90% interval; null
    before three pairs have counted. `share`: of the time from `since` to `until` that is played fixed: its cost."""

    ratio: Annotated[float | None, Field(examples=[1.42])]
    low: Annotated[float | None, Field(examples=[1.37])]
    high: Annotated[float | None, Field(examples=[1.47])]
    pairs: Annotated[int, Field(description="pairs that counted; those with too few steps in a window do not")]
    planned: int
    window_seconds: float
    share: Probability
    against: tuple[str, int]
    since: UnixSeconds
    until: UnixSeconds
    running: bool
    policy_row_seconds: Annotated[float, Field(description="of the pairs that counted, burn-ins left out")]
    fixed_row_seconds: float


@dataclass(frozen=True, slots=True)
class Domain:
    """One domain and regime: how much it was served, how it is accepted, and what is chosen."""

    domain: DomainName
    regime: RegimeName
    tokens: Annotated[int, Field(description="emitted over the pool's life")]
    row_steps: int
    recent: Traffic
    main_load: Annotated[int | None, Field(description="the load most of it was served at recently")]
    curves: list[Curve]
    choices: list[Choice]
    measured: Annotated[Interval | None, Field(description="its own part of the pool's measured gain")] = None


@dataclass(frozen=True, slots=True)
class Switch:
    """A cell whose most probable arm changed; `before` is null for a new cell. Arms are (draft, K)."""

    domain: DomainName
    regime: RegimeName
    load: int
    before: tuple[str, int] | None
    after: tuple[str, int]
    probability: Probability
    reason: str


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """One policy that changed some cell's most probable arm, or another event of the pool's life, in `note`."""

    time: UnixSeconds
    version: PolicyVersion
    note: str | None
    switches: list[Switch]


@dataclass(frozen=True, slots=True)
class Draft:
    """A loaded draft: what it holds and what it brings. `gain`: goodput lost without it, as a share, at the loads and
    the mix served; null before anything was served."""

    draft: DraftName
    memory_bytes: int
    gain: float | None


@dataclass(frozen=True, slots=True)
class Reserve:
    """What a context may still lose by exploring, in steps; `closed`: only arms whose gain is sure are played."""

    domain: DomainName
    regime: RegimeName
    steps: float
    closed: bool


@dataclass(frozen=True, slots=True)
class Gate:
    """The safety gate of a pool: its own reserve, at most `budget` steps, and those of its contexts."""

    budget: float
    steps: float
    closed: bool
    contexts: list[Reserve]


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool as of `time`, when its last commit was written. `disagreement`: which engines are unlike, and how.

    `counts`: sums of the pool's whole life by (domain, regime); `reported`: of live engines, as far as metrics go.
    `note`: what the mode cannot tell, or None.
    """

    pool: str
    time: UnixSeconds
    mode: str
    target: str
    drafts: list[Draft]
    k_values: list[int]
    changes: Annotated[int, Field(description="abrupt changes of acceptance found; the history before was dropped")]
    version: PolicyVersion | None
    expires: UnixSeconds | None
    policy: bytes | None
    last_frame: UnixSeconds | None
    frames: Frames
    evidence: Evidence
    traffic: PoolTraffic
    disagreement: str | None
    engines: list[Engine]
    domains: list[Domain]
    decisions: int
    switches: int
    records: list[DecisionRecord] = field(default_factory=list)
    measured: Measured | None = None
    gate: Gate | None = None
    counts: dict[tuple[str, str], Sums] = field(default_factory=dict)
    reported: list[Reported] = field(default_factory=list)
    note: str | None = None
