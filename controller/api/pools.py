"""Pools: the list, and one pool's summary."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from controller.api.access import LoopOf, SupervisorOf
from controller.api.problems import documented
from controller.loop import PoolLoop
from controller.view import (
    Domain,
    Draft,
    Evidence,
    Frames,
    Measured,
    PolicyVersion,
    PoolTraffic,
    Probability,
    UnixSeconds,
)

router = APIRouter(prefix="/v1/pools", tags=["pools"])


@dataclass(frozen=True, slots=True)
class PoolName:
    """One pool and the part this replica plays in it. `problem`: what is wrong, or null."""

    pool: str
    role: str
    problem: str | None


@dataclass(frozen=True, slots=True)
class PoolSummary:
    """One pool at a glance. All but the first fields are null where another replica leads, or before the first frame.

    `problem`: why the pool is not served right now, or which of its engines are not like the first, and how.
    `stale`: no frame for a while, or the policy ran out; false on a replica that stands by. `catching_up`: old frames
    are still being read. `explored`: share of the last minute's row-steps for which requests were given another arm
    than their domain's most probable one, to learn about it: 0 under a pin and where all play the static choice.
    `note`: what the mode cannot tell.
    """

    pool: str
    role: str
    problem: str | None
    stale: bool
    catching_up: bool
    time: UnixSeconds | None = None
    mode: str | None = None
    target: str | None = None
    drafts: list[Draft] | None = None
    k_values: list[int] | None = None
    engines: int | None = None
    running: int | None = None
    waiting: int | None = None
    last_frame: UnixSeconds | None = None
    frames: Frames | None = None
    evidence: Evidence | None = None
    traffic: PoolTraffic | None = None
    explored: Probability | None = None
    policy_version: PolicyVersion | None = None
    policy_expires: UnixSeconds | None = None
    decisions: int | None = None
    switches: int | None = None
    changes: int | None = None
    budget_steps: Annotated[
        float | None, Field(description="plain steps that a domain and regime may lose to exploring, while it is new")
    ] = None
    measured_gain: Measured | None = None
    note: str | None = None


def explored(domains: Iterable[Domain]) -> float | None:
    """Share of recent row-steps that explored by the policy as published, at the load most of each domain is served
    at; null where nothing was served lately or decided yet."""
    steps = share = 0.0
    for domain in domains:
        for choice in domain.choices:
            if choice.load == domain.main_load:
                steps += domain.recent.row_steps
                share += domain.recent.row_steps * choice.explored
    return share / steps if steps else None


def summary(loop: PoolLoop) -> PoolSummary:
    """The summary of the pool that `loop` serves."""
    view = loop.view
    if view is None:
        away = loop.role == "standby"
        return PoolSummary(
            loop.store.pool, loop.role, loop.complaint, stale=not away, catching_up=loop.catching_up and not away
        )
    live = [engine for engine in view.engines if engine.ended is None]
    return PoolSummary(
        pool=view.pool,
        role=loop.role,
        problem=loop.complaint,
        stale=loop.stale(),
        catching_up=loop.catching_up,
        time=view.time,
        mode=view.mode,
        target=view.target,
        drafts=view.drafts,
        k_values=view.k_values,
        engines=len(live),
        running=sum(engine.running for engine in live),
        waiting=sum(engine.waiting for engine in live),
        last_frame=view.last_frame,
        frames=view.frames,
        evidence=view.evidence,
        traffic=view.traffic,
        explored=explored(view.domains),
        policy_version=view.version,
        policy_expires=view.expires,
        decisions=view.decisions,
        switches=view.switches,
        changes=view.changes,
        budget_steps=None if view.gate is None else view.gate.budget,
        measured_gain=view.measured,
        note=view.note,
    )


@router.get("")
async def list_pools(supervisor: SupervisorOf) -> list[PoolName]:
    """Name, role (`leading`, `standby`, `starting`, `stopped`) and present problem of each pool."""
    return [PoolName(name, loop.role, loop.complaint) for name, loop in sorted(supervisor.pools.items())]


@router.get("/{pool}", responses=documented(404))
async def read_pool(loop: LoopOf) -> PoolSummary:
    """One pool: engines, drafts with the memory they hold and the share of goodput the pool would lose without each,
    load, frames and their lag, evidence that did not count, goodput, speedup over plain decoding with its interval,
    policy version, abrupt `changes` of acceptance found."""
    return summary(loop)
