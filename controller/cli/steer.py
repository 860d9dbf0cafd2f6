"""`akc mode`, `pin`, `unpin`, `reset`, `draft`, `measure`: steering from a shell."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from controller.cli.asking import (
    HERE,
    DomainOf,
    Json,
    ModeOf,
    PoolOf,
    RegimeOf,
    Token,
    Url,
    Why,
    asking,
    bad,
    pool_of,
    print_json,
    regime_of,
)

if TYPE_CHECKING:
    from controller.api.steer import OrdersView
    from controller.client import Client


def register(app: typer.Typer) -> None:
    """Add the commands to `akc`."""
    for command in (mode, pin, unpin, reset, draft, measure):
        app.command(rich_help_panel="See and steer")(command)


def _ordered(url: str, token: str | None, pool: str | None, json: bool, order: "Callable[[Client, str], Any]") -> None:
    with asking(url, token) as client:
        name = pool_of(client, pool)
        ran = client.orders(name).measure
        found = None if ran is None else client.pool(name).measured_gain  # afterwards it may be the next one's
        orders = order(client, name)
        ended = ran is not None and (orders.measure is None or orders.measure.since != ran.since)
    if json:
        print_json(asdict(orders))
        return
    typer.echo(
        f"pool {name}: mode {orders.mode or 'as the controller was started'}, orders at revision {orders.revision}"
    )
    from controller.cli.screen import measured_line, pinned

    for line in pinned(orders):
        typer.echo(line)
    if ended:
        told = ""
        if found is not None and ran is not None and found.since == ran.since:  # else it had only just begun
            told = "; " + measured_line(replace(found, running=False, until=min(found.until, time.time())))
        typer.echo(f"  the measurement that ran has ended{told}")
    if orders.measure is not None:
        m = orders.measure
        until = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(m.until))
        fixed = "no speculation" if m.against == "none" else "the static choice"
        typer.echo(
            f"  measuring until {until} in windows of {m.window_seconds:.0f} s, {m.share:.1%} of the time at {fixed}"
        )


def mode(
    mode: ModeOf,
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
        raise bad(f"mode is {mode!r}; allowed: {', '.join(get_args(Mode))}")
    _ordered(url, token, pool, json, lambda client, name: client.set_mode(name, mode, share, why))  # type: ignore[arg-type]  # checked


def pin(
    domain: DomainOf,
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

    def order(client: "Client", name: str) -> "OrdersView":
        from controller.client import ControllerError

        made = client.pin(name, domain, draft, k, regime=regime_of(regime), until=until, why=why)
        with suppress(ControllerError):  # it is pinned, whatever is not known
            served = client.domains(name)
            asked = regime_of(regime)
            # A pin may come before its domain; a slip of the pen looks the same.
            if not any(one.domain == domain and asked in (None, one.regime) for one in served):
                seen = ", ".join(sorted({f"{one.domain!r} ({one.regime})" for one in served})) or "none at all"
                which = f"{domain!r}" if asked is None else f"{domain!r} ({asked})"
                typer.echo(f"akc: pinned; no request of domain {which} has been seen yet; seen: {seen}", err=True)
        return made

    _ordered(url, token, pool, json, order)


def unpin(
    domain: DomainOf,
    regime: RegimeOf = None,
    url: Url = HERE,
    token: Token = None,
    pool: PoolOf = None,
    why: Why = "",
    json: Json = False,
) -> None:
    """Let a domain go back to what is learned. Example: akc unpin chat"""
    _ordered(url, token, pool, json, lambda client, name: client.unpin(name, domain, regime=regime_of(regime), why=why))


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
        raise bad("name what to learn anew: --domain, --draft or both")
    _ordered(url, token, pool, json, lambda client, name: client.reset(name, domain, draft, why))


def draft(
    draft: Annotated[str, typer.Argument(help="The draft.")],
    retire: Annotated[bool, typer.Option("--retire/--back", help="Leave it out of policies, or bring it back.")] = True,
    url: Url = HERE,
    token: Token = None,
    pool: PoolOf = None,
    why: Why = "",
    json: Json = False,
) -> None:
    """Retire a draft, or bring it back. Example: akc draft small --retire"""
    _ordered(url, token, pool, json, lambda client, name: client.retire(name, draft, retire, why))


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
        raise bad(f"against is {against!r}; allowed: static, none")
    fixed: Literal["static", "none"] = "none" if against == "none" else "static"
    if stop:
        _ordered(url, token, pool, json, lambda client, name: client.stop_measuring(name, why))
        return
    _ordered(
        url, token, pool, json,
        lambda client, name: client.measure(name, minutes, windows, share=share, against=fixed, why=why),
    )  # fmt: skip
