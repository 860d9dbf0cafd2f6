"""Goodput of a batch, and the choice that maximises it, for many draws at once.

A choice gives every context of the batch a draft and a K. Goodput is a ratio of sums, tokens / seconds:

    N = sum_c n_c E_c(draft, K),
    D = plain + verify(sum_c n_c K) + sum_c n_c slope[draft] K + sum_j fixed[j, largest K on j]

With one draft j in the batch, K capped at M and verification at mu a token the maximisation of N - lambda D falls apart
by context, so all (j, M) are enumerated exactly, inside Dinkelbach's iteration on lambda (Dinkelbach 1967, On nonlinear
fractional programming). mu is the slope of `verify` at the choice it leads to: found by bisection, since a dearer token
makes for fewer of them. Batches that mix drafts are reached from there, and from every context's own best, by
coordinate ascent on N / D, in which verification is priced along its curve.

Arrays: C contexts, Kn values of K (index 0 is K = 0; a level is such an index), J drafts, S draws, in this order:
tokens [C, Kn, J, S], prices [Kn, J, S]. Draws stand last, so that every operation runs along them without a break, and
K stands outside the drafts, so that a maximum over K is one of whole rows. Contexts go through in blocks that stay in
the processor's cache. Single precision does: arms are compared, not summed up.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controller.learner.prices import CHEAPEST, Prices, Single

Level = NDArray[np.intp]
_ROUNDS = 8  # of Dinkelbach: it converges superlinearly, usually in two or three
_NEAR = 0.1  # of the range of a token's prices: as near as one is looked for
_SWEEPS = 2  # of coordinate ascent: a third one adds a hundredth of a percent
_BLOCK = 1 << 17  # numbers handled at once: 512 KiB
_NEVER = -1e9  # net tokens of an arm that must not be played


class Choice(NamedTuple):
    """Draft and level of every context and draw, [C, S]; the draft means nothing at level 0."""

    draft: Level
    level: Level


def blocks(contexts: int, each: int) -> Iterator[slice]:
    """Slices of contexts of which every one has `each` numbers, at most _BLOCK numbers together (or one context).

    >>> list(blocks(5, 64_000))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    size = max(1, _BLOCK // max(each, 1))
    return (slice(at, min(at + size, contexts)) for at in range(0, contexts, size))


def mark(values: Single) -> None:
    """Write into the last bits of values [..., Kn, J, S], in place, which level each belongs to.

    A maximum over K then tells its level, too (see `marked`): far faster than an argmax across rows. It costs a few
    parts in a million of a value; of equal positive values the lower level wins. Infinities would become NaN.

    >>> values = np.array([[[1.0]], [[3.0]], [[3.0]], [[2.0]]], dtype=np.float32)    # four levels, one draft and draw
    >>> mark(values)
    >>> largest = np.maximum.reduce(values, axis=0)
    >>> largest.round(3).tolist(), marked(largest, 4).tolist()
    ([[3.0]], [[1]])
    """
    *lead, count, drafts, draws = values.shape
    width = drafts * draws
    bits = values.view(np.int32).reshape(*lead, count, width)
    bits &= np.int32(-(1 << (count - 1).bit_length()))
    bits |= _codes(count, 1 << (width - 1).bit_length())[:, :width]


@lru_cache(maxsize=16)
def _codes(count: int, width: int) -> NDArray[np.int32]:
    """What `mark` writes, in full: numpy is twice as fast where it need not repeat a number."""
    codes = np.arange(count - 1, -1, -1, dtype=np.int32)[:, None]
    return np.ascontiguousarray(np.broadcast_to(codes, (count, width)))


def marked(values: Single, count: int) -> NDArray[np.int32]:
    """The levels that `mark` wrote into values of `count` levels."""
    return np.asarray(count - 1 - (values.view(np.int32) & np.int32((1 << (count - 1).bit_length()) - 1)))


def _best(values: Single) -> tuple[Level, Level, Single]:
    """Draft, level and value [..., S] of the largest of values [..., Kn, J, S], which are marked in the process."""
    mark(values)
    by_draft = np.maximum.reduce(values, axis=-3)
    draft = by_draft.argmax(axis=-2)
    value = np.maximum.reduce(by_draft, axis=-2)
    return draft, marked(value, values.shape[-3]).astype(np.intp), value


def evaluate(prices: Prices, rows: Single, tokens: Single, k: Single, choice: Choice) -> tuple[Single, Single]:
    """(tokens, seconds) of one step under the choice, [S] each; rows [C], tokens [C, Kn, J, S], k [Kn]."""
    c, count, j, s = tokens.shape
    si = np.arange(s)
    flat = ((np.arange(c)[:, None] * count + choice.level) * j + choice.draft) * s + si
    earned = rows @ tokens.reshape(-1).take(flat)
    paid = rows @ (prices.slope[choice.draft, si] * k[choice.level])
    top = levels_of(*choice, j).max(axis=0)
    passes = prices.fixed[top, np.arange(j)[:, None], si].sum(axis=0)
    verified = prices.verify(rows @ k[choice.level])
    return earned, np.maximum(prices.plain + paid + verified + passes, np.float32(CHEAPEST) * prices.plain)


def levels_of(draft: Level, level: Level, drafts: int) -> NDArray[np.uint8]:
    """Level on each draft, [C, J, S], 0 on those a context does not use; draft, level [C, S]."""
    c, s = draft.shape
    levels = np.zeros((c, drafts, s), dtype=np.uint8)
    levels[np.arange(c)[:, None], draft, np.arange(s)] = level
    return levels


class Passes:
    """What a context's arms add to the passes that the rest of the batch runs anyway, kept while the rest changes.

    `passed` [J, S]: seconds of the rest's passes by draft. `excess` [Kn, J, S]: seconds on top when a row joins at a
    level: 0 up to the rest's highest. From one context to the next few of the rests differ, and only those are redone.
    """

    def __init__(self, fixed: Single) -> None:
        self._fixed = fixed.reshape(len(fixed), -1)
        self._top = np.zeros(self._fixed.shape[1], dtype=np.uint8)
        self._nth = np.arange(len(fixed))[:, None]
        self.excess = fixed.copy()
        self._columns = self.excess.reshape(len(fixed), -1)
        self.passed = np.zeros(fixed.shape[1:], dtype=fixed.dtype)

    def show(self, top: NDArray[np.uint8]) -> None:
        """Let the rest's highest levels be top [J, S]."""
        flat = top.reshape(-1)
        (at,) = (flat != self._top).nonzero()
        if len(at):
            level = flat[at]
            fixed = self._fixed.take(at, axis=1)
            passed = fixed[level, np.arange(len(at))]
            fixed -= passed
            fixed *= self._nth > level
            self._columns[:, at] = fixed
            self.passed.reshape(-1)[at] = passed
            self._top[at] = level


def per_token(slope: Single, k: Single) -> Single:
    """Seconds of the drafted tokens of one row at `slope` [J, S] each, [Kn, J, S]."""
    return np.asarray(k[:, None, None] * slope, dtype=np.float32)


def best_single_draft(
    prices: Prices, rows: Single, tokens: Single, k: Single, allowed: NDArray[np.bool_], least: Single | None = None
) -> Choice:
    """The exact optimum over choices that use one draft (or none) in the batch; allowed [C, Kn, J].

    least [S]: a goodput that is known to be reached, to start from; where no single draft beats it, the choice may fall
    short of the optimum.
    """
    c, _, _, s = tokens.shape
    ratio = rows.sum() / prices.plain
    if least is not None:
        ratio = np.maximum(ratio, least)
    draft, level = np.zeros((c, s), dtype=np.intp), np.zeros((c, s), dtype=np.intp)
    live = np.arange(s)
    part, mine = prices, tokens
    rises = np.diff(prices.curve, axis=0) / np.float32(prices.grain)
    low, high = rises.min(axis=0), rises.max(axis=0)
    near = np.float32(_NEAR) * (high - low) + np.float32(1e-12)
    reached = np.zeros(s, dtype=np.float32)
    for _ in range(_ROUNDS):
        mu = (low + high) / 2
        chosen = _priced(part, rows, mine, k, allowed, ratio[live], mu)
        earned, spent = evaluate(part, rows, mine, k, chosen)
        new = earned / spent
        better = new > reached[live]
        at = live[better]
        draft[:, at], level[:, at] = chosen.draft[:, better], chosen.level[:, better]
        reached[at] = new[better]
        dear = part.marginal(rows @ k[chosen.level]) > mu
        low, high = np.where(dear, mu, low), np.where(dear, high, mu)
        risen = new > ratio[live] * np.float32(1 + 1e-4)
        ratio[live] = np.where(risen, new, ratio[live])
        left = np.flatnonzero(risen | (high - low > near))
        if not len(left):
            break
        if len(left) < len(live):
            live, low, high, near = live[left], low[left], high[left], near[left]
            part, mine = part.some(left), mine.take(left, axis=-1)
    return Choice(draft, level)


def _priced(
    prices: Prices, rows: Single, tokens: Single, k: Single, allowed: NDArray[np.bool_], ratio: Single, mu: Single
) -> Choice:
    """Maximise N - ratio * D over one draft and a cap M on K: by context the best level up to M, passes of M paid.

    mu [S]: seconds of verifying a drafted token."""
    c, count, j, s = tokens.shape
    dear = per_token((prices.slope + mu) * ratio, k)
    upto = prices.fixed * -ratio  # [M, J, S]
    for block in blocks(c, tokens[0].size):
        net = tokens[block] - dear
        net[~allowed[block]] = _NEVER
        for i in range(1, count):
            np.maximum(net[:, i], net[:, i - 1], out=net[:, i])
        upto += (rows[block] @ net.reshape(len(net), -1)).reshape(upto.shape)
    draft, cap, _ = _best(upto)
    at = draft * s + np.arange(s)
    net = tokens.reshape(c * count, j * s).take(at, axis=1).reshape(c, count, s)
    dear = dear.reshape(count, j * s).take(at, axis=1)
    dear += (np.arange(count)[:, None] > cap) * np.float32(-_NEVER)
    net -= dear
    if not allowed.all():
        net += np.where(allowed, np.float32(0), np.float32(_NEVER))[:, :, draft]
    net = net[:, :, None]
    mark(net)
    return Choice(np.tile(draft, (c, 1)), marked(np.maximum.reduce(net, axis=1)[:, 0], count).astype(np.intp))


def _ascend(
    prices: Prices, rows: Single, tokens: Single, k: Single, allowed: NDArray[np.bool_], start: Choice
) -> Choice:
    """Coordinate ascent on the batch's goodput, one context after the other; draws that have settled drop out."""
    draft, level = start.draft.copy(), start.level.copy()
    live = np.arange(tokens.shape[-1])
    for _ in range(_SWEEPS):
        choice = Choice(draft[:, live], level[:, live])
        moved = np.flatnonzero(_sweep(prices, rows, tokens, k, allowed, choice))
        draft[:, live], level[:, live] = choice
        if not len(moved):
            break
        if len(moved) < len(live):
            live = live[moved]
            prices, tokens = prices.some(moved), tokens.take(moved, axis=-1)
    return Choice(draft, level)


def _sweep(
    prices: Prices, rows: Single, tokens: Single, k: Single, allowed: NDArray[np.bool_], choice: Choice
) -> NDArray[np.bool_]:
    """Move every context once to its best arm, in place; returns which draws moved [S]."""
    draft, level = choice
    c, count, j, s = tokens.shape
    si, ci = np.arange(s), np.arange(c)[:, None]
    row, forbidden = per_token(prices.slope, k), [np.flatnonzero(~one) for one in allowed.reshape(c, -1)]
    own = rows[:, None] * tokens[ci, level, draft, si]
    own_paid = rows[:, None] * row[level, draft, si]
    own_drafted = rows[:, None] * k[level]
    earned, paid, drafted = own.sum(axis=0), own_paid.sum(axis=0), own_drafted.sum(axis=0)
    levels = levels_of(draft, level, j)
    moved = np.zeros(s, dtype=bool)
    floor = np.float32(CHEAPEST) * prices.plain
    passes = Passes(prices.fixed)
    seconds, value = np.empty_like(row), np.empty_like(row)
    flat = value.reshape(-1)
    by_draft = np.empty((3, j, s), dtype=np.float32)  # of what is the same for all drafts: see `_codes`
    for at in np.flatnonzero(allowed[:, 1:].any(axis=(1, 2))).tolist():
        share = np.float32(1) / rows[at]
        levels[at] = 0
        passes.show(np.maximum.reduce(levels, axis=0))
        earned -= own[at]
        paid -= own_paid[at]
        drafted -= own_drafted[at]
        # Goodput of the batch by arm of this context, numerator and denominator by row of it.
        np.multiply(passes.excess, share, out=seconds)
        seconds += row
        by_draft[0] = (prices.plain + paid + np.add.reduce(passes.passed, axis=0)) * share
        by_draft[1] = earned * share
        by_draft[2] = floor * share
        verified = prices.verify(drafted + (rows[at] * k)[:, None])
        verified *= share
        verified += by_draft[0, 0]
        seconds += verified[:, None]
        np.maximum(seconds, by_draft[2], out=seconds)
        np.add(tokens[at], by_draft[1], out=value)
        value /= seconds
        if len(forbidden[at]):
            value.reshape(count * j, s)[forbidden[at]] = 0
        now = flat.take((level[at] * j + draft[at]) * s + si)
        new_draft, new_level, best = _best(value)
        better = best > now * np.float32(1 + 1e-5)
        if better.any():
            moved |= better
            draft[at] = np.where(better, new_draft, draft[at])
            level[at] = np.where(better, new_level, level[at])
            own[at] = rows[at] * tokens[at, level[at], draft[at], si]
            own_paid[at] = rows[at] * row[level[at], draft[at], si]
            own_drafted[at] = rows[at] * k[level[at]]
        levels[at, draft[at], si] = level[at]
        earned += own[at]
        paid += own_paid[at]
        drafted += own_drafted[at]
    return moved


def best_choice(prices: Prices, rows: Single, tokens: Single, k: Single, allowed: NDArray[np.bool_]) -> Choice:
    """The choice of greatest goodput, per draw; rows [C], tokens [C, Kn, J, S], k [Kn], allowed [C, Kn, J].

    K = 0 is always allowed.
    """
    c, _, _, s = tokens.shape
    allowed = allowed.copy()
    allowed[:, 0] = True
    # Every context's own best, as if all rows of the batch were its own.
    price = per_token(prices.slope * rows.sum(), k)
    price += prices.fixed
    together = np.repeat((rows.sum() * k)[:, None], s, axis=1)
    price += (prices.verify(together) + prices.plain)[:, None]
    np.maximum(price, np.float32(CHEAPEST) * prices.plain, out=price)
    np.reciprocal(price, out=price)
    draft, level = np.empty((c, s), dtype=np.intp), np.empty((c, s), dtype=np.intp)
    for block in blocks(c, tokens[0].size):
        value = tokens[block] * price
        value[~allowed[block]] = 0
        draft[block], level[block], _ = _best(value)
    mixed = Choice(draft, level)
    if c == 1:
        return mixed
    reached = np.divide(*evaluate(prices, rows, tokens, k, mixed))
    single = best_single_draft(prices, rows, tokens, k, allowed, reached)
    better = np.divide(*evaluate(prices, rows, tokens, k, single)) < reached
    start = Choice(np.where(better, mixed.draft, single.draft), np.where(better, mixed.level, single.level))
    return _ascend(prices, rows, tokens, k, allowed, start)
