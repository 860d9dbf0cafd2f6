"""Fit the domain classifier: `python -m engine.domains.train [--wheels DIR] [--out weights.json]`.

Texts come from `sources`; a quarter of their units is kept for validation, on which the rejection threshold is chosen.
The prompts of `held_out` are read twice only: to drop training texts that share wording with one, and to print the
confusion table at the end.
"""

import argparse
import json
import re
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.domains.classifier import CLIP, Weights, probabilities, standardise
from engine.domains.features import NAMES, features
from engine.domains.sources import Example, examples

CLASSES = ["code", "math", "chat", "other"]
SEED = 20
RIDGE = 0.003  # per example, on standardised features
MAX_ERROR = 0.005  # of the validation prompts that are not rejected
SHINGLE = 7  # words; two texts that share such a run are taken for versions of one

Array = npt.NDArray[np.float64]


def shingles(text: str) -> set[tuple[str, ...]]:
    """All runs of seven words, lower case, numbers masked.

    >>> len(shingles("One two three four five six 7 8"))
    2
    """
    words = re.findall(r"[a-z]+|#", re.sub(r"\d+", "#", text.lower()))
    return {tuple(words[i : i + SHINGLE]) for i in range(len(words) - SHINGLE + 1)}


def decontaminate(rows: Sequence[Example], held_out: Iterable[str]) -> list[Example]:
    """The rows whose unit shares no run of seven words with a held-out text: a generator goes as a whole."""
    seen = set[tuple[str, ...]]().union(*(shingles(text) for text in held_out))
    spoiled = {(row.source, row.unit) for row in rows if not seen.isdisjoint(shingles(row.text))}
    return [row for row in rows if (row.source, row.unit) not in spoiled]


