"""The load: how many rows every step decodes."""

import numpy as np

from simulations.policy import Ints
from simulations.scenario import Alternating, Bursts, Constant, Load, Ramp, Sine


def batches(load: tuple[Load, ...], steps: int) -> Ints:
    """Rows by step [steps]. The phases follow each other and start over while steps are left.

    >>> batches((Ramp(first=1, last=4, steps=4), Alternating(batches=(4, 5), steps=3)), 9).tolist()
    [1, 2, 3, 4, 4, 5, 4, 1, 2]
    >>> batches((Bursts(low=1, high=8, every=4, length=1),), 5).tolist()
    [1, 1, 1, 8, 1]
    """
    parts: list[Ints] = []
    left = steps
    while left > 0:
        for phase in load:
            length = phase.steps or left
            parts.append(_rows(phase, length)[:left])
            left -= min(length, left)
            if left <= 0:
                break
    return np.concatenate(parts)


def _rows(phase: Load, steps: int) -> Ints:
    t = np.arange(steps)
    match phase:
        case Constant(batch=batch):
            return np.full(steps, batch, dtype=np.intp)
        case Ramp(first=first, last=last, scale=scale):
            way = t / max(steps - 1, 1)
            rows = first * (last / first) ** way if scale == "log" else first + (last - first) * way
        case Sine(low=low, high=high, period=period):
            rows = low + (high - low) * (1.0 - np.cos(2.0 * np.pi * t / period)) / 2.0
        case Bursts(low=low, high=high, every=every, length=length):
            rows = np.where(t % every >= every - length, high, low).astype(np.float64)
        case Alternating(batches=numbers, every=every):
            rows = np.array(numbers, dtype=np.float64)[(t // every) % len(numbers)]
    return np.asarray(np.rint(rows), dtype=np.intp)
