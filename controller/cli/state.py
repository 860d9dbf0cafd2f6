"""`akc state dump|load`: what a pool has learned, as a file."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from controller.cli.asking import REDIS_HERE, RedisUrl

state = typer.Typer(no_args_is_help=True, help="What a pool has learned, as a file: to keep, to move, to go back to.")

CaFile = Annotated[str | None, typer.Option(envvar="AKC_REDIS_CA_FILE", help="PEM file of authorities, for rediss://")]
PIPE = Path("-")


def register(app: typer.Typer) -> None:
    """Add the commands to `akc`."""
    app.add_typer(state, name="state", rich_help_panel="See and steer")


def _asked(coroutine_of: object, redis_url: str, ca_file: str | None) -> object:
    """Run `coroutine_of(client)`; ends the command with 1 for what cannot be done and 2 for a Redis that is away."""
    from controller.backup import BackupError
    from controller.learner.schema import CheckpointError
    from controller.store import UNAVAILABLE, LeaseLostError, connect
    from engine.link.settings import masked

    async def run() -> object:
        async with connect(redis_url, ca_file=ca_file) as client:
            return await coroutine_of(client)  # type: ignore[operator]

    try:
        return asyncio.run(run())
    except (BackupError, CheckpointError, LeaseLostError) as error:
        typer.echo(f"akc: {error}", err=True)
        raise typer.Exit(1) from None
    except (*UNAVAILABLE, ValueError) as error:
        typer.echo(f"akc: {masked(redis_url)} cannot be asked: {error}", err=True)
        raise typer.Exit(2) from None


@state.command()
def dump(
    pool: Annotated[str, typer.Argument(help="The pool's name.")],
    file: Annotated[Path, typer.Argument(help="The file to write; -: standard output.")],
    redis_url: RedisUrl = REDIS_HERE,
    ca_file: CaFile = None,
) -> None:
    """Write what a pool has learned and been ordered to a file, - for standard output; the pool may go on meanwhile.

    Example: akc state dump smollm2 smollm2.akc
    """
    from importlib.metadata import version

    from controller import backup

    made_by = version("adaptive-k-controller")
    data = _asked(lambda client: backup.dump(client, pool, made_by), redis_url, ca_file)
    assert isinstance(data, bytes)
    try:
        if file == PIPE:
            typer.echo(data, nl=False)
        else:
            file.write_bytes(data)
    except OSError as error:
        typer.echo(f"akc: {str(file)!r} cannot be written: {error.strerror}", err=True)
        raise typer.Exit(1) from None
    told = f"{file}: {len(data):,} bytes, pool {pool} as of {backup.iso(backup.read(data).saved)}"
    typer.echo(told, err=file == PIPE)


@state.command()
def load(
    file: Annotated[Path, typer.Argument(help="A file of `akc state dump`; -: standard input.")],
    pool: Annotated[str | None, typer.Option(help="Another pool than the file's own.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Even if the pool has learned something.")] = False,
    redis_url: RedisUrl = REDIS_HERE,
    ca_file: CaFile = None,
) -> None:
    """Let a pool go on from a file, - for standard input, while no controller leads it.

    Example: akc state load smollm2.akc --replace
    """
    from controller import backup

    try:
        data = typer.get_binary_stream("stdin").read() if file == PIPE else file.read_bytes()
    except OSError as error:
        typer.echo(f"akc: {str(file)!r} cannot be read: {error.strerror}", err=True)
        raise typer.Exit(1) from None
    name = _asked(lambda client: backup.load(client, data, pool, replace=replace), redis_url, ca_file)
    typer.echo(f"pool {name} goes on from {file} when a controller starts")
