"""The wire: every message that engines and controllers exchange through Redis.

All messages are JSON objects with short, fixed field names (`docs/reference/wire.md` explains each one for a
reader who has never seen this code). Counters are cumulative since the engine's incarnation started; the
controller takes differences, so a lost, delayed or repeated frame is harmless while the engine lives.

>>> cell = AcceptanceCell("code", "greedy", "ngram", "policy", seen=[3, 2], accepted=[2, 1], drafted=[3, 3])
>>> decode_frame(encode(Frame("e", "i", 1, 2.0, 3.0, acceptance=[cell]))).acceptance[0].accepted
[2, 1]
"""

import math
from functools import cache
from typing import Annotated, Literal

import msgspec

WIRE_VERSION = 1

# Constrained scalars. Labels come from users: bounded, never empty, no control characters.
Label = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f\x7f]+$(?!\n)")]
POOL_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"  # part of keys, addresses and labels: no spaces, no slashes
POOL_NAMES = "text of 1 to 64 letters, digits, '.', '_' or '-', the first no sign"
PoolName = Annotated[str, msgspec.Meta(pattern=rf"^{POOL_NAME}$(?!\n)", extra={"allowed": POOL_NAMES})]
Count = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]

Regime = Literal["greedy", "sampled"]
Origin = Literal["policy", "request", "limit", "probe"]
Variant = Literal["static", "adaptive", "probe"]
Mode = Literal["off", "shadow", "shadow+probe", "canary", "on"]
BreakerState = Literal["closed", "open", "half-open"]

NO_DRAFT = "none"
OTHER = "other"
MAX_K = 32

# Version of a policy: (epoch of the lease, number within it), ordered lexicographically.
Version = tuple[Count, Count]


class Message(msgspec.Struct, frozen=True):
    """Base of every wire struct: immutable, unknown fields ignored so that older readers keep working."""


class DraftInfo(Message, frozen=True):
    """A draft the engine has loaded: its kind, the largest K it was prepared for, and the memory it holds (bytes)."""

    name: Label
    kind: Literal["ngram", "model", "eagle", "other"]
    max_k: Annotated[int, msgspec.Meta(ge=1, le=MAX_K)]
    memory_bytes: Count = 0


class StaticChoice(Message, frozen=True):
    """The operator's fixed answer, used whenever there is no valid policy."""

    draft: Label = NO_DRAFT
    k: Annotated[int, msgspec.Meta(ge=0, le=MAX_K)] = 0


class EngineDescription(Message, frozen=True):
    """What an engine is. Sent with every full frame; engines of one pool agree on target and hardware,
    and drafts of one name are of one kind.

    `switches`: a request's draft may change between two of its steps; else it stays as drawn at admission.
    """

    software: str
    target: str
    hardware: str
    drafts: list[DraftInfo]
    k_values: list[Annotated[int, msgspec.Meta(ge=0, le=MAX_K)]]
    static: StaticChoice
    max_batch: Annotated[int, msgspec.Meta(ge=1)]
    switches: bool = False


class AcceptanceCell(Message, frozen=True):
    """Per draft position i (index 0 is position 1): times its outcome was seen, and times it was accepted.

    Position i is *seen* in a step when tokens 1..i-1 were all accepted, i <= K, and the step was not cut (stop token,
    length, grammar) before i was decided. `accepted[i] <= seen[i]`, and `seen[i + 1] <= accepted[i]`. `drafted`: times
    position i was asked of the draft (i <= K), `drafted[i] >= seen[i]`; empty where the engine does not count it.
    """

    domain: Label
    regime: Regime
    draft: Label
    origin: Origin
    seen: list[Count]
    accepted: list[Count]
    drafted: list[Count] = []


class MomentCell(Message, frozen=True):
    """Clustered second moments over *segments* (a request's steps that feed the curve, closed at its end or every 64).

    With s and a the counts seen and accepted of one segment: `segments` is their number and the lists hold, per
    position, the sums over segments of s, a, s*s, s*a, a*a. `total_*` are the same with s and a summed over positions.
    """

    domain: Label
    regime: Regime
    draft: Label
    segments: Count
    s: list[Count]
    a: list[Count]
    ss: list[Count]
    sa: list[Count]
    aa: list[Count]
    total_s: Count
    total_a: Count
    total_ss: Count
    total_sa: Count
    total_aa: Count


