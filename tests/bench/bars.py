"""The learner's bars: what is asked, what was measured, and the worst seeds where that is not enough."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from simulations.result import MARKS, Recovery, Summary
from simulations.rivals import LEARNING, ONE_ARM_PER_K
from simulations.sweep import OURS
from tests.bench.plays import HONEST, SHORT, Runs, Timed

SHARES = {
    "three-domains": {300: 0.97, 1000: 0.985, 3000: 0.995},
    "different-best-draft": {300: 0.965, 1000: 0.985, 3000: 0.995},
    "dip": {300: 0.955, 1000: 0.98, 3000: 0.99},
}
WORST_AT_1000 = 0.97
IN_USE, FOUND = 300, 3000  # own steps of a domain
LOADS, TOP = 0.98, 512
RARE, RARE_AT = 0.95, 300

Value = Callable[[Summary], float | None]


class Where(NamedTuple):
    """What tells why a seed did badly: a domain (None: the one that earned least), over so many first steps."""

    domain: str | None = None
    mark: int = 1000


ANY = Where()


class Line(NamedTuple):
    """One bar. `met`: None where it cannot be told. `worst`: seeds and why, where it was missed."""

    what: str
    asked: str
    measured: str
    met: bool | None
    worst: str = ""


def lines(runs: Runs) -> list[Line]:
    """Every bar that the runs can tell about, but for timings."""
    mine = {play: by_policy[OURS] for play, by_policy in runs.items() if OURS in by_policy}
    found = [line for name, marks in SHARES.items() for line in share_lines(name, mine.get(name, ()), marks)]
    for name in SHORT:
        found += nothing_lines(name, mine.get(name, ()))
    for name, of in mine.items():
        found += change_lines(name, of)
    found += load_lines(mine.get("load-sweep", ()))
    found += at_least("mixed-batch, whole run", mine.get("mixed-batch", ()), lambda run: run.share, LOADS)
    found += at_least("flapping, whole run", mine.get("flapping", ()), lambda run: run.share, LOADS)
    found += calm_lines(mine.get("flapping", ()))
    found += rare_lines(mine.get("rare-domains", ()))
    found += liar_lines(mine.get("one-liar", ()), mine.get(HONEST, ()))
    return found + [line for name, of in runs.items() for line in regret_lines(name, of)]


def why(run: Summary, where: Where = ANY) -> str:
    """A domain's share over its first steps (fewer, if it had not so many), and where it ended."""
    marks = [mark for mark in reversed(MARKS) if mark <= where.mark]
    known = {
        name: shares[0]
        for name, one in run.domains.items()
        if where.domain in (None, name) and (shares := [s for mark in marks if (s := one.shares[mark]) is not None])
    }
    if not known:
        return "too few steps"
    name = min(known, key=lambda name: known[name])
    top = run.domains[name].top
    end = "no rows at the end" if top is None else f"ends on {top.draft} K={top.k}" if top.k else "ends on none"
    return f"{name} {known[name]:.3f}, {end}"


def worst(
    runs: Sequence[Summary], value: Value, *, where: Where = ANY, high_is_good: bool = True, count: int = 3
) -> str:
    """The seeds with the worst values, and why."""
    known = [(found, run) for run in runs if (found := value(run)) is not None]
    known.sort(key=lambda pair: pair[0], reverse=not high_is_good)
    return "; ".join(f"seed {run.seed}: {_short(found)} ({why(run, where)})" for found, run in known[:count])


def _short(value: float) -> str:
    return "never" if np.isinf(value) else f"{value:.0f}" if value >= 10 else f"{value:.3f}"


def _share(mark: int, domain: str | None = None) -> Value:
    return lambda run: (run if domain is None else run.domains[domain]).shares[mark]


def _of(values: Mapping[int, float]) -> Value:
    return lambda run: values.get(run.seed)


def at_least(what: str, runs: Sequence[Summary], value: Value, asked: float, where: Where = ANY) -> list[Line]:
    """The median over seeds is at least so much."""
    known = [found for run in runs if (found := value(run)) is not None]
    if not known:
        return []
    median = float(np.median(known))
    met = median >= asked
    return [Line(what, f"{asked:g}", f"{median:.3f}", met, "" if met else worst(runs, value, where=where))]


