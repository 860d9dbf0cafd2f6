"""From draws to probabilities, and from probabilities to the cells engines follow.

Arms of a cell are numbered flat: 0 is none, 1 + j * (Kn - 1) + (k - 1) is draft j at level k >= 1.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from controller.learner.discount import Array
from controller.learner.goodput import marked
from controller.learner.prices import Single
from engine.link.messages import NO_DRAFT

Top = NDArray[np.intp]
Ahead = Callable[[int, int, int], float]
_WITHIN = 8.0  # draws of "the draft's best K" that stand beside those in which the draft was best of all
_SURE = 0.95  # probability from which a newcomer need not wait
_LIKELY = 0.75  # least probability of a newcomer after the dwell


def flat_arms(values: Array, none: float | Array) -> Array:
    """[..., J, Kn] -> [..., arms], `none` in front and K = 0 of the drafts left out.

    >>> flat_arms(np.array([[9.0, 1.0, 2.0], [9.0, 3.0, 4.0]]), 0.0).tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0]
    """
    lead = values.shape[:-2]
    arms = values[..., 1:].reshape(*lead, -1)
    first = np.broadcast_to(np.asarray(none, dtype=np.float64), lead)[..., None]
    return np.asarray(np.concatenate([first, arms], axis=-1), dtype=np.float64)


def arm_name(arm: int, drafts: tuple[str, ...], ks: tuple[int, ...]) -> tuple[str, int]:
    """(draft, K) of a flat arm.

    >>> [arm_name(a, ("x", "y"), (0, 2, 4)) for a in (0, 1, 4)]
    [('none', 0), ('x', 2), ('y', 4)]
    """
    if arm == 0:
        return NO_DRAFT, 0
    j, level = divmod(arm - 1, len(ks) - 1)
    return drafts[j], ks[level + 1]


def frequencies(index: Top, arms: int) -> Array:
    """Share of draws in which each arm was chosen, [..., arms] from indices [..., S].

    >>> frequencies(np.array([[1, 0, 1, 1]]), 2).tolist()
    [[0.25, 0.75]]
    """
    lead, s = index.shape[:-1], index.shape[-1]
    flat = index.reshape(-1, s)
    flat = flat + (np.arange(len(flat)) * arms)[:, None]
    counts = np.bincount(flat.ravel(), minlength=len(flat) * arms).reshape(*lead, arms)
    return np.asarray(counts / s, dtype=np.float64)


def winners(value: Single, count: int, hurdle: float) -> tuple[Top, Top]:
    """Each draw's best arm [C, S] (flat; 0 when none beats the hurdle) and each draft's own best level [C, J, S].

    value [C, J, S]: the largest over `count` levels, as `mark` left it, of what may be played; 0 where nothing may.
    """
    level = marked(value, count) * (value > hurdle)
    draft = value.argmax(axis=1)
    best = np.take_along_axis(level, draft[:, None], axis=1)[:, 0]
    return np.where(best > 0, 1 + draft * (count - 1) + best - 1, 0), level.astype(np.intp)


def sharpened(shares: Array, power: float) -> Array:
    """Shares [..., arms] to a power, summing to 1 again: exploration leans to the likelier arms.

    Plain Thompson sampling (power 1) explores for an endless future. Prefix feedback shows an arm's neighbours, so less
    exploration tells as much: the power is where trials on the simulated scenarios were best over 300 to 3,000 steps.

    >>> sharpened(np.array([[0.75, 0.25, 0.0]]), 2.0).tolist()
    [[0.9, 0.1, 0.0]]
    """
    powered = shares**power
    return np.asarray(powered / powered.sum(axis=-1, keepdims=True), dtype=np.float64)


def pruned(shares: Array, least: float) -> Array:
    """Probabilities without the arms below `least` (the most probable one always stays), summing to 1 again.

    Thompson sampling would play each of dozens of hopeless arms now and then; together they cost more than they teach,
    since an arm's neighbours in K and in other domains teach the same.

    >>> pruned(np.array([[0.01, 0.6, 0.39]]), 0.05).round(3).tolist()
    [[0.0, 0.606, 0.394]]
    """
    keep = (shares >= least) | (shares == shares.max(axis=-1, keepdims=True))
    kept = np.where(keep, shares, 0.0)
    return np.asarray(kept / kept.sum(axis=-1, keepdims=True), dtype=np.float64)


def introduced(shares: Array, within: Array, least: Array) -> Array:
    """Shares [C, arms] in which every draft has at least `least` [C, J], at the K that `within` [C, J, Kn] says.

    A draft that never ran has a prior for a price, and one that never ran here the other domains' acceptance: an
    unlucky start, or a domain unlike the others, would bury it before it is ever tried.

    >>> within = np.array([[[0.0, 1.0, 0.0], [0.5, 0.0, 0.5]]])
    >>> introduced(np.array([[0.2, 0.8, 0.0, 0.0, 0.0]]), within, np.array([[0.0, 0.25]])).round(3).tolist()
    [[0.275, 0.6, 0.0, 0.0, 0.125]]
    """
    c, drafts, count = within.shape
    held = shares[:, 1:].reshape(c, drafts, count - 1).sum(axis=2)
    wanted = np.maximum(np.minimum(least, 1.0 / (1 + drafts)) - held, 0.0)
    extra = wanted[..., None] * within
    mixed = shares * (1.0 - wanted.sum(axis=1, keepdims=True))
    mixed[:, 0] += extra[..., 0].sum(axis=1)
    mixed[:, 1:] += extra[..., 1:].reshape(c, -1)
    return np.asarray(mixed, dtype=np.float64)


def steadied(
    shares: Array,
    mean: Array,
    ahead: Ahead,
    top: Top,
    since: Array,
    young: NDArray[np.bool_],
    now: float,
    dwell: float,
    hysteresis: float,
) -> tuple[Array, Top, Array]:
    """Shares in which the most probable arm stays what it was, unless its successor is worth a switch.

    shares, mean [C, arms] (mean value of each arm), top [C] (-1: none yet), since [C] (seconds);
    ahead(context, arm, other arm) is the share of draws in which the arm beats the other.
    The newcomer takes over when it beats the old arm in _SURE of the draws, or, the dwell over, in _LIKELY of them with
    `hysteresis` more on average, or at once where the context is `young` [C]: calm is for what is known, and a first
    impression must not stand for the whole dwell. Otherwise the two change places in probability: the old arm leads,
    nothing else moves.
    Returns shares, top, since.
    """
    shares, top, since = shares.copy(), top.copy(), since.copy()
    leader = shares.argmax(axis=1)
    for c in range(len(shares)):
        new, old = int(leader[c]), int(top[c])
        if new == old:
            continue
        if old >= 0 and mean[c, old] > 0 and not young[c]:
            beats = ahead(c, new, old)
            gained = mean[c, new] >= mean[c, old] * (1.0 + hysteresis)
            waited = now - since[c] >= dwell
            if not (beats >= _SURE or (waited and gained and beats >= _LIKELY)):
                shares[c, [old, new]] = shares[c, [new, old]]
                continue
        top[c], since[c] = new, now
    return shares, top, since


def conditional(joint: Array, within: Array, draws: int, least: float) -> Array:
    """P(K | draft) [C, J, Kn] from the joint shares [C, J, Kn] (0 at K = 0) and the shares of each draft's own best K.

    Both are shares of `draws`. A draft that is seldom best still serves the requests that hold it: there its own best K
    rules; elsewhere the draws in which it was best of all do.
    """
    weight = joint * draws + _WITHIN * within
    return pruned(weight / np.maximum(weight.sum(axis=-1, keepdims=True), 1e-12), least)


def rounded(p: Array, digits: int = 4) -> Array:
    """Probabilities [..., n] rounded for the wire; the largest takes what rounding left, so they still sum to 1.

    >>> rounded(np.array([1 / 3, 1 / 3, 1 / 3])).tolist()
    [0.3334, 0.3333, 0.3333]
    """
    short = np.round(p, digits)
    most = short.argmax(axis=-1)[..., None]
    rest = 1.0 - short.sum(axis=-1, keepdims=True)
    np.put_along_axis(short, most, np.take_along_axis(short, most, axis=-1) + rest, axis=-1)
    return np.asarray(np.round(short, digits), dtype=np.float64)
