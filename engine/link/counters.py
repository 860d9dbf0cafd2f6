"""The cumulative cells of the statistics contract: counted in microseconds on the decode thread, read by another.

`Counters.record` and `Counters.finish` never wait: they take the lock if it is free, else leave the step in a bounded
queue that the next call (or the snapshot itself) empties. Nothing is removed while the engine's incarnation lives.
"""

import re
import threading
from collections import deque
from collections.abc import Iterable
from typing import TypeVar

from engine.link.cells import SEGMENT_STEPS, AcceptanceCounts, AccountCounts, CostCounts, MomentCounts, Segment
from engine.link.messages import (
    MAX_K,
    NO_DRAFT,
    OTHER,
    AcceptanceCell,
    AccountCell,
    CostCell,
    Message,
    MomentCell,
    Origin,
    Regime,
    Variant,
    load_bucket,
    passes_bucket,
    prefill_bucket,
)
from engine.link.ticket import StepOutcome, Ticket

MAX_STEP_SECONDS = 86_400.0
_LABEL = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,64}")
_CURVE_ORIGINS = frozenset(("policy", "probe"))


class ImpossibleStepError(ValueError):
    """A step whose numbers contradict each other: it says nothing, and nothing of it is counted."""


class Snapshot(Message, frozen=True):
    """Cells as absolute values. `generation`: pass it as `since` once this snapshot has been delivered."""

    generation: int
    steps: int
    acceptance: list[AcceptanceCell]
    moments: list[MomentCell]
    cost: list[CostCell]
    account: list[AccountCell]


CostKey = tuple[tuple[str, ...], int, int, int]  # drafts that ran, load, passes, prefill: buckets


