"""`akc status`, `explain`, `watch`, `mode`, `pin`, `unpin`, `reset`, `draft`, `measure`: see and steer from a shell.

Exit codes: 0 done; 1 the controller cannot be reached or failed; 2 bad input; 3 not allowed; 4 (`status`) something is
wrong with a pool.
"""

import json as jsonlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from controller.cli.extras import missing

if TYPE_CHECKING:
    from controller.client import Client

Url = Annotated[str, typer.Option(envvar="AKC_CONTROLLER", help="The controller's address.")]
Token = Annotated[str | None, typer.Option(envvar="AKC_TOKEN", help="Bearer token.", show_default=False)]
PoolOf = Annotated[str | None, typer.Option("--pool", help="The pool; needed where there are several.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Why = Annotated[str, typer.Option("--why", help="For the audit log.")]
RegimeOf = Annotated[str | None, typer.Option(help="greedy or sampled; both.")]
HERE = "http://127.0.0.1:8080"
EXIT = {401: 3, 403: 3, 404: 2, 409: 1, 412: 1, 413: 2, 422: 2}


def register(app: typer.Typer) -> None:
    """Add the commands to `akc`."""
    for command in (status, explain, watch, mode, pin, unpin, reset, draft, measure):
        app.command()(command)


@contextmanager
def _client(url: str, token: str | None) -> Iterator["Client"]:
    """A client; what it raises ends the command with a message and a code that a script can use."""
    try:
        from controller.client import Client, ControllerError
    except ModuleNotFoundError as error:
        raise missing(error, "controller") from None
    try:
        with Client(url, token) as client:
            yield client
    except ControllerError as error:
        typer.echo(f"akc: {error}", err=True)
        if error.status == 0:
            typer.echo("     Is it running ('akc controller')? Name another address with --url.", err=True)
        elif error.status == 401:
            typer.echo("     Give a token with --token or in AKC_TOKEN.", err=True)
        raise typer.Exit(EXIT.get(error.status, 1)) from None


def _bad(message: str) -> typer.Exit:
    typer.echo(f"akc: {message}", err=True)
    return typer.Exit(2)


def _pool(client: "Client", name: str | None) -> str:
    """The named pool, or the only one there is."""
    if name is not None:
        return name
    names = [pool.pool for pool in client.pools()]
    if len(names) != 1:
        known = ", ".join(names) or "none: no engine has announced itself"
        raise _bad(f"--pool is needed; pools are {known}")
    return names[0]


def _print(value: Any) -> None:
    typer.echo(jsonlib.dumps(value, indent=2))


def status(url: Url = HERE, token: Token = None, pool: PoolOf = None, json: Json = False) -> None:
    """Every pool in a few lines: does speculation pay, what is chosen, is anything wrong (exit code 4)?

    Example: akc status --json
    """
    with _client(url, token) as client:
        names = [pool] if pool is not None else [one.pool for one in client.pools()]
        seen = [
            (client.pool(name), client.domains(name) if client.pool(name).time is not None else []) for name in names
        ]
    if json:
        _print([{**asdict(summary), "domains": [asdict(domain) for domain in domains]} for summary, domains in seen])
    else:
        if not seen:
            typer.echo("no pool: no engine has announced itself yet")
        from rich.console import Console

        from controller.cli.screen import pool_table

        console = Console()
        for summary, domains in seen:
            console.print(pool_table(summary, domains, time.time()))
    if any(summary.problem or summary.stale for summary, _ in seen):
        raise typer.Exit(4)


def watch(
    url: Url = HERE,
    token: Token = None,
    pool: PoolOf = None,
    updates: Annotated[int, typer.Option(min=0, help="Stop after so many; 0: until Ctrl-C.")] = 0,
) -> None:
    """The same, live. Example: akc watch"""
    from rich.console import Console
    from rich.live import Live

    from controller.cli.screen import pool_table

    with _client(url, token) as client:
        name = _pool(client, pool)
        with Live(console=Console(), auto_refresh=False) as live:
            try:
                for number, notice in enumerate(client.events(name), start=1):
                    if notice.kind == "state":
                        live.update(pool_table(client.pool(name), client.domains(name), time.time()), refresh=True)
                    if number == updates:
                        return
            except KeyboardInterrupt:
                return


def explain(
    domain: Annotated[str, typer.Argument(help="The domain.")],
    url: Url = HERE,
    token: Token = None,
    pool: PoolOf = None,
    json: Json = False,
) -> None:
    """Why this draft and this K: the reason at every load, acceptance by position, all arms.

    Example: akc explain chat
    """
    with _client(url, token) as client:
        found = client.domain(_pool(client, pool), domain)
    if json:
        _print([asdict(one) for one in found])
        return
    from rich.console import Console

    from controller.cli.screen import domain_tables

    console = Console()
    for one in found:
        for part in domain_tables(one):
            console.print(part)


def _ordered(url: str, token: str | None, pool: str | None, json: bool, order: "Callable[[Client, str], Any]") -> None:
    with _client(url, token) as client:
        name = _pool(client, pool)
        orders = order(client, name)
    if json:
        _print(asdict(orders))
        return
    typer.echo(
        f"pool {name}: mode {orders.mode or 'as the controller was started'}, orders at revision {orders.revision}"
    )
    for one in orders.pins:
        until = "" if one.until is None else time.strftime(" until %Y-%m-%d %H:%M:%S", time.localtime(one.until))
        regime = "" if one.regime is None else f" ({one.regime})"
        typer.echo(f"  {one.domain}{regime} pinned to {one.draft} at K = {one.k}{until}, by {one.by}")
    if orders.retired:
        typer.echo(f"  retired drafts: {', '.join(orders.retired)}")
    if orders.measure is not None:
        m = orders.measure
        until = time.strftime("%H:%M:%S", time.localtime(m.until))
        fixed = "no speculation" if m.against == "none" else "the static choice"
        typer.echo(
            f"  measuring until {until} in windows of {m.window_seconds:.0f} s, {m.share:.1%} of the time at {fixed}"
        )


def mode(
    mode: Annotated[str, typer.Argument(help="off, shadow, shadow+probe, canary or on")],
    share: Annotated[float | None, typer.Option(min=0, max=1, help="Share of requests, for canary.")] = None,
    url: Url = HERE,
    token: Token = None,
    pool: PoolOf = None,
    why: Why = "",
    json: Json = False,
) -> None:
    """Set a pool's mode. Example: akc mode canary --share 0.1 --why 'first day'"""
    from typing import get_args

    from engine.link.messages import Mode

    if mode not in get_args(Mode):
        raise _bad(f"mode is {mode!r}; allowed: {', '.join(get_args(Mode))}")
    _ordered(url, token, pool, json, lambda client, name: client.set_mode(name, mode, share, why))  # type: ignore[arg-type]  # checked


def _regime(value: str | None) -> Any:
    if value not in (None, "greedy", "sampled"):
        raise _bad(f"--regime is {value!r}; allowed: greedy, sampled")
    return value


def pin(
    domain: Annotated[str, typer.Argument(help="The domain.")],
    draft: Annotated[str, typer.Argument(help="A draft's name, or none.")],
    k: Annotated[int, typer.Argument(min=0, max=32, help="Draft tokens a step.")],
    hours: Annotated[float | None, typer.Option(min=0, help="Unpin after so long.")] = None,
    regime: RegimeOf = None,
    url: Url = HERE,
    token: Token = None,
    pool: PoolOf = None,
    why: Why = "",
    json: Json = False,
) -> None:
    """Hold a domain on one draft and K. Example: akc pin chat ngram 3 --hours 2 --why 'compare'"""
    until = None if hours is None else time.time() + 3600 * hours
    _ordered(
        url, token, pool, json,
        lambda client, name: client.pin(name, domain, draft, k, regime=_regime(regime), until=until, why=why),
    )  # fmt: skip


def unpin(
    domain: Annotated[str, typer.Argument(help="The domain.")],
    regime: RegimeOf = None,
    url: Url = HERE,
    token: Token = None,
    pool: PoolOf = None,
    why: Why = "",
    json: Json = False,
) -> None:
    """Let a domain go back to what is learned. Example: akc unpin chat"""
    _ordered(url, token, pool, json, lambda client, name: client.unpin(name, domain, regime=_regime(regime), why=why))


def reset(
    domain: Annotated[str | None, typer.Option(help="Learn this domain anew.")] = None,
    draft: Annotated[str | None, typer.Option(help="Learn this draft anew.")] = None,
    url: Url = HERE,
    token: Token = None,
    pool: PoolOf = None,
    why: Why = "",
    json: Json = False,
) -> None:
    """Forget what was learned of a domain, a draft, or a draft in a domain. Example: akc reset --draft small"""
    if domain is None and draft is None:
        raise _bad("name what to learn anew: --domain, --draft or both")
    _ordered(url, token, pool, json, lambda client, name: client.reset(name, domain, draft, why))


def draft(
    draft: Annotated[str, typer.Argument(help="The draft.")],
    back: Annotated[bool, typer.Option("--retire/--back", help="Leave it out of policies, or bring it back.")] = True,
    url: Url = HERE,
    token: Token = None,
    pool: PoolOf = None,
    why: Why = "",
    json: Json = False,
) -> None:
    """Retire a draft, or bring it back. Example: akc draft small --retire"""
    _ordered(url, token, pool, json, lambda client, name: client.retire(name, draft, back, why))


def measure(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long.")] = 10.0,
    windows: Annotated[int, typer.Option(min=6, help="Windows, two a pair.")] = 20,
    share: Annotated[
        float, typer.Option(min=0.0, max=0.5, help="Of that time under the fixed choice: the cost.")
    ] = 0.5,
    against: Annotated[str, typer.Option(help="static, or none: no speculation.")] = "static",
    stop: Annotated[bool, typer.Option("--stop", help="End what is being measured.")] = False,
    url: Url = HERE,
    token: Token = None,
    pool: PoolOf = None,
    why: Why = "",
    json: Json = False,
) -> None:
    """Measure the gain by windows under the policy and under a fixed choice. Example: akc measure --minutes 20"""
    if against not in ("static", "none"):
        raise _bad(f"against is {against!r}; allowed: static, none")
    fixed: Literal["static", "none"] = "none" if against == "none" else "static"
    if stop:
        _ordered(url, token, pool, json, lambda client, name: client.stop_measuring(name, why))
        return
    _ordered(
        url, token, pool, json,
        lambda client, name: client.measure(name, minutes, windows, share=share, against=fixed, why=why),
    )  # fmt: skip
