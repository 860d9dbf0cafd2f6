"""What every arm of every context would bring at one load, from draws of tokens and prices.

The contexts that make up the typical batch choose jointly; then every arm of each is priced against the others' choice.
A context too rare to be in every batch is one extra row that answers them. At batch 1 there are no others.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controller.learner.discount import Array, Index
from controller.learner.goodput import Passes, best_choice, blocks, levels_of, per_token
from controller.learner.prices import CHEAPEST, Prices, Single

_PRESENT = 0.5  # a context is part of the joint choice when a batch holds one of its rows with this probability
_COVERED = 0.8
_PORTION = 256  # draws handled at once


class Outlook(NamedTuple):
    """What every arm of every context would bring at one load: gain over the context at K = 0, by draw [C, Kn, J, S];
    the rest as means over draws ([C, J, Kn], or [C] for K = 0)."""

    gain: Single
    gain_mean: Array
    gain_sd: Array  # relative
    speedup: Array  # a row's goodput over plain
    speedup_sd: Array  # relative
    idle_speedup: Array
    idle_sd: Array
    goodput: Array  # of the batch, tokens/s
    idle_goodput: Array
    seconds: Array
    idle_seconds: Array
    plain: float


def rows_at(load_rows: float, mix: Array) -> tuple[Array, NDArray[np.bool_]]:
    """Rows of each context in a batch that holds it, and which contexts make up the typical batch, from shares mix [C]:
    those in most batches, and the most frequent ones until they cover most rows or are as many as the rows.

    >>> rows, core = rows_at(8.0, np.array([0.75, 0.24, 0.01]))
    >>> rows.round(2).tolist(), core.tolist()
    ([6.06, 1.94, 1.0], [True, True, False])
    """
    present = 1.0 - (1.0 - mix) ** load_rows
    rank = np.argsort(np.argsort(-mix, kind="stable"), kind="stable")
    covered = np.cumsum(np.sort(mix)[::-1])[rank] - mix
    core = (present >= _PRESENT) | ((rank < np.ceil(load_rows)) & (covered < _COVERED)) | (rank == 0)
    weight = np.where(mix > 0, mix, 1e-3)
    rows = load_rows * weight / weight[core].sum()
    return np.where(core, rows, 1.0), core


class _Sums:
    """Sums over draws, of values by arm [C, Kn, J] and of those of the context at K = 0 [C]."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.gain, self.gain_sq, self.speedup, self.speedup_sq, self.goodput, self.seconds = np.zeros((6, *shape))
        self.idle, self.idle_sq, self.still, self.idle_seconds = np.zeros((4, shape[0]))


def outlook(
    prices: Prices,
    load: int,
    load_rows: float,
    mix: Array,
    tokens: Single,
    ks: tuple[int, ...],
    allowed: NDArray[np.bool_],
) -> Outlook:
    """Price every arm: alone at batch 1, jointly otherwise. tokens [C, Kn, J, S], allowed [C, J, Kn]."""
    rows, core = rows_at(load_rows, mix)
    if load == 1:
        rows, core = np.ones(len(mix)), np.zeros(len(mix), dtype=bool)
    k = np.array(ks, dtype=np.float32)
    sums = _Sums(tokens.shape[:3])
    gain = np.empty(tokens.shape, dtype=np.float32)
    n = tokens.shape[3]
    for at in range(0, n, _PORTION):
        part = slice(at, at + _PORTION)
        some, mine, out = prices, tokens, gain[..., part]
        if n > _PORTION:
            some, mine = prices.some(part), np.ascontiguousarray(tokens[..., part])
        _price(some, rows.astype(np.float32), core, mine, k, allowed.transpose(0, 2, 1), out, sums)
    means = {
        name: (np.moveaxis(total, 1, 2).copy() if total.ndim == 3 else total) / n for name, total in vars(sums).items()
    }
    sds = {
        name: np.sqrt(np.maximum(means[name + "_sq"] / means[name] ** 2 - 1.0, 0.0))
        for name in ("gain", "speedup", "idle")
    }
    return Outlook(
        gain, means["gain"], sds["gain"], means["speedup"], sds["speedup"], means["idle"], sds["idle"],
        means["goodput"], means["still"], means["seconds"], means["idle_seconds"], float(prices.plain.mean()),
    )  # fmt: skip


class _Rest(NamedTuple):
    """The rest of the batch, by draw [S]: its tokens, seconds of its drafted tokens (by draft), drafted tokens."""

    earned: Single
    paid: Single
    drafted: Single


