"""Seconds of a step by the tokens that the target verifies in it: one curve for all loads.

How long the target takes depends on the tokens of the step, hardly on whose they are: 64 rows that draft 3 tokens each
cost about what 256 plain rows cost (the roofline: Williams, Waterman and Patterson 2009). So steps of every load say
something about this curve, and the first step at a new load is priced by what was seen elsewhere. It is a line between
knots at 1, 2, 4, .. tokens, from _FINE on four to the octave; its slope is a random walk, so it goes straight on where
nothing is known, and may bend anywhere.

A cell holds moments of its steps' tokens only, so along a cell the curve is taken for its secant through the mean plus
and minus one standard deviation: two points that share out every step between them.
"""

from typing import NamedTuple

import numpy as np

from controller.learner.discount import Array, Index
from controller.learner.steps import Sums

_FINE, _PER_OCTAVE = 16, 4
_LEVEL = (0.92, 0.5)  # mean and sd of a step at one token, of the usual one
_SLOPE = (0.03, 0.05)  # and of what the second token costs
_BEND, _STEEPER, _MOST = 0.01, 0.75, 0.3  # sd of a turn of the slope an octave on, relative: see `prior`


def knots(most: int) -> Array:
    """Numbers of tokens between which the curve is a line, up to `most` or more.

    >>> knots(40).round(1).tolist()
    [1.0, 2.0, 4.0, 8.0, 16.0, 19.0, 22.6, 26.9, 32.0, 38.1, 45.3]
    """
    coarse = 2.0 ** np.arange(np.log2(_FINE))
    more = max(1, int(np.ceil(np.log2(max(most, 2 * coarse[-1]) / _FINE) * _PER_OCTAVE)))
    return np.concatenate([coarse, _FINE * 2.0 ** (np.arange(more + 1) / _PER_OCTAVE)])


def prior(at: Array, seconds: Array) -> tuple[Array, Array]:
    """Precision [n, n] of the curve at the knots `at` [n], and precision times mean [n]; seconds [n]: about of a step.

    From octave to octave a token's price changes by min(_BEND tokens ** _STEEPER, _MOST) of seconds / tokens, which is
    the price where seconds are proportional to tokens: hardly where few tokens are read from memory, about anyhow where
    a processor may be full.

    >>> precision, right = prior(np.array([1.0, 2.0, 4.0]), np.ones(3))
    >>> np.linalg.solve(precision, right).round(6).tolist()    # straight on
    [0.92, 0.95, 1.01]
    """
    n, step = len(at), float(seconds[0])
    slopes = np.diff(np.eye(n), axis=0) / np.diff(at)[:, None]
    octaves = np.log2(at[2:] / at[:-2]) / 2.0
    turn = np.minimum(_BEND * at[1:-1] ** _STEEPER, _MOST) * seconds[1:-1] / at[1:-1] * octaves**0.5
    rows = np.concatenate([
        np.eye(n)[:1] / (_LEVEL[1] * step),
        slopes[:1] / (_SLOPE[1] * step),
        np.diff(slopes, axis=0) / turn[:, None],
    ])  # fmt: skip
    means = np.zeros(n)
    means[:2] = _LEVEL[0] / _LEVEL[1], _SLOPE[0] / _SLOPE[1]
    return rows.T @ rows, rows.T @ means


class Columns(NamedTuple):
    """The curve's part of the design, by row: four variables each, two knots around the lower point and two around the
    upper one."""

    knot: Index  # [rows, 4]
    along: Array  # [rows, columns, 4]: sums of their products with the row's other columns
    square: Array  # [rows, 4, 4]: with each other
    y: Array  # [rows, 4]: with the seconds


def design(at: Array, group: Sums, square: Array, y: Array) -> Columns:
    """The curve's columns for rows of cells, from sums of products of their other columns, weighted: square
    [rows, columns, columns], y [rows, columns], of which the first column is 1 and the second one the verified tokens.

    A step of T tokens counts (T - low) / width at the upper point, which is linear in T: so its sums follow.
    """
    tokens = group.x[:, 0] / group.n
    half = np.sqrt(np.maximum(group.xx[:, 0, 0] / group.n - tokens**2, 0.0))
    half = np.maximum(half, 0.25 + 0.01 * tokens)
    low, width = tokens - half, 2.0 * half
    near, shares = weights(at, np.stack([low, tokens + half], axis=1))
    knot, share = near.reshape(len(tokens), 4), shares.reshape(len(tokens), 4)
    upper = (square[:, :, 1] - low[:, None] * square[:, :, 0]) / width[:, None]
    upper_sq = (upper[:, 1] - low * upper[:, 0]) / width
    both = upper[:, 0] - upper_sq
    lower_sq = square[:, 0, 0] - upper[:, 0] - both
    upper_y = (y[:, 1] - low * y[:, 0]) / width
    ends = np.stack([square[:, :, 0] - upper, upper], axis=2)
    ends_sq = np.array([[lower_sq, both], [both, upper_sq]]).transpose(2, 0, 1)
    ends_y = np.stack([y[:, 0] - upper_y, upper_y], axis=1)
    return Columns(
        knot,
        ends.repeat(2, axis=2) * share[:, None, :],
        ends_sq.repeat(2, axis=1).repeat(2, axis=2) * share[:, :, None] * share[:, None, :],
        ends_y.repeat(2, axis=1) * share,
    )


def weights(at: Array, tokens: Array) -> tuple[Index, Array]:
    """The two knots around each number of tokens and their shares, [.., 2] both; straight on beyond the last ones."""
    low = np.clip(np.searchsorted(at, tokens, side="right") - 1, 0, len(at) - 2)
    share = (tokens - at[low]) / (at[low + 1] - at[low])
    return np.stack([low, low + 1], axis=-1), np.stack([1.0 - share, share], axis=-1)


def along(at: Array, tokens: Array, values: Array) -> Array:
    """A curve with values [n, S] at `at` [n], at those numbers of tokens [m]: [m, S].

    >>> along(np.array([1.0, 3.0]), np.array([1.0, 2.5, 4.0]), np.array([[0.0], [4.0]])).ravel().tolist()
    [0.0, 3.0, 6.0]
    """
    knot, share = weights(at, tokens)
    return np.asarray(values[knot[:, 0]] * share[:, :1] + values[knot[:, 1]] * share[:, 1:], dtype=np.float64)
