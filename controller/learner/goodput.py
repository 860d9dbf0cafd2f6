"""Goodput of a batch, and the choice that maximises it, for many draws at once.

A choice gives every context of the batch a draft and a K. Goodput is a ratio of sums, tokens / seconds:

    N = sum_c n_c E_c(draft, K),     D = plain + sum_c n_c slope[draft] K + sum_j fixed[j, largest K on j]

With one draft j in the batch and K capped at M the maximisation of N - lambda D falls apart by context, so all (j, M)
are enumerated exactly, inside Dinkelbach's iteration on lambda (Dinkelbach 1967, On nonlinear fractional programming).
Batches that mix drafts are reached from there, and from every context's own best, by coordinate ascent on N / D.

Single precision does: arms are compared, not summed up. Arrays: S draws, C contexts, J drafts, Kn values of K (index 0
is K = 0). Levels are indices into those values.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from controller.learner.prices import CHEAPEST, Prices

Real = NDArray[np.floating[Any]]
Level = NDArray[np.intp]
_ROUNDS = 8  # of Dinkelbach: it converges superlinearly, usually in three
_SWEEPS = 3


class Choice(NamedTuple):
    """Draft and level of every draw and context, [S, C]; the draft means nothing at level 0."""

    draft: Level
    level: Level


class Response(NamedTuple):
    """What each arm of each context would bring, the others' choice given; [S, C, J, Kn] and, for K = 0, [S, C]."""

    gain: Real  # the batch's goodput over its goodput with this context at K = 0
    goodput: Real  # of the batch, tokens a second
    seconds: Real  # of the step
    idle_seconds: Real  # of the step with this context at K = 0


def _rest(prices: Prices, rows: Real, tokens: Real, k: Real, choice: Choice) -> tuple[Real, Real, Level]:
    """Without context c: tokens [S, C], seconds of drafted tokens [S, C], largest level by draft [S, C, J]."""
    s, c, j = tokens.shape[:3]
    si, ci = np.arange(s)[:, None], np.arange(c)[None, :]
    earned = rows * tokens[si, ci, choice.draft, choice.level]
    paid = rows * prices.slope[si, choice.draft] * k[choice.level]
    levels = np.zeros((s, c, j), dtype=np.intp)
    levels[si, ci, choice.draft] = choice.level
    first = levels.argmax(axis=1)
    highest = levels.max(axis=1)
    others = levels.copy()
    np.put_along_axis(others, first[:, None, :], 0, axis=1)
    second = others.max(axis=1)
    leader = ci[..., None] == first[:, None, :]
    top = np.where(leader, second[:, None, :], highest[:, None, :])
    return earned.sum(axis=1, keepdims=True) - earned, paid.sum(axis=1, keepdims=True) - paid, top


def respond(prices: Prices, rows: Real, tokens: Real, k: Real, rest: tuple[Real, Real, Level]) -> Response:
    """Every arm of every context against its rest (as `_rest` gives it): rows [C], tokens [S, C, J, Kn], k [Kn]."""
    earned, paid, top = rest
    si = np.arange(len(tokens))[:, None, None]
    passed = prices.fixed[si, np.arange(tokens.shape[2]), top]  # [S, C, J]
    base = prices.plain[:, None] + paid + passed.sum(axis=2)
    # Seconds by draft of all rows if this context adds nothing to its passes, then what the arm adds to that.
    others = base[..., None] - passed
    deeper = np.arange(len(k)) > top[..., None]
    seconds = np.where(deeper, prices.fixed[:, None], passed[..., None])
    seconds += others[..., None]
    seconds += (rows[None, :, None] * prices.slope[:, None, :])[..., None] * k
    floor = CHEAPEST * prices.plain
    np.maximum(seconds, floor[:, None, None, None], out=seconds)
    idle = np.maximum(base, floor[:, None])
    goodput = rows[:, None, None] * tokens
    goodput += earned[..., None, None]
    goodput /= seconds
    still = (earned + rows) / idle
    return Response(goodput / still[..., None, None], goodput, seconds, idle)


def alone(prices: Prices, tokens: Real, k: Real) -> Response:
    """`respond` for a batch of one row: no rest."""
    s, c, j = tokens.shape[:3]
    return respond(prices, np.ones(c, dtype=tokens.dtype), tokens, k, _nobody(s, c, j))


