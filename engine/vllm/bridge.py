"""Between vLLM's scheduler and the link: who gets which K in the next step, and what came of the last one.

What is planned when step t is scheduled is drafted at the end of step t and verified in step t + 1 (under asynchronous
scheduling the drafts never pass through here, but the order is the same). So a request carries three numbers: the K
planned for its next drafts, the K that was asked of the drafts now waiting, and how many of them were offered.

With several drafters a request gets its own when it is about to be scheduled first (`choose`) and keeps it: a draft
model that did not read the prompt cannot guess. While such a request's K is 0 its model stays in step, one pass a step
(*paused*); one that got `none` costs no pass (*off*), and so does n-gram lookup, which keeps no cache.

Nothing here imports vLLM; its objects are read through the few attributes named in `Request` and `Scheduled`.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from engine.link import LinkLike, RowOutcome, StepOutcome, Ticket
from engine.link.held import Held
from engine.link.messages import MAX_K, NO_DRAFT, OTHER, Regime
from engine.vllm.drafter import Drafter
from engine.vllm.labels import Labels
from engine.vllm.plan import Plan

_GREEDY = 1e-5  # vLLM's own bound: a temperature below it is greedy


class Request(Protocol):
    """The part of vLLM's `Request` that is read or set here."""

    request_id: str
    prompt_token_ids: list[int] | None
    sampling_params: Any
    lora_request: Any
    cache_salt: str | None
    num_computed_tokens: int
    num_output_placeholders: int
    is_prefill_chunk: bool
    spec_token_ids: list[int]

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""


class Scheduled(Protocol):
    """The part of vLLM's `SchedulerOutput` that is read here."""

    num_scheduled_tokens: dict[str, int]
    scheduled_spec_decode_tokens: dict[str, list[int]]
    scheduled_new_reqs: Sequence[Any]
    scheduled_cached_reqs: Any
    num_invalid_spec_tokens: dict[str, int] | None


class ClosingLink(LinkLike, Protocol):
    """A link that can be closed."""

    def close(self) -> None:
        """Send what is left and stop."""


class _Known:
    """What is known of a request between its steps."""

    __slots__ = (
        "asked", "begun", "decodes", "holed", "k", "label", "offered", "request", "salt", "speculates", "ticket",
        "valid",
    )  # fmt: skip

    def __init__(self, request: Request) -> None:
        self.request = request
        self.ticket: Ticket | None = None
        self.label: str | None = None  # that it was admitted with; beyond the link's cap its domain is `other` for good
        self.speculates = _speculates(request.sampling_params)
        self.k = 0  # planned for the drafts made at the end of the step that was scheduled last
        self.asked = 0  # of the drafts that wait to be verified
        self.offered: int | None = None  # of them, what the drafter gave; None where nobody here has seen them
        self.valid = 0  # of them, what the grammar left
        self.decodes = False  # its prompt has been read
        self.begun = False  # it has been scheduled: its drafter has read what the target has
        self.holed = False  # its drafter missed a step, and guesses by a cache that has a hole
        self.salt = request.cache_salt  # the client's own


class _Row(NamedTuple):
    """A decode row of a step that has been scheduled."""

    known: _Known
    asked: int
    scheduled: int  # draft tokens
    offered: int | None
    valid: int
    holed: bool


class _Step(NamedTuple):
    """A step that has been scheduled and not come back yet."""

    scheduled: Scheduled
    began: float
    rows: list[_Row]
    prefill: int
    kv_tokens: int
    drafted: dict[str, tuple[int, int]]


class Counts(NamedTuple):
    """Draft tokens judged and kept, as vLLM counts them: with those behind a stop token."""

    drafted: int = 0
    accepted: int = 0


def _speculates(params: Any) -> bool:
    """Whether this version of vLLM samples such a request rightly with drafts: not with min_p or logit_bias."""
    return params is not None and not getattr(params, "min_p", 0.0) and not getattr(params, "logit_bias", None)


def _regime(params: Any) -> Regime:
    return "greedy" if params is None or params.temperature < _GREEDY else "sampled"


