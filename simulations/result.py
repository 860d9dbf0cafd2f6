"""One run in numbers: goodput, share of the clairvoyant's, regret, worst window, what was played.

Rewards are expected ones, so luck does not blur them, and only honest engines count. A domain's *steps* are the steps
of the pool in which it has rows; "at 300 steps per domain" adds up every domain's first 300 of them. Shares of what the
clairvoyant earns are ratios of sums; in a shared step a domain's due is what the clairvoyant's choice would have given
it in the seconds that the step took. Regret is the seconds that the clairvoyant would have saved,
sum (due - earned) / best tokens/s. Seconds are those of decoding: prompts cost everybody the same.
"""

from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from simulations.log import PARTS, Log
from simulations.luck import Array
from simulations.play import Run
from simulations.policy import Bools
from simulations.scenario import AcceptanceChange, Appears
from simulations.timeline import Timeline

MARKS = (100, 300, 1000, 3000)
WINDOW = 500
RECOVERED, MOVING = 0.97, 100
_POINTS = 120  # of the curves that are drawn
_YOUNG = 300


class Played(msgspec.Struct, frozen=True):
    """An arm and its share of a domain's row-steps."""

    draft: str
    k: int
    share: float


class DomainSummary(msgspec.Struct, frozen=True):
    """One domain. `shares` by mark, None where it had fewer steps; `later`: its share after its first 300 steps;
    `top`: most played in the last fifth; `depth`: mean K by part of the run, None where it had no rows.
    `held`: share of the whole batch's goodput over the first steps that hold the domain, by mark. Where rows share
    steps the domain's own share says little by itself: one row of eight may draft 4 tokens or 6 with the same goodput
    of the batch, yet a quarter more of its own."""

    steps: int
    shares: dict[int, float | None]
    later: float | None
    top: Played | None
    depth: list[float | None]
    held: dict[int, float | None] = {}


class Recovery(msgspec.Struct, frozen=True):
    """After a change: the domain's own steps until its share over 100 of them is above 0.97 (None: never).

    `watched`: its steps until the next event. `in_use`: the draft was its most played one in the twentieth of the run
    before the change. `abrupt`: the change came at once. `improved`: the draft came, or gives more since.
    """

    step: int
    domain: str
    draft: str
    steps: int | None
    watched: int
    in_use: bool
    abrupt: bool
    improved: bool


class LoadSummary(msgspec.Struct, frozen=True):
    """At one number of rows (lower bound of its bucket): tokens/s by expectation, the clairvoyant's, plain's."""

    steps: int
    goodput: float
    best: float
    plain: float


class Summary(msgspec.Struct, frozen=True):
    """One policy, one scenario, one seed.

    `goodput`: tokens/s of an honest engine as realised, prompts and pauses included; where the load changes, policies
    differ in how long they stay at each load, so compare `speedup`: what was earned over what plain decoding would have
    earned in the same time at the same loads. `shares`, `regret` (seconds of the
    pool) by mark, None where no domain has so many steps. `share`: over the whole run. `worst_window`, `first_window`:
    goodput over plain's in the worst and the first 500 steps. `switches`: per 1,000 steps of an engine after the first
    fifth; `decided`: the same as the policy counts them. `batches`: share by number of rows, in the second half of the
    run. `lost`: (step, regret so far), for plots.
    """

    scenario: str
    policy: str
    seed: int
    goodput: float
    speedup: float
    share: float
    shares: dict[int, float | None]
    regret: dict[int, float | None]
    worst_window: float
    first_window: float
    switches: float
    decided: float | None
    domains: dict[str, DomainSummary]
    loads: dict[int, LoadSummary]
    batches: dict[int, float]
    recoveries: list[Recovery]
    lost: list[tuple[int, float]]


class Pool(NamedTuple):
    """Steps of all honest engines in the order they ran, [N] or [N, D]."""

    earned: Array
    due: Array
    rows: NDArray[np.int32]
    best: Array


def pooled(logs: list[Log], part: slice = slice(None)) -> Pool:
    """The engines' steps of a part of the run, interleaved."""
    domains = logs[0].rows.shape[1]
    earned = np.stack([log.earned[part] for log in logs], axis=1).reshape(-1, domains)
    due = np.stack([log.due[part] for log in logs], axis=1).reshape(-1, domains)
    rows = np.stack([log.rows[part] for log in logs], axis=1).reshape(-1, domains)
    return Pool(earned, due, rows, np.stack([log.best[part] for log in logs], axis=1).ravel())


