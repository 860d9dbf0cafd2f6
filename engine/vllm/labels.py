"""The domain of a request in vLLM: what it says of itself, or what a classifier on a thread makes of its prompt."""

import contextlib
import logging
import queue
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from engine.domains import LabelError, classify, clean_label
from engine.vllm.settings import VllmSettings

_log = logging.getLogger("vllm.adaptive_k")
_WAITING = 1024  # prompts that may wait for the classifier; further ones stay `other`


class Asked(Protocol):
    """The part of vLLM's `Request` that is read here."""

    request_id: str
    prompt_token_ids: list[int] | None
    sampling_params: Any
    lora_request: Any


class Labels:
    """Labels by request id. `ask` is called on the scheduler's thread and takes microseconds; `of` says what is known.

    `detokenise(token ids)` gives text; it is made and called on the classifier's thread only, since loading a tokenizer
    takes seconds.
    """

    def __init__(self, settings: VllmSettings, tokenizer: Callable[[], Callable[[Sequence[int]], str]]) -> None:
        self._settings = settings
        self._pattern = re.compile(settings.request_id) if settings.request_id else None
        self._tokenizer = tokenizer
        self._found: dict[str, str | None] = {}  # of requests that are there
        self._lock = threading.Lock()
        self._queue: queue.Queue[tuple[str, list[int]] | None] = queue.Queue(_WAITING)
        self._thread: threading.Thread | None = None
        self.refused = 0  # labels that cannot be used
        self.unread = 0  # prompts that the classifier never saw

    def ask(self, request: Asked) -> None:
        """A request has come."""
        told = self._found[request.request_id] = self._told(request)
        if told is not None:
            return
        if not self._settings.classify or not request.prompt_token_ids:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="akc-classifier", daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait((request.request_id, request.prompt_token_ids[: self._settings.classify_tokens]))
        except queue.Full:
            self.unread += 1

    def of(self, request_id: str) -> str | None:
        """The request's domain; None while, or where, it is not known."""
        return self._found.get(request_id)

    def forget(self, request_id: str) -> None:
        """The request has ended."""
        with self._lock:  # not while the thread writes: what it adds now would stay
            self._found.pop(request_id, None)

    def close(self) -> None:
        """Let the thread end."""
        if self._thread is not None:
            with contextlib.suppress(queue.Full):  # it is a daemon
                self._queue.put_nowait(None)

    def settle(self, timeout: float = 10.0) -> None:
        """Wait until all prompts asked about so far were read; for tests."""
        with self._queue.all_tasks_done:
            if not self._queue.all_tasks_done.wait_for(lambda: not self._queue.unfinished_tasks, timeout):
                raise TimeoutError(f"prompts are still waiting after {timeout} seconds")

    def _told(self, request: Asked) -> str | None:
        extra = getattr(request.sampling_params, "extra_args", None)
        label = extra.get("domain") if isinstance(extra, Mapping) else None
        if label is None and self._pattern is not None:
            found = self._pattern.search(request.request_id)
            label = found.group(1) if found else None
        if label is None and self._settings.lora and request.lora_request is not None:
            label = getattr(request.lora_request, "lora_name", None)
        if label is None:
            return None
        try:
            if not isinstance(label, str):
                raise LabelError(f"domain label is {label!r:.80}; allowed is text")  # noqa: TRY301  # as for bad text
            return clean_label(label)
        except LabelError as error:
            # The request must be served whatever it is called: unlike our own server, this one cannot answer with 400.
            self.refused += 1
            if self.refused & (self.refused - 1) == 0:
                _log.warning("adaptive_k: label left out (%d so far): %s", self.refused, error)
            return None

    def _run(self) -> None:
        detokenise: Callable[[Sequence[int]], str] | None = None
        try:
            detokenise = self._tokenizer()
        except Exception as error:
            _log.warning("adaptive_k: no classifier, requests without a label are `other`: %r", error)
            self._settings = msgspec.structs.replace(self._settings, classify=False)
        while (asked := self._queue.get()) is not None:  # without a tokenizer, those that were under way
            request_id, tokens = asked
            try:
                if detokenise is None:
                    self.unread += 1
                else:
                    self._read(request_id, classify(detokenise(tokens)).domain)
            except Exception as error:
                self.unread += 1
                _log.debug("adaptive_k: prompt of %s not classified: %r", request_id, error)
            finally:
                self._queue.task_done()

    def _read(self, request_id: str, domain: str) -> None:
        with self._lock:
            if request_id in self._found:
                self._found[request_id] = domain
