"""What `akc simulate` does once its arguments are understood: a sweep with a progress bar, tables, files."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from simulations.report import show, write
from simulations.scenario import Scenario
from simulations.sweep import chosen, sweep
from simulations.timeline import Timeline


def run(
    scenarios: Sequence[Scenario],
    rivals: Sequence[str],
    seeds: int,
    *,
    jobs: int = 1,
    backend: str = "loky",
    json: Path | None = None,
    plots: Path | None = None,
    console: Console | None = None,
) -> None:
    """Play, print, write. Raises `SweepError` for runs that cannot be started."""
    console = console or Console()
    total = seeds * sum(len(chosen(rivals, Timeline(scenario).facts)) for scenario in scenarios)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("simulating", total=total)

        def told(what: str, done: int) -> None:
            progress.update(task, advance=done, description=what)

        comparisons = sweep(scenarios, rivals, seeds, jobs=jobs, backend=backend, told=told)
    for comparison in comparisons:
        show(comparison, console)
    if json is not None:
        write(comparisons, json)
        console.print(f"written: {json}")
    if plots is not None:
        from simulations.plots import draw

        for comparison in comparisons:
            for path in draw(comparison, plots):
                console.print(f"drawn: {path}")