class Counters:
    """All cells of one engine incarnation.

    `key_cap` bounds the keys (domain, regime, draft), beyond it requests count for domain `other`; `cost_cap` bounds
    the cost cells, the overflow cell included (see `_new_cost_cell`); `pending` bounds the steps held back while a
    snapshot is being taken.

    >>> from engine.link.ticket import RowOutcome
    >>> counters, ticket = Counters(), Ticket("code", "greedy", "ngram")
    >>> counters.record(StepOutcome(0.05, [RowOutcome(ticket, 4, 2, 3, 3)], 5, drafted={"ngram": (4, 4)}))
    >>> counters.record(StepOutcome(0.05, [RowOutcome(ticket, 2, 2, 2, 3)], 3, drafted={"ngram": (2, 2)}))
    >>> cell = counters.snapshot().acceptance[0]
    >>> cell.seen, cell.accepted
    ([2, 2, 1], [2, 2, 0])
    """

    def __init__(self, *, key_cap: int = 192, cost_cap: int = 1024, pending: int = 4096) -> None:
        self.steps = 0
        self.lost = 0
        self._key_cap = key_cap
        self._cost_cap = cost_cap
        self._pending_cap = pending
        self._lock = threading.Lock()
        self._pending: deque[tuple[StepOutcome, bool] | Ticket] = deque()
        self._generation = 1
        self._keys: set[tuple[str, str, str]] = set()
        self._acceptance: dict[tuple[str, str, str, str], AcceptanceCounts] = {}
        self._moments: dict[tuple[str, str, str], MomentCounts] = {}
        self._cost: dict[CostKey, CostCounts] = {}
        self._cost_mixed = 0  # of them, cells of several drafts
        self._cost_other: CostCounts | None = None
        self._account: dict[tuple[str, str, int, str], AccountCounts] = {}

    @property
    def waiting(self) -> int:
        """Events held back while a snapshot is being taken."""
        return len(self._pending)

    def place(self, domain: str, regime: Regime, draft: str) -> str:
        """The domain a new request counts for: its own, or `other` where the label is not valid or the cap is reached.

        >>> counters = Counters(key_cap=1)
        >>> [counters.place(d, "greedy", "none") for d in ("code", "math", "code", "bad\\nlabel")]
        ['code', 'other', 'code', 'other']
        """
        key = (domain, regime, draft)
        if key in self._keys or domain == OTHER:
            return domain
        if len(self._keys) >= self._key_cap or not _LABEL.fullmatch(domain):
            return OTHER
        self._keys.add(key)
        return domain

    def switch(self, ticket: Ticket, draft: str) -> bool:
        """Let a request go on with another draft: what follows counts for that one.

        False, and nothing has changed, where the new draft's key is beyond the cap or a snapshot is being taken.
        """
        key = (ticket.domain, ticket.regime, draft)
        capped = ticket.domain != OTHER and draft != NO_DRAFT
        if capped and key not in self._keys and len(self._keys) >= self._key_cap:
            return False
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._drain()
            ticket.take(draft)
            if capped:
                self._keys.add(key)
        finally:
            self._lock.release()
        return True

    def record(self, step: StepOutcome, *, probing: bool = False) -> None:
        """Count one completed step; `probing` says that its batch was told to run without speculation.

        Raises `ImpossibleStepError`; nothing of such a step is counted.
        """
        _check(step)
        self._enter((step, probing))

    def finish(self, ticket: Ticket) -> None:
        """Close the segment of a request that has ended."""
        self._enter(ticket)

    def _enter(self, event: tuple[StepOutcome, bool] | Ticket) -> None:
        if not self._lock.acquire(blocking=False):
            if len(self._pending) < self._pending_cap:
                self._pending.append(event)
            else:
                self.lost += 1
            return
        try:
            if self._pending:
                self._drain()
            self._count(event)
        finally:
            self._lock.release()

    def _drain(self) -> None:
        while self._pending:
            self._count(self._pending.popleft())

    def _count(self, event: tuple[StepOutcome, bool] | Ticket) -> None:
        if isinstance(event, Ticket):
            for draft, segment in event.segments.items():
                self._close_segment(event, draft, segment)
        else:
            self._count_step(*event)

    def _count_step(self, step: StepOutcome, probing: bool) -> None:
        seconds = step.seconds
        generation = self._generation
        load = load_bucket(len(step.rows))
        for ticket, drafted, accepted, seen, emitted, limited in step.rows:
            variant: Variant = "probe" if probing else ticket.variant
            account = ticket.account
            if account is None or account.load != load or account.variant != variant:
                account = ticket.account = self._account_cell(ticket, load, variant)
            account.row_steps += 1
            account.tokens += emitted
            account.row_seconds += seconds
            account.stamp = generation
            if not drafted:
                continue
            if limited:
                cell = ticket.limit
                if cell is None:
                    cell = ticket.limit = self._acceptance_cell(ticket, "limit")
            else:
                cell = ticket.accept
                if cell is None:
                    cell = ticket.accept = self._acceptance_cell(ticket, ticket.origin)
                if ticket.origin in _CURVE_ORIGINS:
                    segment = ticket.segment
                    segment.seen_at[seen] += 1
                    segment.accepted_at[accepted] += 1
                    segment.steps += 1
                    if segment.steps == SEGMENT_STEPS:
                        self._close_segment(ticket, ticket.draft, segment)
            cell.drafted_at[drafted] += 1
            cell.seen_at[seen] += 1
            cell.accepted_at[accepted] += 1
            cell.stamp = generation
        self._count_cost(step, load, generation)
        self.steps += 1

    def _account_cell(self, ticket: Ticket, load: int, variant: Variant) -> AccountCounts:
        key = (ticket.domain, ticket.regime, load, variant)
        cell = self._account.get(key)
        if cell is None:
            cell = self._account[key] = AccountCounts(ticket.domain, ticket.regime, load, variant)
        return cell

    def _acceptance_cell(self, ticket: Ticket, origin: Origin) -> AcceptanceCounts:
        key = (ticket.domain, ticket.regime, ticket.draft, origin)
        cell = self._acceptance.get(key)
        if cell is None:
            cell = self._acceptance[key] = AcceptanceCounts(ticket.domain, ticket.regime, ticket.draft, origin)
        return cell

    def _count_cost(self, step: StepOutcome, load: int, generation: int) -> None:
        drafted = step.drafted
        passes = 0
        if drafted:
            names = tuple(sorted(drafted))
            passes = passes_bucket(max(p for _, p in drafted.values()))
        else:
            names = ()
        key = (names, load, passes, prefill_bucket(step.prefill))
        cell = self._cost.get(key)
        if cell is None:
            cell = self._new_cost_cell(key)
        x = [step.verified, step.prefill, step.kv_tokens]
        for name in cell.drafts:
            x += drafted[name]
        cell.add(step.seconds, x)
        cell.stamp = generation

    def _new_cost_cell(self, key: CostKey) -> CostCounts:
        """A cell of its own, or the overflow cell where the cap is reached.

        Steps that mix drafts may take a quarter of the cap and steps with prefill three quarters, since their kinds are
        many and tell least: a load that comes late must find room for what it would be priced by, pure decode steps.
        """
        drafts, _, _, prefill = key
        kinds = len(self._cost)
        full = kinds >= self._cost_cap - 1
        if len(drafts) > 1:
            full |= self._cost_mixed >= self._cost_cap // 4
        elif prefill:
            full |= kinds >= 3 * self._cost_cap // 4
        if full:
            if self._cost_other is None:
                self._cost_other = CostCounts((), 0, 0, 0, other=True)
            return self._cost_other
        self._cost_mixed += len(drafts) > 1
        cell = self._cost[key] = CostCounts(*key)
        return cell

    def _close_segment(self, ticket: Ticket, draft: str, segment: Segment) -> None:
        if not segment.steps:
            return
        key = (ticket.domain, ticket.regime, draft)
        cell = self._moments.get(key)
        if cell is None:
            cell = self._moments[key] = MomentCounts(*key)
        cell.add(segment.seen_at, segment.accepted_at)
        cell.stamp = self._generation
        segment.clear()

    def snapshot(self, since: int = 0) -> Snapshot:
        """Cells touched after generation `since` (0: all), at this moment. The decode thread is never kept waiting."""
        with self._lock:
            self._drain()
            generation = self._generation
            snapshot = Snapshot(
                generation,
                self.steps,
                [c.message() for c in _changed(self._acceptance.values(), since)],
                [c.message() for c in _changed(self._moments.values(), since)],
                [c.message() for c in _changed(self._cost.values(), since)],
                [c.message() for c in _changed(self._account.values(), since)],
            )
            if self._cost_other is not None and self._cost_other.stamp > since:
                snapshot.cost.append(self._cost_other.message())
            self._generation = generation + 1
        return snapshot


def _check(step: StepOutcome) -> None:
    if not 0.0 <= step.seconds <= MAX_STEP_SECONDS:
        raise ImpossibleStepError(f"step took {step.seconds} seconds; allowed are 0 to {MAX_STEP_SECONDS:.0f}")
    if min(step.verified, step.prefill, step.kv_tokens) < 0:
        raise ImpossibleStepError(
            f"step has verified={step.verified} prefill={step.prefill} kv_tokens={step.kv_tokens}; needed: 0 or more"
        )
    for ticket, drafted, accepted, seen, emitted, _ in step.rows:
        if not 0 <= accepted <= seen <= drafted <= MAX_K or seen - accepted > 1 or not 0 <= emitted <= accepted + 1:
            raise ImpossibleStepError(
                f"row of {ticket!r} has drafted={drafted} accepted={accepted} seen={seen} emitted={emitted}; needed: "
                f"accepted <= seen <= accepted + 1, seen <= drafted <= {MAX_K}, emitted <= accepted + 1"
            )


_C = TypeVar("_C", AcceptanceCounts, MomentCounts, CostCounts, AccountCounts)


def _changed(cells: Iterable[_C], since: int) -> list[_C]:
    return [cell for cell in cells if cell.stamp > since]