def within(rows: NDArray[np.int32], mark: int) -> Bools:
    """Which of a domain's entries are among its first `mark` steps; [N, D].

    >>> within(np.array([[1, 0], [2, 1], [1, 1]], dtype=np.int32), 2).tolist()
    [[True, False], [True, True], [False, True]]
    """
    present = rows > 0
    return np.asarray(present & (np.cumsum(present, axis=0) <= mark))


def worst_window(earned: Array, plain: Array, window: int = WINDOW) -> tuple[float, float]:
    """(worst, first) ratio of what was earned to what plain decoding would have earned in the same time, over all
    windows of so many steps (or all steps, if there are fewer); [S] each.

    >>> worst_window(np.array([1.0, 1.0, 4.0, 4.0]), np.array([2.0, 2.0, 2.0, 2.0]), window=2)
    (0.5, 0.5)
    """
    window = min(window, len(earned))
    sums = [np.concatenate([[0.0], np.cumsum(x)]) for x in (earned, plain)]
    ratio = (sums[0][window:] - sums[0][:-window]) / (sums[1][window:] - sums[1][:-window])
    return float(ratio.min()), float(ratio[0])


def recovery(earned: Array, due: Array) -> int | None:
    """Steps until the share over the last MOVING of them is above RECOVERED, from a domain's steps after a change."""
    sums = [np.concatenate([[0.0], np.cumsum(x)]) for x in (earned, due)]
    if len(earned) < MOVING:
        return None
    share = (sums[0][MOVING:] - sums[0][:-MOVING]) / (sums[1][MOVING:] - sums[1][:-MOVING])
    above = np.flatnonzero(share > RECOVERED)
    return int(above[0]) + MOVING if len(above) else None


