"""`akc replay`: what smaller K would have brought on steps that a real engine recorded."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.extras import missing

if TYPE_CHECKING:
    from rich.console import Console

    from simulations.replay import Estimate, Replay


def register(app: typer.Typer) -> None:
    """Add the command to `akc`."""
    app.command(rich_help_panel="Try offline")(replay)


def replay(
    trace: Annotated[Path, typer.Argument(help="Parquet file, or the folder `akc engine --trace` wrote into.")],
    write: Annotated[Path | None, typer.Option(help="Keep the steps in this parquet file.")] = None,
    paired: Annotated[
        bool, typer.Option(help="Folder: within a domain all (draft, K) got the same prompts in the same order.")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Write both tables to this file.")] = None,
    draws: Annotated[int, typer.Option(min=1, max=100_000, help="Bootstrap resamples.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Of the resampling.")] = 0,
) -> None:
    """Smaller K on recorded steps, without running them. Example: akc replay simulations/traces/smollm2.parquet"""
    try:
        import numpy as np
        from rich.console import Console

        from simulations import recording
        from simulations.replay import Replay
    except ModuleNotFoundError as error:
        raise missing(error, "simulations") from None
    try:
        steps = recording.from_folder(trace, paired=paired) if trace.is_dir() else recording.read(trace)
        if write is not None:
            recording.write(steps, write)
        replayed = Replay(steps, np.random.default_rng(seed), draws)
        _show(replayed, Console())
        if json is not None:
            _write(replayed, json)
    except (recording.RecordingError, OSError) as error:
        typer.echo(f"akc: {error}", err=True)
        raise typer.Exit(2) from None


def _show(replayed: "Replay", console: "Console") -> None:
    from rich.table import Table
    from rich.text import Text

    console.print("Smaller K on recorded steps; 95% intervals over prompts")
    table = Table()
    for name in ("domain", "draft", "K", "tokens/step", "tokens/s", "over plain", "over recorded"):
        table.add_column(name, justify="left" if name in {"domain", "draft"} else "right")
    before = None
    for row in replayed.results():
        if before not in (None, row[:3]):
            table.add_section()
        before = row[:3]
        k = f"{row.k} ran" if row.real else str(row.k)
        texts = (f"{row.tokens:.2f}", f"{row.goodput:.1f}", _text(row.over_plain), _text(row.over_recorded))
        table.add_row(Text(_domain(row.domain, row.regime)), Text(row.draft), k, *texts)  # labels are no markup
    console.print(table)
    checks = replayed.checks()
    if not checks:
        console.print("No request ran at a smaller K: nothing to hold the method against.")
        return
    console.print("Predicted / observed where requests really ran at K, they and their seconds held out")
    table = Table()
    for name in ("domain", "draft", "K", "requests", "tokens/step", "tokens/s"):
        table.add_column(name, justify="left" if name in {"domain", "draft"} else "right")
    for check in checks:
        speed = "no price" if check.goodput is None else _text(check.goodput)
        domain = Text(_domain(check.domain, check.regime))
        table.add_row(domain, Text(check.draft), str(check.k), str(check.requests), _text(check.tokens), speed)
    console.print(table)


def _write(replayed: "Replay", path: Path) -> None:
    import msgspec

    def plain(values: dict[str, object]) -> dict[str, object]:
        return {k: v._asdict() if isinstance(v, tuple) and hasattr(v, "_asdict") else v for k, v in values.items()}

    both = {
        "replayed": [plain(row._asdict()) for row in replayed.results()],
        "checks": [plain(check._asdict()) for check in replayed.checks()],
    }
    path.write_bytes(msgspec.json.format(msgspec.json.encode(both), indent=2))


def _domain(domain: str, regime: str) -> str:
    return domain if regime == "greedy" else f"{domain} ({regime})"


def _text(estimate: "Estimate") -> str:
    if estimate.value != estimate.value:  # nothing to compare with
        return "-"
    if estimate.low == estimate.high:
        return f"{estimate.value:.2f}"
    return f"{estimate.value:.2f} ({estimate.low:.2f}-{estimate.high:.2f})"
