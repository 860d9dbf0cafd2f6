"""How scenarios/published-72b.toml was made: `python -m simulations.calibration` finds its numbers again.

Published: speeds of a 72B target alone and with three drafts at K = 5, and an "acceptance rate" for each. Not
published: where the tokens were lost, what a draft costs, which domains there were. Found here: eight numbers (four for
the curves of the best draft, one for how much worse each of the other two is, the part of a pass that does not depend
on size, a mapping between vocabularies) that meet the six published ones and the best K of three domains, under two
rules that leave little room:

* One law of cost for the target and every draft: seconds of a pass = overhead + bytes of weights / bandwidth. The
  target's published speed ties the bandwidth to the overhead, which is then the only free price.
* One curve by domain: draft j keeps survival(i) ** g_j where the best draft keeps survival(i), so (first, decay)
  becomes (first ** g_j, decay ** g_j). A weaker draft is weaker at every position and in every domain alike.

"Acceptance rate" is read as accepted / judged: draft tokens kept, over those kept or rejected; tokens behind the first
rejected one count in neither. `implied_pass` shows what the other reading, accepted / drafted, would mean.
"""

from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from simulations.load import load
from simulations.luck import Array
from simulations.scenario import Falling, Scenario, by_position
from simulations.timeline import Timeline, expected_tokens

SCENARIO = "published-72b"
PLAIN = 21.5  # tokens/s of the target alone
K = 5


class Published(NamedTuple):
    """What was published of a draft at K = 5: `rate` of acceptance, tokens/s. `size`: parameters, in 1e9.

    Sizes as on the model cards: Qwen2.5-0.5B 0.49, Qwen2.5-1.5B 1.54, Llama-3.2-1B 1.23.
    """

    rate: float
    speed: float
    size: float


PUBLISHED = {
    "llama-1b": Published(0.482, 32.8, 1.23),
    "qwen-0.5b": Published(0.746, 58.2, 0.49),
    "qwen-1.5b": Published(0.824, 68.5, 1.54),
}
BEST = "qwen-1.5b"
TARGET_SIZE = 72.7  # 1e9 parameters of Qwen2.5-72B (its model card)
BYTES = 2.0  # of a parameter, bf16
# Chosen, not fitted: shares of requests, how good the best draft's first guess is in code and math, and where the best
# K of each domain shall lie (the middle of 6-8 for code, a little below it for math, of 3-4 for chat).
SHARES = {"code": 0.40, "math": 0.35, "chat": 0.25}
FIRST = {"code": 0.94, "math": 0.93}
BEST_K = {"code": 7.5, "math": 6.5, "chat": 3.5}
_DEEPEST = 12


def accepted_over_judged(expected: float, full: float) -> float:
    """Draft tokens kept / draft tokens judged, from expected tokens E of a step and probability S(K) of keeping all.

    Kept: E - 1. Judged: position i is if the i - 1 before it were kept: 1 + S(1) + ... + S(K - 1) = E - S(K).

    >>> accepted_over_judged(1 + 0.5 + 0.25, 0.25)  # acceptance .5 everywhere, K = 2
    0.5
    """
    return (expected - 1.0) / (expected - full)


def implied_pass(published: Published, *, drafted: bool = False) -> float:
    """Seconds of a drafting pass that the published rate and speed imply, K = 5, all requests alike, flat acceptance.

    The rate is read as accepted / judged, so E = (1 - a^6) / (1 - a), or as accepted / `drafted`, so E = 1 + 5 a.

    >>> [round(1000 * implied_pass(p), 2) for p in PUBLISHED.values()]  # llama-1b, qwen-0.5b, qwen-1.5b
    [2.32, 1.9, 2.09]
    >>> [round(1000 * implied_pass(p, drafted=True), 2) for p in PUBLISHED.values()]
    [11.49, 6.95, 5.65]
    """
    a = published.rate
    expected = 1.0 + K * a if drafted else (1.0 - a ** (K + 1)) / (1.0 - a)
    return (expected / published.speed - 1.0 / PLAIN) / K


