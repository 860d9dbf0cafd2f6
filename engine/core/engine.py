"""The engine: requests in, streams out, one step at a time: schedule, run, settle."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from engine.core.config import ModelError
from engine.core.device import resolve_device, resolve_dtype
from engine.core.drafts import Draft, load_draft
from engine.core.model import Decoder
from engine.core.request import Delta, Request, RequestError, SamplingParams
from engine.core.runner import Emission, Runner, StepResult
from engine.core.scheduler import Batch, Scheduler
from engine.core.tokenizer import Tokenizer
from engine.link import DraftInfo, LinkLike, RowOutcome, StaticLink, StepOutcome, Ticket
from engine.link.messages import MAX_K, NO_DRAFT

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]


class Engine:
    """Decodes requests in one continuous batch, each with its own draft and K.

    `target`: a Hugging Face folder. `drafts`: name to `ngram`, or to the folder of a decoder or an eagle head. `link`:
    chooses draft and K and is told what happened. `max_batch`: requests at a time; `max_len`: tokens of one request,
    prompt included (at most the model's own limit). `dtype`, `device`: `auto` or a name. `threads`: CPU threads of
    torch, 0 leaves them. `prefill_budget`: prompt tokens read per step, over all requests.

    `submit` and `abort` may be called from any thread. Decoding happens in `step`, `run_forever` or `generate`: use
    one thread for those. Raises `ModelError` for folders and settings it cannot run.
    """

    def __init__(
        self,
        target: str | Path,
        drafts: Mapping[str, str | Path] | None = None,
        link: LinkLike | None = None,
        *,
        max_batch: int = 8,
        max_len: int = 2048,
        dtype: str = "auto",
        device: str = "auto",
        threads: int = 0,
        prefill_budget: int = 256,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        for name, value, least in (
            ("max_batch", max_batch, 1),
            ("max_len", max_len, 2),
            ("prefill_budget", prefill_budget, 1),
            ("threads", threads, 0),
        ):
            if value < least:
                raise ModelError(f"{name} is {value}; it must be at least {least}")
        if threads:
            torch.set_num_threads(threads)
        folder = Path(target).expanduser()
        self.device = resolve_device(device)
        self.dtype = resolve_dtype(dtype, self.device)
        self.target = Decoder(folder, dtype=self.dtype, device=self.device, max_len=max_len)
        self.tokenizer = Tokenizer(folder)
        self.stop_ids = self.tokenizer.stop_ids | frozenset(self.target.config.stop_ids)
        self.drafts: dict[str, Draft] = {}
        for name, source in (drafts or {}).items():
            if name == NO_DRAFT:
                raise ModelError(f"a draft cannot be called {NO_DRAFT!r}: that is the name of not speculating")
            self.drafts[name] = load_draft(source, self.target, folder, slots=max_batch)
        self.link: LinkLike = link if link is not None else StaticLink()
        self.max_len = self.target.max_len
        self._cache = self.target.cache(max_batch)
        self._scheduler = Scheduler(max_batch, self.max_len, prefill_budget)
        self._runner = Runner(self.target, self._cache, self.drafts)
        self._clock = clock
        self._last_end: float | None = None
        self._inbox: deque[Request] = deque()
        self._wake = threading.Event()
        self._closed: BaseException | None = None
        self._unknown_drafts: set[str] = set()
        self.link_errors = 0

    @property
    def running(self) -> int:
        """Requests that hold a cache row."""
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        """Requests that wait for one."""
        return len(self._scheduler.waiting) + len(self._inbox)

    @property
    def kv_tokens(self) -> int:
        """Cached positions of the running requests."""
        return self._cache.tokens

    def draft_infos(self) -> list[DraftInfo]:
        """The loaded drafts, as an engine describes itself on the wire."""
        return [DraftInfo(name, d.kind, MAX_K, d.memory_bytes) for name, d in self.drafts.items()]

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a text, of chat messages, or the ids themselves."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        if prompt and isinstance(prompt[0], Mapping):
            return self.tokenizer.chat([m for m in prompt if isinstance(m, Mapping)])
        return [t for t in prompt if isinstance(t, int)]

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        domain: str = "other",
        *,
        on_delta: Callable[[Delta], None] | None = None,
    ) -> Request:
        """Queue a request. `on_delta` is called on the decode thread; without it, iterate over the request.

        Raises `RequestError` for prompts that are empty, too long, or hold ids outside the vocabulary.
        """
        ids = self.encode(prompt)
        size = self.target.config.vocab_size
        if not ids:
            raise RequestError("the prompt is empty; it needs at least one token")
        if len(ids) >= self.max_len:
            raise RequestError(
                f"the prompt has {len(ids)} tokens; with max_len {self.max_len} at most "
                f"{self.max_len - 1} leave room for an answer"
            )
        if min(ids) < 0 or max(ids) >= size:
            bad = next(t for t in ids if not 0 <= t < size)
            raise RequestError(f"the prompt has token {bad}; allowed are 0 to {size - 1}")
        request = Request(
            ids,
            params or SamplingParams(),
            domain,
            tokenizer=self.tokenizer,
            stop_ids=self.stop_ids,
            on_delta=on_delta,
        )
        self._inbox.append(request)
        self._wake.set()
        if self._closed is not None:  # the loop may have drained the inbox before this request entered it
            self._fail_all(self._closed)
        return request

    def abort(self, request: Request) -> None:
        """End a request after the current step; what it has streamed stays valid."""
        request.abort()
        self._wake.set()

    def generate(
        self,
        prompts: Iterable[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        domain: str = "other",
    ) -> list[Request]:
        """Decode prompts to the end on the calling thread; their requests in order."""
        listed = list(prompts)
        each = list(params) if isinstance(params, Sequence) else [params] * len(listed)
        requests = [self.submit(p, s, domain) for p, s in zip(listed, each, strict=True)]
        while self.step():
            pass
        return [request.result() for request in requests]

    def run_forever(self, stop: threading.Event) -> None:
        """Step while there is work and wait for some otherwise, until `stop` is set (wake it by `wake`).

        Should a step fail, all requests end with reason `error`, later ones too, and the error is raised.
        """
        try:
            while not stop.is_set():
                if not self.step():
                    self._wake.wait()
                    self._wake.clear()
        except BaseException as error:
            self._closed = error
            self._fail_all(error)
            raise

    def wake(self) -> None:
        """Make a waiting `run_forever` look at its stop event."""
        self._wake.set()

    def step(self) -> bool:
        """Schedule, run, settle. False when there was nothing to do."""
        batch = self._schedule()
        if batch is None:
            self._last_end = None
            return False
        began = self._clock() if self._last_end is None else self._last_end
        result = self._runner.run(batch)
        rows = self._settle(batch, result)
        self._last_end = self._clock()
        self._record(
            StepOutcome(
                self._last_end - began,
                rows,
                sum(e.asked + 1 for e in result.decoded),
                sum(p.size for p in batch.prefills) + result.read,
                self._cache.tokens,
                result.drafted,
            )
        )
        self._leave()
        return True

    def _schedule(self) -> Batch | None:
        """Requests come and go, then K is planned for those that decode."""
        queued = len(self._scheduler.waiting)
        while self._inbox:
            self._scheduler.waiting.append(self._inbox.popleft())
        for request in self._scheduler.sweep():
            self._close(request)
            request.end("abort")
        for request in self._scheduler.admit():
            self._open(request)
        if len(self._scheduler.waiting) != queued:
            self._guarded("queue", lambda: self.link.queue(len(self._scheduler.waiting)))
        if not self._scheduler.running:
            return None
        decoding = self._scheduler.decoding()
        return self._scheduler.batch(decoding, self._plan(decoding))

    def _plan(self, decoding: Sequence[Request]) -> list[int]:
        if not decoding:
            return []
        tickets = [r.ticket for r in decoding if r.ticket is not None]
        planned = self._guarded("plan", lambda: self.link.plan(tickets, len(tickets)))
        for request in decoding:
            self._equip(request)
        if planned is None or len(planned) != len(decoding):
            return [0] * len(decoding)
        return planned

    def _open(self, request: Request) -> None:
        """Give a request its cache row, its ticket and its draft."""
        request.row = self._cache.acquire()
        batch = len(self._scheduler.running)
        regime = request.params.regime
        ticket = self._guarded("admit", lambda: self.link.admit(request.domain, regime, batch))
        request.ticket = ticket if ticket is not None else Ticket(request.domain, regime, NO_DRAFT)
        # Each draft gets a state, since the link may change a request's draft. One that never guesses takes the cache
        # row set aside for it anyway; an eagle head's also keeps the target's hidden states, until it is asked.
        request.draft_states = {name: draft.admit() for name, draft in self.drafts.items()}
        self._equip(request)

    def _equip(self, request: Request) -> None:
        """Give a request the draft on its ticket; the draft reads what it missed when it is first asked."""
        name = NO_DRAFT if request.ticket is None else request.ticket.draft
        request.draft = self.drafts.get(name)
        if request.draft is None and name != NO_DRAFT and name not in self._unknown_drafts:
            self._unknown_drafts.add(name)
            _log.warning("the link chose draft %r, which is not loaded (loaded: %s)", name, ", ".join(self.drafts))

    def _settle(self, batch: Batch, result: StepResult) -> list[RowOutcome]:
        """Hand the new tokens to their requests and forget what was not kept."""
        for emission in result.begun:
            self._take(emission)
        limited = {r.number for r, _, clamped in batch.decodes if clamped}
        rows = []
        for emission in result.decoded:
            request, asked, kept, _ = emission
            taken = self._take(emission)
            # A cut inside the block leaves the positions after it undecided; they were not rejected.
            seen = min(kept + 1, asked, taken)
            if request.ticket is not None:
                rows.append(RowOutcome(request.ticket, asked, min(kept, taken), seen, taken, request.number in limited))
        return rows

    def _take(self, emission: Emission) -> int:
        request = emission.request
        taken = request.extend(emission.tokens, self.max_len)
        settled = len(request.tokens) - 1  # the last token enters the caches with the next step
        if request.row is not None:
            request.row.length = min(request.row.length, settled)
        for name, state in request.draft_states.items():
            self.drafts[name].rollback(state, settled)
        return taken

    def _leave(self) -> None:
        for request in self._scheduler.leave(lambda r: r.finish is not None):
            self._close(request)

    def _close(self, request: Request) -> None:
        """Take back what `_open` gave."""
        if request.row is None:
            return
        self._cache.release(request.row)
        request.row = None
        for name, state in request.draft_states.items():
            self.drafts[name].release(state)
        request.draft_states = {}
        ticket = request.ticket
        if ticket is not None:
            self._guarded("finish", lambda: self.link.finish(ticket))

    def _record(self, outcome: StepOutcome) -> None:
        self._guarded("record", lambda: self.link.record(outcome))

    def _guarded(self, what: str, call: Callable[[], _T]) -> _T | None:
        """Whatever goes wrong in the link, decoding goes on."""
        try:
            return call()
        except Exception as error:
            self.link_errors += 1
            if self.link_errors == 1:
                _log.error("the link failed in %s; decoding goes on", what, exc_info=error)
            return None

    def _fail_all(self, error: BaseException) -> None:
        for request in [*self._scheduler.running, *self._scheduler.waiting, *self._inbox]:
            if request.finish is None:
                request.end("error", error)
        self._inbox.clear()
