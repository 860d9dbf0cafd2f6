"""A decision: one pass from posteriors to policy cells, for every context and load."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controller.learner.config import LearnerConfig, PoolSpec
from controller.learner.curves import Curves, expected_tokens
from controller.learner.discount import Array
from controller.learner.evidence import Context
from controller.learner.gate import Gate
from controller.learner.goodput import blocks, mark
from controller.learner.latency import slowest_others
from controller.learner.latency import within as within_bound
from controller.learner.outlook import Outlook
from controller.learner.policy import (
    Top,
    arm_name,
    conditional,
    flat_arms,
    frequencies,
    introduced,
    pruned,
    rounded,
    sharpened,
    steadied,
    winners,
)
from controller.learner.prices import Single
from controller.learner.worth import DraftWorth
from engine.link.messages import NO_DRAFT, DraftChoice, PolicyCell, ProbePlan

_Z90 = 1.6449
_TRIAL = 0.3  # of a plain step: what a step of a draft that is tried may cost on top


class Arm(NamedTuple):
    """One arm of one cell. Goodput in tokens/s, of a row and of the batch; speedup over plain with its 90% interval."""

    domain: str
    regime: str
    load: int
    draft: str
    k: int
    goodput_row: float
    goodput_batch: float
    speedup: float
    speedup_low: float
    speedup_high: float
    probability: float  # of being played under this policy
    best: float  # share of draws in which it was best
    played: float  # share of the cell's row-steps so far, by the policies then in force


@dataclass(slots=True)
class LoadTable:
    """Everything decided at one load; arrays are [contexts, arms] unless said otherwise."""

    load: int
    probability: Array
    best: Array
    goodput_row: Array
    goodput_batch: Array
    gain: Array  # mean marginal gain over the context at K = 0
    shortfall: Array  # expected plain steps lost per step
    speedup: Array
    speedup_sd: Array  # relative sd
    closed: NDArray[np.bool_]  # [contexts]
    seconds: Array  # [contexts, J, Kn]: expected seconds of a step
    given_draft: Array  # [contexts, J, Kn]: P(K | draft)
    in_time: NDArray[np.bool_]  # [contexts, J, Kn]: within the bound on latency
    top: Top  # [contexts]
    since: Array  # [contexts]


@dataclass(slots=True)
class Decision:
    """Policy cells, what a probe should look like, the allowance per engine, and per-arm tables for people."""

    cells: list[PolicyCell]
    probe: ProbePlan
    allowance: int
    switches: int  # cells whose most probable arm changed with this decision
    contexts: list[Context]
    spec: PoolSpec
    tables: list[LoadTable]
    played: Array  # [contexts, loads, arms]
    worth: list[DraftWorth]
    belief: Curves
    mix: Array  # [loads, contexts]: shares of rows
    rows: Array  # [loads]: of a batch

    def arms(self, least: float = 0.0) -> list[Arm]:
        """The table of arms, most probable first within a cell; `least` leaves out arms less probable than it."""
        names, ks = tuple(d.name for d in self.spec.drafts), self.spec.ks
        rows = []
        for at, table in enumerate(self.tables):
            low = table.speedup * np.exp(-_Z90 * table.speedup_sd)
            high = table.speedup * np.exp(_Z90 * table.speedup_sd)
            for c, (domain, regime) in enumerate(self.contexts):
                share = self.played[c, at] / max(float(self.played[c, at].sum()), 1e-9)
                for arm in np.argsort(-table.probability[c], kind="stable").tolist():
                    draft, k = arm_name(arm, names, ks)
                    if table.probability[c, arm] < least or (arm and k not in self.spec.allowed(draft)):
                        continue
                    numbers = (
                        table.goodput_row, table.goodput_batch, table.speedup, low, high, table.probability, table.best
                    )  # fmt: skip
                    values = (*(float(array[c, arm]) for array in numbers), float(share[arm]))
                    rows.append(Arm(domain, regime, table.load, draft, k, *values))
        return rows

    def reasons(self) -> dict[tuple[str, str, int], str]:
        """One sentence a cell, by (domain, regime, load), why its most probable arm is what it is."""
        names, ks = tuple(d.name for d in self.spec.drafts), self.spec.ks
        told = {}
        prepared = np.array([[k in self.spec.allowed(name) for k in ks] for name in names], dtype=bool)
        playable = prepared.reshape(len(names), len(ks))
        for table in self.tables:
            for c, (domain, regime) in enumerate(self.contexts):
                told[domain, regime, table.load] = _reason(table, c, names, ks, playable)
        return told


def _reason(table: LoadTable, c: int, drafts: tuple[str, ...], ks: tuple[int, ...], prepared: NDArray[np.bool_]) -> str:
    """prepared [J, Kn]: arms that the pool has."""
    arm = int(table.top[c])
    others = flat_arms(np.where(prepared & table.in_time[c], 1.0, 0.0), 1.0) > 0
    others[arm] = False
    if not others.any():
        if prepared[:, 1:].any():
            return "no speculation: at this load no draft and K is within the bound on latency, max_tpot_p95"
        if len(drafts):
            return "no speculation: no draft of the pool runs any K that engines have prepared"
        return "no speculation: the pool has no draft"
    rival = int(np.where(others, table.gain[c], -np.inf).argmax())
    shown = arm or rival
    width = _Z90 * float(table.speedup_sd[c, shown])
    middle = float(table.speedup[c, shown])
    interval = f"{middle:.2f}x plain ({middle * np.exp(-width):.2f} to {middle * np.exp(width):.2f})"
    name, k = arm_name(shown, drafts, ks)
    worse = 1.0 - float(table.gain[c, rival]) / float(table.gain[c, arm])
    than = f"{worse:.1%} worse" if worse >= 0 else f"{-worse:.1%} better, too little or too unsure"
    if arm:
        other, level = arm_name(rival, drafts, ks)
        next_best = f"{'' if other == name else f'{other} at '}K = {level}" if rival else "no speculation"
        share = f"best in {table.best[c, arm]:.0%} of draws"
        late = _late(table, c, drafts, ks, prepared)
        return f"{name} at K = {k}: {interval}; {share}; {next_best} is {than} at this load{late}"
    why = "its exploration budget is spent and no gain is sure" if table.closed[c] else "no arm clears the margin"
    late = _late(table, c, drafts, ks, prepared)
    return f"no speculation: {why}; the best, {name} at K = {k}, would bring {interval}, {than} at this load{late}"


def _late(table: LoadTable, c: int, drafts: tuple[str, ...], ks: tuple[int, ...], prepared: NDArray[np.bool_]) -> str:
    """What the bound on latency costs: the best arm that it rules out, where that is better than the one in play."""
    late = flat_arms(np.where(prepared & ~table.in_time[c], 1.0, 0.0), 0.0) > 0
    best = int(np.where(late, table.gain[c], -np.inf).argmax())
    more = float(table.gain[c, best] / table.gain[c, table.top[c]]) - 1.0
    if not late[best] or more <= 0:
        return ""
    draft, k = arm_name(best, drafts, ks)
    return f"; {draft} at K = {k} would be {more:.1%} better and is beyond the bound on latency, max_tpot_p95"


class Stay(NamedTuple):
    """What the last decision left for the calm of this one: most probable arms and since when, [contexts, loads]."""

    top: Top
    since: Array


def ladder(deepest: Array, ks: tuple[int, ...]) -> NDArray[np.bool_]:
    """Which K a draft may run yet [J, Kn]: at most twice the deepest it has run (4 at first), from `deepest` [J].

    An untried draft at a large K can cost several plain steps in one: half that depth tells its price and acceptance
    almost as well.

    >>> ladder(np.array([0.0, 3.0]), (0, 2, 4, 8)).tolist()
    [[True, True, True, False], [True, True, True, False]]
    """
    limit = np.maximum(4.0, 2.0 * deepest)[:, None]
    k = np.array(ks)
    smallest = k[k > 0].min(initial=1)
    return np.asarray(k <= np.maximum(limit, smallest), dtype=bool)


def trials(price: Array, playable: NDArray[np.bool_]) -> Array:
    """Where a draft is tried [C, J, Kn], one K each: the deepest within _TRIAL of a plain step, else the shallowest.

    price: seconds over those at K = 0; playable, both of that shape. A step of K tokens shows up to K positions for the
    price of one trial, so depth is worth its passes where these are cheap; what a draft would do best says little
    here, since a draft that is thought poor would be tried where it shows least.

    >>> trials(np.array([[[1.0, 1.1, 1.2, 1.6], [1.0, 1.5, 2.0, 2.5]]]), np.ones((1, 2, 4), dtype=bool)).tolist()
    [[[0.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 0.0]]]
    """
    if price.shape[2] == 1:
        return np.ones_like(price)
    level = np.arange(price.shape[2])
    cheap = playable & (price <= 1.0 + _TRIAL)
    deepest = np.where(cheap, level, 0).max(axis=2)
    shallowest = np.where(playable & (level > 0), level, len(level)).min(axis=2)
    at = np.where(deepest > 0, deepest, np.where(shallowest < len(level), shallowest, 0))
    return np.asarray(at[..., None] == level, dtype=np.float64)


def best_levels(gain: Array, playable: NDArray[np.bool_]) -> Array:
    """Each draft's best K >= 1 among the playable, as a share of 1 there [C, J, Kn]; gain, playable of that shape.

    >>> best_levels(np.array([[[1.0, 0.7, 0.9, 0.8]]]), np.ones((1, 1, 4), dtype=bool)).tolist()
    [[[0.0, 0.0, 1.0, 0.0]]]
    """
    value = np.where(playable, gain, 0.0)
    value[..., 0] = 0.0
    return np.asarray(np.arange(gain.shape[2]) == value.argmax(axis=2)[..., None], dtype=np.float64)


def decide_load(
    at: int,
    spec: PoolSpec,
    config: LearnerConfig,
    seen: Outlook,
    gate: Gate,
    playable: NDArray[np.bool_],
    least: Array,
    revisit: Array,
    core: NDArray[np.bool_],
    stay: Stay,
    young: NDArray[np.bool_],
    now: float,
) -> LoadTable:
    """Decide one load (`at` is its index) from its outlook, whose gains are used up; playable [J, Kn]: prepared and
    reached, see `ladder`; least, revisit [C, J]: shares every draft must have, see `introduced`; core [C]: see
    `rows_at`; young [C]: see `steadied`."""
    c, j, count = seen.gain_mean.shape
    admitted = gate.admitted(seen.gain_mean, seen.gain_sd) & playable
    in_time = np.ones_like(admitted)
    if config.max_tpot_p95:
        in_time = _in_time(seen, stay.top[:, at], core, config.max_tpot_p95)
        admitted &= in_time
    admitted[..., 0] = False
    hurdle = 1.0 + gate.margin
    values, size = seen.gain, seen.gain.shape[3]
    best_value = np.empty((c, j, size), dtype=np.float32)
    for block in blocks(c, values[0].size):
        part = values[block]
        mark(part)
        part[~admitted[block].transpose(0, 2, 1)] = 0.0
        np.maximum.reduce(part, axis=1, out=best_value[block])
    winner, level = winners(best_value, count, hurdle)
    best = frequencies(winner, 1 + j * (count - 1))
    wanted = sharpened(best, config.sharpness)
    within = frequencies(level, count)
    worth = flat_arms(np.where(admitted, seen.gain_mean, 0.0), hurdle)

    def value(context: int, arm: int) -> Single:
        if arm == 0:
            return np.full(size, hurdle, dtype=np.float32)
        draft, nth = divmod(arm - 1, count - 1)
        return np.asarray(values[context, nth + 1, draft])

    def ahead(context: int, new: int, old: int) -> float:
        return float((value(context, new) > value(context, old)).mean())

    # Of a draft without any arm in reach there is nothing to try: its share would go to plain decoding.
    reached = (playable & in_time)[..., 1:].any(axis=2)
    least, revisit = np.where(reached, least, 0.0), np.where(reached, revisit, 0.0)
    trial = trials(seen.seconds / seen.idle_seconds[:, None, None], playable & in_time)
    shares = introduced(pruned(wanted, config.prune), trial, least)
    # Revisits go to what a draft would do best if it had to do something: a draft that loses admits no arm.
    shares = introduced(shares, best_levels(seen.gain_mean, playable & in_time), revisit)
    calm = (now, config.dwell, config.hysteresis)
    shares, top, since = steadied(shares, worth, ahead, stay.top[:, at], stay.since[:, at], young, *calm)
    joint = shares[:, 1:].reshape(c, j, count - 1)
    joint = np.concatenate([np.zeros((c, j, 1)), joint], axis=2)
    speedup = flat_arms(seen.speedup, seen.idle_speedup)
    shortfall = seen.seconds / seen.idle_seconds[:, None, None] * (1.0 - seen.gain_mean)
    return LoadTable(
        load=spec.loads[at],
        probability=shares,
        best=best,
        goodput_row=speedup / seen.plain,
        goodput_batch=flat_arms(seen.goodput, seen.idle_goodput),
        gain=flat_arms(seen.gain_mean, 1.0),
        shortfall=flat_arms(shortfall, 0.0),
        speedup=speedup,
        speedup_sd=flat_arms(seen.speedup_sd, seen.idle_sd),
        closed=gate.shut.copy(),
        seconds=seen.seconds,
        given_draft=conditional(joint, within, config.draws, config.prune),
        in_time=in_time,
        top=top,
        since=since,
    )


def _in_time(seen: Outlook, top: Top, core: NDArray[np.bool_], bound: float) -> NDArray[np.bool_]:
    """Arms within the bound on latency, given what the other contexts play now."""
    c, _, count = seen.seconds.shape
    tokens = seen.speedup * seen.seconds / seen.plain
    flat = tokens[..., 1:].reshape(c, -1)
    playing = np.where(top > 0, flat[np.arange(c), np.maximum(top, 1) - 1], 1.0) if count > 1 else np.ones(c)
    return within_bound(seen.seconds, tokens, seen.speedup_sd, slowest_others(playing, core), bound)


def draws_of_tokens(curves: Curves, spec: PoolSpec, rng: np.random.Generator, size: int) -> Single:
    """Draws of expected tokens a step, [C, Kn, J, S]."""
    return expected_tokens(curves.draws(rng, size), spec.ks)


def policy_cells(
    tables: list[LoadTable],
    contexts: list[Context],
    spec: PoolSpec,
    curves: Curves,
    nonadaptive: Array,
    quantiles: Array,
) -> list[PolicyCell]:
    """The wire's cells; nonadaptive [C]: share of each context's requests that explore.

    quantiles [loads]: where rows share steps (batch 2 and more) all requests admitted under one version take the draft
    at this quantile of their context's probabilities (`PolicyCell.draw` says why).
    """
    alpha, beta = (np.round(array, 3).clip(1e-3).tolist() for array in curves.beta())
    exploring = nonadaptive.round(3).tolist()
    cells = []
    ks = spec.ks
    reach = [len(spec.allowed(draft.name)) for draft in spec.drafts]
    names = [draft.name for draft in spec.drafts]
    # Posteriors of acceptance are the same at every load: all cells of a context hold the same lists.
    posteriors = [
        [(a[: ks[n - 1]], b[: ks[n - 1]]) for a, b, n in zip(*both, reach, strict=True)]
        for both in zip(alpha, beta, strict=True)
    ]
    for table, u in zip(tables, quantiles.tolist(), strict=True):
        by_draft = table.probability[:, 1:].reshape(len(contexts), len(spec.drafts), -1).sum(axis=2)
        shares = np.concatenate([table.probability[:, :1], by_draft], axis=1)
        p = rounded(shares).tolist()
        draw = None if table.load == 1 else round(u, 6)
        given = rounded(table.given_draft).tolist()
        seconds = np.maximum(np.round(table.seconds, 8), 1e-8).tolist()
        in_time = table.in_time.tolist()
        expected = np.round((table.probability * table.speedup).sum(axis=1), 4).tolist()
        for c, (domain, regime) in enumerate(contexts):
            # The plain price of the load stands with `none`.
            choices = [DraftChoice(NO_DRAFT, p[c][0], [(0, 1.0)], seconds=[(0, seconds[c][0][0])])]
            for j, (name, n) in enumerate(zip(names, reach, strict=True)):
                priced = list(zip(ks[:n], seconds[c][j], strict=False))
                if not all(in_time[c][j]):
                    # What a request's own luck may move K to: a K without a price is none of it.
                    priced = [pair for pair, fine in zip(priced, in_time[c][j], strict=False) if fine or not pair[0]]
                likely = [(k, q) for k, q in zip(ks[:n], given[c][j], strict=False) if q > 0]
                choices.append(DraftChoice(name, p[c][j + 1], likely, *posteriors[c][j], priced))
            cells.append(PolicyCell(domain, regime, table.load, choices, exploring[c], draw, expected[c]))  # type: ignore[arg-type]  # contexts hold only wire regimes
    return cells
