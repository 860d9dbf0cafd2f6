"""The learner's few knobs, with their ranges, and what the learner is told about the pool."""

from bisect import bisect_right
from dataclasses import dataclass, field
from math import isfinite

from engine.link.messages import MAX_K, NO_DRAFT, DraftInfo, EngineDescription, StaticChoice, load_buckets

DAY = 86_400.0

# name: (lowest, highest) allowed
_RANGES: dict[str, tuple[float, float]] = {
    "draws": (32, 8192),
    "fast_half_life": (1.0, 30 * DAY),
    "slow_half_life": (60.0, 3650 * DAY),
    "memory": (0.0, 1e6),
    "margin": (0.0, 0.2),
    "budget_steps": (0.0, 10_000.0),
    "epsilon": (0.0, 0.2),
    "nonadaptive": (0.01, 1.0),
    "dwell": (0.0, 3600.0),
    "hysteresis": (0.0, 0.1),
    "engine_share": (0.01, 1.0),
    "prune": (0.0, 0.1),
    "sharpness": (1.0, 10.0),
    "window": (1, 1024),
    "max_tpot_p95": (0.0, 3600.0),
    "max_domains": (1, 1024),
}


@dataclass(frozen=True, slots=True)
class LearnerConfig:
    """How the learner behaves; the defaults are meant to stay.

    >>> LearnerConfig(margin=0.5)
    Traceback (most recent call last):
    ...
    ValueError: margin is 0.5; allowed is 0.0 to 0.2
    """

    draws: int = 256  # Thompson draws of a decision
    fast_half_life: float = 1800.0  # seconds; evidence younger than this counts in full
    slow_half_life: float = 14 * DAY  # seconds; how long the slow memory keeps what the fast one let go
    memory: float = 500.0  # the slow memory of a cell is worth at most so many observations
    margin: float = 0.01  # speculation must gain at least this share over plain
    budget_steps: float = 6.0  # B0: steps a domain may lose against plain before its gate closes
    epsilon: float = 0.005  # share of its steps a domain may lose on top, for ever
    nonadaptive: float = 0.2  # share of requests that feed the domain's curve; more while a cell is young
    dwell: float = 10.0  # seconds a most probable arm stays, unless the newcomer is clearly better
    hysteresis: float = 0.005  # the newcomer's least expected gain over the arm it replaces
    engine_share: float = 0.1  # one engine's largest share of a cell's evidence (never less than 1 / engines)
    prune: float = 1 / 64  # arms less probable than this are not played
    sharpness: float = 2.0  # power of an arm's probability of being best that gives its share; 1: Thompson sampling
    window: int = 2  # steps for which an engine's draw of arms holds
    max_tpot_p95: float = 0.0  # seconds a token; bound on the time per output token's 95% quantile, 0: none
    max_domains: int = 64  # further domains are learned as `other`

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if not isfinite(value) or not low <= value <= high:
                raise ValueError(f"{name} is {value}; allowed is {low} to {high}")
        if self.slow_half_life < self.fast_half_life:
            raise ValueError(
                f"slow_half_life is {self.slow_half_life}; allowed is fast_half_life ({self.fast_half_life}) or more"
            )


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """What engines of the pool have loaded. `none` and K = 0 are always possible and need no mention.

    >>> spec = PoolSpec(drafts=(DraftInfo("ngram", "ngram", 4),), k_values=(2, 4, 8), max_batch=8)
    >>> spec.ks, spec.allowed("ngram"), spec.loads, spec.positions
    ((0, 2, 4, 8), (0, 2, 4), (1, 2, 4, 8), 8)
    """

    drafts: tuple[DraftInfo, ...]
    k_values: tuple[int, ...]
    max_batch: int
    static: StaticChoice = field(default_factory=StaticChoice)

    def __post_init__(self) -> None:
        if self.max_batch < 1:
            raise ValueError(f"max_batch is {self.max_batch}; allowed is 1 or more")
        names = [draft.name for draft in self.drafts]
        if len(set(names)) != len(names) or "none" in names:
            raise ValueError(f"drafts are {names}; names must differ, and 'none' is taken")
        bad = [k for k in self.k_values if not 0 <= k <= MAX_K]
        if bad:
            raise ValueError(f"k_values has {bad[0]}; allowed is 0 to {MAX_K}")

    @classmethod
    def from_description(cls, described: EngineDescription) -> "PoolSpec":
        """The specification an engine announced."""
        return cls(tuple(described.drafts), tuple(described.k_values), described.max_batch, described.static)

    @property
    def ks(self) -> tuple[int, ...]:
        """Allowed K, ascending, 0 first."""
        return tuple(sorted({0, *self.k_values}))

    @property
    def static_arm(self) -> tuple[str, int]:
        """The operators' static choice as engines play it, (draft, K): at most its draft's largest K, prepared or not.

        ("none", 0): no speculation. A draft that the pool does not have, or has retired, stays as it was ordered.

        >>> drafts = (DraftInfo("ngram", "ngram", 6), DraftInfo("small", "model", 8))
        >>> orders = ("small", 5), ("ngram", 8), ("ngram", 0), ("big", 2)
        >>> [PoolSpec(drafts, (2, 4, 8), 1, StaticChoice(*order)).static_arm for order in orders]
        [('small', 5), ('ngram', 6), ('none', 0), ('big', 2)]
        """
        draft, k = self.static.draft, self.static.k
        limits = {d.name: d.max_k for d in self.drafts}
        k = min(k, limits.get(draft, k))
        return (draft, k) if k and draft != NO_DRAFT else (NO_DRAFT, 0)

    @property
    def run_ks(self) -> tuple[int, ...]:
        """K that engines run, ascending: the prepared ones, and the static choice's where its draft is loaded."""
        draft, k = self.static_arm
        return tuple(sorted({*self.ks, k})) if any(draft == d.name for d in self.drafts) else self.ks

    @property
    def positions(self) -> int:
        """Largest K that engines run: the length of an acceptance curve (at least 1)."""
        return max(1, *self.run_ks)

    @property
    def loads(self) -> tuple[int, ...]:
        """Load buckets up to the largest batch, by lower bound."""
        return load_buckets(self.max_batch)

    def load_index(self, batch: int) -> int:
        """Index in `loads` of the bucket of a batch, the nearest one for a batch out of range.

        >>> [PoolSpec((), (), max_batch=8).load_index(batch) for batch in (0, 1, 7, 100)]
        [0, 0, 2, 3]
        """
        return bisect_right(self.loads, max(batch, 1)) - 1

    def allowed(self, draft: str) -> tuple[int, ...]:
        """K values the named draft was prepared for. Raises KeyError for a draft the pool does not have."""
        top = {d.name: d.max_k for d in self.drafts}[draft]
        return tuple(k for k in self.ks if k <= top)

    def reach(self, draft: str) -> int:
        """Positions at which the named draft may be asked: up to its largest prepared K, or the static choice's.

        >>> spec = PoolSpec((DraftInfo("ngram", "ngram", 16), DraftInfo("small", "model", 4)), (2, 8), 1,
        ...     StaticChoice("ngram", 9))
        >>> spec.reach("ngram"), spec.reach("small")
        (9, 2)
        """
        static, k = self.static_arm
        return max(self.allowed(draft)[-1], k if static == draft else 0)
