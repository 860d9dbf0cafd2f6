"""What `akc simulate` does once its arguments are understood: a sweep with a progress bar, tables, files."""

import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from simulations.report import show, write
from simulations.scenario import Scenario
from simulations.sweep import SweepError, chosen, sweep
from simulations.timeline import Timeline

_WIDTH = 120  # of tables that go to a file or a pipe


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
    """Play, print, write. Raises `SweepError` for runs that cannot be started, or could not be written down."""
    console = console or Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = max(console.width, _WIDTH)
    _writable(json, plots)
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


def _writable(json: Path | None, plots: Path | None) -> None:
    """Refuse files that could not be written before hours are spent on what goes into them."""
    for option, path, folder in (("--json", json, json and json.parent), ("--plots", plots, plots)):
        if path is None or folder is None:
            continue
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SweepError(f"{option} {str(path)!r} cannot be written: {error.strerror}") from None
        if not os.access(folder, os.W_OK) or (option == "--json" and path.is_dir()):
            raise SweepError(f"{option} {str(path)!r} cannot be written: it is a folder, or its folder is read-only")
