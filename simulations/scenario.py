"""What a scenario says: typed, frozen, checked. `load` reads it from TOML; docs/reference/scenarios.md explains it."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

import msgspec

from engine.link.messages import MAX_K, NO_DRAFT, OTHER, Label, Regime

Rate = Annotated[float, msgspec.Meta(ge=0, le=1)]
Cost = Annotated[float, msgspec.Meta(ge=0, le=1000)]
Depth = Annotated[int, msgspec.Meta(ge=0, le=MAX_K)]
Steps = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]
Rows = Annotated[int, msgspec.Meta(ge=1, le=4096)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class ScenarioError(ValueError):
    """A scenario that cannot be played; the message names the key, its value and what is allowed."""


class Falling(msgspec.Struct, frozen=True, kw_only=True):
    """Acceptance `first` at position 1, then `decay` times the one before."""

    first: Rate
    decay: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0


Curve = Annotated[tuple[Rate, ...], msgspec.Meta(min_length=1, max_length=MAX_K)] | Falling


def by_position(curve: Curve, positions: int) -> list[float]:
    """Acceptance at positions 1..n, each given that those before were kept; a short list goes on at its last value.

    >>> by_position(Falling(first=0.8, decay=0.5), 3), by_position((0.9, 0.5), 3)
    ([0.8, 0.4, 0.2], [0.9, 0.5, 0.5])
    """
    if isinstance(curve, Falling):
        return [curve.first * curve.decay**i for i in range(positions)]
    return [curve[min(i, len(curve) - 1)] for i in range(positions)]


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a target step: max(memory_seconds, seconds_per_token * tokens verified) + overhead."""

    memory_seconds: Annotated[float, msgspec.Meta(ge=1e-6, le=1000)]
    seconds_per_token: Cost = 0.0
    overhead: Cost = 0.0


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A loaded draft: seconds of a drafting pass (shared by the batch), of each drafted token, bytes, largest K."""

    kind: Literal["model", "eagle", "ngram"] = "model"
    seconds_per_pass: Cost = 0.0
    seconds_per_token: Cost = 0.0
    memory: Annotated[float, msgspec.Meta(ge=0, le=1e15)] = 0.0
    max_k: Annotated[int, msgspec.Meta(ge=1, le=MAX_K)] = 8


class Domain(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of requests. `share` of traffic (relative); `output`: mean tokens of an answer; `prompt`: tokens.

    `spread`: concentration of the beta distribution of a request's own acceptance around the curve (small: requests
    differ much; left out: all alike). `label`: what the requests are labelled, if not the domain's name.
    """

    acceptance: Mapping[Label, Curve]
    share: Share = 1.0
    output: Annotated[float, msgspec.Meta(ge=1, le=100_000)] = 128.0
    prompt: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 64
    spread: Annotated[float, msgspec.Meta(gt=0, le=1e6)] | None = None
    label: Label | None = None
    regime: Regime = "greedy"


class Constant(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="constant"):
    """Always `batch` rows."""

    batch: Rows
    steps: Steps | None = None


class Ramp(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="ramp"):
    """From `first` rows to `last`; `scale` log: every doubling takes as long."""

    first: Rows
    last: Rows
    scale: Literal["linear", "log"] = "linear"
    steps: Steps | None = None


class Sine(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="sine"):
    """Between `low` and `high` rows, once around in `period` steps, starting low."""

    low: Rows
    high: Rows
    period: Steps
    steps: Steps | None = None


class Bursts(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="bursts"):
    """`low` rows, and `high` for the last `length` of every `every` steps."""

    low: Rows
    high: Rows
    every: Steps
    length: Steps
    steps: Steps | None = None


class Alternating(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="alternating"):
    """The `batches` in turn, each for `every` steps."""

    batches: Annotated[tuple[Rows, ...], msgspec.Meta(min_length=1)]
    every: Steps = 1
    steps: Steps | None = None


Load = Constant | Ramp | Sine | Bursts | Alternating

At = Annotated[int, msgspec.Meta(ge=1)]


class AcceptanceChange(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="acceptance"):
    """From `step` on the acceptance of a draft is another, in one domain or in all; slowly, if `over` so many steps."""

    step: At
    draft: Label
    acceptance: Curve
    domain: Label | None = None
    over: Annotated[int, msgspec.Meta(ge=0)] = 0


class Appears(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="appears"):
    """The draft is loaded from `step` on; without an earlier `disappears` it was not there before."""

    step: At
    draft: Label


class Disappears(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="disappears"):
    """The draft is gone from `step` on; requests that hold it decode plainly to their end."""

    step: At
    draft: Label


class CostChange(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="cost"):
    """From `step` on `of` (a draft, or `target`) takes `factor` times its first price."""

    step: At
    of: Label
    factor: Annotated[float, msgspec.Meta(gt=0, le=1000)]


class ShareChange(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="share"):
    """From `step` on the domain's share of new requests is another; 0 before: the domain is new."""

    step: At
    domain: Label
    share: Share


Event = AcceptanceChange | Appears | Disappears | CostChange | ShareChange


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """`sigma` of the log-normal step seconds (mean 1). Prompt tokens processed in the step that admits a request cost
    `prefill_seconds_per_token` each. With probability `pause_rate` a step takes `pause_seconds` more. All seconds of an
    engine are multiplied by a factor of its own that wanders: its logarithm has standard deviation `wander` around 0
    and a correlation of 1/e between steps `wander_steps` apart (an Ornstein-Uhlenbeck process), as on a machine that
    others use."""

    sigma: Annotated[float, msgspec.Meta(ge=0, le=2)] = 0.05
    prefill_seconds_per_token: Cost = 0.0
    pause_rate: Rate = 0.0
    pause_seconds: Cost = 0.0
    wander: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    wander_steps: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 300.0


