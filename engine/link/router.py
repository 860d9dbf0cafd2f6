"""Which pool serves a domain best: the offers of all pools, put in order. For routers and for people.

Every pool's controller publishes an offer (`Offer`) under a key that vanishes when the pool falls silent. `compose`
makes routes of them: by target, domain and regime the pools, best first, each with its probability of being best.

    import redis
    from engine.link.router import read_offers, compose

    for route in compose(read_offers(redis.Redis.from_url(URL)), target=NAME, domain="code"):
        print(route.regime, route.pools[0].pool, route.pools[0].probability)

Needs redis and msgspec, nothing else.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, cast

import msgspec
import redis

from engine.link.messages import OTHER, WIRE_VERSION, Keys, Offer, OfferCell, decode_offer

_Z90 = 1.6449
_SUREST = 1e-3  # least relative sd: no two pools are compared more sharply than a tenth of a percent
_POINTS = 32  # of the quadrature over one pool's goodput
_QUANTILES = [NormalDist().inv_cdf((i + 0.5) / _POINTS) for i in range(_POINTS)]


@dataclass(frozen=True, slots=True)
class RoutedPool:
    """One pool on a route. `goodput`: tokens a second of one request there, with its 90% interval; null, like all that
    follows from it, where the pool has timed no step yet. `probability`: of being the best of the route's pools.

    `load`: lower bound of the load bucket all this is for. `effective`: independent observations of acceptance
    behind it. `computed`: wall clock, seconds.
    """

    pool: str
    probability: float
    goodput: float | None
    low: float | None
    high: float | None
    speedup: float | None
    draft: str | None
    k: int | None
    load: int
    effective: float
    computed: float


@dataclass(frozen=True, slots=True)
class Route:
    """The pools with one target for one domain and regime, highest expected goodput first."""

    target: str
    domain: str
    regime: str
    pools: list[RoutedPool]


def probabilities(goodput: Sequence[tuple[float, float] | None]) -> list[float]:
    """P(best) of each pool from (mean, relative sd) of its goodput, lognormal and independent; None: nothing known.

    With m_i, s_i mean and sd of log goodput, P_i = integral of phi(z) prod_j Phi((m_i + s_i z - m_j) / s_j) dz, by
    equal-probability midpoints. Of n pools each that nothing is known of is the best with 1 / n, the others share the
    rest.

    Two pools 10% apart, known to 5% each: the difference of the logs is log 1.1 +- .0707, so P = Phi(1.35) = .91.

    >>> [round(p, 2) for p in probabilities([(110.0, 0.05), (100.0, 0.05)])]
    [0.91, 0.09]
    >>> [round(p, 2) for p in probabilities([(110.0, 0.05), (100.0, 0.05), None, None])]
    [0.46, 0.04, 0.25, 0.25]
    """
    known = {i: _log(*value) for i, value in enumerate(goodput) if value is not None}
    share = len(known) / len(goodput) if goodput else 0.0
    best = {
        i: sum(
            math.prod(_below((m + s * z - other) / spread) for j, (other, spread) in known.items() if j != i)
            for z in _QUANTILES
        )
        for i, (m, s) in known.items()
    }
    total = sum(best.values())
    return [share * best[i] / total if i in best else 1.0 / len(goodput) for i in range(len(goodput))]


def _log(mean: float, relative: float) -> tuple[float, float]:
    """Mean and sd of the logarithm of a lognormal with that mean and relative sd."""
    variance = math.log1p(max(relative, _SUREST) ** 2)
    return math.log(mean) - variance / 2, math.sqrt(variance)


def _below(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2.0))


def compose(
    offers: Iterable[Offer], *, target: str | None = None, domain: str | None = None, regime: str | None = None
) -> list[Route]:
    """Routes by target, domain and regime, in this order; only the named ones where something is named.

    A pool that does not know the domain is there with what it offers domain `other`, as its engines would serve it. A
    `domain` that no pool knows gives the routes of `other` under its name. Pools without live engines are left out.

    >>> cell = OfferCell("other", "greedy", "ngram", 4, goodput=50.0, sd=0.1, speedup=1.2, effective=30.0)
    >>> offers = [Offer(name, "t", 0.0, 1, 1, [cell]) for name in ("a", "b")]
    >>> [(r.domain, [(p.pool, round(p.probability, 2)) for p in r.pools]) for r in compose(offers, domain="code")]
    [('code', [('a', 0.5), ('b', 0.5)])]
    """
    by_target: dict[str, list[Offer]] = {}
    for offer in offers:
        if offer.engines and (target is None or offer.target == target):
            by_target.setdefault(offer.target, []).append(offer)
    routes = []
    for name, there in sorted(by_target.items()):
        contexts = {(cell.domain, cell.regime) for offer in there for cell in offer.cells}
        if domain is not None:
            contexts = {(domain, known) for _, known in contexts}
        routes += [
            _route(name, context, there) for context in sorted(contexts) if regime is None or context[1] == regime
        ]
    return routes


def _route(target: str, context: tuple[str, str], offers: Sequence[Offer]) -> Route:
    cells = [_cell(offer, *context) for offer in offers]
    chances = probabilities([None if cell is None else (cell.goodput, cell.sd) for cell in cells])
    pools = [_pool(offer, cell, chance) for offer, cell, chance in zip(offers, cells, chances, strict=True)]
    return Route(target, *context, sorted(pools, key=lambda pool: (-(pool.goodput or 0.0), pool.pool)))


def _cell(offer: Offer, domain: str, regime: str) -> OfferCell | None:
    """What the pool offers the domain, else domain `other`."""
    for wanted in (domain, OTHER):
        for cell in offer.cells:
            if (cell.domain, cell.regime) == (wanted, regime):
                return cell
    return None


def _pool(offer: Offer, cell: OfferCell | None, chance: float) -> RoutedPool:
    if cell is None:
        unknown = (None, None, None, None, None, None)
        return RoutedPool(offer.pool, chance, *unknown, offer.load, 0.0, offer.computed)
    middle, spread = _log(cell.goodput, cell.sd)
    low, high = (math.exp(middle + sign * _Z90 * spread) for sign in (-1, 1))
    numbers = (cell.goodput, low, high, cell.speedup, cell.draft, cell.k)
    return RoutedPool(offer.pool, chance, *numbers, offer.load, cell.effective, offer.computed)


def readable(data: Iterable[bytes | None]) -> list[Offer]:
    """The offers among what lies under the pools' keys, without what is unreadable or from a newer wire."""
    offers = []
    for value in data:
        try:
            offer = decode_offer(value) if value is not None else None
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
        if offer is not None and offer.v <= WIRE_VERSION:
            offers.append(offer)
    return offers


def read_offers(client: "redis.Redis") -> list[Offer]:
    """All live pools' offers, by the pool's name. Raises `redis.RedisError` when the server does not answer."""
    names = sorted(name.decode(errors="replace") for name in cast(Any, client.smembers(Keys.POOLS)))
    # One key at a time: on a Cluster they lie on different slots.
    return readable(cast(Any, client.get(Keys(name).offer)) for name in names)
