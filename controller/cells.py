"""Arithmetic of the wire's cells: their identity, the difference of two cumulative values, and the sum of two cells.

A cell counts from zero when its engine's incarnation starts and only grows, so `subtract(new, old)` is what happened in
between. Anything that would be negative or inconsistent is a `CellError`, which names the cell and the field.

>>> old = AcceptanceCell("code", "greedy", "ngram", "policy", seen=[3], accepted=[2])
>>> new = AcceptanceCell("code", "greedy", "ngram", "policy", seen=[5, 1], accepted=[3, 0])
>>> change = subtract(new, old)
>>> change.seen, change.accepted
([2, 1], [1, 0])
>>> add(old, change) == new
True
"""

from collections.abc import Sequence
from itertools import zip_longest
from math import inf
from typing import Any, NamedTuple, TypeVar

import msgspec

from engine.link.messages import AcceptanceCell, AccountCell, CostCell, Frame, MomentCell

Cell = AcceptanceCell | MomentCell | CostCell | AccountCell
CellT = TypeVar("CellT", AcceptanceCell, MomentCell, CostCell, AccountCell)
Key = tuple[object, ...]

# A sum that an engine recomputes may move by rounding; only more than this share of it counts as "backwards".
ROUNDING = 1e-9


class CellError(ValueError):
    """A cell that cannot be the continuation of what its incarnation reported before."""


class _Counters(NamedTuple):
    """Names of a cell type's counters by shape; its remaining fields are its key."""

    scalars: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    maps: tuple[str, ...] = ()


_COUNTERS: dict[type, _Counters] = {
    AcceptanceCell: _Counters(lists=("seen", "accepted", "drafted")),
    MomentCell: _Counters(
        scalars=("segments", "total_s", "total_a", "total_ss", "total_sa", "total_aa"),
        lists=("s", "a", "ss", "sa", "aa"),
    ),
    CostCell: _Counters(
        scalars=("count", "seconds", "seconds_sq", "stalls", "stall_seconds"),
        lists=("sx", "sxx", "sxy"),
        maps=("hist",),
    ),
    AccountCell: _Counters(scalars=("row_steps", "tokens", "row_seconds")),
}


def key(cell: Cell) -> Key:
    """What a cell counts: the name of its kind and its fields that are not counters.

    >>> key(AccountCell("code", "greedy", 4, "static", 1, 2, 0.5))
    ('account', 'code', 'greedy', 4, 'static')
    """
    match cell:
        case AcceptanceCell():
            return ("acceptance", cell.domain, cell.regime, cell.draft, cell.origin)
        case MomentCell():
            return ("moments", cell.domain, cell.regime, cell.draft)
        case CostCell():
            return ("cost", tuple(cell.drafts), cell.batch, cell.passes, cell.prefill, cell.other)
        case AccountCell():
            return ("account", cell.domain, cell.regime, cell.load, cell.variant)


def cells_of(frame: Frame) -> list[Cell]:
    """All cells of a frame, kind by kind."""
    return [*frame.acceptance, *frame.moments, *frame.cost, *frame.account]


def subtract(new: CellT, old: CellT | None) -> CellT | None:
    """What happened between two cumulative values of one cell; since zero when `old` is None; None when nothing did.

    Raises `CellError` when a counter went backwards or the counters contradict each other.
    """
    if new == old:
        return None
    change = _combine(new, old, -1)
    if isinstance(change, AcceptanceCell):
        _check_prefix(change)
    elif isinstance(change, CostCell) and not change.other:
        _check_sums(change)
    return change


def add(left: CellT, right: CellT) -> CellT:
    """The sum of two cells, under the key of `left`; lists are as long as the longer of the two."""
    return _combine(left, right, 1)


