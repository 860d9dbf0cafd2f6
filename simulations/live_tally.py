"""What virtual engines have played, by domain, over the whole run and over the last minute; and the tables of it."""

from collections import deque
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

from simulations.live_engine import Played
from simulations.luck import Array
from simulations.policy import Ints
from simulations.timeline import Timeline

RECENT = 60.0  # seconds of the wall clock
_SLOT = 1.0


@dataclass(slots=True)
class Sums:
    """Sums over steps; D domains, J drafts, P positions.

    `arms`, `best` [D, J + 1, P + 1]: row-steps by draft (the last: none) and K, as played and as the clairvoyant would
    have. `rows`, `accepted` [D]: row-steps and draft tokens kept. `seconds` [D]: each row is charged the whole step.
    `earned`, `due` [D]: expected tokens, and those of the clairvoyant in the same time. `plain` [D]: those of plain
    decoding in the same time at the same load, by the scenario's law.
    """

    arms: NDArray[np.int64]
    best: NDArray[np.int64]
    rows: Ints
    accepted: Ints
    seconds: Array
    earned: Array
    due: Array
    plain: Array

    @classmethod
    def nothing(cls, timeline: Timeline) -> "Sums":
        """Zeros."""
        d = len(timeline.domains)
        arms = (d, len(timeline.drafts) + 1, timeline.positions + 1)
        return cls(
            arms=np.zeros(arms, dtype=np.int64),
            best=np.zeros(arms, dtype=np.int64),
            rows=np.zeros(d, dtype=np.intp),
            accepted=np.zeros(d, dtype=np.intp),
            seconds=np.zeros(d),
            earned=np.zeros(d),
            due=np.zeros(d),
            plain=np.zeros(d),
        )

    def take(self, played: Played) -> None:
        """Count one step."""
        np.add.at(self.arms, (played.domain, played.draft, played.k), 1)
        np.add.at(self.best, (played.domain, played.best.draft[played.domain], played.best.k[played.domain]), 1)
        self.rows += played.rows
        np.add.at(self.accepted, played.domain, played.accepted)
        self.seconds += played.rows * played.seconds
        self.earned += played.earned
        self.due += played.due
        self.plain += played.rows * (played.expected / played.plain)

    def add(self, other: "Sums") -> None:
        """Count what the other has counted."""
        for field in fields(self):
            mine = getattr(self, field.name)
            mine += getattr(other, field.name)


class Tally:
    """All honest engines together."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.total = Sums.nothing(timeline)
        self._slots: deque[tuple[int, Sums]] = deque()

    def take(self, played: Played, now: float) -> None:
        """Count a step completed at `now`, seconds of a monotonic clock."""
        slot = int(now // _SLOT)
        if not self._slots or self._slots[-1][0] != slot:
            self._slots.append((slot, Sums.nothing(self.timeline)))
        self._slots[-1][1].take(played)
        self.total.take(played)

    def recent(self, now: float) -> Sums:
        """The last minute's; what is older is let go."""
        while self._slots and self._slots[0][0] < now // _SLOT - RECENT / _SLOT:
            self._slots.popleft()
        sums = Sums.nothing(self.timeline)
        for _, slot in self._slots:
            sums.add(slot)
        return sums


class Row(NamedTuple):
    """One domain in numbers; None where it had no rows. `played`, `best`: most frequent arm (draft, K) of the last
    minute and its share of row-steps. `speedup`: expected tokens over plain decoding's; `share`: of the optimum."""

    domain: str
    played: tuple[str, int, float] | None
    best: tuple[str, int, float] | None
    accepted: float | None
    goodput: float | None
    speedup: float | None
    share: float | None


def rows(timeline: Timeline, sums: Sums) -> list[Row]:
    """The sums by domain; every ratio is one of sums."""
    found = []
    for d, domain in enumerate(timeline.domains):
        n, accepted, seconds = int(sums.rows[d]), int(sums.accepted[d]), float(sums.seconds[d])
        found.append(
            Row(
                domain,
                _most(timeline, sums.arms[d]),
                _most(timeline, sums.best[d]),
                accepted / n if n else None,
                (accepted + n) / seconds if n else None,
                float(sums.earned[d] / sums.plain[d]) if n else None,
                float(sums.earned[d] / sums.due[d]) if n else None,
            )
        )
    return found


def _most(timeline: Timeline, arms: NDArray[np.int64]) -> tuple[str, int, float] | None:
    """The most frequent arm of [J + 1, P + 1]."""
    total = int(arms.sum())
    if not total:
        return None
    draft, k = divmod(int(arms.argmax()), arms.shape[1])
    name = "none" if draft == len(timeline.drafts) else timeline.drafts[draft]
    return name, k, float(arms[draft, k]) / total


def table(tally: Tally, now: float, title: str, caption: str) -> Table:
    """The last minute, for people."""
    made = _table(title, caption, "of the optimum")
    for row in rows(tally.timeline, tally.recent(now)):
        made.add_row(*_cells(row), _number(row.share, 3))
    return made


def summary(tally: Tally, now: float, title: str, caption: str) -> Table:
    """The end: the last minute, and the share of the clairvoyant's goodput over the whole run."""
    made = _table(title, caption, "of the optimum", "whole run")
    for row, whole in zip(rows(tally.timeline, tally.recent(now)), rows(tally.timeline, tally.total), strict=True):
        made.add_row(*_cells(row), _number(row.share, 3), _number(whole.share, 3))
    return made


def line(tally: Tally, now: float) -> str:
    """The last minute in one line, for logs."""
    return " | ".join(f"{row.domain} {_arm(row.played)}" for row in rows(tally.timeline, tally.recent(now)))


def _table(title: str, caption: str, *shares: str) -> Table:
    made = Table(title=Text(title), caption=Text(caption), title_justify="left", caption_justify="left")
    for name in ("domain", "plays", "optimum plays"):
        made.add_column(name, no_wrap=True)
    for name in ("accepted a step", "tokens/s", "over plain", *shares):
        made.add_column(name, justify="right")
    return made


def _cells(row: Row) -> tuple[str | Text, ...]:
    numbers = (_number(row.accepted, 2), _number(row.goodput, 1), _number(row.speedup, 2))
    return (Text(row.domain), Text(_arm(row.played)), Text(_arm(row.best)), *numbers)


def _arm(arm: tuple[str, int, float] | None) -> str:
    if arm is None:
        return "-"
    draft, k, share = arm
    return (f"{draft} K={k}" if k else "plain") + f" ({share:.0%})"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