def summarise(timeline: Timeline, run: Run, policy: str, seed: int) -> Summary:
    """The numbers of a run."""
    scenario = timeline.scenario
    logs = run.logs[: scenario.engines - scenario.hostile]
    pool = pooled(logs)
    shares: dict[int, float | None] = {}
    regret: dict[int, float | None] = {}
    steps = (pool.rows > 0).sum(axis=0)
    for mark in MARKS:
        shares[mark] = regret[mark] = None
        if steps.max() >= mark:
            chosen = within(pool.rows, mark)
            shares[mark] = float(pool.earned[chosen].sum() / pool.due[chosen].sum())
            regret[mark] = float((((pool.due - pool.earned) * chosen).sum(axis=1) / pool.best).sum())
    slow = [log.rows.sum(axis=1) * log.expected / log.plain for log in logs]  # what plain decoding would have earned
    windows = [worst_window(log.earned.sum(axis=1), usual) for log, usual in zip(logs, slow, strict=True)]
    warm = scenario.steps // 5
    settled = (scenario.steps - warm) / 1000.0
    return Summary(
        scenario=scenario.name,
        policy=policy,
        seed=seed,
        goodput=float(np.mean([log.tokens.sum() / log.seconds.sum() for log in logs])),
        speedup=float(pool.earned.sum() / sum(usual.sum() for usual in slow)),
        share=float(pool.earned.sum() / pool.due.sum()),
        shares=shares,
        regret=regret,
        worst_window=min(worst for worst, _ in windows),
        first_window=min(first for _, first in windows),
        switches=float(np.mean([log.switches[warm:].sum() for log in logs])) / settled,
        decided=None if run.decided is None else run.decided / settled,
        domains={name: _domain(timeline, logs, pool, d) for d, name in enumerate(timeline.domains)},
        loads=_loads(logs),
        batches=_batches(pooled(logs, slice(scenario.steps // 2, None))),
        recoveries=_recoveries(timeline, logs),
        lost=_lost(pool, len(logs)),
    )


def _domain(timeline: Timeline, logs: list[Log], pool: Pool, d: int) -> DomainSummary:
    earned, due = (array[pool.rows[:, d] > 0, d] for array in (pool.earned, pool.due))
    shares = {mark: float(earned[:mark].sum() / due[:mark].sum()) if len(due) >= mark else None for mark in MARKS}
    later = float(earned[_YOUNG:].sum() / due[_YOUNG:].sum()) if len(due) > _YOUNG else None
    played = np.sum([log.played[:, d] for log in logs], axis=0)
    last = played[-PARTS // 5 :].sum(axis=0)
    top = None
    if last.any():
        draft, k = (int(i) for i in np.unravel_index(int(last.argmax()), last.shape))
        top = Played((*timeline.drafts, "none")[draft], k, float(last[draft, k] / last.sum()))
    by_k = played.sum(axis=1)
    rows = by_k.sum(axis=1)
    depth = by_k @ np.arange(by_k.shape[1])
    means = [float(total / n) if n else None for total, n in zip(depth, rows, strict=True)]
    batch = [array[pool.rows[:, d] > 0].sum(axis=1) for array in (pool.earned, pool.due)]
    held = {mark: float(batch[0][:mark].sum() / batch[1][:mark].sum()) if len(due) >= mark else None for mark in MARKS}
    return DomainSummary(len(due), shares, later, top, means, held)


def _loads(logs: list[Log]) -> dict[int, LoadSummary]:
    rows, earned, due = (
        np.concatenate([getattr(log, name).sum(axis=1) for log in logs]) for name in ("rows", "earned", "due")
    )
    expected, plain = (np.concatenate([getattr(log, name) for log in logs]) for name in ("expected", "plain"))
    bucket = np.floor(np.log2(rows)).astype(np.intp)
    loads = {}
    for b in np.unique(bucket).tolist():
        here = bucket == b
        seconds = expected[here].sum()
        sums = (earned[here].sum(), due[here].sum(), (rows[here] * expected[here] / plain[here]).sum())
        loads[1 << b] = LoadSummary(int(here.sum()), *(float(value / seconds) for value in sums))
    return loads


def _batches(pool: Pool) -> dict[int, float]:
    rows, earned, due = (array.sum(axis=1) for array in (pool.rows, pool.earned, pool.due))
    sums = np.bincount(rows, earned), np.bincount(rows, due)
    return {n: float(sums[0][n] / sums[1][n]) for n in np.unique(rows).tolist()}


def _recoveries(timeline: Timeline, logs: list[Log]) -> list[Recovery]:
    found = []
    steps = [event.step for event in timeline.scenario.events]
    for event in timeline.scenario.events:
        if not isinstance(event, AcceptanceChange | Appears):
            continue
        # Up to the next event, which brings another optimum.
        until = min((step for step in steps if step > event.step), default=timeline.scenario.steps)
        pool = pooled(logs, slice(event.step, until))
        named = event.domain if isinstance(event, AcceptanceChange) else None
        for d, name in enumerate(timeline.domains):
            if named in (None, name):
                mine = pool.rows[:, d] > 0
                back = recovery(pool.earned[mine, d], pool.due[mine, d])
                used = _used(timeline, logs, event.step, d) == timeline.drafts.index(event.draft)
                abrupt = not isinstance(event, AcceptanceChange) or not event.over
                better = _improved(timeline, event, d)
                found.append(Recovery(event.step, name, event.draft, back, int(mine.sum()), used, abrupt, better))
    return found


def _used(timeline: Timeline, logs: list[Log], step: int, d: int) -> int:
    """The draft most played in a domain before the step; the number of drafts if that is none."""
    end = step * PARTS // timeline.scenario.steps
    before = slice(max(0, end - PARTS // 20), max(1, end))
    return int(np.sum([log.played[before, d].sum(axis=(0, 2)) for log in logs], axis=0).argmax())


def _improved(timeline: Timeline, event: AcceptanceChange | Appears, d: int) -> bool:
    at, j = timeline.phase_at(event.step), timeline.drafts.index(event.draft)
    before, after = (timeline.phases[i].mean_tokens[d, j, -1] for i in (max(0, at - 1), at))
    return isinstance(event, Appears) or bool(after > before)


def _lost(pool: Pool, engines: int) -> list[tuple[int, float]]:
    lost = np.cumsum((pool.due - pool.earned).sum(axis=1) / pool.best)
    at = np.unique(np.linspace(engines - 1, len(lost) - 1, _POINTS).astype(np.intp))
    return [(int(i) // engines + 1, float(lost[i])) for i in at]