def fit(x: Array, y: npt.NDArray[np.int64], weight: Array, classes: int, ridge: float = RIDGE) -> Array:
    """Ridge-penalised multinomial logistic regression by Newton's method; coefficients (classes, features + 1).

    `x` is (n, features) and standardised, `weight` sums to 1; the last column is the intercept, which is not penalised.
    The loss is the weighted mean negative log likelihood plus ridge / 2 times the squared coefficients.
    """
    n, d = x.shape
    xb = np.hstack([x, np.ones((n, 1))])
    penalty = np.full((classes, d + 1), ridge)
    penalty[:, -1] = 1e-9
    w = np.zeros((classes, d + 1))
    target = np.eye(classes)[y]
    for _ in range(50):
        scores = xb @ w.T
        p = np.exp(scores - scores.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        gradient = ((p - target) * weight[:, None]).T @ xb + penalty * w
        if np.abs(gradient).max() < 1e-9:
            break
        hessian = np.zeros((classes, d + 1, classes, d + 1))
        for a in range(classes):
            for b in range(classes):
                curve = weight * p[:, a] * ((a == b) - p[:, b])
                hessian[a, :, b, :] = (xb * curve[:, None]).T @ xb
        flat = hessian.reshape(w.size, w.size) + np.diag(penalty.ravel())
        w = w - np.linalg.solve(flat, gradient.ravel()).reshape(w.shape)
    return w


def balanced(rows: Sequence[Example]) -> Array:
    """Weights that give each class the same total, and within a class each source a share by the root of its size."""
    sizes = Counter((row.label, row.source) for row in rows)
    totals: dict[str, float] = defaultdict(float)
    for (label, _), size in sizes.items():
        totals[label] += size**0.5
    return np.array([sizes[row.label, row.source] ** -0.5 / totals[row.label] / len(totals) for row in rows])


def threshold_for(top: Sequence[float], right: Sequence[bool], max_error: float = MAX_ERROR) -> float:
    """The least probability, from 0.5 up in steps of 0.01, above which at most `max_error` of the answers are wrong.

    >>> threshold_for([0.55, 0.7, 0.9], [False, True, True])
    0.56
    """
    for step in range(50, 100):
        threshold = step / 100
        kept = [ok for p, ok in zip(top, right, strict=True) if p >= threshold]
        if not kept or kept.count(False) <= max_error * len(kept):
            return threshold
    return 0.99


def _rounded(vector: Array) -> list[float]:
    return [round(float(v), 5) for v in vector]


def weights_of(rows: Sequence[Example]) -> Weights:
    """Weights fitted on all of `rows`, without a threshold."""
    raw = np.array([features(row.text) for row in rows])
    mean, scale = raw.mean(0), np.maximum(raw.std(0), 1e-3)
    x = np.clip((raw - mean) / scale, -CLIP, CLIP)
    w = fit(x, np.array([CLASSES.index(row.label) for row in rows]), balanced(rows), len(CLASSES))
    return Weights(
        classes=CLASSES,
        mean=_rounded(mean),
        scale=_rounded(scale),
        bias=_rounded(w[:, -1]),
        weights=[_rounded(row) for row in w[:, :-1]],
        threshold=0.0,
    )


def train(rows: Sequence[Example], seed: int = SEED) -> tuple[Weights, float]:
    """Weights, and their accuracy on units they have not seen.

    Three quarters of the units give weights whose answers on the rest set the threshold and are the accuracy returned;
    the weights returned are then fitted on all rows.
    """
    rng = Random(seed)
    units = sorted({(row.source, row.unit) for row in rows})
    held = set(rng.sample(units, len(units) // 4))
    trial = weights_of([row for row in rows if (row.source, row.unit) not in held])
    outside = [row for row in rows if (row.source, row.unit) in held]
    answers = [predict(trial, row.text) for row in outside]
    right = [name == row.label for (name, _), row in zip(answers, outside, strict=True)]
    threshold = threshold_for([p for _, p in answers], right)
    wrong = Counter((row.source, name) for (name, _), row, ok in zip(answers, outside, right, strict=True) if not ok)
    print("validation errors before rejection, by (source, answer):", dict(wrong.most_common(12)), file=sys.stderr)
    return weights_of(rows)._replace(threshold=threshold), sum(right) / len(right)


def predict(weights: Weights, text: str) -> tuple[str, float]:
    """The most probable class and its probability, before rejection."""
    x = standardise(features(text), weights.mean, weights.scale)
    scores = [b + sum(map(float.__mul__, row, x)) for b, row in zip(weights.bias, weights.weights, strict=True)]
    shares = probabilities(scores)
    best = max(range(len(shares)), key=shares.__getitem__)
    return weights.classes[best], shares[best]


def dump(weights: Weights) -> str:
    """The file's text: one line per feature vector, so that a diff can be read."""
    fields: dict[str, Any] = {"features": list(NAMES), **weights._asdict()}
    rows = (f' "{name}": {json.dumps(value)}' for name, value in fields.items())
    return "{\n" + ",\n".join(rows) + "\n}\n"


def confusion(weights: Weights, prompts: Mapping[str, Sequence[str]]) -> str:
    """A table in Markdown: one row per kind of prompt, one column per answer."""
    lines = ["| prompts | n | code | math | chat | other |", "| --- | ---: | ---: | ---: | ---: | ---: |"]
    for kind, texts in prompts.items():
        answers = Counter(
            name if p >= weights.threshold else "other" for name, p in (predict(weights, text) for text in texts)
        )
        lines.append(f"| {kind} | {len(texts)} | " + " | ".join(str(answers[name]) for name in CLASSES) + " |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Fetch, fit, write, print the table."""
    from engine.domains.held_out import held_out

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--wheels", type=Path, help="folder with (or for) the wheels; default: a temporary one")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("weights.json"))
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.wheels or Path(temporary)
        rows = examples(folder, SEED)
        prompts = held_out(folder)
    clean = decontaminate(rows, (text for texts in prompts.values() for text in texts))
    print(f"{len(clean)} texts; {len(rows) - len(clean)} dropped for shared wording", file=sys.stderr)
    weights, accuracy = train(clean)
    options.out.write_text(dump(weights), "utf-8")
    print(f"validation accuracy {accuracy:.4f}, threshold {weights.threshold}", file=sys.stderr)
    print(confusion(weights, prompts))


if __name__ == "__main__":
    main()