class Figures(NamedTuple):
    """Acceptance (accepted / judged) and tokens/s of a fixed draft and K over the whole traffic at batch 1."""

    rate: float
    speed: float


def pooled(tokens: Array, full: Array, share: Array, seconds: float) -> Figures:
    """Figures over domains: tokens [D] expected of a step, full [D] probability of keeping all, share [D] of tokens.

    A domain that keeps fewer tokens takes more steps for them, so it weighs more in the rate: steps ~ share / tokens.

    >>> got = pooled(np.array([1.5, 1.2]), np.array([0.5, 0.2]), np.array([0.5, 0.5]), 0.1)
    >>> round(got.rate, 6), round(got.speed, 6)  # K = 1; 4 steps here, 5 there: 3 kept of 9, 12 tokens in 0.9 s
    (0.333333, 13.333333)
    """
    steps = share / tokens
    steps = steps / steps.sum()
    expected, kept = float(steps @ tokens), float(steps @ full)
    return Figures(accepted_over_judged(expected, kept), expected / seconds)


def figures(scenario: Scenario, draft: str, k: int) -> Figures:
    """What a fixed draft and K give at batch 1, by the simulator's own tables.

    Raises `ValueError` for K = 0, which judges nothing, and for a scenario with a spread: there steps and requests have
    different means.
    """
    timeline = Timeline(scenario)
    phase, j = timeline.phases[0], timeline.drafts.index(draft)
    if k < 1:
        raise ValueError(f"K is {k}; allowed: 1 or more")
    if any(domain.spread is not None for domain in scenario.domains.values()):
        raise ValueError(
            f"scenario {scenario.name}: a domain has a spread; figures are for requests that are all alike"
        )
    tokens = phase.mean_tokens[:, j]
    share = np.array([domain.share * domain.output for domain in scenario.domains.values()])
    drafted = np.where(np.arange(len(timeline.drafts)) == j, float(k), 0.0)
    return pooled(
        tokens[:, k], tokens[:, k] - tokens[:, k - 1], share / share.sum(), phase.seconds(1, drafted, drafted)
    )


def speeds(scenario: Scenario, draft: str) -> dict[str, list[float]]:
    """Tokens/s at batch 1 by domain, for K = 0, 1, ... of the draft."""
    timeline = Timeline(scenario)
    phase, j = timeline.phases[0], timeline.drafts.index(draft)
    ks = range(int(timeline.limits[j]) + 1)
    work = [np.where(np.arange(len(timeline.drafts)) == j, float(k), 0.0) for k in ks]
    seconds = [phase.seconds(1, drafted, drafted) for drafted in work]
    return {name: (phase.mean_tokens[d, j, : len(ks)] / seconds).tolist() for d, name in enumerate(timeline.domains)}


class Fit(NamedTuple):
    """Free numbers: curves of the best draft by domain, exponents by draft, seconds of overhead and of the mapping."""

    curves: dict[str, Falling]
    exponents: dict[str, float]
    overhead: float
    mapping: float

    @property
    def bandwidth(self) -> float:
        """Bytes/s, from the target: 1 / PLAIN = overhead + bytes / bandwidth."""
        return TARGET_SIZE * 1e9 * BYTES / (1.0 / PLAIN - self.overhead)

    def pass_seconds(self, draft: str) -> float:
        """Seconds of a drafting pass; only the draft with a vocabulary of its own pays for the mapping."""
        mapping = self.mapping if draft == "llama-1b" else 0.0
        return self.overhead + PUBLISHED[draft].size * 1e9 * BYTES / self.bandwidth + mapping

    def curve(self, draft: str, domain: str) -> Falling:
        """The draft's curve in the domain."""
        best, g = self.curves[domain], self.exponents[draft]
        return Falling(first=best.first**g, decay=best.decay**g)

    def tokens(self, draft: str, domain: str) -> Array:
        """Expected tokens of a step for K = 0.._DEEPEST."""
        return expected_tokens(np.array(by_position(self.curve(draft, domain), _DEEPEST)))


