"""What a pool offers a router: the arms in force at the load it has now, priced by the last decision."""

import math
from collections.abc import Mapping

from controller.learner.config import PoolSpec
from controller.learner.decision import Decision, LoadTable
from controller.learner.estimates import Estimates
from controller.learner.policy import arm_name
from controller.published import Arm, Cell
from engine.link.messages import NO_DRAFT, Offer, OfferCell


def present_load(spec: PoolSpec, mean_rows: float | None) -> int:
    """The load bucket, as an index, of a batch of so many rows; None: nothing was decoded lately, so a batch of one.

    >>> [present_load(PoolSpec((), (), max_batch=8), rows) for rows in (None, 1.4, 1.6, 100.0)]
    [0, 0, 1, 3]
    """
    return spec.load_index(round(mean_rows or 1.0))


def offer_of(
    pool: str,
    target: str,
    decision: Decision,
    estimates: Estimates,
    in_force: Mapping[Cell, Arm],
    mean_rows: float | None,
    engines: int,
    now: float,
    slow: float = 1.0,
) -> Offer:
    """The offer as of `now`, seconds. `in_force`: what most requests are given, where that is not the learner's most
    probable arm; `mean_rows`: decode rows of a step lately; `slow`: how many times the usual seconds engines take now.
    Without any timed step no cells."""
    at = present_load(decision.spec, mean_rows)
    load = decision.spec.loads[at]
    plain, plain_sd = estimates.plain_seconds[load]
    cells: list[OfferCell] = []
    if estimates.costs and decision.tables:
        effective = {point[:3]: point.effective for point in estimates.curves if point.position == 1}
        table, contexts = decision.tables[at], range(len(decision.contexts))
        cells = [_cell(decision, table, c, effective, plain_sd / plain, in_force, slow) for c in contexts]
    elif estimates.costs:  # no draft, nothing to decide: all are served plainly
        bare = (NO_DRAFT, 0, round(1.0 / plain / slow, 4), round(plain_sd / plain, 4), 1.0, 0.0)
        cells = [OfferCell(*context, *bare) for context in decision.contexts]  # type: ignore[arg-type]  # see `_cell`
    return Offer(pool, target, now, load, engines, cells)


def _cell(
    decision: Decision,
    table: LoadTable,
    c: int,
    effective: dict[tuple[str, str, str], float],
    plain_sd: float,
    in_force: Mapping[Cell, Arm],
    slow: float,
) -> OfferCell:
    """The context's cell. Goodput is speedup over plain seconds; the two are taken as independent, although they err
    together: rather too unsure than too sure."""
    domain, regime = decision.contexts[c]
    names = tuple(d.name for d in decision.spec.drafts)
    # A static K that the pool has not prepared has no price: what is learned stands in for it.
    played = in_force.get((domain, regime, table.load))
    priced = {arm_name(arm, names, decision.spec.ks): arm for arm in range(table.gain.shape[1])}
    arm = priced.get(played, int(table.top[c])) if played is not None else int(table.top[c])
    draft, k = arm_name(arm, names, decision.spec.ks)
    sd = math.hypot(float(table.speedup_sd[c, arm]), plain_sd)
    known = 0.0 if draft == NO_DRAFT else effective[domain, regime, draft]
    goodput, speedup = float(table.goodput_row[c, arm]) / slow, float(table.speedup[c, arm])
    return OfferCell(domain, regime, draft, k, round(goodput, 4), round(sd, 4), round(speedup, 4), round(known, 1))  # type: ignore[arg-type]  # contexts hold only wire regimes
