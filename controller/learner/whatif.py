"""What another load, another mix of domains, or an arm held by order would bring, from what is believed now."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from controller.learner.config import PoolSpec
from controller.learner.discount import Array
from controller.learner.evidence import Context
from controller.learner.goodput import Choice, evaluate
from controller.learner.outlook import Outlook, rows_at
from controller.learner.policy import Top, arm_name, flat_arms
from controller.learner.prices import Prices, Single
from engine.link.messages import NO_DRAFT, load_bucket

_Z90 = 1.6449


class Expected(NamedTuple):
    """One arm of one context, the other contexts playing what is best jointly. Goodput of the batch, tokens/s; a row's
    speedup over plain with its 90% interval; `loss`: share of the batch's goodput given up against the context's best
    arm, with its 90% interval over draws (negative: it may well be better); `chosen`: what the learner would have
    played; `in_force`: what is, which only who publishes policies knows."""

    domain: str
    regime: str
    draft: str
    k: int
    goodput: float
    speedup: tuple[float, float, float]
    loss: tuple[float, float, float]
    chosen: bool
    in_force: bool = False


class Fixed(NamedTuple):
    """One arm for all requests. Speedups of the batch over plain, with 90% intervals: `speedup` of that arm, `learned`
    of what policies play now; `loss`: share of goodput that the one arm gives up against that (negative: it gains)."""

    draft: str
    k: int
    speedup: tuple[float, float, float]
    learned: tuple[float, float, float]
    loss: tuple[float, float, float]


class Imagined(NamedTuple):
    """A batch that is imagined: the load bucket it falls into, its mean rows, shares of the contexts, their arms; and
    the static choice for all of them, where its draft is loaded."""

    load: int
    rows: float
    mix: dict[Context, float]
    arms: list[Expected]
    fixed: Fixed | None


def shares(mix: Mapping[str, float], present: Array, names: list[Context]) -> Array:
    """Shares by context [C] from shares by domain, each divided between its regimes as it is at present.

    Raises ValueError for a domain nobody has met, a negative share, or shares that sum to nothing.

    >>> names = [("code", "greedy"), ("code", "sampled"), ("chat", "greedy")]
    >>> shares({"code": 3.0, "chat": 1.0}, np.array([0.2, 0.1, 0.7]), names).round(3).tolist()
    [0.5, 0.25, 0.25]
    """
    known = {domain for domain, _ in names}
    for domain, share in mix.items():
        if domain not in known:
            raise ValueError(f"mix has domain {domain!r}; known: {', '.join(map(repr, sorted(known)))}")
        if not 0 <= share < np.inf:
            raise ValueError(f"mix has {share} for {domain!r}; allowed: 0 or more")
    total = sum(mix.values())
    if total <= 0:
        raise ValueError("mix has no domain with a share above 0")
    result = np.zeros(len(names))
    for domain, share in mix.items():
        mine = np.array([name == domain for name, _ in names])
        within = np.where(mine, present, 0.0)
        within = within / within.sum() if within.sum() > 0 else mine / mine.sum()
        result += share / total * within
    return result


def bucket_index(load: int, spec: PoolSpec) -> int:
    """Index of the bucket of `load` rows. Raises ValueError where the pool has no such load.

    >>> bucket_index(5, PoolSpec((), (0,), max_batch=8)), bucket_index(9, PoolSpec((), (0,), max_batch=15))
    (2, 3)
    """
    if not 1 <= load <= spec.max_batch:
        raise ValueError(f"load is {load}; allowed: 1 to {spec.max_batch}, the pool's largest batch")
    return spec.loads.index(load_bucket(load))


def expected(seen: Outlook, names: list[Context], spec: PoolSpec, top: Top, mix: Array) -> list[Expected]:
    """The arms of every context that has a share; top [C]: flat arms in play (below 0: none yet), mix [C]."""
    drafts = tuple(draft.name for draft in spec.drafts)
    _, count, j, size = seen.gain.shape
    allowed = np.array([[k <= d.max_k for k in spec.ks[1:]] for d in spec.drafts], dtype=bool).reshape(-1)
    speedup = flat_arms(seen.speedup, seen.idle_speedup)
    spread = np.exp(_Z90 * flat_arms(seen.speedup_sd, seen.idle_sd))
    goodput = flat_arms(seen.goodput, seen.idle_goodput)
    rows = []
    for at in np.flatnonzero(mix > 0).tolist():
        draws = np.ones((1 + j * (count - 1), size))
        draws[1:] = seen.gain[at, 1:].transpose(1, 0, 2).reshape(-1, size)
        fine = np.concatenate([[True], allowed])
        best = int(np.where(fine, draws.mean(axis=1), 0.0).argmax())
        low, high = np.quantile(1.0 - draws / draws[best], (0.05, 0.95), axis=1)
        mean = 1.0 - draws.mean(axis=1) / draws[best].mean()
        for arm in np.flatnonzero(fine).tolist():
            middle = float(speedup[at, arm])
            rows.append(Expected(
                *names[at], *arm_name(arm, drafts, spec.ks), float(goodput[at, arm]),
                (middle, middle / float(spread[at, arm]), middle * float(spread[at, arm])),
                (float(mean[arm]), float(low[arm]), float(high[arm])), arm == max(int(top[at]), 0),
            ))  # fmt: skip
    return rows


def everywhere(
    prices: Prices, load: int, load_rows: float, mix: Array, tokens: Single, spec: PoolSpec, top: Top
) -> Fixed | None:
    """The static choice for all contexts against the arms in play, top [C] (below 0: none yet); mix [C], tokens
    [C, Kn, J, S] and prices at the spec's `run_ks`. None where the static draft is not loaded, or no row ever ran.

    Goodput is that of one batch of the load; at batch 1, of steps of one row each, shared as the mix is.
    """
    name, static_k = spec.static_arm
    names = [draft.name for draft in spec.drafts]
    if name not in (NO_DRAFT, *names) or not mix.any():
        return None
    s, ks = tokens.shape[3], spec.run_ks
    rows, core = rows_at(load_rows, mix)
    members = np.flatnonzero(mix > 0 if load == 1 else core)
    arms = np.maximum(top[members], 0)
    draft, level = np.divmod(arms - 1, max(len(spec.ks) - 1, 1))
    levels = np.searchsorted(ks, spec.ks)  # of the prepared K among those that run
    learned = np.where(arms > 0, draft, 0), np.where(arms > 0, levels[(level + 1) % len(levels)], 0)
    static = names.index(name) if static_k else 0, ks.index(static_k)
    k = np.array(ks, dtype=np.float32)

    def goodput(drafts: Top, levels: Top) -> Array:
        choice = Choice(*(np.repeat(one[:, None], s, axis=1) for one in (drafts, levels)))
        if load > 1:
            earned, spent = evaluate(prices, rows[members].astype(np.float32), tokens[members], k, choice)
            return np.asarray(earned / spent, dtype=np.float64)
        one, sums = np.ones(1, dtype=np.float32), np.zeros((2, s))
        for i, at in enumerate(members.tolist()):
            mine = Choice(choice.draft[i : i + 1], choice.level[i : i + 1])
            sums += mix[at] * np.array(evaluate(prices, one, tokens[at : at + 1], k, mine))
        return np.asarray(sums[0] / sums[1], dtype=np.float64)

    nothing = np.zeros_like(members)
    plain, fixed, free = (
        goodput(*both) for both in ((nothing, nothing), (nothing + static[0], nothing + static[1]), learned)
    )
    loss = 1.0 - fixed / free
    return Fixed(
        name, static_k, _summed(fixed / plain), _summed(free / plain),
        (float(1.0 - fixed.mean() / free.mean()), *np.quantile(loss, (0.05, 0.95)).tolist()),
    )  # fmt: skip


def _summed(draws: Array) -> tuple[float, float, float]:
    """Mean and 90% interval."""
    low, high = np.quantile(draws, (0.05, 0.95)).tolist()
    return float(draws.mean()), low, high
