"""Pictures of a comparison: regret over steps, K over time, share of the optimum, goodput against a varying load.

Lines are labelled where they end instead of in a legend, so only a few are drawn: ours, the best fixed arm, plain
decoding and the three best rivals. Colours are those of Okabe and Ito (2008, Color universal design), which stay
apart for colour-blind readers; line styles differ besides. The same comparison gives the same files.
"""

from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np

from simulations.comparison import HINDSIGHT, Comparison
from simulations.log import PARTS
from simulations.luck import Array
from simulations.result import Summary

mpl.use("agg")  # files only: no display is asked for

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_OURS, _FIXED, _PLAIN = "#0072B2", "#E69F00", "#777777"
Style = str | tuple[int, tuple[int, ...]]
_RIVALS: tuple[tuple[str, Style], ...] = (
    ("#D55E00", "--"),
    ("#009E73", "-."),
    ("#CC79A7", (0, (5, 1, 1, 1, 1, 1))),
)
_DOMAINS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
_STYLE: dict[Any, Any] = {  # matplotlib wants its keys as literals
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.8,
    "axes.titlelocation": "left",
    "axes.titlesize": 11.0,
    "svg.hashsalt": "akc",  # else every drawing has other ids
}
_APART = 12.0  # points between labels


class _Line(NamedTuple):
    """A policy as it is drawn: its row's name, its runs, colour, line style and width."""

    label: str
    runs: list[Summary]
    colour: str
    style: Style
    width: float


class _End(NamedTuple):
    """An end of a line, and what is written there."""

    x: float
    y: float
    text: str
    colour: str


def draw(comparison: Comparison, folder: Path) -> list[Path]:
    """Write the pictures as SVG into the folder; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with mpl.rc_context(_STYLE):
        for what, figure in figures(comparison).items():
            path = folder / f"{comparison.scenario}-{what}.svg"
            figure.savefig(path, metadata={"Date": None})
            plt.close(figure)
            paths.append(path)
    return paths


def figures(comparison: Comparison) -> dict[str, Figure]:
    """The pictures by name; `load` only where the load changes."""
    lines = _lines(comparison)
    found = {
        "regret": _regret(comparison.scenario, lines),
        "depth": _depth(comparison.scenario, lines),
        "share": _share(comparison),
    }
    if len(lines[0].runs[0].loads) > 1:
        found["load"] = _load(comparison.scenario, lines)
    return found


def _lines(comparison: Comparison) -> list[_Line]:
    """Ours, the best fixed arm, plain decoding, and the best rivals, as far as they were played."""
    lines: list[_Line] = []
    others = list(_RIVALS)
    for row in comparison.rows:
        runs = [s for s in comparison.summaries if s.policy == row.runs]
        if row.kind == "ours":
            lines.insert(0, _Line(row.policy, runs, _OURS, "-", 2.4))
        elif row.policy.startswith(HINDSIGHT):
            lines.append(_Line(row.policy, runs, _FIXED, "-", 1.6))
        elif row.policy == "plain":
            lines.append(_Line(row.policy, runs, _PLAIN, "-", 1.2))
        elif row.kind == "rival" and others:
            lines.append(_Line(row.policy, runs, *others.pop(0), 1.4))
    return lines or [_Line(comparison.rows[0].policy, comparison.summaries, _OURS, "-", 2.4)]


def _blank(title: str, x: str, y: str, height: float = 4.2) -> tuple[Figure, Axes]:
    figure, axes = plt.subplots(figsize=(8.0, height), layout="constrained")
    axes.set(title=title, xlabel=x, ylabel=y)
    return figure, axes


def _regret(scenario: str, lines: list[_Line]) -> Figure:
    figure, axes = _blank(f"{scenario}: time lost against the clairvoyant", "steps of an engine", "seconds lost")
    ends, lowest, highest = [], 0.0, 0.0
    for line in lines:
        steps = np.array([step for step, _ in line.runs[0].lost])
        lost = np.array([[value for _, value in run.lost] for run in line.runs])
        middle = np.median(lost, axis=0)
        axes.plot(steps, middle, color=line.colour, linestyle=line.style, linewidth=line.width)
        if line is lines[0] and len(lost) > 1:
            axes.fill_between(steps, lost.min(axis=0), lost.max(axis=0), color=line.colour, alpha=0.2, linewidth=0)
        ends.append(_End(float(steps[-1]), float(middle[-1]), line.label, line.colour))
        if line.label != "plain" or len(lines) == 1:
            lowest, highest = min(lowest, float(middle.min())), max(highest, float(middle.max()))
    # Plain decoding loses so much more where drafting pays that it would flatten the others: it may leave the picture.
    limit = 1.15 * highest or 1.0
    axes.set_ylim(1.15 * lowest, limit)
    axes.set_xlim(0, ends[0].x)
    _label(figure, axes, [end._replace(text=f"{end.text} (above)") if end.y > limit else end for end in ends])
    return figure


def _depth(scenario: str, lines: list[_Line]) -> Figure:
    mine = lines[0]
    names = list(mine.runs[0].domains)
    shown = names[: len(_DOMAINS)]
    more = "" if shown == names else f" (the first {len(shown)} of {len(names)} domains)"
    figure, axes = _blank(
        f"{scenario}: K by domain, {mine.label}{more}", "steps of an engine", "K: draft tokens per row and step"
    )
    steps = mine.runs[0].lost[-1][0]
    at = (np.arange(PARTS) + 0.5) / PARTS * steps
    ends = []
    for domain, colour in zip(shown, _DOMAINS, strict=False):
        depth = np.array([[np.nan if k is None else k for k in run.domains[domain].depth] for run in mine.runs])
        there = ~np.isnan(depth).all(axis=0)
        if not there.any():
            continue
        middle = np.nanmedian(depth[:, there], axis=0)
        axes.plot(at[there], middle, color=colour, linewidth=1.8)
        ends.append(_End(float(at[there][-1]), float(middle[-1]), domain, colour))
    axes.set_xlim(0, steps)
    axes.set_ylim(bottom=0)
    _label(figure, axes, ends)
    return figure


def _share(comparison: Comparison) -> Figure:
    rows = comparison.rows[::-1]
    figure, axes = _blank(
        f"{comparison.scenario}: share of the clairvoyant's goodput",
        "share over the whole run: median and range of the seeds (hollow: yardsticks)",
        "",
        height=1.1 + 0.24 * len(rows),
    )
    for at, row in enumerate(rows):
        shares = [run.share for run in comparison.summaries if run.policy == row.runs]
        colour = _OURS if row.kind == "ours" else "#555555"
        face = "white" if row.kind == "yardstick" else colour
        axes.plot([min(shares), max(shares)], [at, at], color=colour, linewidth=2.0, solid_capstyle="butt")
        axes.plot(row.share.median, at, "o", color=colour, markerfacecolor=face, markersize=6)
        number = f"{row.share.median:.3f}"
        axes.annotate(
            number, (1.0, at), (6, 0), ("axes fraction", "data"), "offset points", va="center", color=colour, size=9
        )
    axes.set_yticks(range(len(rows)), [row.policy for row in rows])
    for label, row in zip(axes.get_yticklabels(), rows, strict=True):
        label.set_color(_OURS if row.kind == "ours" else "black")
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.grid(visible=False, axis="y")
    axes.set_xlim(right=max(1.01, axes.get_xlim()[1]))
    return figure


def _load(scenario: str, lines: list[_Line]) -> Figure:
    figure, axes = _blank(f"{scenario}: goodput against load", "rows decoded together", "times plain decoding")
    first = lines[0].runs[0]
    loads = sorted(first.loads)
    best = np.array([first.loads[b].best / first.loads[b].plain for b in loads])
    axes.plot(loads, best, color="black", linestyle=":", linewidth=1.2)
    # Under full load nothing pays and the lines meet, so their names stand at the left end and the scale at the right.
    axes.yaxis.tick_right()
    axes.yaxis.set_label_position("right")
    axes.spines["left"].set_visible(False)
    axes.spines["right"].set_visible(True)
    ends = [_End(float(loads[0]), float(best[0]), "clairvoyant", "black")]
    for line in lines:
        ratio = _by_load(line.runs, loads)
        axes.plot(loads, ratio, color=line.colour, linestyle=line.style, linewidth=line.width, marker="o", markersize=3)
        ends.append(_End(float(loads[0]), float(ratio[0]), line.label, line.colour))
    axes.set_xscale("log", base=2)
    axes.set_xticks(loads, [str(b) if b == 1 else f"{b}-{2 * b - 1}" for b in loads], size=8)
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    _label(figure, axes, ends, left=True)
    return figure


def _by_load(runs: list[Summary], loads: list[int]) -> Array:
    """Median over the runs of goodput over plain's at each load, NaN where none was there."""
    ratios = [[r.loads[b].goodput / r.loads[b].plain if b in r.loads else np.nan for b in loads] for r in runs]
    return np.asarray(np.nanmedian(np.array(ratios), axis=0))


