"""Scenarios nobody has tuned anything for: one a seed, from documented ranges."""

import numpy as np

from simulations.scenario import (
    AcceptanceChange,
    Alternating,
    Bursts,
    Constant,
    CostChange,
    Domain,
    Draft,
    Event,
    Falling,
    Load,
    Noise,
    Ramp,
    Scenario,
    Sine,
    Static,
    Target,
)

STEPS = 6000
_NAMES = ("code", "math", "chat", "prose", "translation", "extraction")
_KINDS = ("model", "eagle", "ngram")


def randomised(seed: int) -> Scenario:
    """The scenario of a seed. Ranges, all uniform unless said otherwise:

    * target: a plain step of 8-40 ms, of which 10-50% is overhead; the roofline bends at 16-512 tokens (log-uniform);
    * 1-4 drafts; a pass costs 1-30% of a plain step (log-uniform; n-gram 0.1-1%), a drafted token 0-0.2%;
    * 2-6 domains; shares 0.2-1; outputs 24-128 tokens, prompts 32-512; every other one with a spread of 4-50;
    * acceptance: for each draft a level 0.3-0.9, moved by up to 0.25 in each domain, decay 0.92-1; one curve in five
      dips to 40-70% of itself at position 2;
    * load: batch 1, a constant batch of 2-64 (log-uniform), sine, bursts, ramp or alternating batches;
    * K 0..8, or {0, 2, 4, 8}, or {0, 1, 2, 3, 4, 6, 8, 12}; noise of 2-15%; prompts at 0-0.2 of a token's price;
    * half of the scenarios have one event: an acceptance that becomes another, or a draft 0.5-2 times as dear;
    * one in five mislabels 5-20% of its requests.

    >>> randomised(1) == randomised(1), randomised(1) == randomised(2)
    (True, False)
    """
    rng = np.random.default_rng([seed, 0x5CE])
    step = float(rng.uniform(0.008, 0.040))
    overhead = step * float(rng.uniform(0.1, 0.5))
    bend = _log(rng, 16, 512)
    target = Target(memory_seconds=step - overhead, seconds_per_token=(step - overhead) / bend, overhead=overhead)
    ks = [tuple(range(9)), (0, 2, 4, 8), (0, 1, 2, 3, 4, 6, 8, 12)][int(rng.integers(3))]
    drafts = {f"draft-{j}": _draft(rng, step, max(ks)) for j in range(int(rng.integers(1, 5)))}
    level = {name: float(rng.uniform(0.3, 0.9)) for name in drafts}
    names = _NAMES[: int(rng.integers(2, len(_NAMES) + 1))]
    domains = {name: _domain(rng, level) for name in names}
    first = next(iter(drafts))
    noise = Noise(
        sigma=float(rng.uniform(0.02, 0.15)),
        prefill_seconds_per_token=target.seconds_per_token * float(rng.uniform(0.0, 0.2)),
    )
    return Scenario(
        name=f"random-{seed}",
        about="Drawn at random.",
        steps=STEPS,
        mislabelled=float(rng.uniform(0.05, 0.2)) if rng.random() < 0.2 else 0.0,
        k_values=ks,
        static=Static(draft=first, k=4),
        target=target,
        drafts=drafts,
        domains=domains,
        load=(_load(rng),),
        events=_events(rng, names, level),
        noise=noise,
    )


def _log(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _draft(rng: np.random.Generator, step: float, deepest: int) -> Draft:
    kind = _KINDS[int(rng.integers(len(_KINDS)))]
    price = _log(rng, 0.001, 0.01) if kind == "ngram" else _log(rng, 0.01, 0.3)
    per_token = step * float(rng.uniform(0.0, 0.002))
    return Draft(kind=kind, seconds_per_pass=step * price, seconds_per_token=per_token, max_k=deepest)  # type: ignore[arg-type]  # one of the kinds


def _curve(rng: np.random.Generator, level: float) -> Falling | tuple[float, ...]:
    first = float(np.clip(level + rng.uniform(-0.25, 0.25), 0.05, 0.97))
    if rng.random() < 0.2:
        return (first, first * float(rng.uniform(0.4, 0.7)), first)
    return Falling(first=first, decay=float(rng.uniform(0.92, 1.0)))


def _domain(rng: np.random.Generator, level: dict[str, float]) -> Domain:
    return Domain(
        acceptance={name: _curve(rng, value) for name, value in level.items()},
        share=float(rng.uniform(0.2, 1.0)),
        output=float(rng.uniform(24, 128)),
        prompt=int(rng.integers(32, 513)),
        spread=_log(rng, 4, 50) if rng.random() < 0.5 else None,
    )


def _load(rng: np.random.Generator) -> Load:
    high = round(_log(rng, 2, 64))
    kinds: list[Load] = [
        Constant(batch=1),
        Constant(batch=high),
        Sine(low=1, high=high, period=2000),
        Bursts(low=max(1, high // 8), high=high, every=500, length=100),
        Ramp(first=1, last=high, scale="log", steps=STEPS // 2),
        Alternating(batches=(high, high + 1)),
    ]
    return kinds[int(rng.integers(len(kinds)))]


def _events(rng: np.random.Generator, domains: tuple[str, ...], level: dict[str, float]) -> tuple[Event, ...]:
    if rng.random() < 0.5:
        return ()
    draft = list(level)[int(rng.integers(len(level)))]
    step = int(rng.integers(STEPS // 3, STEPS // 2))
    if rng.random() < 0.5:
        return (CostChange(step=step, of=draft, factor=_log(rng, 0.5, 2.0)),)
    domain = domains[int(rng.integers(len(domains)))]
    return (
        AcceptanceChange(step=step, draft=draft, domain=domain, acceptance=_curve(rng, float(rng.uniform(0.3, 0.9)))),
    )
