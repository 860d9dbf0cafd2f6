"""`akc simulate`: play scenarios offline, beside the rivals, and print what came of it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controller.cli.extras import missing

if TYPE_CHECKING:
    from simulations.scenario import Scenario


def register(app: typer.Typer) -> None:
    """Add the command to `akc`."""
    app.command(rich_help_panel="Try offline")(simulate)


def simulate(
    scenarios: Annotated[list[str] | None, typer.Argument(help="TOML files, or names of shipped scenarios.")] = None,
    rivals: Annotated[
        str, typer.Option(help="By commas: all, rivals, fixed, drafts, none, or policies by name.")
    ] = "rivals",
    seeds: Annotated[int, typer.Option(min=1, help="Runs of every policy, with other luck each.")] = 3,
    steps: Annotated[int | None, typer.Option(min=1, help="Cut the scenarios to so many steps.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write everything measured to this file.")] = None,
    plots: Annotated[Path | None, typer.Option(help="Draw pictures into this folder.")] = None,
    random: Annotated[list[int] | None, typer.Option(min=0, help="Also play the random scenario of this seed.")] = None,
    variant: Annotated[
        list[int] | None,
        typer.Option(min=0, help="Play this variant of each scenario instead: same kind, other numbers."),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes at once; -1: one a core.")] = 1,
    backend: Annotated[str, typer.Option(help="How joblib spreads them: loky, or dask for a cluster.")] = "loky",
    names: Annotated[bool, typer.Option("--list", help="Name the shipped scenarios and stop.")] = False,
    live: Annotated[
        str | None,
        typer.Option(
            metavar="REDIS_URL",
            help="Play one scenario in real time, before a running controller. env: of AKC_REDIS_URL or REDIS_URL.",
        ),
    ] = None,
    engines: Annotated[int | None, typer.Option(min=1, max=256, help="Live: so many, not the scenario's.")] = None,
    pool: Annotated[str | None, typer.Option(help="Live: name of the pool [virtual-SCENARIO]")] = None,
    speed: Annotated[float | None, typer.Option(min=0.01, max=1000, help="Live: times real time [1]")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="Live: stop after so long [at Ctrl-C]")] = None,
    heartbeat: Annotated[
        Path | None, typer.Option(help="Live: write this file anew every second that is played and reported.")
    ] = None,
) -> None:
    """Play scenarios offline, beside rivals. Example: akc simulate three-domains busy --rivals all --seeds 20"""
    try:
        from simulations.command import run
        from simulations.load import load, shipped
        from simulations.randomised import randomised
        from simulations.scenario import ScenarioError, cut
        from simulations.sweep import SweepError
        from simulations.variants import variant as varied
    except ModuleNotFoundError as error:
        raise missing(error, "simulations") from None
    if names:
        for name in shipped():
            typer.echo(f"{name}: {load(name).about}")
        return
    try:
        chosen = [load(name) for name in scenarios or []]
        if variant:
            chosen = [varied(scenario, seed) for scenario in chosen for seed in variant]
        chosen += [randomised(seed) for seed in random or []]
        if steps is not None:
            chosen = [cut(scenario, steps) for scenario in chosen]
        if live is not None:
            if json is not None or plots is not None:
                raise SweepError("--live writes no --json and no --plots: the controller keeps what it learns")  # noqa: TRY301
            options = {"engines": engines, "pool": pool, "speed": speed or 1.0, "seconds": seconds}
            _live(chosen, live, {**options, "heartbeat": heartbeat})
            return
        if any(option is not None for option in (engines, pool, speed, seconds, heartbeat)):
            raise SweepError("--engines, --pool, --speed, --seconds and --heartbeat need --live REDIS_URL")  # noqa: TRY301
        wanted = [name.strip() for name in rivals.split(",") if name.strip()]
        run(chosen, wanted, seeds, jobs=jobs, backend=backend, json=json, plots=plots)
    except (ScenarioError, SweepError) as error:
        typer.echo(f"akc: {error}", err=True)
        raise typer.Exit(2) from None


def _live(chosen: "list[Scenario]", redis_url: str, options: dict[str, Any]) -> None:
    """Play one scenario before a running controller. Raises `LiveError`, a `ValueError`, where that cannot be."""
    from simulations.live import LiveError, address, run

    try:
        if len(chosen) != 1:
            raise LiveError(f"--live plays one scenario; given are {len(chosen)}")  # noqa: TRY301
        run(chosen[0], address() if redis_url == "env" else redis_url, **options)
    except LiveError as error:
        typer.echo(f"akc: {error}", err=True)
        raise typer.Exit(2) from None