def _combine(left: CellT, right: CellT | None, sign: int) -> CellT:
    names = _COUNTERS[type(left)]
    changed: dict[str, Any] = {}
    for name in names.scalars:
        changed[name] = _scalar(left, name, getattr(left, name), getattr(right, name, 0), sign)
    for name in names.lists:
        mine, theirs = getattr(left, name), getattr(right, name, ())
        if sign < 0 and len(theirs) > len(mine):
            raise CellError(f"{_name(left)}: {name} has {len(mine)} positions, after {len(theirs)} before")
        changed[name] = _list(left, name, mine, theirs, sign)
    for name in names.maps:
        changed[name] = _map(left, name, getattr(left, name), getattr(right, name, {}), sign)
    return msgspec.structs.replace(left, **changed)


def _list(cell: Cell, name: str, mine: Sequence[float], theirs: Sequence[float], sign: int) -> list[float]:
    if sign > 0:
        return [x + y for x, y in zip_longest(mine, theirs, fillvalue=0)]
    changes = [x - y for x, y in zip(mine, theirs, strict=False)]
    changes += mine[len(theirs) :]
    if not changes or (min(changes) >= 0 and max(changes) < inf):
        return changes
    return [_scalar(cell, name, x, y, sign) for x, y in zip_longest(mine, theirs, fillvalue=0)]


def _scalar(cell: Cell, name: str, mine: float, theirs: float, sign: int) -> float:
    if sign > 0:
        return mine + theirs
    change = _finite(cell, name, mine) - theirs
    if change >= 0:
        return change
    if isinstance(mine, float) and -change <= ROUNDING * theirs:
        return 0.0
    raise CellError(f"{_name(cell)}: {name} went backwards, from {theirs} to {mine}")


def _finite(cell: Cell, name: str, value: float) -> float:
    if 0 <= value < inf:
        return value
    raise CellError(f"{_name(cell)}: {name} holds {value}; counters are finite and 0 or more")


def _map(cell: Cell, name: str, mine: dict[str, int], theirs: dict[str, int], sign: int) -> dict[str, int]:
    if sign > 0:
        return {bucket: mine.get(bucket, 0) + theirs.get(bucket, 0) for bucket in mine | theirs}
    if gone := theirs.keys() - mine.keys():
        raise CellError(f"{_name(cell)}: {name} no longer has bucket {min(gone)!r}")
    changes = {b: int(_scalar(cell, name, n, theirs.get(b, 0), sign)) for b, n in mine.items()}
    return {bucket: change for bucket, change in changes.items() if change}


def _check_prefix(change: AcceptanceCell) -> None:
    """Position i + 1 is only drafted where i was, only seen where i was accepted, and accepted only where seen."""
    if len(change.seen) != len(change.accepted):
        raise CellError(f"{_name(change)}: {len(change.seen)} positions seen, {len(change.accepted)} accepted")
    limit: float = inf
    for position, (seen, accepted) in enumerate(zip(change.seen, change.accepted, strict=True), start=1):
        if accepted > seen:
            raise CellError(f"{_name(change)}: position {position} accepted {accepted} times but seen {seen} times")
        if seen > limit:
            raise CellError(f"{_name(change)}: position {position} seen {seen} times after {limit} accepted before it")
        limit = accepted
    if not change.drafted:  # an engine need not count it
        return
    limit = inf
    for position, (drafted, seen) in enumerate(zip_longest(change.drafted, change.seen, fillvalue=0), start=1):
        if drafted < seen:
            raise CellError(f"{_name(change)}: position {position} seen {seen} times but drafted {drafted} times")
        if drafted > limit:
            raise CellError(f"{_name(change)}: position {position} drafted {drafted} times, the one before {limit}")
        limit = drafted


def _check_sums(change: CostCell) -> None:
    """x has 3 entries and 2 for each draft; sxx is the upper triangle of a square."""
    n = 3 + 2 * len(change.drafts)
    expected = {"sx": n, "sxx": n * (n + 1) // 2, "sxy": n}
    for name, length in expected.items():
        values: Sequence[float] = getattr(change, name)
        if len(values) != length:
            raise CellError(f"{_name(change)}: {name} has {len(values)} entries, {length} for drafts {change.drafts}")


def _name(cell: Cell) -> str:
    return " ".join(str(part) for part in key(cell))
