"""What a run leaves behind: expected and realised numbers by step and domain, and which arms were played."""

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from engine.link.messages import load_buckets
from simulations.luck import Array
from simulations.policy import Ints
from simulations.timeline import Timeline

PARTS = 60  # of a run, for what is played over time; the last fifth is twelve of them
WINDOW = 64  # steps of a cell whose most played arm is compared with that of the next so many


class Log:
    """One engine's run of S steps, D domains.

    `earned` [S, D]: expected tokens of the domain's rows, their own acceptance known, luck averaged out; `due` [S, D]:
    what the clairvoyant's choice would have earned on the same rows in the same expected decode seconds;
    `best` [S]: its tokens/s there. `rows` [S, D]. `expected` [S]: decode seconds, `plain` [S]: of a plain step.
    `tokens` [S], `seconds` [S]: realised. `played` [PARTS, D, J + 1, P + 1]: row-steps by draft (the last: none) and K.
    `switches` [S]: changes of the most played arm of a (domain, load bucket) from one WINDOW of its steps to the next.
    """

    def __init__(self, timeline: Timeline) -> None:
        steps, domains = timeline.scenario.steps, len(timeline.domains)
        arms = (len(timeline.drafts) + 1, timeline.positions + 1)
        self.earned: Array = np.zeros((steps, domains))
        self.due: Array = np.zeros((steps, domains))
        self.rows: NDArray[np.int32] = np.zeros((steps, domains), dtype=np.int32)
        self.best, self.expected, self.plain, self.seconds = (np.zeros(steps) for _ in range(4))
        self.tokens: NDArray[np.int32] = np.zeros(steps, dtype=np.int32)
        self.switches: NDArray[np.int32] = np.zeros(steps, dtype=np.int32)
        self.played: NDArray[np.int64] = np.zeros((PARTS, domains, *arms), dtype=np.int64)
        self._part = np.minimum(np.arange(steps) * PARTS // steps, PARTS - 1).tolist()
        self._loads = load_buckets(timeline.max_batch)
        loads = len(self._loads)
        self._cell: NDArray[np.int64] = np.zeros((loads, domains, *arms), dtype=np.int64)
        self._ran: NDArray[np.int64] = np.zeros((loads, domains), dtype=np.int64)
        self._top: Ints = np.full((loads, domains), -1, dtype=np.intp)

    def add(self, step: int, rows: Ints, earned: Array, due: Array, expected: float, plain: float) -> None:
        """Expected numbers of a step; rows, earned, due [D]."""
        self.rows[step], self.earned[step], self.due[step] = rows, earned, due
        self.best[step] = due.sum() / expected
        self.expected[step], self.plain[step] = expected, plain

    def realised(self, step: int, tokens: int, seconds: float) -> None:
        """What the step really gave and took."""
        self.tokens[step], self.seconds[step] = tokens, seconds

    def arms(self, step: int, rows: Ints, domain: Ints, draft: Ints, k: Ints) -> None:
        """Count the arms that were played; domain, draft, k by row (draft NO_DRAFT where K is 0), rows [D]."""
        load = bisect_right(self._loads, len(domain)) - 1
        played, cell, ran = self.played[self._part[step]], self._cell[load], self._ran[load]
        if len(domain) == 1:
            arm = int(domain[0]), int(draft[0]), int(k[0])
            played[arm] += 1
            cell[arm] += 1
        else:
            np.add.at(played, (domain, draft, k), 1)
            np.add.at(cell, (domain, draft, k), 1)
        ran += rows > 0
        if ran.max() < WINDOW:
            return
        for d in np.flatnonzero(ran >= WINDOW).tolist():
            top = int(cell[d].argmax())
            self.switches[step] += 0 <= self._top[load, d] != top
            self._top[load, d], ran[d], cell[d] = top, 0, 0
