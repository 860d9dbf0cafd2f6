"""The comparison for people and for machines: tables on the terminal, JSON in a file."""

from pathlib import Path
from typing import Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from simulations.comparison import Comparison, PolicyRow, Spread
from simulations.rivals import TOLD

_SHOWN = (300, 1000, 3000)
_BOX: dict[str, Any] = {"box": SIMPLE_HEAD, "collapse_padding": True, "pad_edge": False}  # fits 80 columns
_STYLE = {"ours": "bold green", "rival": "", "yardstick": "dim"}


def show(comparison: Comparison, console: Console) -> None:
    """Print the scenario's tables."""
    console.print(policies(comparison))
    console.print(domains(comparison))
    ours = next((row for row in comparison.rows if row.kind == "ours"), None)
    if ours is not None and ours.recovered:
        parts = [f"{what}: {'never' if n is None else f'{n:.0f}'}" for what, n in ours.recovered.items()]
        console.print("Own steps until 0.97 of the new optimum (ours, median): " + "; ".join(parts))


def policies(comparison: Comparison) -> Table:
    """One row a policy."""
    seeds = comparison.rows[0].seeds if comparison.rows else 0
    title = f"{comparison.scenario}: medians over {seeds} seed{'s' * (seeds != 1)}"
    table = Table(title=title, title_justify="left", **_BOX)
    table.add_column("policy", overflow="fold")
    for name in ("speedup", *(str(mark) for mark in _SHOWN), "worst", "regret", "window", "switches"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in comparison.rows:
        at_1000, lost = row.shares[1000], row.regret[1000]
        table.add_row(
            row.policy + (" *" if row.kind == "yardstick" else " +" if row.policy in TOLD else ""),
            f"{row.speedup.median:.3f}",
            *(_median(row.shares[mark]) for mark in _SHOWN),
            "-" if at_1000 is None else f"{at_1000.worst:.3f}",
            "-" if lost is None else f"{lost.mean:.2f}",
            f"{row.worst_window.worst:.3f}",
            f"{(row.decided or row.switches).median:.1f}",
            style=_STYLE[row.kind],
        )
    table.caption = (
        "speedup: over plain decoding; 300, 1000, 3000: share of the clairvoyant's goodput over the first so many "
        "steps of every domain; "
        "worst: seed at 1000; regret: seconds lost at 1000; window: worst 500 steps over plain decoding, any seed; "
        "switches per 1,000 steps after the first fifth; * yardstick, not a rival; "
        "+ a rival that does not learn but was told this scenario's averages beforehand"
    )
    table.caption_justify = "left"
    return table


def domains(comparison: Comparison) -> Table:
    """What each policy ends on, by domain (the first eight)."""
    title = "Most played in the last fifth (share after a domain's first 300 steps)"
    table = Table(title=title, title_justify="left", **_BOX)
    table.add_column("policy")
    names = list(comparison.rows[0].domains)[:8] if comparison.rows else []
    for name in names:
        table.add_column(name)
    for row in comparison.rows:
        table.add_row(row.policy, *(_domain(row, name) for name in names), style=_STYLE[row.kind])
    return table


def _domain(row: PolicyRow, name: str) -> str:
    mine = row.domains[name]
    if mine.top is None:
        return "-"
    later = "" if mine.later is None else f" ({mine.later.median:.3f})"
    return (f"{mine.top[0]} K={mine.top[1]}" if mine.top[1] else "none") + later


def _median(value: Spread | None) -> str:
    return "-" if value is None else f"{value.median:.3f}"


def write(comparisons: list[Comparison], path: Path) -> None:
    """Everything as JSON, one entry a scenario."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(comparisons), indent=1))
