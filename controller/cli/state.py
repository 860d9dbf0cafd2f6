"""`akc state dump|load`: what a pool has learned, as a file."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from controller.cli.asking import AWAY, FAILED, REDIS_HERE, RedisUrl, bad

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from redis.asyncio import Redis

T = TypeVar("T")

state = typer.Typer(no_args_is_help=True, help="What a pool has learned, as a file: to keep, to move, to go back to.")

CaFile = Annotated[str | None, typer.Option(envvar="AKC_REDIS_CA_FILE", help="PEM file of authorities, for rediss://")]
PIPE = Path("-")


def register(app: typer.Typer) -> None:
    """Add the commands to `akc`."""
    app.add_typer(state, name="state", rich_help_panel="See and steer")


def _asked(question: "Callable[[Redis], Coroutine[Any, Any, T]]", redis_url: str, ca_file: str | None) -> "T":
    """The answer of `question(client)`. Ends the command: 1 for what cannot be done, 2 for an address that is none, 5
    for a Redis that does not answer."""
    from controller.backup import BackupError
    from controller.learner.schema import CheckpointError
    from controller.store import UNAVAILABLE, LeaseLostError, connect
    from engine.link.settings import masked
    from engine.link.transport import complaint

    async def run(client: "Redis") -> "T":
        async with client:
            return await question(client)

    try:
        client = connect(redis_url, ca_file=ca_file)
    except ValueError as error:
        raise bad(f"--redis-url is {masked(redis_url)!r}: {error}") from None
    try:
        return asyncio.run(run(client))
    except (BackupError, CheckpointError, LeaseLostError) as error:
        typer.echo(f"akc: {error}", err=True)
        raise typer.Exit(FAILED) from None
    except UNAVAILABLE as error:
        typer.echo(f"akc: {masked(redis_url)} {complaint(error)}", err=True)
        raise typer.Exit(AWAY) from None


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
    made = _asked(lambda client: backup.dump(client, pool, made_by), redis_url, ca_file)
    data = made.encode()
    try:
        if file == PIPE:
            typer.echo(data, nl=False)
        else:
            file.write_bytes(data)
    except OSError as error:
        typer.echo(f"akc: {str(file)!r} cannot be written: {error.strerror}", err=True)
        raise typer.Exit(FAILED) from None
    told = f"{file}: {len(data):,} bytes, pool {pool} as of {backup.iso(made.saved)}"
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
        raise typer.Exit(FAILED) from None
    name = _asked(lambda client: backup.load(client, data, pool, replace=replace), redis_url, ca_file)
    typer.echo(f"pool {name} goes on from {file} when a controller starts")