def evaluate(prices: Prices, rows: Real, tokens: Real, k: Real, choice: Choice) -> tuple[Real, Real]:
    """(tokens, seconds) of one step under the choice, [S] each."""
    s, c, j = tokens.shape[:3]
    si, ci = np.arange(s)[:, None], np.arange(c)[None, :]
    earned = (rows * tokens[si, ci, choice.draft, choice.level]).sum(axis=1)
    paid = (rows * prices.slope[si, choice.draft] * k[choice.level]).sum(axis=1)
    levels = np.zeros((s, c, j), dtype=np.intp)
    levels[si, ci, choice.draft] = choice.level
    passes = prices.fixed[si, np.arange(j), levels.max(axis=1)].sum(axis=1)
    return earned, np.maximum(prices.plain + paid + passes, CHEAPEST * prices.plain)


def best_single_draft(prices: Prices, rows: Real, tokens: Real, k: Real, allowed: NDArray[np.bool_]) -> Choice:
    """The exact optimum over choices that use one draft (or none) in the batch; allowed [C, J, Kn]."""
    s, c, _, _ = tokens.shape
    more = rows[:, None, None] * (tokens - 1)
    more[:, ~allowed] = -np.inf
    more[..., 0] = 0
    per_k = (rows[None, :, None] * prices.slope[:, None, :])[..., None] * k
    ratio = rows.sum() / prices.plain
    draft, level = np.zeros((s, c), dtype=np.intp), np.zeros((s, c), dtype=np.intp)
    live = np.arange(s)
    for _ in range(_ROUNDS):
        part = Prices(*(_of(array, live) for array in prices))
        chosen = _priced(part, _of(more, live), _of(per_k, live), ratio[live])
        earned, spent = evaluate(part, rows, _of(tokens, live), k, chosen)
        draft[live], level[live] = chosen
        risen = earned / spent > ratio[live] * (1 + 1e-4)
        ratio[live] = np.where(risen, earned / spent, ratio[live])
        live = live[risen]
        if not len(live):
            break
    return Choice(draft, level)


def _of(array: Real, live: Level) -> Real:
    """The rows of draws that are still live; no copy while all are."""
    return array if len(live) == len(array) else array[live]


def _priced(prices: Prices, more: Real, per_k: Real, ratio: Real) -> Choice:
    """Maximise N - ratio * D over one draft and a cap M on K: by context the best level up to M, the passes of M paid.

    more: tokens beyond the first, per_k: seconds of drafted tokens, of all rows of a context, [S, C, J, Kn].
    """
    s, c, _, count = more.shape
    net = more - ratio[:, None, None, None] * per_k
    upto = np.maximum.accumulate(net, axis=3).sum(axis=1) - ratio[:, None, None] * prices.fixed  # [S, J, M]
    draft, cap = np.divmod(upto.reshape(s, -1).argmax(axis=1), count)
    mine = net[np.arange(s), :, draft, :]
    mine[np.broadcast_to((np.arange(count) > cap[:, None])[:, None], mine.shape)] = -np.inf
    return Choice(np.tile(draft[:, None], c), mine.argmax(axis=2))


def _ascend(prices: Prices, rows: Real, tokens: Real, k: Real, allowed: NDArray[np.bool_], start: Choice) -> Choice:
    """Coordinate ascent on the batch's goodput, one context after the other; draws that have settled drop out."""
    draft, level = start.draft.copy(), start.level.copy()
    live = np.arange(len(tokens))
    for _ in range(_SWEEPS):
        part = Prices(*(_of(array, live) for array in prices))
        choice = Choice(draft[live], level[live])
        moved = _sweep(part, rows, _of(tokens, live), k, allowed, choice)
        draft[live], level[live] = choice
        live = live[moved]
        if not len(live):
            break
    return Choice(draft, level)