class Bridge:
    """One engine's requests and steps. All calls come from the scheduler's thread and belong into the order of vLLM's
    hooks; `status` alone may come from elsewhere.

    `table`: vLLM's own table, K by batch size. It bounds K where no policy is followed, counted in decoding rows and
    held while the batch flickers across a boundary; a policy goes by its own loads.

    `reach`: tokens of the longest sequence beyond which the worker drafts for nobody. Such steps are planned at K = 0.
    Whoever was in one has a hole in its draft's cache: what it shows from then on is censored, under origin `limit`.
    """

    def __init__(
        self,
        link: ClosingLink,
        labels: Labels,
        drafter: Drafter | None,
        *,
        table: Callable[[int], int] | None = None,
        others: Sequence[Drafter] = (),
        places: Sequence[int] = (),
        reach: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`others`: further drafters that the worker has in force, at these `places` of it (the configured one: 0)."""
        self.link = link
        self.labels = labels
        self.drafter = drafter
        team = [drafter, *others] if drafter is not None and others else []
        self._team = {one.name: one for one in team}
        self._place = dict(zip(self._team, [0, *(places or range(1, len(team)))], strict=False))
        self._judged = self._accepted = 0
        self._table = Held(table) if table is not None else None
        self._reach = reach
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._steps: deque[_Step] = deque()
        self._over: list[_Known] = []
        self._last_end: float | None = None  # None: the engine was idle, or has been paused
        self._interrupted = float("-inf")

    @property
    def counts(self) -> Counts:
        """Draft tokens judged and kept since the start."""
        return Counts(self._judged, self._accepted)

    def came(self, request: Request) -> None:
        """A request was added; a known one goes on (a streaming session)."""
        if request.request_id not in self._known:
            self._known[request.request_id] = _Known(request)
            self.labels.ask(request)

    def ended(self, request_id: str) -> None:
        """A request ended or was aborted. It is finished with the step in which it may still have a row."""
        known = self._known.pop(request_id, None)
        if known is None:
            return
        self.labels.forget(request_id)
        self._over.append(known)
        if not self._steps:
            self._finish()

    def choose(self, next_ones: Iterable[Request], running: int) -> dict[str, str | None]:
        """Give requests that may be scheduled next their drafters. Returns the cache salts they need from now on.

        Cached blocks of a prompt hold the draft model's keys and values only where that model read them too, so that
        requests share blocks with those of their own model. Requests without a model share among themselves.
        """
        salts: dict[str, str | None] = {}
        for request in next_ones if self._team else ():
            known = self._known.get(request.request_id)
            if known is None or known.begun:
                continue
            running += 1
            drafter = self._team.get(self._ticket(known, running).draft)
            salt = known.salt
            if drafter is not None and drafter.cached:
                salt = f"{drafter.name}/{salt or ''}"
            if salt != request.cache_salt:
                salts[request.request_id] = salt
        return salts

    def scheduled(self, step: Scheduled, waiting: int) -> tuple[int, dict[str, int]]:
        """A step was scheduled, and its requests' counters moved on. Returns the K of its drafting (with several
        drafters a `Plan`), and of every request that will decode next.
        """
        began = self._clock()
        # New and resumed ones read a prompt, or join with one token and, maybe, dummy drafts that say nothing.
        fresh = {new.req_id for new in step.scheduled_new_reqs} | set(step.scheduled_cached_reqs.resumed_req_ids)
        rows: list[_Row] = []
        going_on: list[_Known] = []
        prefill = kv_tokens = longest = 0
        for request_id, tokens in step.num_scheduled_tokens.items():
            known = self._known.get(request_id)
            if known is None:
                continue
            request = known.request
            kv_tokens += request.num_computed_tokens
            longest = max(longest, request.num_computed_tokens)
            drafts = len(step.scheduled_spec_decode_tokens.get(request_id, ()))
            if known.decodes and request_id not in fresh:
                rows.append(_Row(known, known.asked, drafts, known.offered, known.valid, known.holed))
            else:
                prefill += tokens
            known.asked, known.offered, known.valid = 0, None, 0
            known.begun = True
            known.decodes = not request.is_prefill_chunk
            if known.decodes:
                going_on.append(known)
        planned = self._plan(going_on)
        beyond = self._reach is not None and longest > self._reach
        if beyond:
            planned = 0
            self._skip(step, going_on)
        ks = {known.request.request_id: known.k for known in going_on}
        drafted: dict[str, tuple[int, int]] = {}
        if self._team and beyond:
            planned = Plan(0, {}, ks)
        elif self._team:
            planned, drafted = self._shared(step, planned, ks)
        elif planned and self.drafter is not None:
            drafted[self.drafter.name] = (sum(ks.values()), self.drafter.passes(planned))
        self._steps.append(_Step(step, began, rows, prefill, kv_tokens, drafted))
        self.link.queue(waiting)
        return planned, ks

    def _shared(self, step: Scheduled, planned: int, ks: dict[str, int]) -> tuple[Plan, dict[str, tuple[int, int]]]:
        """Who drafts for whom in this step, and what each drafter runs: tokens asked for, passes.

        A model runs over all its requests, those that still read their prompt among them: one pass at least.
        """
        drafts: dict[str, int] = {}
        asked: dict[str, list[int]] = {}
        for request_id in step.num_scheduled_tokens:
            known = self._known.get(request_id)
            if known is not None and known.ticket is not None and known.ticket.draft in self._team:
                drafts[request_id] = self._place[known.ticket.draft]
                asked.setdefault(known.ticket.draft, []).append(ks.get(request_id, 0))
        drafted = {}
        for name, each in asked.items():
            drafter = self._team[name]
            passes = drafter.passes(max(each))
            if passes or drafter.cached:
                drafted[name] = (sum(each), max(passes, int(drafter.cached)))
        return Plan(planned, drafts, ks), drafted

    def _skip(self, step: Scheduled, going_on: list[_Known]) -> None:
        """Nobody drafts in this step."""
        for decoding in going_on:
            decoding.k = decoding.asked = 0
        for known in filter(None, map(self._known.get, step.num_scheduled_tokens)):
            drafter = self._team.get(known.ticket.draft) if self._team and known.ticket else self.drafter
            known.holed |= drafter is not None and drafter.cached

    def _plan(self, going_on: list[_Known]) -> int:
        tickets = [self._ticket(known, len(going_on)) for known in going_on]
        if not tickets:
            return 0
        planned = self.link.plan(tickets, len(tickets))
        bound = self._table(len(tickets)) if self._table is not None else MAX_K
        for known, ticket, k in zip(going_on, tickets, planned, strict=True):
            bounded = min(k, bound) if ticket.variant == "static" else k
            drafter = self._team.get(ticket.draft) if self._team else self.drafter
            # Whatever the link says: a worker asked for more than it was made for dies.
            known.k = min(bounded, drafter.most) if drafter is not None and known.speculates else 0
            known.asked = known.k
            known.offered = None
        return max(known.k for known in going_on)

    def _ticket(self, known: _Known, batch: int) -> Ticket:
        """The request's ticket: made when it decodes first (with several drafters: before that, see `choose`), and anew
        when its domain becomes known later.
        """
        ticket = known.ticket
        if ticket is not None and ticket.domain != OTHER:
            return ticket
        label = self.labels.of(known.request.request_id)
        if ticket is not None and label in (None, OTHER, known.label):
            return ticket
        known.label = label
        if ticket is not None:
            self.link.finish(ticket)
        known.ticket = self.link.admit(label or OTHER, _regime(known.request.sampling_params), batch)
        if self._team:
            self._hold(known, known.ticket, ticket)
        return known.ticket

    def _hold(self, known: _Known, ticket: Ticket, before: Ticket | None) -> None:
        """Hold a request to a drafter it can have. What came late, as a domain does that the classifier found, finds
        the prompt read: no model can be taken up any more, and none is put down, since cached blocks are marked as its.
        """
        held = before.draft if before is not None else NO_DRAFT
        if not known.speculates:
            ticket.take(NO_DRAFT)
        elif known.begun and ticket.draft != held and (self._cached(held) or self._cached(ticket.draft)):
            ticket.take(held)

    def _cached(self, name: str) -> bool:
        return name in self._team and self._team[name].cached

    def offered(self, drafts: Mapping[str, int]) -> dict[str, int]:
        """The drafter has offered so many tokens to each request; returns to what they are to be cut."""
        cut = {}
        for request_id, n in drafts.items():
            known = self._known.get(request_id)
            if known is not None:
                known.offered = min(n, known.k)
                cut[request_id] = known.k
        return cut

    def validated(self, valid: Mapping[str, int]) -> None:
        """What the grammar and the cut left of each request's drafts."""
        for request_id, n in valid.items():
            known = self._known.get(request_id)
            if known is not None:
                known.valid = n

    def outputs(self, step: Scheduled) -> dict[str, int]:
        """Tokens generated so far by the requests of a step that has come back, before its own are added."""
        rows = next((one.rows for one in self._steps if one.scheduled is step), [])
        return {row.known.request.request_id: row.known.request.num_output_tokens for row in rows}

    def completed(self, step: Scheduled, sampled: Mapping[str, int], before: Mapping[str, int], busy: bool) -> None:
        """A step has come back: sampled tokens by request, tokens `before`; busy: requests are left."""
        while self._steps and self._steps[0].scheduled is not step:
            self._steps.popleft()  # it failed, and vLLM has gone on
        if not self._steps:
            raise LookupError("a step came back that was never scheduled")
        done = self._steps.popleft()
        end = self._clock()
        began = done.began if self._last_end is None else self._last_end
        self._last_end = end if busy else None
        outcomes, verified = [], 0
        invalid = step.num_invalid_spec_tokens or {}
        for row in done.rows:
            request = row.known.request
            n = sampled.get(request.request_id, 0)
            outcome, tokens = self._outcome(
                row, n, request.num_output_tokens - before.get(request.request_id, 0), invalid
            )
            verified += tokens
            if outcome is not None:
                outcomes.append(outcome)
        # What was under way when generation was paused took as long as somebody liked.
        if outcomes and done.began >= self._interrupted:
            self.link.record(StepOutcome(end - began, outcomes, verified, done.prefill, done.kv_tokens, done.drafted))
        self._finish()

    def interrupted(self) -> None:
        """Generation was paused, or goes on: the time since the last step belongs to no step."""
        self._last_end = None
        self._interrupted = self._clock()

    def _outcome(
        self, row: _Row, sampled: int, emitted: int, invalid: Mapping[str, int]
    ) -> tuple[RowOutcome | None, int]:
        """The row's outcome, None where it was thrown away, and the tokens verified for it."""
        ticket = row.known.ticket
        spoilt = invalid.get(row.known.request.request_id, 0)
        judged = row.scheduled - spoilt
        if ticket is None or not sampled or emitted <= 0:
            return None, row.scheduled + 1
        accepted = sampled - 1
        if row.scheduled:
            self._judged += judged
            self._accepted += accepted
        if not row.asked:
            return RowOutcome(ticket, 0, 0, 0, min(emitted, 1)), row.scheduled + 1
        # Draft tokens behind a stop token were judged, but nobody asked for what follows it.
        kept = min(accepted, emitted)
        stopped = emitted <= accepted
        by_grammar = spoilt > 0 or (row.offered is not None and row.valid < row.offered)
        by_room = row.scheduled < (row.asked if row.offered is None else row.valid)
        drafted = judged if by_grammar or by_room else row.asked
        limited = by_grammar or by_room or row.holed
        seen = kept if stopped or kept >= drafted else kept + 1
        return RowOutcome(ticket, drafted, kept, seen, emitted, limited), drafted + 1

    def _finish(self) -> None:
        """Finish the tickets of requests that are over and have no row in a step under way."""
        if not self._over:
            return
        under_way = {row.known.request.request_id for step in self._steps for row in step.rows}
        left = []
        for known in self._over:
            if known.request.request_id in under_way:
                left.append(known)
            elif known.ticket is not None:
                self.link.finish(known.ticket)
        self._over = left

    def abandon(self) -> None:
        """Stop without waiting for anybody."""
        self.labels.close()
        threading.Thread(target=self.link.close, name="akc-close", daemon=True).start()

    def close(self) -> None:
        """Stop reporting."""
        self.labels.close()
        self.link.close()
