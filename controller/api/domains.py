"""Domains: what is known of their acceptance, and what is chosen for them and why."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from controller.api.access import ViewOf
from controller.api.problems import ProblemError, documented
from controller.view import (
    Domain,
    DomainName,
    DraftName,
    HeldBy,
    Interval,
    Probability,
    RegimeName,
    Traffic,
    Wanted,
)

router = APIRouter(prefix="/v1/pools/{pool}/domains", tags=["domains"])


@dataclass(frozen=True, slots=True)
class LoadChoice:
    """The arm in force at one load bucket: the one that most requests are given. `held`: what for, where it is not the
    learned one, which is `would_choose`."""

    load: int
    draft: DraftName
    k: int
    probability: Probability
    speedup: Interval | None
    held: HeldBy = None
    would_choose: Wanted | None = None


@dataclass(frozen=True, slots=True)
class DomainSummary:
    """One domain and regime in brief."""

    domain: DomainName
    regime: RegimeName
    tokens: int
    row_steps: int
    recent: Traffic
    now: Annotated[LoadChoice | None, Field(description="the choice at the load most of it was served at recently")]
    choices: list[LoadChoice]
    measured: Annotated[Interval | None, Field(description="its own part of the pool's measured gain")] = None


@router.get("", responses=documented(404, 503))
async def list_domains(view: ViewOf) -> list[DomainSummary]:
    """Every domain and regime: what it was served, and the choice at each load."""
    summaries = []
    for d in view.domains:
        choices = [
            LoadChoice(c.load, c.draft, c.k, c.probability, c.speedup, c.held, c.would_choose) for c in d.choices
        ]
        now = next((choice for choice in choices if choice.load == d.main_load), None)
        summaries.append(DomainSummary(d.domain, d.regime, d.tokens, d.row_steps, d.recent, now, choices, d.measured))
    return summaries


# `path`: a domain is a label from a request and may hold a slash.
@router.get("/{domain:path}", responses=documented(404, 503))
async def read_domain(view: ViewOf, domain: str) -> list[Domain]:
    """One domain, one entry per regime: acceptance by draft and position with intervals, raw counts, how much requests
    differ, all arms with speedup and probability of being best, the reason."""
    found = [d for d in view.domains if d.domain == domain]
    if not found:
        names = ", ".join(repr(name) for name in sorted({d.domain for d in view.domains})) or "none yet"
        raise ProblemError(
            404, "No such domain", f"Pool {view.pool!r} has no domain {domain!r}; known domains: {names}"
        )
    return found