class CostCell(Message, frozen=True):
    """Seconds of completed steps, and the sums that a linear regression of seconds on x needs.

    Key: the sorted names of the drafts that ran (empty: none), the load bucket of the decode batch (its lower bound),
    the drafting passes (largest K of the batch) and the prefill bucket (its lower bound, tokens). `other` marks the
    overflow cell. x = (tokens verified, prefill tokens, resident KV tokens, then per draft in order: tokens drafted,
    passes). `sxx` is the upper triangle of sum(x xT), row by row. `hist` maps a bucket of `histogram_bucket` to steps.
    A step that took over 8x its cell's running mean (after 16 steps) is a stall: it counts in `hist`, `stalls` and
    `stall_seconds` only, so that one pause of the machine does not bend the regression. After 4 stalls in a row in one
    cell the next such step is ordinary: the machine has become slower, and the cell has to follow.
    The overflow cell has `drafts` = [], `batch` = `passes` = `prefill` = 0 and x = (verified, prefill, KV) only.
    """

    drafts: list[Label]
    batch: Count
    passes: Count
    prefill: Count
    count: Count
    seconds: Seconds
    seconds_sq: Seconds
    sx: list[float]
    sxx: list[float]
    sxy: list[float]
    hist: dict[str, Count] = {}
    stalls: Count = 0
    stall_seconds: Seconds = 0.0
    other: bool = False


class AccountCell(Message, frozen=True):
    """What was earned and spent: each row of a step is charged the whole step's seconds."""

    domain: Label
    regime: Regime
    load: Count
    variant: Variant
    row_steps: Count
    tokens: Count
    row_seconds: Seconds


class Frame(Message, frozen=True):
    """One report of one engine incarnation. Cells hold absolute values; a full frame holds all of them.

    `time`: engine clock, seconds since the incarnation started. `unix`: wall clock, seconds. `applied`: version of the
    policy in force, or null; `policy_age`: seconds since that was issued. `running`, `waiting`: requests now. `lost`:
    steps the reporter could not record.
    """

    engine: Label
    incarnation: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    seq: Count
    time: Seconds
    unix: Seconds
    v: int = WIRE_VERSION
    full: bool = False
    describe: EngineDescription | None = None
    applied: Version | None = None
    breaker: BreakerState = "closed"
    running: Count = 0
    waiting: Count = 0
    steps: Count = 0
    lost: Count = 0
    acceptance: list[AcceptanceCell] = []
    moments: list[MomentCell] = []
    cost: list[CostCell] = []
    account: list[AccountCell] = []
    final: bool = False
    policy_age: Seconds | None = None


class DraftChoice(Message, frozen=True):
    """One draft in one policy cell. `p`: probability that a non-adaptive request admitted now gets it. `k`: pairs (K,
    probability given this draft), K ascending, probabilities summing to 1. `alpha`, `beta`: the domain's acceptance
    posterior by position (Beta counts). `seconds`: pairs (K, expected step seconds at this load with this row at K)."""

    draft: Label
    p: Share
    k: list[tuple[Annotated[int, msgspec.Meta(ge=0, le=MAX_K)], Share]]
    alpha: list[float] = []
    beta: list[float] = []
    seconds: list[tuple[int, Seconds]] = []


class PolicyCell(Message, frozen=True):
    """The answer for one (domain, regime, load bucket). `load` is the bucket's lower bound.

    `draw`: the quantile of the drafts' probabilities, in the order listed, that every non-adaptive request admitted
    under this version takes; none: each draws its own. Rows of a batch share drafting passes, so one row on another
    draft makes every row wait for it: with p = .2 and eight rows drawn independently, five batches in six pay for both
    drafts; drawn together, one in five pays, for one. Over versions each draft gets its probability.
    """

    domain: Label
    regime: Regime
    load: Count
    drafts: list[DraftChoice]
    nonadaptive: Share = 0.2
    draw: Share | None = None
    expected_speedup: float | None = None


class ProbePlan(Message, frozen=True):
    """Plain probes: after every `every` steps, the whole batch runs `steps` steps without speculation. 0: never."""

    every: Count = 0
    steps: Count = 0


