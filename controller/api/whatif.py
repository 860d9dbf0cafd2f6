"""What-if: another load, another mix of domains, or a pin, before anybody orders it."""

import time
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from controller.api.access import LoopOf
from controller.api.problems import ProblemError, documented
from controller.api.steer import Body
from controller.learner.whatif import Expected, Fixed
from controller.steering import OrderError, check_arm
from controller.view import DomainName, DraftName, Interval, RegimeName
from engine.link.messages import MAX_K, Regime

router = APIRouter(prefix="/v1/pools/{pool}/what-if", tags=["steer"])


class PinQuestion(Body):
    """The arm that a domain would be held on."""

    domain: Annotated[str, Field(min_length=1, max_length=64, examples=["chat"])]
    draft: Annotated[str, Field(min_length=1, max_length=64, examples=["ngram"])]
    k: Annotated[int, Field(ge=0, le=MAX_K, examples=[5])]
    regime: Regime | None = None


class Question(Body):
    """`load`: decode rows of a step; `mix`: shares by domain on any scale, null: as at present; `pin`: ask for one arm
    only."""

    load: Annotated[int, Field(ge=1, le=65_536, examples=[8])]
    mix: Annotated[dict[str, float] | None, Field(max_length=256, examples=[{"code": 3, "chat": 1}])] = None
    pin: PinQuestion | None = None


@dataclass(frozen=True, slots=True)
class ExpectedArm:
    """One arm of one domain, the others playing what is best jointly. `goodput`: of the whole batch, tokens a second;
    `loss`: share of it given up against the domain's best arm; `chosen`: what most requests play there now;
    `would_choose`: what the learner would have them play, without pin, mode or measurement."""

    domain: DomainName
    regime: RegimeName
    draft: DraftName
    k: int
    goodput: float
    speedup: Interval
    loss: Interval
    chosen: bool
    would_choose: bool


@dataclass(frozen=True, slots=True)
class FixedArm:
    """The static choice for all requests of all domains. `speedup`: of the batch over plain; `learned`: the same of
    what policies play now; `loss`: share of goodput that the static choice gives up against that."""

    draft: DraftName
    k: int
    speedup: Interval
    learned: Interval
    loss: Interval


@dataclass(frozen=True, slots=True)
class Answer:
    """`load`: the bucket's lower bound; `rows`: mean rows of its steps; `arms`: by domain, best first; `fixed`: the
    static choice for all, null where no engine has its draft. Pins are left out of what policies play."""

    load: int
    rows: float
    mix: dict[str, float]
    arms: list[ExpectedArm]
    fixed: FixedArm | None


def _arm(arm: Expected) -> ExpectedArm:
    speedup, loss = Interval(*arm.speedup), Interval(*arm.loss)
    return ExpectedArm(arm.domain, arm.regime, arm.draft, arm.k, arm.goodput, speedup, loss, arm.in_force, arm.chosen)


def _fixed(arm: Fixed) -> FixedArm:
    return FixedArm(arm.draft, arm.k, Interval(*arm.speedup), Interval(*arm.learned), Interval(*arm.loss))


@router.post("", responses=documented(400, 404, 408, 413, 422, 503))
async def ask(loop: LoopOf, body: Question) -> Answer:
    """What arms would bring at another load or mix, what a pin would cost, or what the static choice would bring for
    all; changes nothing."""
    tuner = loop.tuner
    if tuner is None or loop.role != "leading":
        raise ProblemError(503, "Not here", f"Ask the replica that leads: {loop.explain()}", {"Retry-After": "2"})
    pin = body.pin
    try:
        if pin is not None and tuner.spec is not None:
            check_arm(pin.draft, pin.k, tuner.spec)
        made = await loop.ask(lambda own: own.imagine(time.time(), body.load, body.mix))
    except (ValueError, OrderError) as error:
        raise ProblemError(422, "That cannot be asked", str(error)) from None
    except TimeoutError:
        raise ProblemError(503, "Busy", "The pool's loop did not answer in time", {"Retry-After": "2"}) from None
    arms = [
        _arm(arm)
        for arm in made.arms
        if pin is None
        or ((arm.domain, arm.draft, arm.k) == (pin.domain, pin.draft, pin.k) and pin.regime in (None, arm.regime))
    ]
    if pin is not None and not arms:
        known = ", ".join(sorted({repr(arm.domain) for arm in made.arms})) or "none"
        raise ProblemError(
            422, "That cannot be asked", f"domain {pin.domain!r} has no rows at this load; those that have: {known}"
        )
    mix: dict[str, float] = {}
    for (domain, _), share in made.mix.items():
        mix[domain] = mix.get(domain, 0.0) + share
    ordered = sorted(arms, key=lambda arm: (arm.domain, arm.regime, arm.loss.value))
    return Answer(made.load, made.rows, mix, ordered, None if made.fixed is None else _fixed(made.fixed))