def _fit(x: Array) -> Fit:
    curves = {
        "code": Falling(first=FIRST["code"], decay=x[0]),
        "math": Falling(first=FIRST["math"], decay=x[1]),
        "chat": Falling(first=x[2], decay=x[3]),
    }
    return Fit(curves, {"llama-1b": x[4], "qwen-0.5b": x[5], BEST: 1.0}, x[6] / 1000, x[7] / 1000)


def misses(x: Array) -> Array:
    """What the fit minimises: relative errors of the six figures in 5%, and of the best K in two tokens.

    The best K is made smooth: the mean of K weighed by exp(goodput / .3%), since near the best goodput is flat.
    """
    fit = _fit(x)
    share = np.array(list(SHARES.values()))
    wrong = []
    for draft, published in PUBLISHED.items():
        tokens = np.array([fit.tokens(draft, domain) for domain in SHARES])
        seconds = 1.0 / PLAIN + K * fit.pass_seconds(draft)
        got = pooled(tokens[:, K], tokens[:, K] - tokens[:, K - 1], share, seconds)
        wrong += [20.0 * np.log(got.rate / published.rate), 20.0 * np.log(got.speed / published.speed)]
    ks = np.arange(_DEEPEST + 1)
    for domain, wanted in BEST_K.items():
        goodput = np.log(fit.tokens(BEST, domain) / (1.0 / PLAIN + ks * fit.pass_seconds(BEST)))
        weight = np.exp((goodput - goodput.max()) / 0.003)
        wrong.append(0.5 * (float(weight @ ks / weight.sum()) - wanted))
    return np.array(wrong)


def solve() -> Fit:
    """The best fit from a fixed start. Order of the unknowns: `_fit`; overhead and mapping in ms there."""
    bounds = ([0.9, 0.9, 0.5, 0.6, 2.0, 1.1, 0.2, 0.0], [0.999, 0.999, 0.9, 0.999, 12.0, 4.0, 2.5, 1.0])
    start = [0.965, 0.95, 0.8, 0.85, 6.0, 1.8, 1.7, 0.1]
    return _fit(least_squares(misses, start, bounds=bounds).x)


def main() -> None:
    """Print what goes into the file, and how well the file meets what was published."""
    fit = solve()
    print(f"overhead {1e3 * fit.overhead:.3f} ms, bandwidth {fit.bandwidth / 1e12:.3f} TB/s, ", end="")
    print(
        f"mapping {1e3 * fit.mapping:.3f} ms, exponents {', '.join(f'{k} {v:.2f}' for k, v in fit.exponents.items())}"
    )
    print(f"[target] memory_seconds = {1.0 / PLAIN - fit.overhead:.5f}, overhead = {fit.overhead:.5f}")
    for draft in PUBLISHED:
        print(f"[drafts] {draft}: seconds_per_pass = {fit.pass_seconds(draft):.5f}")
    for domain in SHARES:
        for draft in PUBLISHED:
            curve = fit.curve(draft, domain)
            print(f"[domains.{domain}.acceptance] {draft} = first {curve.first:.3f}, decay {curve.decay:.3f}")
    scenario = load(SCENARIO)
    print(f"\n{'at K = 5':<10} {'rate':>6} {'file':>6} {'':>6}  {'tok/s':>5} {'file':>5}")
    for draft, published in PUBLISHED.items():
        got = figures(scenario, draft, K)
        errors = [f"{100 * (a / b - 1):+.1f}%" for a, b in zip(got, published[:2], strict=True)]
        print(f"{draft:<10} {published.rate:6.3f} {got.rate:6.3f} {errors[0]:>6}  ", end="")
        print(f"{published.speed:5.1f} {got.speed:5.1f} {errors[1]:>6}")
    for draft in PUBLISHED:
        for domain, by_k in speeds(scenario, draft).items():
            print(f"{draft:<10} {domain}: best K {int(np.argmax(by_k))}; tok/s {' '.join(f'{x:.1f}' for x in by_k)}")


if __name__ == "__main__":
    main()