class Policy(Message, frozen=True):
    """A versioned answer for every cell the controller knows, with expiry and fallback.

    `window`: steps for which one uniform draw holds. `allowance`: row-steps per engine that may be spent on arms other
    than a cell's most probable one under this version; once spent, and when stale (past the middle between `issued`
    and `expires`), engines exploit. `share`: of requests, drawn at admission, that follow the policy in the modes
    `canary` and `shadow+probe`. The same version with a later `expires` prolongs the policy in force.
    """

    pool: Label
    version: Version
    issued: Seconds
    expires: Seconds
    static: StaticChoice
    k_values: list[Annotated[int, msgspec.Meta(ge=0, le=MAX_K)]]
    cells: list[PolicyCell]
    v: int = WIRE_VERSION
    mode: Mode = "on"
    window: Annotated[int, msgspec.Meta(ge=1)] = 64
    allowance: Count = 0
    probe: ProbePlan = ProbePlan()
    share: Share = 0.01


class OfferCell(Message, frozen=True):
    """What a pool would do for one more request of a domain and regime, at its present load.

    `goodput`: tokens a second that the request would get under the pool's most probable arm, (draft, k); `sd`: its
    relative standard deviation; `speedup`: over plain decoding there. `effective`: independent observations that
    the draft's acceptance here rests on, 0 without a draft.
    """

    domain: Label
    regime: Regime
    draft: Label
    k: Annotated[int, msgspec.Meta(ge=0, le=MAX_K)]
    goodput: Annotated[float, msgspec.Meta(gt=0)]
    sd: Annotated[float, msgspec.Meta(ge=0)]
    speedup: Annotated[float, msgspec.Meta(gt=0)]
    effective: Annotated[float, msgspec.Meta(ge=0)]


class Offer(Message, frozen=True):
    """What one pool has to offer a router, as its controller last computed it (`computed`: wall clock, seconds).

    `load`: lower bound of the load bucket the numbers are for, that of the pool's mean batch lately. `engines`: alive.
    `cells` is empty while no step of the pool has been timed. The key vanishes when no frame comes any more.
    """

    pool: Label
    target: str
    computed: Seconds
    load: Count
    engines: Count
    cells: list[OfferCell]
    v: int = WIRE_VERSION


_encoder = msgspec.json.Encoder()
_frame_decoder = msgspec.json.Decoder(Frame)
_policy_decoder = msgspec.json.Decoder(Policy)
_offer_decoder = msgspec.json.Decoder(Offer)


def encode(message: Message) -> bytes:
    """The message as one JSON object, UTF-8."""
    return _encoder.encode(message)


def decode_frame(data: bytes) -> Frame:
    """Parse and check a frame. Raises `msgspec.DecodeError` / `msgspec.ValidationError` naming the field."""
    return _frame_decoder.decode(data)


def decode_policy(data: bytes) -> Policy:
    """Parse and check a policy. Raises `msgspec.DecodeError` / `msgspec.ValidationError` naming the field."""
    return _policy_decoder.decode(data)


def decode_offer(data: bytes) -> Offer:
    """Parse and check an offer. Raises `msgspec.DecodeError` / `msgspec.ValidationError` naming the field."""
    return _offer_decoder.decode(data)


HALVED_FROM = 16  # batch from which a load bucket spans half an octave


