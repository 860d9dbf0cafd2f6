"""`akc route`: which pool serves a domain best, as the pools' controllers see it now."""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.asking import AWAY, REDIS_HERE, RedisUrl, bad

if TYPE_CHECKING:
    from engine.link.router import Route, RoutedPool


def register(app: typer.Typer) -> None:
    """Add the command to `akc`."""
    app.command(rich_help_panel="See and steer")(route)


def route(
    redis_url: RedisUrl = REDIS_HERE,
    target: Annotated[str | None, typer.Option(help="Only pools of this target.")] = None,
    domain: Annotated[str | None, typer.Option(help="Only this domain; an unknown one is served as `other`.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Which pool serves a domain best, over all live pools?

    Example: akc route --redis-url redis://HOST:6379 --domain code
    """
    import msgspec
    import redis

    from engine.link.router import compose, read_offers
    from engine.link.settings import masked
    from engine.link.transport import complaint, connect

    try:
        with connect(redis_url, 5.0) as client:
            routes = compose(read_offers(client), target=target, domain=domain)
    except (redis.RedisError, OSError) as error:
        typer.echo(f"akc: {masked(redis_url)} {complaint(error)}", err=True)
        raise typer.Exit(AWAY) from None
    except ValueError as error:
        raise bad(f"--redis-url is {masked(redis_url)!r}: {error}") from None
    if json:
        typer.echo(msgspec.json.encode(routes))
    elif routes:
        typer.echo("\n".join(lines(routes, time.time())))
    else:
        typer.echo("no live pool offers it", err=True)
    raise typer.Exit(0 if routes else 1)


def lines(routes: "Iterable[Route]", now: float) -> "list[str]":
    """The routes as text. `now`: wall clock, seconds.

    >>> from engine.link.router import Route, RoutedPool
    >>> pool = RoutedPool("a", 0.84, 52.0, 48.0, 56.2, 1.31, "ngram", 4, 8, 310.0, 100.0)
    >>> new = RoutedPool("b", 0.16, None, None, None, None, None, None, 1, 0.0, 101.0)
    >>> for line in lines([Route("t", "code", "greedy", [pool, new])], now=102.0): print(line)
    t, code, greedy
      a  best with 0.84: 52.0 tokens/s a request (48.0 to 56.2), 1.31x plain, ngram K=4, load 8, 2 s ago
      b  best with 0.16: nothing measured yet
    """
    told = []
    for one in routes:
        told.append(f"{one.target}, {one.domain}, {one.regime}")
        told += [f"  {pool.pool}  best with {pool.probability:.2f}: {_numbers(pool, now)}" for pool in one.pools]
    return told


def _numbers(pool: "RoutedPool", now: float) -> str:
    if pool.goodput is None:
        return "nothing measured yet"
    return (
        f"{pool.goodput:.1f} tokens/s a request ({pool.low:.1f} to {pool.high:.1f}), {pool.speedup:.2f}x plain, "
        f"{pool.draft} K={pool.k}, load {pool.load}, {max(0.0, now - pool.computed):.0f} s ago"
    )
