"""The learner's bars, measured: `make bench-learner`, or `python -m tests.bench.bench_learner --seeds 20 --jobs -1`.

Shipped scenarios with all safeguards on, then the decision's timings. Every line says what is asked, what was measured,
and the worst seeds where it was missed. Shares are of the clairvoyant's goodput by expected reward, since step 0.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from simulations.comparison import Comparison, PolicyRow
from simulations.load import load
from simulations.result import Summary
from simulations.rivals import LEARNING, ONE_ARM_PER_K
from simulations.sweep import OURS, sweep
from tests.bench import bench_learner_micro

SHARES = {
    "three-domains": {300: 0.97, 1000: 0.985, 3000: 0.995},
    "different-best-draft": {300: 0.965, 1000: 0.985, 3000: 0.995},
    "dip": {300: 0.955, 1000: 0.98, 3000: 0.99},
}
WORST_AT_1000 = 0.97
WHOLE = {"busy": 0.98, "mixed-batch": 0.98, "flapping": 0.98}
RARE = ("rare-domains", 300, 0.95)
CHANGES = {"drift": 300, "draft-retrained": 3000}
SCENARIOS = (*SHARES, "all-drafts-bad", *CHANGES, *WHOLE, RARE[0], "one-liar", "published-72b")


class Line(NamedTuple):
    """One bar: `met` None where it cannot be told."""

    what: str
    asked: str
    measured: str
    met: bool | None


def ours(comparison: Comparison) -> PolicyRow:
    """Our row."""
    return next(row for row in comparison.rows if row.policy == OURS)


def mine(comparison: Comparison) -> list[Summary]:
    """Our runs."""
    return [summary for summary in comparison.summaries if summary.policy == OURS]


def worst_seeds(runs: Sequence[Summary], mark: int, count: int = 3) -> str:
    """The seeds of least share at a mark, as `seed: share`."""
    known = sorted((share, run.seed) for run in runs if (share := run.shares[mark]) is not None)
    return ", ".join(f"seed {seed}: {share:.3f}" for share, seed in known[:count])


def share_lines(name: str, comparison: Comparison) -> list[Line]:
    """Medians at the marks, and the worst seed at 1,000."""
    row, lines = ours(comparison), []
    for mark, asked in SHARES[name].items():
        spread = row.shares[mark]
        if spread is None:
            lines.append(Line(f"{name}, {mark} steps", f"{asked:.3f}", "too few steps", None))
            continue
        missed = "" if spread.median >= asked else f" (worst {worst_seeds(mine(comparison), mark)})"
        lines.append(Line(f"{name}, {mark} steps", f"{asked:.3f}", f"{spread.median:.3f}{missed}", not missed))
    at = row.shares[1000]
    if at is not None:
        measured = f"{at.worst:.3f} ({worst_seeds(mine(comparison), 1000)})"
        lines.append(Line(f"{name}, worst seed at 1000", f"{WORST_AT_1000:.2f}", measured, at.worst >= WORST_AT_1000))
    return lines


def regret_lines(name: str, comparison: Comparison) -> list[Line]:
    """Regret at 1,000 steps (at 300 where there are not so many) against the learning rivals'."""
    mark = 1000 if ours(comparison).regret[1000] is not None else 300
    found = {row.policy: spread.median for row in comparison.rows if (spread := row.regret[mark]) is not None}
    if OURS not in found or not any(name in found for name in LEARNING):
        return []
    us = found[OURS]
    per_k, per_k_name = min((found[r], r) for r in ONE_ARM_PER_K if r in found)
    any_, any_name = min((found[r], r) for r in LEARNING if r in found)
    return [
        Line(
            f"{name}, regret at {mark} over the best one-arm-per-K learner's", "1/3",
            f"{us / per_k:.2f} ({us:.2f} s, {per_k_name} {per_k:.2f} s)", us <= per_k / 3,
        ),
        Line(
            f"{name}, regret at {mark} below every learning rival's", "< 1",
            f"{us / any_:.2f} ({any_name} {any_:.2f} s)", us < any_,
        ),
    ]  # fmt: skip


def other_lines(found: dict[str, Comparison]) -> list[Line]:
    """Nothing helps, changes, loads, calm, rare domains, the liar."""
    lines = []
    bad = ours(found["all-drafts-bad"])
    lines.append(
        Line("nothing helps, whole run over plain", "0.99", f"{bad.speedup.median:.3f}", bad.speedup.median >= 0.99)
    )
    worst = bad.worst_window
    lines.append(Line("nothing helps, worst 500 steps", "0.97", f"{worst.worst:.3f}", worst.worst >= 0.97))
    for name, limit in CHANGES.items():
        for change, steps in ours(found[name]).recovered.items():
            measured = "not found" if steps is None else f"{steps:.0f} steps"
            lines.append(Line(f"{name}, {change}: above 0.97", f"{limit} steps", measured, (steps or np.inf) <= limit))
    for name, asked in WHOLE.items():
        median = ours(found[name]).share.median
        lines.append(Line(f"{name}, whole run", f"{asked:.2f}", f"{median:.3f}", median >= asked))
    calm = ours(found["flapping"]).decided
    if calm is not None:
        lines.append(Line("flapping, switches per 1,000 steps", "2", f"{calm.median:.2f}", calm.median <= 2.0))
    name, mark, asked = RARE
    rare = [row.shares[mark] for row in ours(found[name]).domains.values() if row.steps < 1500 and row.shares[mark]]
    least = min((share for share in rare if share is not None), default=None)
    shown = "too few steps" if least is None else f"{least:.3f}"
    lines.append(
        Line(
            f"{name}, after {mark} own steps (least domain)",
            f"{asked:.2f}",
            shown,
            least is not None and least >= asked,
        )
    )
    return lines


def liar_line(liar: Comparison, honest: Comparison) -> Line:
    """What one engine of twenty that accepts everything costs the others."""
    ratio = ours(liar).share.median / ours(honest).share.median
    return Line("one engine of 20 lies, the others' share", "±1%", f"{ratio - 1:+.2%}", abs(ratio - 1) <= 0.01)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--rival-seeds", type=int, default=3, help="seeds of the comparison with rivals; 0: none")
    parser.add_argument("--jobs", type=int, default=-1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    import msgspec

    scenarios = [load(name) for name in SCENARIOS]
    honest = msgspec.structs.replace(load("one-liar"), name="one-liar-honest", hostile=0)
    played = sweep([*scenarios, honest], ["none"], options.seeds, jobs=options.jobs)
    found = {comparison.scenario: comparison for comparison in played}
    lines = [line for name in SHARES for line in share_lines(name, found[name])]
    lines += [*other_lines(found), liar_line(found["one-liar"], found["one-liar-honest"])]
    if options.rival_seeds:
        learning = sorted(LEARNING)
        for comparison in sweep(scenarios, learning, options.rival_seeds, jobs=options.jobs):
            lines += regret_lines(comparison.scenario, comparison)
    print(f"{options.seeds} seeds ({options.rival_seeds} for regret)\n")
    print("| what | asked | measured | met |\n| --- | --- | --- | --- |")
    for line in lines:
        met = "?" if line.met is None else "yes" if line.met else "**no**"
        print(f"| {line.what} | {line.asked} | {line.measured} | {met} |")
    if options.json is not None:
        options.json.write_text(json.dumps([line._asdict() for line in lines], indent=1) + "\n", encoding="utf-8")
    print()
    bench_learner_micro.main()


if __name__ == "__main__":
    main()