def share_lines(name: str, runs: Sequence[Summary], marks: dict[int, float]) -> list[Line]:
    """Medians at the marks, and the worst seed at 1,000."""
    found = []
    for mark, asked in marks.items():
        found += at_least(f"{name}, {mark} steps", runs, _share(mark), asked, Where(mark=mark))
    known = [share for run in runs if (share := run.shares[1000]) is not None]
    if known:
        met = min(known) >= WORST_AT_1000
        missed = "" if met else worst(runs, lambda run: run.shares[1000])
        found.append(Line(f"{name}, worst seed at 1000", f"{WORST_AT_1000:g}", f"{min(known):.3f}", met, missed))
    return found


def nothing_lines(name: str, runs: Sequence[Summary]) -> list[Line]:
    """Where nothing helps: over plain decoding in all, and in the worst window."""
    return [
        *at_least(f"{name}, over plain", runs, lambda run: run.speedup, 0.99),
        *at_least(f"{name}, worst 500 steps over plain", runs, lambda run: run.worst_window, 0.97),
    ]


def change_lines(name: str, runs: Sequence[Summary]) -> list[Line]:
    """After an abrupt change of a draft in use, or improvement of one that is not: steps until the share over 100
    of them is above 0.97. Changes of another sort have no bar.

    A run that was not back by the next event counts only if there was as much time as the bar gives.
    """
    found = []
    for at in range(min((len(run.recoveries) for run in runs), default=0)):
        for in_use, asked in ((True, IN_USE), (False, FOUND)):
            here = [run for run in runs if run.recoveries[at].in_use == in_use and run.recoveries[at].abrupt]
            if not in_use:
                here = [run for run in here if run.recoveries[at].improved]
            steps = {run.seed: value for run in here if (value := _steps(run.recoveries[at], asked)) is not None}
            if not steps:
                continue
            one, median = here[0].recoveries[at], float(np.median(list(steps.values())))
            what = f"{name}, change {at + 1}: {one.draft} {'in use' if in_use else 'not in use'} in {one.domain}, steps"
            measured = f"{_short(median)} ({len(steps)} seeds)" if len(steps) < len(runs) else _short(median)
            missed = "" if median <= asked else worst(here, _of(steps), where=Where(one.domain), high_is_good=False)
            found.append(Line(what, f"at most {asked}", measured, median <= asked, missed))
    return found


def _steps(one: Recovery, asked: int) -> float | None:
    if one.steps is not None:
        return float(one.steps)
    return np.inf if one.watched >= asked else None


def load_lines(runs: Sequence[Summary]) -> list[Line]:
    """The least of the medians over seeds at every number of rows up to 512 that half of the seeds have had."""
    by_rows: dict[int, list[float]] = {}
    for run in runs:
        for rows, share in run.batches.items():
            by_rows.setdefault(rows, []).append(share)
    medians = {
        rows: float(np.median(shares))
        for rows, shares in sorted(by_rows.items())
        if rows <= TOP and 2 * len(shares) >= len(runs)
    }
    if not medians:
        return []
    least = min(medians, key=lambda rows: medians[rows])
    below = [rows for rows, share in medians.items() if share < LOADS]
    measured = f"{medians[least]:.3f} (at {least} rows; {len(below)} of {len(medians)} below)"
    missed = ""
    if below:
        missed = f"between {below[0]} and {below[-1]} rows; by mean over batches: "
        missed += worst(runs, lambda run: float(np.mean(list(run.batches.values()))))
    return [Line("load-sweep, every batch 1..512", f"{LOADS:g}", measured, not below, missed)]


def calm_lines(runs: Sequence[Summary]) -> list[Line]:
    """Switches as the policy counts them, after the first fifth of the run."""
    known = [run.decided for run in runs if run.decided is not None]
    if not known:
        return []
    median = float(np.median(known))
    missed = "" if median <= 2.0 else worst(runs, lambda run: run.decided, high_is_good=False)
    return [Line("flapping, switches per 1000 steps", "at most 2", f"{median:.2f}", median <= 2.0, missed)]


