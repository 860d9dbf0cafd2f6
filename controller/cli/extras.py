"""Parts of the project that are installed apart: what to say when one is missing."""

import typer


def missing(error: ModuleNotFoundError, extra: str) -> typer.Exit:
    """Say which package is missing and which extra brings it. The exit to raise, with code 2.

    >>> missing(ModuleNotFoundError(name="pyarrow"), "simulations").exit_code
    2
    """
    typer.echo(f"akc: package {error.name!r} is missing: pip install 'adaptive-k-controller[{extra}]'", err=True)
    return typer.Exit(2)
