"""Who runs in the next step, and how: admission, chunked prefill, K within the room there is. No tensors here."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from engine.core.cache import CacheRow
from engine.core.request import Request


class Decode(NamedTuple):
    """A request that decodes: verify up to `k` draft tokens. `limited`: `k` is less than was planned."""

    request: Request
    k: int
    limited: bool


class Prefill(NamedTuple):
    """A request that reads the next `size` tokens of its prompt; `last` when that completes it."""

    request: Request
    size: int
    last: bool


class Batch(NamedTuple):
    """One step's work."""

    decodes: list[Decode]
    prefills: list[Prefill]


class Scheduler:
    """First come, first served: free rows go to waiting requests, and prompts are read in chunks beside the decoding.

    `max_len`: positions of a cache row. `prefill_budget`: prompt tokens a step may read, over all requests; it bounds
    how long the decoding rows wait.
    """

    def __init__(self, max_batch: int, max_len: int, prefill_budget: int) -> None:
        self.max_batch = max_batch
        self.max_len = max_len
        self.prefill_budget = prefill_budget
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def sweep(self) -> list[Request]:
        """Take out the requests that were aborted: waiting ones, then running ones."""
        gone = [r for r in self.waiting if r.aborted] + [r for r in self.running if r.aborted]
        if gone:
            self.waiting = deque(r for r in self.waiting if not r.aborted)
            self.running = [r for r in self.running if not r.aborted]
        return gone

    def admit(self) -> list[Request]:
        """Move waiting requests to the running ones while there are rows for them; the ones moved."""
        room = min(self.max_batch - len(self.running), len(self.waiting))
        admitted = [self.waiting.popleft() for _ in range(room)]
        self.running.extend(admitted)
        return admitted

    def decoding(self) -> list[Request]:
        """Running requests that have read their prompt."""
        return [r for r in self.running if r.output_len]

    def batch(self, decoding: Sequence[Request], planned: Sequence[int]) -> Batch:
        """Clamp the planned K of the decoding requests, and fill the prefill budget with the others."""
        decodes = [self._decode(r, k) for r, k in zip(decoding, planned, strict=True)]
        prefills = []
        budget = self.prefill_budget
        for request in self.running:
            if request.output_len or not budget:
                continue
            missing = request.prompt_len - _held(request).length
            count = min(missing, budget)
            budget -= count
            prefills.append(Prefill(request, count, count == missing))
        return Batch(decodes, prefills)

    def _decode(self, request: Request, planned: int) -> Decode:
        if request.draft is None or planned <= 0:
            return Decode(request, 0, limited=False)
        length = len(request.tokens)
        # A step emits up to K + 1 tokens; the draft holds the sequence and all but the last of its own tokens.
        room = min(request.params.max_tokens - request.output_len, self.max_len - length) - 1
        k = max(0, min(planned, room, request.draft.max_len - length))
        return Decode(request, k, limited=k < planned)

    def leave(self, done: Callable[[Request], bool]) -> list[Request]:
        """Take out the running requests for which `done` holds."""
        gone = [r for r in self.running if done(r)]
        if gone:
            self.running = [r for r in self.running if not done(r)]
        return gone


def _held(request: Request) -> CacheRow:
    if request.row is None:
        raise RuntimeError(f"{request!r} runs without a cache row")
    return request.row
