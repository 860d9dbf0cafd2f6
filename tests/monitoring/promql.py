"""As much of PromQL as is needed to see which series an expression names."""

import re

from tests.monitoring.conftest import Families

# Label names that Prometheus or PromQL adds.
ADDED = {"le", "instance", "job"}
_SERIES = re.compile(r"\b(akc_\w+)(?:\{([^}]*)\})?")
_GROUPED = re.compile(r"\b(?:by|on|without|ignoring) \(([^)]*)\)")


def series(expression: str) -> list[tuple[str, list[str]]]:
    """Every metric that an expression names, with the labels it selects by.

    >>> series('sum by (pool) (rate(akc_frames_total{pool="p", outcome!="learned"}[5m])) > 0 or akc_engines')
    [('akc_frames_total', ['pool', 'outcome']), ('akc_engines', [])]
    """
    return [(name, re.findall(r"(\w+)\s*[=!]", labels)) for name, labels in _SERIES.findall(expression)]


def grouped(expression: str) -> set[str]:
    """Labels that an expression groups or matches by.

    >>> sorted(grouped("sum by (pool, le) (a) / on (pool) b"))
    ['le', 'pool']
    """
    return {label.strip() for labels in _GROUPED.findall(expression) for label in labels.split(",")}


def exported(*sources: Families) -> dict[str, set[str]]:
    """Labels of every sample that the processes answered, by the sample's name."""
    labels: dict[str, set[str]] = {}
    for families in sources:
        for family in families.values():
            for sample in family.samples:
                labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


def unknown(expression: str, known: dict[str, set[str]]) -> list[str]:
    """What an expression names and nobody exports."""
    wrong = []
    available = set(ADDED)
    for name, selected in series(expression):
        if name not in known:
            wrong.append(name)
            continue
        available |= known[name]
        wrong += [f"{name}{{{label}}}" for label in selected if label not in known[name] | ADDED]
    return wrong + sorted(f"by {label}" for label in grouped(expression) - available)
