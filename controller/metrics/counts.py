"""A pool's own counts as metric families: tokens, row-steps, K and acceptance by domain, over the pool's whole life."""

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from controller.reported import Positions
from controller.view import PoolView

CURVES_OF_A_POOL = 32  # those that are known best
POSITIONS = 16  # of a draft; deeper ones are left out
K_BOUNDS = (0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)


def counted(views: list[PoolView]) -> Iterator[Metric]:
    """Counts by domain and regime."""
    names = ["pool", "domain", "regime"]
    tokens = CounterMetricFamily("akc_tokens", "Tokens emitted by decode steps", labels=names)
    rows = CounterMetricFamily("akc_row_steps", "Decode rows of steps", labels=names)
    seconds = CounterMetricFamily("akc_row_seconds", "Seconds of steps, each row charged all of them", labels=names)
    k = HistogramMetricFamily("akc_row_k", "Row-steps by the K they were drafted with", labels=names)
    by_position = PositionFamilies("akc", [*names, "draft"])
    for view in views:
        for (domain, regime), sums in sorted(view.counts.items()):
            labels = [view.pool, domain, regime]
            tokens.add_metric(labels, sums.tokens)
            rows.add_metric(labels, sums.rows)
            seconds.add_metric(labels, sums.row_seconds)
            add_k(k, labels, sums.rows_by_k())
        curves = [
            ([view.pool, *name, draft], positions)
            for name, sums in view.counts.items()
            for draft, positions in sums.drafts.items()
        ]
        curves.sort(key=lambda curve: (-sum(curve[1].seen[:1]), curve[0]))
        for labels, positions in curves[:CURVES_OF_A_POOL]:
            by_position.add(labels, positions)
    yield from (tokens, rows, seconds, k)
    yield from by_position.all()


class PositionFamilies:
    """Drafted, seen and accepted by position, each its own counter: acceptance has another denominator at each."""

    def __init__(self, prefix: str, labels: Sequence[str]) -> None:
        names = [*labels, "position"]
        self._drafted = CounterMetricFamily(
            f"{prefix}_position_drafted", "Times a position was asked of the draft", labels=names
        )
        self._seen = CounterMetricFamily(
            f"{prefix}_position_seen", "Times the outcome at a draft position was decided", labels=names
        )
        self._accepted = CounterMetricFamily(
            f"{prefix}_position_accepted", "Times the token at a draft position was kept", labels=names
        )

    def add(self, labels: Sequence[str], positions: Positions) -> None:
        """One draft's counts. Engines that do not tell what they drafted have none of that."""
        for family, values in (
            (self._drafted, positions.drafted),
            (self._seen, positions.seen),
            (self._accepted, positions.accepted),
        ):
            for position, value in enumerate(values[:POSITIONS], 1):
                family.add_metric([*labels, str(position)], value)

    def all(self) -> Iterator[Metric]:
        """The families."""
        yield from (self._drafted, self._seen, self._accepted)


def add_k(family: HistogramMetricFamily, labels: Sequence[str], rows_by_k: Sequence[int] | None) -> None:
    """Add one histogram of K, if it is known."""
    if rows_by_k is None:
        return
    buckets = [(str(bound), float(sum(rows_by_k[: bound + 1]))) for bound in K_BOUNDS]
    total = sum(rows_by_k)
    drafted = sum(k * rows for k, rows in enumerate(rows_by_k))
    family.add_metric(labels, [*buckets, ("+Inf", float(total))], float(drafted))