def _sweep(
    prices: Prices, rows: Real, tokens: Real, k: Real, allowed: NDArray[np.bool_], choice: Choice
) -> NDArray[np.bool_]:
    """Move every context once to its best arm, in place; returns which draws moved [S]."""
    draft, level = choice
    s, c, j, count = tokens.shape
    si, ci, ji, ki = np.arange(s), np.arange(c), np.arange(j), np.arange(count)
    own = rows * tokens[si[:, None], ci, draft, level]
    own_paid = rows * prices.slope[si[:, None], draft] * k[level]
    earned, paid = own.sum(axis=1), own_paid.sum(axis=1)
    levels = np.zeros((s, c, j), dtype=np.intp)
    levels[si[:, None], ci, draft] = level
    moved = np.zeros(s, dtype=bool)
    for at in range(c):
        levels[:, at] = 0
        top = levels.max(axis=1)
        passed = prices.fixed[si[:, None], ji, top]
        earned -= own[:, at]
        paid -= own_paid[:, at]
        # Goodput of the batch by arm of this context, as in `respond`.
        seconds = np.where(ki > top[..., None], prices.fixed, passed[..., None])
        seconds += (prices.plain + paid + passed.sum(axis=1))[:, None, None] - passed[..., None]
        seconds += (rows[at] * prices.slope)[..., None] * k
        value = rows[at] * tokens[:, at] + earned[:, None, None]
        value /= seconds
        value[:, ~allowed[at]] = 0
        flat = value.reshape(s, j * count)
        best = flat.argmax(axis=1)
        better = flat[si, best] > flat[si, draft[:, at] * count + level[:, at]] * (1 + 1e-6)
        draft[:, at] = np.where(better, best // count, draft[:, at])
        level[:, at] = np.where(better, best % count, level[:, at])
        levels[si, at, draft[:, at]] = level[:, at]
        own[:, at] = rows[at] * tokens[si, at, draft[:, at], level[:, at]]
        own_paid[:, at] = rows[at] * prices.slope[si, draft[:, at]] * k[level[:, at]]
        earned += own[:, at]
        paid += own_paid[:, at]
        moved |= better
    return moved


def best_choice(prices: Prices, rows: Real, tokens: Real, k: Real, allowed: NDArray[np.bool_]) -> Choice:
    """The choice of greatest goodput, per draw; rows [C], tokens [S, C, J, Kn], k [Kn], allowed [C, J, Kn]."""
    s, c, j, count = tokens.shape
    single = best_single_draft(prices, rows, tokens, k, allowed)
    if j == 1 or c == 1:
        return single
    apart = respond(prices, np.full(c, rows.sum(), dtype=rows.dtype), tokens, k, _nobody(s, c, j)).goodput
    apart[:, ~allowed] = 0
    flat = apart.reshape(s, c, j * count).argmax(axis=2)
    mixed = Choice(flat // count, flat % count)
    first, second = (np.divide(*evaluate(prices, rows, tokens, k, choice)) for choice in (single, mixed))
    better = (second > first)[:, None]
    start = Choice(np.where(better, mixed.draft, single.draft), np.where(better, mixed.level, single.level))
    return _ascend(prices, rows, tokens, k, allowed, start)


def _nobody(s: int, c: int, j: int) -> tuple[Real, Real, Level]:
    nothing = np.zeros((s, c), dtype=np.float32)
    return nothing, nothing, np.zeros((s, c, j), dtype=np.intp)


def joint_response(
    prices: Prices, rows: Real, core: NDArray[np.bool_], tokens: Real, k: Real, allowed: NDArray[np.bool_]
) -> Response:
    """Every context's arms when the core contexts choose jointly: core ones against the other core ones, the others
    (too rare to be in every batch) as one extra row that answers the core's choice. core [C], rows [C]."""
    members = np.flatnonzero(core)
    chosen = best_choice(prices, rows[members], tokens[:, members], k, allowed[members])
    s, c = tokens.shape[:2]
    whole_draft, whole_level = np.zeros((s, c), dtype=np.intp), np.zeros((s, c), dtype=np.intp)
    whole_draft[:, members], whole_level[:, members] = chosen.draft, chosen.level
    # A rare context stands in no other one's rest: its rows count as none there.
    earned, paid, top = _rest(prices, np.where(core, rows, 0.0), tokens, k, Choice(whole_draft, whole_level))
    return respond(prices, rows, tokens, k, (earned, paid, top))
