"""What the commands that ask a controller share: their options, the client, what is said when it refuses."""

import json as jsonlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controller.cli.extras import missing

if TYPE_CHECKING:
    from controller.client import Client, ControllerError
    from engine.link.messages import Regime

HERE = "http://127.0.0.1:8080"
REDIS_HERE = "redis://127.0.0.1:6379/0"
FAILED, BAD, FORBIDDEN, TROUBLE, AWAY = 1, 2, 3, 4, 5  # exit codes; controller/cli/exits.py says what they mean
_EXIT = {401: FORBIDDEN, 403: FORBIDDEN, 404: BAD, 413: BAD, 422: BAD}
_NEXT = {
    0: "Is it running ('akc controller')? Name another address with --url or in AKC_CONTROLLER.",
    401: "Give a token of the controller's tokens file with --token or in AKC_TOKEN.",
    403: "Use the token of somebody with role 'admin' in the controller's tokens file.",
    404: "'akc status' shows what there is.",
    409: "Run the command again.",
    412: "Run the command again.",
    503: "Ask the replica that leads (--url), or try again in some seconds.",
}
_LOCAL_ONLY = (
    "Run akc on the controller's own machine with --url http://127.0.0.1:PORT (localhost and [::1] are allowed, too), "
    "or start the controller with AKC_TOKENS_FILE and use a token."
)


def _domains(ctx: typer.Context, incomplete: str) -> list[str]:
    """For the shell: domains of the pool that the line so far names. Nothing where the controller does not answer."""
    from controller.client import Client, ControllerError

    given = ctx.params
    try:
        with Client(given.get("url") or HERE, given.get("token"), timeout=1.0) as client:
            pool = given.get("pool")
            pools = [pool] if pool else [one.pool for one in client.pools()]
            names = {domain.domain for name in pools for domain in client.domains(name)}
    except (ControllerError, ValueError):
        return []
    return sorted(name for name in names if name.startswith(incomplete))


def _modes(incomplete: str) -> list[str]:
    from typing import get_args

    from engine.link.messages import Mode

    return [name for name in get_args(Mode) if name.startswith(incomplete)]


Url = Annotated[str, typer.Option(envvar="AKC_CONTROLLER", help="The controller's address.")]
RedisUrl = Annotated[
    str,
    typer.Option(
        "--redis-url",
        "--redis",
        envvar=["AKC_REDIS_URL", "REDIS_URL"],  # the first that is set, as for settings
        help="redis://, rediss://, unix://, redis+sentinel://",
    ),
]
Token = Annotated[str | None, typer.Option(envvar="AKC_TOKEN", help="Bearer token.", show_default=False)]
PoolOf = Annotated[str | None, typer.Option("--pool", help="The pool; needed where there are several.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Why = Annotated[str, typer.Option("--why", help="For the audit log: up to 500 characters, or nothing.")]
RegimeOf = Annotated[
    str | None, typer.Option(help="greedy or sampled; both.", autocompletion=lambda: ["greedy", "sampled"])
]
DomainOf = Annotated[str, typer.Argument(help="The domain.", autocompletion=_domains)]
ModeOf = Annotated[str, typer.Argument(help="off, shadow, shadow+probe, canary or on", autocompletion=_modes)]


@contextmanager
def asking(url: str, token: str | None) -> Iterator["Client"]:
    """A client; what it raises ends the command with what happened, what to do next, and a code for scripts."""
    try:
        from controller.client import Client, ControllerError
    except ModuleNotFoundError as error:
        raise missing(error, "controller") from None
    try:
        with Client(url, token) as client:
            yield client
    except ControllerError as error:
        raise refused(error) from None


def refused(error: "ControllerError") -> typer.Exit:
    """Say what the controller said, and what to do next. The exit to raise."""
    from controller.api.access import NOT_LOCAL

    typer.echo(f"akc: {error}", err=True)
    hint = _LOCAL_ONLY if (error.status, error.title) == (403, NOT_LOCAL) else _NEXT.get(error.status)
    if hint is not None:
        typer.echo(f"     {hint}", err=True)
    return typer.Exit(_EXIT.get(error.status, FAILED))


def bad(message: str) -> typer.Exit:
    """Say what is wrong with the command line. The exit to raise."""
    typer.echo(f"akc: {message}", err=True)
    return typer.Exit(BAD)


def regime_of(value: str | None) -> "Regime | None":
    """The regime named with --regime, None for both."""
    regimes: dict[str | None, Regime | None] = {None: None, "greedy": "greedy", "sampled": "sampled"}
    if value in regimes:
        return regimes[value]
    raise bad(f"--regime is {value!r}; allowed: greedy, sampled")


def pool_of(client: "Client", name: str | None) -> str:
    """The named pool, or the only one there is."""
    if name is not None:
        return name
    names = [pool.pool for pool in client.pools()]
    if len(names) != 1:
        known = ", ".join(names) or "none: no engine has announced itself"
        raise bad(f"--pool is needed; pools are {known}")
    return names[0]


def print_json(value: Any, *, line: bool = False) -> None:
    """Print a value as JSON, over several lines or on one."""
    typer.echo(jsonlib.dumps(value, indent=None if line else 2))