def _label(figure: Figure, axes: Axes, ends: list[_End], *, left: bool = False) -> None:
    """Write each line's name beside the plot at its end's height, moved up or down until no two overlap."""
    figure.draw_without_rendering()  # limits and scales are needed
    point = figure.dpi / 72
    order = sorted((end for end in ends if np.isfinite(end.y)), key=lambda end: end.y)
    low, high = axes.get_ylim()
    wanted = [float(axes.transData.transform((end.x, np.clip(end.y, low, high)))[1] / point) for end in order]
    bottom = float(axes.transAxes.transform((0, 0))[1] / point)
    top = float(axes.transAxes.transform((0, 1))[1] / point)
    for end, y in zip(order, spaced(wanted, _APART, bottom, top), strict=True):
        axes.annotate(
            end.text,
            xy=(0.0 if left else 1.0, (y - bottom) / (top - bottom)),
            xytext=(-6 if left else 6, 0),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="right" if left else "left",
            va="center",
            color=end.colour,
            size=9,
        )


def spaced(wanted: list[float], apart: float, low: float, high: float) -> list[float]:
    """Ascending places, `apart` or more from each other and between `low` and `high`, close to the ascending `wanted`.

    Neighbours that are too close become a block around the mean of their wanted places (pool adjacent violators). Where
    there is no room for all, they stick out below.

    >>> spaced([0.0, 10.0, 12.0, 30.0], 4.0, 0.0, 40.0)
    [0.0, 9.0, 13.0, 30.0]
    >>> spaced([0.0, 1.0], 4.0, 0.0, 40.0)
    [0.0, 4.0]
    """
    blocks: list[list[float]] = []  # wanted places less the room that those before them in the block need
    for y in wanted:
        blocks.append([y])
        while len(blocks) > 1 and _start(blocks[-1]) < _start(blocks[-2]) + len(blocks[-2]) * apart:
            last = blocks.pop()
            shift = len(blocks[-1]) * apart
            blocks[-1] += [y - shift for y in last]
    places = [_start(block) + i * apart for block in blocks for i in range(len(block))]
    above = [max(y, low + i * apart) for i, y in enumerate(places)]
    return [min(y, high - (len(above) - 1 - i) * apart) for i, y in enumerate(above)]


def _start(block: list[float]) -> float:
    return sum(block) / len(block)
