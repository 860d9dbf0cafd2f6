"""Policies beside each other: the summaries of many seeds as medians, intervals and worst cases."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Literal

import msgspec
import numpy as np

from simulations.luck import Array
from simulations.result import MARKS, Summary

Kind = Literal["ours", "rival", "yardstick"]
HINDSIGHT = "best fixed"
_RESAMPLES = 2000
_COVERED = (2.5, 97.5)


class Spread(msgspec.Struct, frozen=True):
    """Over seeds: median, mean with its 95% bootstrap interval, and the worst seed's value."""

    median: float
    mean: float
    low: float
    high: float
    worst: float


class DomainRow(msgspec.Struct, frozen=True):
    """One domain over seeds. `shares`: medians by mark; `top`: the arm on which most seeds end, `agreed` of them."""

    steps: float
    shares: dict[int, float | None]
    later: Spread | None
    top: tuple[str, int] | None
    agreed: float


class PolicyRow(msgspec.Struct, frozen=True):
    """One policy over seeds; see `Summary`. `kind`: yardsticks know what no policy can know beforehand, or switch one
    way only. `runs`: the policy of its summaries, another than `policy` for the hindsight row only."""

    policy: str
    runs: str
    kind: Kind
    seeds: int
    goodput: Spread
    speedup: Spread
    share: Spread
    shares: dict[int, Spread | None]
    regret: dict[int, Spread | None]
    worst_window: Spread
    first_window: Spread
    switches: Spread
    decided: Spread | None
    domains: dict[str, DomainRow]
    recovered: dict[str, float | None]  # "step STEP: DRAFT in DOMAIN" -> median steps, None where half never did


class Comparison(msgspec.Struct, frozen=True):
    """One scenario: a row by policy, best goodput first, and all summaries."""

    scenario: str
    rows: list[PolicyRow]
    summaries: list[Summary]


def spread(values: Iterable[float], *, high_is_good: bool = True) -> Spread:
    """Median, bootstrapped mean and worst of the seeds' values.

    Percentile bootstrap (Efron 1979, Bootstrap methods: another look at the jackknife) with a generator of its own.

    >>> spread([1.0, 1.0, 4.0]).median, spread([1.0, 1.0, 4.0]).mean, spread([1.0, 1.0, 4.0]).worst
    (1.0, 2.0, 1.0)
    """
    x: Array = np.array(list(values), dtype=np.float64)
    means = np.random.default_rng(0).choice(x, size=(_RESAMPLES, len(x))).mean(axis=1)
    low, high = np.percentile(means, _COVERED)
    worst = x.min() if high_is_good else x.max()
    return Spread(float(np.median(x)), float(x.mean()), float(low), float(high), float(worst))


def compare(scenario: str, summaries: list[Summary], kinds: dict[str, Kind]) -> Comparison:
    """The table of a scenario; `kinds` by policy (rival if not there).

    Of the fixed arms (`fixed:DRAFT:K`) only the best over all seeds gets a row, as the yardstick HINDSIGHT.
    """
    by_policy: dict[str, list[Summary]] = defaultdict(list)
    for summary in summaries:
        if summary.scenario == scenario:
            by_policy[summary.policy].append(summary)
    fixed = {name: runs for name, runs in by_policy.items() if name.startswith("fixed:")}
    rows = [_row(name, kinds.get(name, "rival"), runs) for name, runs in by_policy.items() if name not in fixed]
    if fixed:
        best = max(fixed, key=lambda name: float(np.mean([run.share for run in fixed[name]])))
        rows.append(_row(f"{HINDSIGHT} ({best.removeprefix('fixed:').replace(':', ' K=')})", "yardstick", fixed[best]))
    rows.sort(key=lambda row: -row.share.median)
    return Comparison(scenario, rows, [s for runs in by_policy.values() for s in runs])


def _row(name: str, kind: Kind, runs: list[Summary]) -> PolicyRow:
    def marked(values: str, high_is_good: bool) -> dict[int, Spread | None]:
        found: dict[int, Spread | None] = {}
        for mark in MARKS:
            known = [getattr(run, values)[mark] for run in runs]
            found[mark] = None if None in known else spread(known, high_is_good=high_is_good)
        return found

    decided = [run.decided for run in runs if run.decided is not None]
    return PolicyRow(
        policy=name,
        runs=runs[0].policy,
        kind=kind,
        seeds=len(runs),
        goodput=spread(run.goodput for run in runs),
        speedup=spread(run.speedup for run in runs),
        share=spread(run.share for run in runs),
        shares=marked("shares", True),
        regret=marked("regret", False),
        worst_window=spread(run.worst_window for run in runs),
        first_window=spread(run.first_window for run in runs),
        switches=spread((run.switches for run in runs), high_is_good=False),
        decided=spread(decided, high_is_good=False) if decided else None,
        domains={domain: _domain_row(runs, domain) for domain in runs[0].domains},
        recovered=_recovered(runs),
    )


def _domain_row(runs: list[Summary], domain: str) -> DomainRow:
    mine = [run.domains[domain] for run in runs]
    shares: dict[int, float | None] = {}
    for mark in MARKS:
        known = [one.shares[mark] for one in mine if one.shares[mark] is not None]
        shares[mark] = float(np.median(np.array(known, dtype=np.float64))) if len(known) == len(mine) else None
    later = [one.later for one in mine if one.later is not None]
    tops = Counter((one.top.draft, one.top.k) for one in mine if one.top is not None)
    top, votes = tops.most_common(1)[0] if tops else (None, 0)
    steps = float(np.median([one.steps for one in mine]))
    return DomainRow(steps, shares, spread(later) if later else None, top, votes / len(mine))


def _recovered(runs: list[Summary]) -> dict[str, float | None]:
    found: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        for one in run.recoveries:
            steps = np.inf if one.steps is None else float(one.steps)
            found[f"step {one.step}: {one.draft} in {one.domain}"].append(steps)
    medians = {name: float(np.median(steps)) for name, steps in found.items()}
    return {name: None if np.isinf(median) else median for name, median in medians.items()}
