"""A scenario laid out in time: the phases between its events, each with tables of acceptance, tokens and prices.

A request's own acceptance: one quantile q of the request, drawn at admission, is its quantile in the beta distribution
Beta(c m, c (1 - m)) around the curve's m at *every* position and for every draft (c is the domain's spread), so that an
easy request is easy throughout. Requests come in TILTS equally frequent kinds, and a kind's acceptance is the mean of
its part of the distribution: the mean over requests is m at every position, exactly. Among the requests that *reach*
position 2 the easy ones are more frequent, so the acceptance seen there is above m; only position 1 shows the curve.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from scipy.special import betainc, betaincinv

from engine.link.messages import NO_DRAFT as NO_DRAFT_NAME
from engine.link.messages import Regime
from simulations.luck import Array
from simulations.policy import NO_DRAFT, Bools, DraftFacts, Ints, PoolFacts
from simulations.scenario import (
    AcceptanceChange,
    Appears,
    CostChange,
    Disappears,
    Event,
    Scenario,
    ShareChange,
    by_position,
)
from simulations.schedule import batches

TILTS = 32
_DRIFT_PARTS = 16  # an acceptance that changes slowly does so in so many small jumps
_SAMPLED = " (sampled)"


def tilted(mean: float, concentration: float | None) -> Array:
    """Acceptance of the TILTS kinds of requests around the mean, hardest first.

    With x the edges of equally probable parts of Beta(a, b), a = c m, b = c (1 - m), the mean of a part is
    TILTS m (I_x'(a + 1, b) - I_x(a + 1, b)), since p times the density of Beta(a, b) is m times that of Beta(a + 1, b).

    >>> own = tilted(0.8, 4.0)
    >>> float(own.mean().round(12)), bool(own[0] < 0.4 < 0.99 < own[-1])
    (0.8, True)
    """
    if concentration is None or not 0.0 < mean < 1.0:
        return np.full(TILTS, mean)
    a, b = concentration * mean, concentration * (1.0 - mean)
    edges = betaincinv(a, b, np.linspace(0.0, 1.0, TILTS + 1))
    return np.asarray(np.clip(mean * TILTS * np.diff(betainc(a + 1.0, b, edges)), 0.0, 1.0), dtype=np.float64)


def context_name(label: str, regime: Regime) -> str:
    """The name under which policies see a label and a regime.

    >>> context_name("chat", "greedy"), context_name("chat", "sampled")
    ('chat', 'chat (sampled)')
    """
    return label + _SAMPLED if regime == "sampled" else label


def context_of(name: str) -> tuple[str, Regime]:
    """Label and regime of a name.

    >>> context_of("chat (sampled)")
    ('chat', 'sampled')
    """
    return (name.removesuffix(_SAMPLED), "sampled") if name.endswith(_SAMPLED) else (name, "greedy")


@dataclass(frozen=True, slots=True)
class Phase:
    """The world between two events. D domains, J drafts, T kinds of requests, P positions.

    `acceptance` [D, J, T, P]; `tokens` [D, J, T, P + 1]: expected tokens of a step by K; `mean_tokens` [D, J, P + 1]:
    over all kinds. `reach` [D]: running sum of the traffic shares, the last one 1. Prices in seconds, by draft [J].
    """

    begins: int
    acceptance: Array
    tokens: Array
    mean_tokens: Array
    available: Bools
    reach: Array
    memory: float
    per_token: float
    overhead: float
    pass_seconds: Array
    token_seconds: Array

    def seconds(self, rows: int, drafted: Array, passes: Array) -> float:
        """Expected seconds of a decode step; drafted [J]: draft tokens, passes [J]: drafting passes."""
        target = max(self.memory, self.per_token * (rows + float(drafted.sum()))) + self.overhead
        return target + float(passes @ self.pass_seconds + drafted @ self.token_seconds)

    def reading(self, tokens: Array | Ints) -> float:
        """Expected seconds in which drafts read tokens [J] that they did not draft, each draft in one pass."""
        return float((tokens > 0) @ self.pass_seconds + tokens @ self.token_seconds)

    def plain(self, rows: int) -> float:
        """Expected seconds of a plain decode step."""
        return max(self.memory, self.per_token * rows) + self.overhead


def expected_tokens(acceptance: Array) -> Array:
    """1 + survival(1) + ... + survival(K) for K = 0..P; [..., P] -> [..., P + 1].

    >>> expected_tokens(np.array([0.5, 0.5])).tolist()
    [1.0, 1.5, 1.75]
    """
    survival = np.cumsum(np.cumprod(acceptance, axis=-1), axis=-1)
    return np.asarray(1.0 + np.concatenate([np.zeros((*survival.shape[:-1], 1)), survival], axis=-1))


@dataclass
class _State:
    """What events change."""

    means: dict[tuple[int, int], list[float]]
    available: list[bool]
    shares: list[float]
    factors: dict[str, float] = field(default_factory=dict)


class Timeline:
    """A scenario ready to be played: names as numbers, rows by step, phases, what policies are told."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.domains = tuple(scenario.domains)
        self.drafts = tuple(scenario.drafts)
        self.ks = scenario.ks
        self.positions = max(1, *self.ks)
        contexts = [context_name(domain.label or name, domain.regime) for name, domain in scenario.domains.items()]
        self.contexts = tuple(dict.fromkeys(contexts))
        self.context: Ints = np.array([self.contexts.index(name) for name in contexts], dtype=np.intp)
        self.rows = batches(scenario.load, scenario.steps)
        self.max_batch = int(self.rows.max())
        self.limits: Ints = np.array([draft.max_k for draft in scenario.drafts.values()], dtype=np.intp)
        self._tables: dict[tuple[int, tuple[float, ...]], Array] = {}
        self.phases = tuple(self._phases())
        self.begins: Ints = np.array([phase.begins for phase in self.phases], dtype=np.intp)

    @property
    def facts(self) -> PoolFacts:
        """What a policy is told."""
        s = self.scenario
        drafts = tuple(DraftFacts(name, d.kind, d.max_k, d.memory) for name, d in s.drafts.items())
        static = (NO_DRAFT if s.static.draft == NO_DRAFT_NAME else self.drafts.index(s.static.draft), s.static.k)
        return PoolFacts(self.contexts, drafts, self.ks, static, self.max_batch, s.engines, s.draft_switching)

    def phase_at(self, step: int) -> int:
        """Index of the phase that a step belongs to."""
        return int(np.searchsorted(self.begins, step, side="right")) - 1

    def arms(self, phase: Phase) -> list[tuple[int, int]]:
        """(draft, K) that can be played in the phase, (NO_DRAFT, 0) first."""
        arms = [(NO_DRAFT, 0)]
        for j in np.flatnonzero(phase.available).tolist():
            arms += [(j, k) for k in self.ks if 0 < k <= self.limits[j]]
        return arms

    def _phases(self) -> Iterator[Phase]:
        s = self.scenario
        means = {
            (d, j): by_position(domain.acceptance[draft], self.positions)
            for d, domain in enumerate(s.domains.values())
            for j, draft in enumerate(s.drafts)
        }
        first: dict[str, Event] = {}
        for event in sorted(s.events, key=lambda e: e.step):
            if isinstance(event, Appears | Disappears):
                first.setdefault(event.draft, event)
        available = [not isinstance(first.get(draft), Appears) for draft in s.drafts]
        state = _State(means, available, [domain.share for domain in s.domains.values()])
        steps: dict[int, list[Event]] = {}
        for event in s.events:
            for part in _parts(event, s):
                steps.setdefault(part.step, []).append(part)
        yield self._phase(0, state)
        for step in sorted(steps):
            for event in steps[step]:
                self._apply(event, state)
            yield self._phase(step, state)

    def _apply(self, event: Event, state: _State) -> None:
        match event:
            case AcceptanceChange(draft=draft, domain=domain, acceptance=curve, over=left):
                j = self.drafts.index(draft)
                for d in range(len(self.domains)) if domain is None else [self.domains.index(domain)]:
                    goal = np.array(by_position(curve, self.positions))
                    now = np.array(state.means[d, j])
                    # `left` counts the jumps still to come: the last one arrives.
                    state.means[d, j] = (now + (goal - now) / (left + 1)).tolist()
            case Appears(draft=draft):
                state.available[self.drafts.index(draft)] = True
            case Disappears(draft=draft):
                state.available[self.drafts.index(draft)] = False
            case CostChange(of=of, factor=factor):
                state.factors[of] = factor
            case ShareChange(domain=name, share=share):
                state.shares[self.domains.index(name)] = share

    def _phase(self, begins: int, state: _State) -> Phase:
        s = self.scenario
        shape = (len(self.domains), len(self.drafts), TILTS, self.positions)
        acceptance = np.empty(shape)
        for (d, j), means in state.means.items():
            acceptance[d, j] = self._table(d, tuple(means))
        tokens = expected_tokens(acceptance)
        reach = np.cumsum(state.shares)
        target, of = state.factors.get("target", 1.0), state.factors
        return Phase(
            begins,
            acceptance,
            tokens,
            tokens.mean(axis=2),
            np.array(state.available, dtype=bool),
            reach / reach[-1],
            s.target.memory_seconds * target,
            s.target.seconds_per_token * target,
            s.target.overhead * target,
            np.array([draft.seconds_per_pass * of.get(name, 1.0) for name, draft in s.drafts.items()]),
            np.array([draft.seconds_per_token * of.get(name, 1.0) for name, draft in s.drafts.items()]),
        )

    def _table(self, domain: int, means: tuple[float, ...]) -> Array:
        """Acceptance by kind of request and position [T, P]."""
        known = self._tables.get((domain, means))
        if known is None:
            spread = list(self.scenario.domains.values())[domain].spread
            known = self._tables[domain, means] = np.stack([tilted(mean, spread) for mean in means], axis=1)
        return known


def _parts(event: Event, scenario: Scenario) -> list[Event]:
    """The event, or the small jumps it is made of; `over` of a jump counts those that follow it."""
    if not isinstance(event, AcceptanceChange) or not event.over:
        return [event]
    jumps = min(_DRIFT_PARTS, event.over)
    at = [event.step + (i * event.over) // jumps for i in range(jumps)]
    same: Mapping[str, object] = {"draft": event.draft, "domain": event.domain, "acceptance": event.acceptance}
    parts = [AcceptanceChange(step=step, over=jumps - 1 - i, **same) for i, step in enumerate(at)]  # type: ignore[arg-type]  # fields of the same struct
    return [part for part in parts if part.step < scenario.steps]
