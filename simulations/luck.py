"""Luck by number: every random quantity is a function of what it belongs to, so that all policies meet the same.

Counter-based: a 64-bit key and a counter go through the finaliser of SplitMix64 (Steele, Lea and Flood 2014, Fast
splittable pseudorandom number generators, section 5), whose increments are multiples of the golden ratio.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter
from scipy.special import ndtri

Keys = NDArray[np.uint64]
Array = NDArray[np.float64]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_A, _B = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = (np.uint64(n) for n in (30, 27, 31, 11))
_UNIT = 2.0**-53


def mixed(x: Keys) -> Keys:
    """Every bit of the result depends on every bit of x; a bijection."""
    x = (x ^ (x >> _S30)) * _A
    x = (x ^ (x >> _S27)) * _B
    return x ^ (x >> _S31)


def key(*parts: int) -> Keys:
    """A key [1] from whole numbers, each of any size.

    >>> bool(key(1, 2) == key(1, 2)), bool(key(1, 2) == key(2, 1))
    (True, False)
    """
    at = np.zeros(1, dtype=np.uint64)
    for part in parts:
        at = mixed(at * GOLDEN + np.array([part % (1 << 64)], dtype=np.uint64) + GOLDEN)
    return at


def uniforms(keys: Keys, counters: Keys) -> Array:
    """Uniforms in [0, 1) by key and counter, broadcast against each other."""
    return np.asarray((mixed(keys + counters * GOLDEN) >> _S11) * _UNIT, dtype=np.float64)


def normals(keys: Keys, counters: Keys) -> Array:
    """Standard normals by key and counter, through the inverse of their distribution function."""
    return np.asarray(ndtri(uniforms(keys, counters) + _UNIT / 2.0), dtype=np.float64)


def wandering(white: Array, length: float) -> Array:
    """A stationary first-order autoregression of variance 1 from white noise [n]; correlation exp(-1 / length).

    >>> wandering(np.array([1.0, 0.0, 0.0]), 2.0).round(3).tolist()
    [1.0, 0.607, 0.368]
    """
    kept = np.exp(-1.0 / length)
    fed = np.sqrt(1.0 - kept**2) * white
    fed[:1] = white[:1]
    return np.asarray(lfilter([1.0], [1.0, -kept], fed), dtype=np.float64)
