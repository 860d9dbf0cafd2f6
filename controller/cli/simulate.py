"""`akc simulate`: play scenarios offline, beside the rivals, and print what came of it."""

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to `akc`."""
    app.command()(simulate)


def simulate(
    scenarios: Annotated[list[str] | None, typer.Argument(help="TOML files, or names of shipped scenarios.")] = None,
    rivals: Annotated[
        str, typer.Option(help="By commas: all, rivals, fixed, drafts, none, or policies by name.")
    ] = "rivals",
    seeds: Annotated[int, typer.Option(min=1, help="Runs of every policy, with other luck each.")] = 3,
    steps: Annotated[int | None, typer.Option(min=1, help="Cut the scenarios to so many steps.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write everything measured to this file.")] = None,
    plots: Annotated[Path | None, typer.Option(help="Draw pictures into this folder.")] = None,
    random: Annotated[list[int] | None, typer.Option(help="Also play the random scenario of this seed.")] = None,
    jobs: Annotated[int, typer.Option(help="Processes at once; -1: one a core.")] = 1,
    backend: Annotated[str, typer.Option(help="How joblib spreads them: loky, or dask for a cluster.")] = "loky",
    names: Annotated[bool, typer.Option("--list", help="Name the shipped scenarios and stop.")] = False,
) -> None:
    """Play scenarios offline, beside rivals. Example: akc simulate three-domains busy --rivals all --seeds 20"""
    try:
        from simulations.command import run
        from simulations.load import load, shipped
        from simulations.randomised import randomised
        from simulations.scenario import ScenarioError, cut
        from simulations.sweep import SweepError
    except ModuleNotFoundError as error:
        typer.echo(
            f"akc: package {error.name!r} is missing: pip install 'adaptive-k-controller[simulations]'", err=True
        )
        raise typer.Exit(2) from None
    if names:
        for name in shipped():
            typer.echo(f"{name}: {load(name).about}")
        return
    try:
        chosen = [load(name) for name in scenarios or []] + [randomised(seed) for seed in random or []]
        if steps is not None:
            chosen = [cut(scenario, steps) for scenario in chosen]
        wanted = [name.strip() for name in rivals.split(",") if name.strip()]
        run(chosen, wanted, seeds, jobs=jobs, backend=backend, json=json, plots=plots)
    except (ScenarioError, SweepError) as error:
        typer.echo(f"akc: {error}", err=True)
        raise typer.Exit(2) from None
