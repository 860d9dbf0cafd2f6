"""How a pool went: samples of its view, dense for the last minutes, sparse for a day. No I/O.

Sparse samples are kept in Redis beside the pool, so that a restart or another replica goes on with them; dense ones
live in the leader's memory.
"""

from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from controller.view import Interval, PoolView

DENSE = 900  # samples, DENSE_SECONDS apart or more
DENSE_SECONDS = 1.0
SPARSE = 2880  # samples, a day of them
SPARSE_SECONDS = 30.0
ACCEPTANCES = 3  # positions whose acceptance is kept


class Played(msgspec.Struct, frozen=True):
    """What a domain got at one time: the arm in force at the load most of it was served at, and what came of it lately.
    `acceptance`: posterior means at the first positions of the arm's draft, which K does not move; none without one.
    """

    domain: str
    regime: str
    draft: str
    k: int
    tokens_per_second: float | None
    accepted_per_step: float | None
    load: int | None = None  # unknown in samples of earlier versions
    acceptance: tuple[float, ...] = ()


class Sample(msgspec.Struct, frozen=True):
    """One moment. Goodput in tokens per second of engines' steps; `speedup` over plain: value, low, high; `static`: the
    same as it is expected of the operators' static choice; `rows`: mean decode rows of a step. `measuring`: a
    measurement ran; `fixed`: in a window of it in which all play its fixed choice."""

    time: float
    goodput: float | None
    speedup: tuple[float, float, float] | None
    static: float | None
    rows: float | None
    running: int
    waiting: int
    domains: tuple[Played, ...]
    measuring: bool = False
    fixed: bool = False


def sample(view: PoolView) -> Sample:
    """What of a view is kept."""
    domains = []
    for domain in view.domains:
        choice = next((c for c in domain.choices if c.load == domain.main_load), None)
        if choice is None:
            continue
        recent = domain.recent
        positions = next((curve.positions for curve in domain.curves if curve.draft == choice.draft), [])
        domains.append(
            Played(
                domain.domain,
                domain.regime,
                choice.draft,
                choice.k,
                recent.tokens_per_second,
                recent.accepted_per_step,
                choice.load,
                tuple(round(p.acceptance.value, 4) for p in positions[:ACCEPTANCES]),
            )
        )
    traffic = view.traffic
    live = [engine for engine in view.engines if engine.ended is None]
    return Sample(
        view.time,
        traffic.tokens_per_busy_second,
        _bounds(traffic.speedup),
        traffic.static,
        traffic.mean_rows,
        sum(engine.running for engine in live),
        sum(engine.waiting for engine in live),
        tuple(domains),
        view.measured is not None and view.measured.running,
        any(choice.held == "measurement" for domain in view.domains for choice in domain.choices),
    )


def _bounds(interval: Interval | None) -> tuple[float, float, float] | None:
    return None if interval is None else (interval.value, interval.low, interval.high)


class History:
    """The samples of one pool, in order."""

    def __init__(self, sparse: Iterable[Sample] = ()) -> None:
        self._sparse = deque(sparse, maxlen=SPARSE)
        self._dense: deque[Sample] = deque(maxlen=DENSE)

    def add(self, new: Sample) -> bool:
        """Keep a sample; whether it is one of those to be stored. Those that come too soon are passed over."""
        if self._dense and new.time - self._dense[-1].time < DENSE_SECONDS:
            return False
        self._dense.append(new)
        if self._sparse and new.time - self._sparse[-1].time < SPARSE_SECONDS:
            return False
        self._sparse.append(new)
        return True

    def between(self, since: float, until: float, points: int) -> list[Sample]:
        """At most `points` samples from `since` to `until`, Unix seconds: of each equal part of the time the last.

        >>> history = History()
        >>> for t in range(100):
        ...     new = history.add(Sample(float(t), 1.0, None, None, None, 0, 0, ()))
        >>> [s.time for s in history.between(0.0, 99.0, 4)]
        [24.0, 49.0, 74.0, 99.0]
        """
        first = self._dense[0].time if self._dense else float("inf")
        chosen = [s for s in (*(s for s in self._sparse if s.time < first), *self._dense) if since <= s.time <= until]
        return thinned(chosen, points)


def thinned(samples: Sequence[Sample], points: int) -> list[Sample]:
    """The last sample of each of `points` equal parts of their time; all where they are fewer."""
    if len(samples) <= points:
        return list(samples)
    start, end = samples[0].time, samples[-1].time
    last: dict[int, Sample] = {}
    for one in samples:
        last[min(points - 1, int((one.time - start) / (end - start) * points))] = one
    return list(last.values())