def load_bucket(batch: int) -> int:
    """Lower bound of the load bucket of a decode batch of `batch` rows: 1, 2-3, 4-7, 8-15, then half an octave each:
    16-23, 24-31, 32-47, 48-63, ...; 0 rows: 0.

    Where verified tokens cost what they weigh the best K falls with 1 / batch: over a whole octave the best single
    answer loses up to 5% to one that knows the batch, over half of one 1-2% (at 512 rows of the scenario `busy`).

    >>> [load_bucket(b) for b in (0, 1, 2, 3, 4, 7, 15, 16, 23, 24, 47, 48, 513)]
    [0, 1, 2, 2, 4, 4, 8, 16, 16, 24, 32, 48, 512]
    """
    if batch < 0:
        raise ValueError(f"batch is {batch}; a number of rows is 0 or more")
    if batch < HALVED_FROM:
        return 1 << (batch.bit_length() - 1) if batch else 0
    half = 1 << (batch.bit_length() - 2)
    return half * (batch // half)


@cache
def load_buckets(largest: int) -> tuple[int, ...]:
    """The load buckets of batches 1 to `largest`, by lower bound.

    >>> load_buckets(50)
    (1, 2, 4, 8, 16, 24, 32, 48)
    """
    octaves = [1 << i for i in range(largest.bit_length())]
    halved = [low for octave in octaves if octave >= HALVED_FROM for low in (octave, octave + octave // 2)]
    return tuple(low for low in [*(o for o in octaves if o < HALVED_FROM), *halved] if low <= largest)


PREFILL_BUCKETS = (0, 1, 64, 256, 1024, 4096)


def prefill_bucket(tokens: int) -> int:
    """Lower bound of the prefill bucket: 0, 1-63, 64-255, 256-1023, 1024-4095, 4096 and more.

    >>> [prefill_bucket(n) for n in (0, 1, 63, 64, 5000)]
    [0, 1, 1, 64, 4096]
    """
    return max(b for b in PREFILL_BUCKETS if b <= tokens)


def passes_bucket(passes: int) -> int:
    """Drafting passes as used in a cost key: exact up to 8, then the lower bound of 9-11, 12-15, 16-23, 24 and more.

    >>> [passes_bucket(n) for n in (0, 8, 9, 13, 40)]
    [0, 8, 9, 12, 24]
    """
    return passes if passes <= 8 else max(b for b in (9, 12, 16, 24) if b <= passes)


HISTOGRAM_PER_OCTAVE = 8
HISTOGRAM_FIRST_SECONDS = 1e-6
HISTOGRAM_LAST = 255


def histogram_bucket(seconds: float) -> int:
    """Bucket of a step's seconds: floor(8 log2(seconds / 1 us)), held in 0..255, so that edges lie 9% apart.

    >>> [histogram_bucket(s) for s in (0.0, 1e-6, 2e-6, 0.05, 1e9)]
    [0, 0, 8, 124, 255]
    """
    if seconds <= HISTOGRAM_FIRST_SECONDS:
        return 0
    return min(HISTOGRAM_LAST, int(HISTOGRAM_PER_OCTAVE * math.log2(seconds / HISTOGRAM_FIRST_SECONDS)))


def histogram_seconds(bucket: int) -> float:
    """Lower edge of a bucket in seconds: 1 us * 2^(bucket / 8); the bucket's upper edge is that of `bucket + 1`.

    >>> round(histogram_seconds(124), 4), round(histogram_seconds(125), 4)
    (0.0463, 0.0505)
    """
    return HISTOGRAM_FIRST_SECONDS * float(2 ** (bucket / HISTOGRAM_PER_OCTAVE))


class Keys:
    """Names of a pool's Redis keys. The hash tag {pool} keeps them on one Cluster slot, as the commit script needs.

    >>> Keys("p").frames
    'akc:{p}:frames'
    """

    POOLS = "akc:pools"  # set of pool names; the only key outside a hash tag

    def __init__(self, pool: str) -> None:
        base = f"akc:{{{pool}}}"
        self.frames = f"{base}:frames"  # stream, field "frame": a Frame
        self.policy = f"{base}:policy"  # string: a Policy
        self.offer = f"{base}:offer"  # string with expiry: an Offer
        self.hint = f"{base}:hint"  # pub/sub channel: "the policy changed", payload ignored
        self.lease = f"{base}:lease"  # string: fencing token (epoch) of the controller that owns the pool, with expiry
        self.checkpoint = f"{base}:checkpoint"  # hash: state, last_id, epoch, n, number, schema, saved, fence
        self.unread = f"{base}:unread"  # string: the last state a controller could not read and learned anew beside
        self.dead = f"{base}:dead"  # stream: unreadable frames with the reason
        self.orders = f"{base}:orders"  # hash: revision, orders (controller.steering.Orders as JSON)
        self.history = f"{base}:history"  # stream, field "sample": controller.history.Sample as JSON
        self.audit = f"{base}:audit"  # stream, field "entry": changes of policy
        self.acts = f"{base}:acts"  # stream, field "entry": operators' acts, which changes of policy must not push out
