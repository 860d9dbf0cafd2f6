"""Unseen scenarios of a known kind: everything numeric in a scenario moved at random, what it is about kept.

A learner that was tuned on a scenario file may fit its numbers. Variants tell: same kind, other numbers, one a seed.
"""

import zlib
from collections.abc import Mapping

import msgspec
import numpy as np

from simulations.clairvoyant import Clairvoyant
from simulations.luck import Array
from simulations.policy import NO_DRAFT
from simulations.scenario import (
    AcceptanceChange,
    Alternating,
    Bursts,
    Constant,
    CostChange,
    Curve,
    Domain,
    Draft,
    Event,
    Falling,
    Load,
    Noise,
    Ramp,
    Scenario,
    ScenarioError,
    ShareChange,
    Sine,
    Target,
)
from simulations.timeline import Timeline

SHIFT = 0.4  # log-odds; of a draft everywhere, and again of a draft in a domain
PRICE, DECAY, TRAFFIC, NOISE, WHEN = 1.5, 1.5, 1.5, 1.4, 1.1  # largest factors; the least ones are their inverses
_FEW = 8  # domains up to which it is kept which of them agree on a draft
_PATIENCE = 20  # draws before the ranges are halved
_DRAWS = 12 * _PATIENCE


def variant(scenario: Scenario, seed: int) -> Scenario:
    """The variant of a seed, the same one every time. Ranges, log-uniform for factors and uniform for shifts:

    * acceptance: log-odds of every position shifted by up to 0.4 for a draft in all domains and 0.4 more for a draft in
      a domain, events included; 1 - decay times 1/1.5 to 1.5. A dip stays one, since a shift keeps the order;
    * prices times 1/1.5 to 1.5, apart for the target (with its price of a token), its overhead, the roofline's bend
      (where it bends at more than one token), each draft's pass and token, and prompts;
    * traffic shares, output and prompt lengths, spread, numbers of rows above 1, and the share of wrong labels (at most
      1): times 1/1.5 to 1.5; alternating batches keep their distance. Noise times 1/1.4 to 1.4;
    * events: all at 1/1.1 to 1.1 of their steps; a slow change takes 1/1.5 to 1.5 of its time; a price that changes
      does so by its factor to the power 1/1.5 to 1.5, so dearer stays dearer.

    Names, steps, K, engines and the static choice stay. A draw of another `kind` is drawn again, and after every 20
    draws the ranges are halved, so that narrow kinds have variants too. Raises `ScenarioError` where none is found.

    >>> from simulations.load import load
    >>> dip = load("dip")
    >>> variant(dip, 1) == variant(dip, 1), variant(dip, 1) == variant(dip, 2), kind(variant(dip, 1)) == kind(dip)
    (True, False, True)
    """
    wanted = kind(scenario)
    for draw in range(_DRAWS):
        rng = np.random.default_rng([seed, draw, zlib.crc32(scenario.name.encode())])
        drawn = _Draw(rng, 0.5 ** (draw // _PATIENCE)).scenario(scenario, f"{scenario.name[:48]}-variant-{seed}")
        if kind(drawn) == wanted:
            return drawn
    raise ScenarioError(f"{scenario.name}: none of {_DRAWS} draws for seed {seed} is of the same kind")


def kind(scenario: Scenario) -> tuple[tuple[int, bool], ...]:
    """What a scenario is about, as the clairvoyant sees it: (class of the best draft, beyond a dip), for every phase
    with all its changes done, the least and the largest number of rows, and every domain that has these rows alone.

    Classes number the best drafts in the order in which they come up, -1: plain decoding is best. So it is kept where
    speculation pays, and which domains, loads and phases agree on a draft; with more than 8 domains only the former.
    The second entry says whether the best K reaches beyond the lowest position of the best draft's curve, where that
    lies inside the curve.
    """
    timeline = Timeline(scenario)
    clairvoyant = Clairvoyant(timeline)
    done = {event.step + (event.over if isinstance(event, AcceptanceChange) else 0) for event in scenario.events}
    phases = sorted({0, *(timeline.phase_at(min(step, scenario.steps - 1)) for step in done)})
    number: dict[int, int] = {}
    found = []
    for phase in phases:
        for rows in (int(timeline.rows.min()), timeline.max_batch):
            for d, domain in enumerate(scenario.domains.values()):
                alone = np.zeros(len(timeline.domains), dtype=np.intp)
                alone[d] = rows
                best = clairvoyant.best(phase, alone)
                draft, k = int(best.draft[d]), int(best.k[d])
                if draft == NO_DRAFT or k == 0:
                    found.append((-1, False))
                    continue
                same = number.setdefault(draft, len(number)) if len(scenario.domains) <= _FEW else 0
                found.append((same, _beyond(domain.acceptance[timeline.drafts[draft]], k)))
    return tuple(found)


def _beyond(curve: Curve, k: int) -> bool:
    """Whether K draft tokens reach past a dip.

    >>> _beyond((0.9, 0.5, 0.8), 4), _beyond((0.9, 0.5, 0.8), 1), _beyond((0.9, 0.8, 0.5), 4)
    (True, False, False)
    """
    if isinstance(curve, Falling):
        return False
    low = int(np.argmin(curve))
    return 0 < low < len(curve) - 1 and k > low + 1


def shifted(probability: float, by: float) -> float:
    """A probability with its log-odds moved; 0 and 1 stay.

    >>> round(shifted(0.5, float(np.log(3.0))), 12), shifted(1.0, -2.0)  # odds 1 become 3
    (0.75, 1.0)
    """
    if not 0.0 < probability < 1.0:
        return probability
    odds = probability / (1.0 - probability) * float(np.exp(by))
    return odds / (1.0 + odds)


class _Draw:
    """One draw; `width` 1: the full ranges, 0: no change."""

    def __init__(self, rng: np.random.Generator, width: float) -> None:
        self.rng, self.width = rng, width

    def factor(self, most: float) -> float:
        return float(most ** self.rng.uniform(-self.width, self.width))

    def shift(self, shape: tuple[int, ...]) -> Array:
        return self.rng.uniform(-SHIFT * self.width, SHIFT * self.width, shape)

    def whole(self, number: int, factor: float) -> int:
        return max(1, round(number * factor)) if number > 1 else number

    def scenario(self, s: Scenario, name: str) -> Scenario:
        shift = self.shift((1, len(s.drafts))) + self.shift((len(s.domains), len(s.drafts)))
        by = {(d, j): float(shift[at, to]) for at, d in enumerate(s.domains) for to, j in enumerate(s.drafts)}
        rows, when = self.factor(TRAFFIC), self.factor(WHEN)
        return msgspec.structs.replace(
            s,
            name=name,
            mislabelled=min(1.0, s.mislabelled * self.factor(TRAFFIC)),
            target=self.target(s.target),
            drafts={name: self.draft(draft) for name, draft in s.drafts.items()},
            domains={name: self.domain(name, domain, by) for name, domain in s.domains.items()},
            load=tuple(_rows(phase, rows) for phase in s.load),
            events=tuple(self.event(event, s, by, when) for event in s.events),
            noise=self.noise(s.noise),
        )

    def target(self, target: Target) -> Target:
        price, bend, overhead = self.factor(PRICE), self.factor(PRICE), self.factor(PRICE)
        if target.seconds_per_token >= target.memory_seconds:
            bend = 1.0
        return Target(
            memory_seconds=target.memory_seconds * price,
            seconds_per_token=target.seconds_per_token * price / bend,
            overhead=target.overhead * overhead,
        )

    def draft(self, draft: Draft) -> Draft:
        return msgspec.structs.replace(
            draft,
            seconds_per_pass=draft.seconds_per_pass * self.factor(PRICE),
            seconds_per_token=draft.seconds_per_token * self.factor(PRICE),
        )

    def domain(self, name: str, domain: Domain, by: Mapping[tuple[str, str], float]) -> Domain:
        curves = {draft: self.curve(curve, by[name, draft]) for draft, curve in domain.acceptance.items()}
        return msgspec.structs.replace(
            domain,
            acceptance=curves,
            share=domain.share * self.factor(TRAFFIC),
            output=max(1.0, domain.output * self.factor(TRAFFIC)),
            prompt=self.whole(domain.prompt, self.factor(TRAFFIC)),
            spread=None if domain.spread is None else domain.spread * self.factor(TRAFFIC),
        )

    def curve(self, curve: Curve, by: float) -> Curve:
        if isinstance(curve, Falling):
            decay = max(0.01, 1.0 - (1.0 - curve.decay) * self.factor(DECAY))
            return Falling(first=shifted(curve.first, by), decay=decay)
        return tuple(shifted(rate, by) for rate in curve)

    def event(self, event: Event, s: Scenario, by: Mapping[tuple[str, str], float], when: float) -> Event:
        step = min(max(1, round(event.step * when)), s.steps - 1)
        match event:
            case AcceptanceChange(draft=draft, domain=domain):
                names = list(s.domains) if domain is None else [domain]
                mean = float(np.mean([by[name, draft] for name in names]))
                over = self.whole(event.over, self.factor(TRAFFIC))
                curve = self.curve(event.acceptance, mean)
                return msgspec.structs.replace(event, step=step, over=over, acceptance=curve)
            case CostChange(factor=factor):
                return msgspec.structs.replace(event, step=step, factor=factor ** self.factor(PRICE))
            case ShareChange(share=share):
                return msgspec.structs.replace(event, step=step, share=share * self.factor(TRAFFIC))
        return msgspec.structs.replace(event, step=step)

    def noise(self, noise: Noise) -> Noise:
        return msgspec.structs.replace(
            noise,
            sigma=min(2.0, noise.sigma * self.factor(NOISE)),
            prefill_seconds_per_token=noise.prefill_seconds_per_token * self.factor(PRICE),
        )


def _rows(phase: Load, factor: float) -> Load:
    """The phase with its numbers of rows above 1 multiplied.

    >>> _rows(Alternating(batches=(4, 5)), 1.5).batches, _rows(Ramp(first=1, last=512), 0.75).last
    ((6, 7), 384)
    """

    def times(rows: int) -> int:
        return min(4096, max(2, round(rows * factor))) if rows > 1 else rows

    match phase:
        case Constant(batch=batch):
            return msgspec.structs.replace(phase, batch=times(batch))
        case Ramp(first=first, last=last):
            return msgspec.structs.replace(phase, first=times(first), last=times(last))
        case Sine(low=low, high=high) | Bursts(low=low, high=high):
            return msgspec.structs.replace(phase, low=times(low), high=times(high))
        case Alternating(batches=batches):
            least = min(batches)
            return msgspec.structs.replace(phase, batches=tuple(times(least) + rows - least for rows in batches))