def _held(mark: int, domain: str) -> Value:
    """Share of the goodput of the first steps that hold the domain."""
    return lambda run: run.domains[domain].held.get(mark)


def rare_lines(runs: Sequence[Summary]) -> list[Line]:
    """Each domain with rows in fewer than half of the steps: the goodput of the first 300 steps that hold it (see
    `DomainSummary.held`), and of its own tokens there, which has no bar."""
    found = []
    for name in runs[0].domains if runs else ():
        if np.median([run.domains[name].steps / max(d.steps for d in run.domains.values()) for run in runs]) >= 0.5:
            continue
        first = at_least(
            f"rare-domains, first {RARE_AT} steps that hold {name}", runs,
            _held(RARE_AT, name), RARE, Where(name, RARE_AT),
        )  # fmt: skip
        own = [share for run in runs if (share := run.domains[name].shares[RARE_AT]) is not None]
        said = f" (its own tokens: {np.median(own):.3f})" if own else ""
        found += [line._replace(measured=line.measured + said) for line in first]
    return found


def liar_lines(liar: Sequence[Summary], honest: Sequence[Summary]) -> list[Line]:
    """What a liar costs the others, seed by seed: same requests, same luck."""
    by_seed = {run.seed: run.speedup for run in honest}
    moved = {run.seed: run.speedup / by_seed[run.seed] - 1.0 for run in liar if run.seed in by_seed}
    if not moved:
        return []
    median = float(np.median(list(moved.values())))
    met = abs(median) <= 0.01
    missed = "" if met else worst(liar, _of(moved))
    return [Line("one engine of 20 lies, the others' goodput", "within 1%", f"{median:+.2%}", met, missed)]


def regret_lines(name: str, by_policy: Mapping[str, Sequence[Summary]]) -> list[Line]:
    """Regret at 1,000 steps (at 300 where there are not so many), medians over the seeds that all of them have."""
    played = {policy: {run.seed: run for run in of} for policy, of in by_policy.items() if policy in LEARNING | {OURS}}
    if OURS not in played or not LEARNING & played.keys():
        return []
    seeds = sorted(set.intersection(*(set(of) for of in played.values())))
    if not seeds:
        return []
    mark = 1000 if all(of[seed].regret[1000] is not None for of in played.values() for seed in seeds) else 300
    lost = {policy: _median([of[seed].regret[mark] for seed in seeds]) for policy, of in played.items()}
    us, found = lost[OURS], []
    for group, what, most in (
        (ONE_ARM_PER_K, "the best one-arm-per-K learner's", 1 / 3),
        (LEARNING, "the best learning rival's", 1.0),
    ):
        rival = min(group & lost.keys(), key=lambda policy: lost[policy], default=None)
        if rival is None:
            continue
        met = us <= most * lost[rival] if group is ONE_ARM_PER_K else us < lost[rival]
        missed = "" if met else worst(by_policy[OURS], lambda run: run.regret[mark], high_is_good=False)
        measured = f"{us / lost[rival]:.2f} ({us:.2f} s; {rival} {lost[rival]:.2f} s)"
        asked = "at most 1/3" if group is ONE_ARM_PER_K else "below 1"
        found.append(Line(f"{name}, regret at {mark} over {what}", asked, measured, met, missed))
    return found


def _median(values: Sequence[float | None]) -> float:
    return float(np.median([np.nan if value is None else value for value in values]))


def timing_lines(timed: Timed | None) -> list[Line]:
    """The decision's and the frame's."""
    if timed is None:
        return []
    bars = (
        ("decision in full, ms", 250.0, timed.full_ms),
        ("decision after one domain's news, ms", 20.0, timed.one_domain_ms),
        ("frame with 24 + 32 cells into the posterior, us", 100.0, timed.frame_us),
    )
    return [Line(what, f"at most {asked:g}", f"{found:.0f}", found <= asked) for what, asked, found in bars]
