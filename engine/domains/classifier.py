"""Multinomial logistic regression over `features`, with the weights of `weights.json`, and rejection to `other`.

Classes are code, math, chat and a background class `other` (foreign languages, noise). With x the standardised
features, clipped to +-4 so that no single odd count decides, the score of class c is b[c] + sum_j w[c][j] x[j] and the
probabilities are their softmax. A prompt whose most probable class stays below the threshold is `other` too.
"""

import functools
import json
import math
from importlib import resources
from typing import NamedTuple

from engine.domains.features import NAMES, features

OTHER = "other"
CLIP = 4.0


class Prediction(NamedTuple):
    """The domain, the probability of the most probable class (0 for text without anything to read), all classes'."""

    domain: str
    probability: float
    classes: dict[str, float]


class Contribution(NamedTuple):
    """One feature's part in a decision: its value, and how much it raised the score over the mean of the classes."""

    feature: str
    value: float
    contribution: float


class Weights(NamedTuple):
    """`weights[c][j]` for class c and feature j; features are standardised by `mean` and `scale`."""

    classes: list[str]
    mean: list[float]
    scale: list[float]
    bias: list[float]
    weights: list[list[float]]
    threshold: float


def parse_weights(data: str) -> Weights:
    """Weights from JSON. Raises `ValueError` when they were trained for other features than this code computes."""
    raw = json.loads(data)
    if tuple(raw["features"]) != NAMES:
        raise ValueError("weights.json was trained for other features; run `python -m engine.domains.train`")
    return Weights(*(raw[name] for name in Weights._fields))


@functools.cache
def _weights() -> Weights:
    return parse_weights(resources.files("engine.domains").joinpath("weights.json").read_text("utf-8"))


def standardise(values: list[float], mean: list[float], scale: list[float]) -> list[float]:
    """(value - mean) / scale, clipped to [-4, 4].

    >>> standardise([1.0, 9.0], [0.0, 0.0], [2.0, 1.0])
    [0.5, 4.0]
    """
    return [max(-CLIP, min(CLIP, (v - m) / s)) for v, m, s in zip(values, mean, scale, strict=True)]


def probabilities(scores: list[float]) -> list[float]:
    """Softmax of the scores.

    >>> probabilities([0.0, 0.0])
    [0.5, 0.5]
    """
    top = max(scores)
    powers = [math.exp(s - top) for s in scores]
    total = sum(powers)
    return [p / total for p in powers]


def classify(text: str) -> Prediction:
    """The domain of a prompt: `code`, `math`, `chat`, or `other` when there is nothing to read or nothing is likely.

    >>> classify("def add(a, b):\\n    return").domain
    'code'
    >>> classify("\\n ").domain
    'other'
    """
    w = _weights()
    if not text or text.isspace():
        return Prediction(OTHER, 0.0, dict.fromkeys(w.classes, 0.0))
    x = standardise(features(text), w.mean, w.scale)
    scores = [bias + sum(map(float.__mul__, row, x)) for bias, row in zip(w.bias, w.weights, strict=True)]
    shares = probabilities(scores)
    best = max(range(len(shares)), key=shares.__getitem__)
    domain = w.classes[best] if shares[best] >= w.threshold else OTHER
    return Prediction(domain, shares[best], dict(zip(w.classes, shares, strict=True)))


def explain(text: str, top: int = 6) -> list[Contribution]:
    """The `top` features that spoke most for the most probable class, or against it, by size of their contribution.

    A contribution is (w[c][j] - mean over classes of w[.][j]) x[j]: what feature j adds to the score of class c over
    the average class.

    >>> explain("def add(a, b):\\n    return a + b")[0].contribution > 0
    True
    """
    w = _weights()
    values = features(text)
    x = standardise(values, w.mean, w.scale)
    scores = [bias + sum(map(float.__mul__, row, x)) for bias, row in zip(w.bias, w.weights, strict=True)]
    best = max(range(len(scores)), key=scores.__getitem__)
    rows = [
        Contribution(name, value, (w.weights[best][j] - sum(row[j] for row in w.weights) / len(w.weights)) * x[j])
        for j, (name, value) in enumerate(zip(NAMES, values, strict=True))
    ]
    return sorted(rows, key=lambda row: -abs(row.contribution))[:top]
