"""The engine's thread and the way in: submit, abort, load, and what became of it when it fails."""

import asyncio
import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from engine.core.engine import Engine
from engine.core.request import Delta, RequestError, SamplingParams
from engine.domains import Source
from engine.link.settings import masked
from engine.server.desk import Account, ClosableLink, Desk, Pin
from engine.server.errors import invalid
from engine.server.job import Job, Piece
from engine.server.schema import Facts
from engine.server.settings import EngineSettings

_log = logging.getLogger(__name__)

_MEMORY = 0.1  # weight of the newest request in the running mean of their seconds


class Host:
    """One engine on a thread of its own, for one event loop.

    `model`: its name to clients. `on_failure` is called on the engine's thread when decoding breaks.
    """

    def __init__(self, engine: Engine, link: ClosableLink, settings: EngineSettings, model: str) -> None:
        self.settings = settings
        self.model = model
        self.created = int(time.time())
        self.desk = Desk(link)
        self.failure: str | None = None
        self.on_failure: Callable[[], None] | None = None
        self._engine = engine
        engine.link = self.desk
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._decode, name="engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._request_seconds = 1.0
        self._jobs: weakref.WeakSet[Job] = weakref.WeakSet()

    @property
    def max_len(self) -> int:
        """Tokens of prompt and answer together."""
        return self._engine.max_len

    @property
    def drafts(self) -> list[str]:
        """Names of the loaded drafts."""
        return list(self._engine.drafts)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to decode; pieces go to `loop`."""
        self._loop = loop
        self._thread.start()

    def stop(self) -> None:
        """Stop decoding, then the link (its last frame holds the last step). Blocks for a step and a few seconds."""
        self._stop.set()
        self._engine.wake()
        self._thread.join()
        self.desk.link.close()

    def give_up(self) -> None:
        """End all requests that still run; their clients are told. For the event loop, at the end of a shutdown."""
        for job in list(self._jobs):
            job.fail("the engine is shutting down")

    def _decode(self) -> None:
        try:
            self._engine.run_forever(self._stop)
        except Exception as error:
            self.failure = repr(error)
            _log.critical("the engine has stopped; no request can be served", exc_info=error)
            if self.on_failure is not None:
                self.on_failure()

    def load(self) -> tuple[int, int]:
        """Requests running and waiting."""
        return self._engine.running, self._engine.waiting

    def seconds_to_slot(self) -> float:
        """A guess of when a request sent now would start, 1 to 60 seconds."""
        _, waiting = self.load()
        return min(60.0, max(1.0, self._request_seconds * waiting / self.settings.max_batch))

    def encode(self, text: str) -> list[int]:
        """Token ids of a plain prompt."""
        return self._engine.tokenizer.encode(text)

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Token ids of a conversation in the model's template. Raises a 400 when the template refuses it."""
        try:
            return self._engine.tokenizer.chat(messages)
        except ValueError as error:
            raise invalid(str(error), "messages") from error

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids. Raises a 400 for ids outside the vocabulary."""
        size = self._engine.target.config.vocab_size
        bad = next((i for i in ids if not 0 <= i < size), None)
        if bad is not None:
            raise invalid(f"the prompt has token {bad}; allowed are 0 to {size - 1}", "prompt")
        return self._engine.tokenizer.decode(ids)

    def submit(
        self, prompt: Sequence[int], params: SamplingParams, domain: str, source: Source, pin: Pin | None
    ) -> Job:
        """Queue a request. Raises a 400 for what the engine refuses."""
        if self._loop is None:
            raise RuntimeError("the host has not been started")
        job = Job(self._loop, len(prompt))
        held: list[Piece] = []  # the last piece waits for the account, which closes after the step
        began = time.monotonic()

        def done(facts: Facts) -> None:
            self._request_seconds += _MEMORY * (time.monotonic() - began - self._request_seconds)
            for piece in held:
                job.deliver(piece._replace(facts=facts))

        key = self.desk.expect(Account(domain, source, pin, done))

        def on_delta(delta: Delta) -> None:
            if delta.finish is None:
                job.deliver(Piece(delta.text, len(delta.tokens)))
            elif delta.finish in {"stop", "length"}:
                held.append(Piece(delta.text, len(delta.tokens), delta.finish))
            else:
                self.desk.forget(key)
                if delta.finish == "error":
                    job.deliver(Piece("", 0, error=f"the engine has stopped: {self._why()}"))

        try:
            request = self._engine.submit(list(prompt), params, key, on_delta=on_delta)
        except RequestError as error:
            self.desk.forget(key)
            raise invalid(str(error)) from error
        job.on_abort = lambda: self._engine.abort(request)
        self._jobs.add(job)
        return job

    def _why(self) -> str:
        return self.failure or "an internal error, see its log"

    def status(self) -> dict[str, Any]:
        """What the engine, its drafts and its link know about themselves."""
        engine = self._engine
        return {
            "model": self.model,
            "failure": self.failure,
            "running": engine.running,
            "waiting": engine.waiting,
            "kv_tokens": engine.kv_tokens,
            "max_batch": self.settings.max_batch,
            "max_len": self.max_len,
            "dtype": str(engine.dtype).removeprefix("torch."),
            "device": str(engine.device),
            "drafts": engine.draft_infos(),
            "link_errors": engine.link_errors,
            "redis": None if self.settings.offline else masked(self.settings.redis_url),
            "pool": self.settings.pool,
            "engine": self.settings.engine_id,
            "link": self.desk.status(),
        }
