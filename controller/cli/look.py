"""`akc status`, `watch`, `explain`: what the controller sees, in a terminal."""

import time
from dataclasses import asdict
from typing import Annotated

import typer

from controller.cli.asking import HERE, TROUBLE, DomainOf, Json, PoolOf, Token, Url, asking, pool_of, print_json


def register(app: typer.Typer) -> None:
    """Add the commands to `akc`."""
    for command in (status, watch, explain):
        app.command(rich_help_panel="See and steer")(command)


def status(url: Url = HERE, token: Token = None, pool: PoolOf = None, json: Json = False) -> None:
    """Every pool in a few lines: does speculation pay, what is chosen, is anything wrong (exit code 4)?

    Example: akc status --json
    """
    with asking(url, token) as client:
        from controller.cli.following import ordered, snapshot

        names = [pool] if pool is not None else [one.pool for one in client.pools()]
        seen = [snapshot(client, name) for name in names]
        orders = [ordered(client, name) for name in names]
    if json:
        print_json([
            {**one.as_json(), "orders": None if told is None else asdict(told)}
            for one, told in zip(seen, orders, strict=True)
        ])  # fmt: skip
    else:
        from rich.console import Console
        from rich.text import Text

        from controller.cli.screen import pinned, pool_table

        console = Console()
        if not seen:
            console.print("no pool: no engine has announced itself yet ('akc engine', or the plug-in in vLLM)")
        for one, told in zip(seen, orders, strict=True):
            console.print(pool_table(one, time.time()))
            for line in [] if told is None else pinned(told):
                console.print(Text(line))
    if any(one.summary.problem or one.summary.stale for one in seen):
        raise typer.Exit(TROUBLE)


def watch(
    url: Url = HERE,
    token: Token = None,
    pool: PoolOf = None,
    updates: Annotated[
        int, typer.Option(min=0, help="Stop after so many; 0: until Ctrl-C, or after one where output is no terminal.")
    ] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one line of JSON per update.")] = False,
) -> None:
    """The same, live, until Ctrl-C. Example: akc watch"""
    try:
        with asking(url, token) as client:
            from controller.cli.following import follow, show_json, show_live, show_once

            seen = follow(client, pool_of(client, pool))
            if json:
                show_json(seen, updates)
            elif updates == 0:
                show_live(seen)
            else:
                show_once(seen, updates)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def explain(domain: DomainOf, url: Url = HERE, token: Token = None, pool: PoolOf = None, json: Json = False) -> None:
    """Why this draft and this K: the reason at every load, acceptance by position, all arms.

    Example: akc explain chat
    """
    with asking(url, token) as client:
        found = client.domain(pool_of(client, pool), domain)
    if json:
        print_json([asdict(one) for one in found])
        return
    from rich.console import Console

    from controller.cli.screen import domain_tables

    console = Console()
    for one in found:
        for part in domain_tables(one):
            console.print(part)