def _price(
    prices: Prices,
    rows: Single,
    core: NDArray[np.bool_],
    tokens: Single,
    k: Single,
    allowed: NDArray[np.bool_],
    gain: Single,
    sums: _Sums,
) -> None:
    """Fill in gains and add to the sums, for one portion of draws; allowed [C, Kn, J]."""
    c, _, j, s = tokens.shape
    each, nothing = per_token(prices.slope, k), np.zeros(s, dtype=np.float32)
    passes, rest = Passes(prices.fixed), _Rest(nothing, nothing, nothing)
    members, si = np.flatnonzero(core), np.arange(s)
    if len(members):
        inside = tokens if len(members) == c else tokens[members]
        draft, level = best_choice(prices, rows[members], inside, k, allowed[members])
        nth = np.arange(len(members))[:, None]
        own = rows[members, None] * inside[nth, level, draft, si]
        own_paid = rows[members, None] * each[level, draft, si]
        own_drafted = rows[members, None] * k[level]
        rest = _Rest(own.sum(axis=0), own_paid.sum(axis=0), own_drafted.sum(axis=0))
        levels = levels_of(draft, level, j)
        for i, at in enumerate(members.tolist()):
            held = levels[i].copy()
            levels[i] = 0
            passes.show(np.maximum.reduce(levels, axis=0))
            others = _Rest(rest.earned - own[i], rest.paid - own_paid[i], rest.drafted - own_drafted[i])
            _answer(prices, each, float(rows[at]), k, passes, others, tokens, slice(at, at + 1), gain, sums)
            levels[i] = held
        passes.show(np.maximum.reduce(levels, axis=0))
    if len(members) < c:
        _answer(prices, each, 1.0, k, passes, rest, tokens, np.flatnonzero(~core), gain, sums)


def _answer(
    prices: Prices,
    each: Single,
    rows: float,
    k: Single,
    passes: Passes,
    rest: _Rest,
    tokens: Single,
    contexts: slice | Index,
    gain: Single,
    sums: _Sums,
) -> None:
    """Price the arms of contexts that all have so many rows and the same rest of the batch.

    Here tokens and seconds are by row of the context, so that each's seconds [Kn, J, S] need no further factor.
    """
    plain, share = prices.plain, np.float32(1.0 / rows)
    count, j, s = each.shape
    floor = np.float32(CHEAPEST) * plain
    base = plain + rest.paid + np.add.reduce(passes.passed, axis=0)
    verified = prices.verify(rest.drafted + (np.float32(rows) * k)[:, None])
    idle = np.maximum(base + verified[0], floor)
    still = (rest.earned + np.float32(rows)) / idle
    part = plain / idle
    # What is the same for all drafts, in full: numpy is twice as fast where it need not repeat rows of draws.
    full = np.empty((3, j, s), dtype=np.float32)
    for row, values in zip(full, (floor * share, 1 / still, rest.earned * share), strict=True):
        row[:] = values
    verified += base
    verified *= share
    seconds = passes.excess * share
    seconds += each
    seconds += verified[:, None]
    np.maximum(seconds, full[0], out=seconds)
    sums.seconds[contexts] += (seconds.reshape(-1, s) @ np.ones_like(plain)).reshape(count, j) * rows
    once = np.array([part, part * part, still, idle]).sum(axis=1, dtype=np.float64).tolist()
    for total, value in zip((sums.idle, sums.idle_sq, sums.still, sums.idle_seconds), once, strict=True):
        total[contexts] += value
    speed = np.reciprocal(seconds, out=seconds)
    over = speed * full[1]
    own = plain * share
    own_sq = own * own
    for block in [contexts] if isinstance(contexts, slice) else [contexts[b] for b in blocks(len(contexts), each.size)]:
        here = tokens[block]
        found = here + full[2]
        found *= over
        gain[block] = found
        shape, flat = found.shape[:3], found.reshape(-1, s)
        sums.gain[block] += (flat @ np.ones_like(plain)).reshape(shape)
        sums.goodput[block] += (flat @ still).reshape(shape)
        sums.gain_sq[block] += np.einsum("as,as->a", flat, flat).reshape(shape)
        np.multiply(here, speed, out=found)
        sums.speedup[block] += (flat @ own).reshape(shape)
        found *= found
        sums.speedup_sq[block] += (flat @ own_sq).reshape(shape)
