"""`akc what-if`: another load, another mix of domains, or a pin, before anybody orders it."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.asking import (
    HERE,
    DomainOf,
    Json,
    PoolOf,
    RegimeOf,
    Token,
    Url,
    asking,
    bad,
    pool_of,
    print_json,
    regime_of,
)

if TYPE_CHECKING:
    from controller.client import Client
    from engine.link.messages import Regime


def register(app: typer.Typer) -> None:
    """Add the command to `akc`."""
    app.command("what-if", rich_help_panel="See and steer")(what_if)


def what_if(
    domain: DomainOf,
    load: Annotated[
        int | None, typer.Option(min=1, help="Decode rows of a step; the load most of it is served at.")
    ] = None,
    draft: Annotated[str | None, typer.Option(help="With --k: only this arm, as if the domain were pinned.")] = None,
    k: Annotated[int | None, typer.Option("--k", min=0, max=32, help="Draft tokens a step, of --draft.")] = None,
    mix: Annotated[
        list[str] | None, typer.Option(help="Share of a domain, as in code=3; repeatable; as at present.")
    ] = None,
    regime: RegimeOf = None,
    url: Url = HERE,
    token: Token = None,
    pool: PoolOf = None,
    json: Json = False,
) -> None:
    """What each arm would bring to a domain at a load, or what a pin would cost; changes nothing.

    Example: akc what-if chat --draft ngram --k 3 --load 8
    """
    asked, shares = regime_of(regime), parts(mix or ())
    if draft is None and k is not None:
        raise bad(f"--k is {k} without --draft; name the draft it is for")
    if draft is not None and k is None and draft != "none":
        raise bad(f"--draft is {draft!r} without --k; name K too")
    with asking(url, token) as client:
        name = pool_of(client, pool)
        rows = load if load is not None else _main_load(client, name, domain, asked)
        if draft is None:
            answer = client.what_if(name, rows, shares)
        else:
            answer = client.what_if(name, rows, shares, (domain, draft, k or 0), regime=asked)
    arms = [arm for arm in answer.arms if arm.domain == domain and asked in (None, arm.regime)]
    if not arms:
        known = ", ".join(sorted({repr(arm.domain) for arm in answer.arms})) or "none"
        raise bad(f"domain {domain!r} has no rows at this load; those that have: {known}")
    if json:
        print_json(asdict(replace(answer, arms=arms)))
        return
    from rich.console import Console

    from controller.cli.screen import answer_table

    console = Console()
    for part in answer_table(answer, arms):
        console.print(part)


def parts(mix: Sequence[str]) -> dict[str, float] | None:
    """Shares by domain; None where none are given.

    >>> parts(["code=3", "a=b=1"]), parts([])
    ({'code': 3.0, 'a=b': 1.0}, None)
    """
    made: dict[str, float] = {}
    for one in mix:
        domain, found, share = one.rpartition("=")
        try:
            made[domain] = float(share)
        except ValueError:
            found = ""
        if not found or not domain:
            raise bad(f"--mix is {one!r}; allowed: DOMAIN=SHARE, as in code=3")
    return made or None


def _main_load(client: "Client", pool: str, domain: str, regime: "Regime | None") -> int:
    """The load at which most of the domain is served at present."""
    served = [one for one in client.domain(pool, domain) if regime in (None, one.regime) and one.main_load is not None]
    if not served:
        raise bad(f"--load is needed: nothing of domain {domain!r} was served lately")
    load = max(served, key=lambda one: one.recent.row_steps).main_load
    assert load is not None  # as chosen above
    return load