class Static(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's hand-tuned choice."""

    draft: Label = NO_DRAFT
    k: Depth = 0


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A pool of engines, their traffic, and what happens to them in `steps` steps of each engine.

    `draft_switching`: whether a request's draft may change after its admission; if so a model draft first reads the
    tokens it missed, in one pass at its price per pass and per token.

    `mislabelled`: share of requests that carry another domain's label. `hostile`: so many engines, the last ones,
    report every drafted token as accepted.
    """

    name: Label
    about: str = ""
    steps: Steps
    engines: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    hostile: Annotated[int, msgspec.Meta(ge=0)] = 0
    mislabelled: Rate = 0.0
    k_values: Annotated[tuple[Depth, ...], msgspec.Meta(min_length=1)]
    draft_switching: bool = True
    static: Static = Static()
    target: Target
    drafts: Mapping[Label, Draft]
    domains: Mapping[Label, Domain]
    load: Annotated[tuple[Load, ...], msgspec.Meta(min_length=1)] = (Constant(batch=1),)
    events: tuple[Event, ...] = ()
    noise: Noise = Noise()

    def __post_init__(self) -> None:
        self._check_names()
        self._check_static()
        for at, event in enumerate(self.events):
            self._check_event(f"events[{at}]", event)
        self._check_shares()
        open_ends = [at for at, phase in enumerate(self.load[:-1]) if phase.steps is None]
        if open_ends:
            raise ScenarioError(f"load[{open_ends[0]}].steps is not set; only the last phase may go on to the end")
        if self.hostile >= self.engines:
            raise ScenarioError(f"hostile is {self.hostile}; allowed: fewer than engines ({self.engines})")

    @property
    def ks(self) -> tuple[int, ...]:
        """Allowed K, ascending, 0 first."""
        return tuple(sorted({0, *self.k_values}))

    def _check_names(self) -> None:
        if {"/", "\\"} & set(self.name):
            raise ScenarioError(f"name is {self.name!r}; allowed: no slashes, since pictures are named after it")
        for table, names, taken in (("drafts", self.drafts, (NO_DRAFT, "target")), ("domains", self.domains, (OTHER,))):
            if not names:
                raise ScenarioError(f"{table} is empty; needed is one at least")
            for name in taken:
                if name in names:
                    raise ScenarioError(f"{table}.{name}: the name is taken; allowed: any but {' and '.join(taken)}")
        for name, domain in self.domains.items():
            for draft in self.drafts:
                if draft not in domain.acceptance:
                    raise ScenarioError(f"domains.{name}.acceptance lacks draft {draft!r}; needed: one curve a draft")
            for draft in domain.acceptance:
                self._known(f"domains.{name}.acceptance", draft, self.drafts)
        if not any(domain.share > 0 for domain in self.domains.values()):
            raise ScenarioError("domains: every share is 0; needed: one above 0 from the first step on")

    def _check_shares(self) -> None:
        """Events of one step come together; after them somebody must still ask."""
        shares = {name: domain.share for name, domain in self.domains.items()}
        changes = sorted((event.step, at) for at, event in enumerate(self.events) if isinstance(event, ShareChange))
        for nth, (step, at) in enumerate(changes):
            event = self.events[at]
            assert isinstance(event, ShareChange)
            shares[event.domain] = event.share
            last = nth + 1 == len(changes) or changes[nth + 1][0] > step
            if last and not any(share > 0 for share in shares.values()):
                raise ScenarioError(f"events[{at}].share is 0, and so is every other; needed: one above 0 at any step")

    def _check_static(self) -> None:
        draft, k = self.static.draft, self.static.k
        if draft != NO_DRAFT:
            self._known("static.draft", draft, self.drafts)
        most = self.drafts[draft].max_k if draft != NO_DRAFT else 0
        allowed = [value for value in self.ks if value <= most]
        if k not in allowed:
            raise ScenarioError(f"static.k is {k}; allowed with draft {draft!r}: {allowed}")

    def _check_event(self, key: str, event: Event) -> None:
        if event.step >= self.steps:
            raise ScenarioError(f"{key}.step is {event.step}; allowed: below steps ({self.steps})")
        match event:
            case AcceptanceChange(draft=draft, domain=domain):
                self._known(f"{key}.draft", draft, self.drafts)
                if domain is not None:
                    self._known(f"{key}.domain", domain, self.domains)
            case Appears(draft=draft) | Disappears(draft=draft):
                self._known(f"{key}.draft", draft, self.drafts)
            case CostChange(of=of):
                self._known(f"{key}.of", of, ["target", *self.drafts])
            case ShareChange(domain=name):
                self._known(f"{key}.domain", name, self.domains)

    @staticmethod
    def _known(key: str, name: str, names: Iterable[str]) -> None:
        allowed = list(names)
        if name not in allowed:
            raise ScenarioError(f"{key} is {name!r}; allowed: {', '.join(map(repr, allowed))}")


def cut(scenario: Scenario, steps: int) -> Scenario:
    """The scenario's first so many steps, without the events that come later."""
    if steps >= scenario.steps:
        return scenario
    events = tuple(event for event in scenario.events if event.step < steps)
    *earlier, last = scenario.load
    if last.steps is None:  # a ramp to the end would become a steeper one
        whole = scenario.steps - sum(phase.steps or 0 for phase in earlier)
        last = msgspec.structs.replace(last, steps=max(whole, 1))
    return msgspec.structs.replace(scenario, steps=steps, events=events, load=(*earlier, last))
