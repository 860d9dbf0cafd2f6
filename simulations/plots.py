"""Pictures of a comparison: regret over steps, K over time, share of the optimum, goodput against a varying load."""

from collections import defaultdict
from pathlib import Path

import matplotlib as mpl
import numpy as np

from simulations.comparison import Comparison
from simulations.log import PARTS
from simulations.result import Summary

mpl.use("agg")  # files only: no display is asked for

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

_SIZE = (8.0, 4.5)
_SHOWN = 12  # policies in one picture


def draw(comparison: Comparison, folder: Path) -> list[Path]:
    """Write the pictures as SVG into the folder; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [row.policy for row in comparison.rows][:_SHOWN]
    runs: dict[str, list[Summary]] = defaultdict(list)
    for summary in comparison.summaries:
        runs[summary.policy].append(summary)
    # The hindsight row stands for one of the fixed arms, whose summaries go by their own names.
    names = [name for name in names if name in runs]
    paths = []
    pictures = [("regret", _regret), ("depth", _depth), ("share", _share)]
    if len(comparison.summaries[0].loads) > 1:
        pictures.append(("load", _load))
    for what, picture in pictures:
        figure, axes = plt.subplots(figsize=_SIZE, layout="constrained")
        picture(axes, comparison, runs, names)
        path = folder / f"{comparison.scenario}-{what}.svg"
        figure.savefig(path)
        plt.close(figure)
        paths.append(path)
    return paths


def _width(name: str) -> float:
    return 2.5 if name == "ours" else 1.0


def _regret(axes: Axes, comparison: Comparison, runs: dict[str, list[Summary]], names: list[str]) -> None:
    for name in names:
        steps = [step for step, _ in runs[name][0].lost]
        lost = np.median([[value for _, value in run.lost] for run in runs[name]], axis=0)
        axes.plot(steps, lost, label=name, linewidth=_width(name))
    axes.set(title=f"{comparison.scenario}: regret", xlabel="steps of an engine", ylabel="seconds lost (median)")
    axes.set_yscale("symlog", linthresh=1.0)
    axes.legend(fontsize="x-small", ncols=2)


def _depth(axes: Axes, comparison: Comparison, runs: dict[str, list[Summary]], names: list[str]) -> None:
    mine = runs.get("ours") or runs[names[0]]
    part = (np.arange(PARTS) + 0.5) / PARTS
    for domain in list(mine[0].domains)[:_SHOWN]:
        depth = np.array([[np.nan if k is None else k for k in run.domains[domain].depth] for run in mine])
        there = ~np.isnan(depth).all(axis=0)
        axes.plot(part[there], np.nanmedian(depth[:, there], axis=0), label=domain)
    axes.set(title=f"{comparison.scenario}: K of {mine[0].policy}", xlabel="share of the run", ylabel="mean K (median)")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="x-small", ncols=2)


def _share(axes: Axes, comparison: Comparison, runs: dict[str, list[Summary]], names: list[str]) -> None:
    for at, name in enumerate(names):
        shares = [run.share for run in runs[name]]
        axes.barh(at, float(np.median(shares)), color="tab:green" if name == "ours" else "tab:gray")
        axes.plot(shares, [at] * len(shares), "k|", markersize=5)
    axes.set_yticks(range(len(names)), names, fontsize="x-small")
    axes.invert_yaxis()
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set(title=f"{comparison.scenario}: share of the clairvoyant's goodput", xlabel="median; strokes: seeds")


def _load(axes: Axes, comparison: Comparison, runs: dict[str, list[Summary]], names: list[str]) -> None:
    first = runs[names[0]][0]
    loads = sorted(first.loads)
    for name in names:
        ratio = [np.median([r.loads[b].goodput / r.loads[b].plain for r in runs[name] if b in r.loads]) for b in loads]
        axes.plot(loads, ratio, marker="o", label=name, linewidth=_width(name), markersize=3)
    best = [first.loads[b].best / first.loads[b].plain for b in loads]
    axes.plot(loads, best, "k--", label="clairvoyant", linewidth=1.0)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set(title=f"{comparison.scenario}: goodput by load", xlabel="rows (bucket)", ylabel="times plain decoding")
    axes.legend(fontsize="x-small", ncols=2)
