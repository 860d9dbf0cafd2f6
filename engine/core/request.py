"""One request: what was asked, what has come out so far, and the stream its owner reads."""

import itertools
import logging
import queue
import random
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from engine.core.cache import CacheRow
from engine.core.tokenizer import Detokenizer, StopStrings, Tokenizer
from engine.link import Ticket

FinishReason = Literal["stop", "length", "abort", "error"]
_log = logging.getLogger(__name__)
_MAX_STOPS = 16
_numbers = itertools.count(1)


class RequestError(ValueError):
    """A request that cannot be served; the message names the value and what is allowed."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to continue a prompt.

    `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 keep all tokens. With `seed` the same request draws the same
    random numbers; the text is then the same wherever the same K are used. `stop`: strings that end the output and are
    not part of it; `stop_token_ids`: further end tokens. `ignore_eos`: go on past the model's own end token.

    >>> SamplingParams(temperature=-1)
    Traceback (most recent call last):
    engine.core.request.RequestError: temperature is -1; allowed are 0 to 100
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Collection[int] = field(default_factory=frozenset)
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        # Callers hand over what a request body held.
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", frozenset(self.stop_token_ids))
        for name, low, high in (("max_tokens", 1, None), ("temperature", 0, 100), ("top_k", 0, None)):
            value = getattr(self, name)
            if not value >= low or (high is not None and not value <= high):
                allowed = f"allowed are {low} to {high}" if high is not None else f"it must be at least {low}"
                raise RequestError(f"{name} is {value}; {allowed}")
        if not 0 < self.top_p <= 1:
            raise RequestError(f"top_p is {self.top_p}; it must be above 0 and at most 1")
        if len(self.stop) > _MAX_STOPS or any(not s for s in self.stop):
            raise RequestError(f"stop is {list(self.stop)}; allowed are up to {_MAX_STOPS} non-empty strings")

    @property
    def regime(self) -> Literal["greedy", "sampled"]:
        """Greedy and sampled requests accept at different rates and are learned apart."""
        return "sampled" if self.temperature > 0 else "greedy"


class Delta(NamedTuple):
    """What one step added: tokens, the text that became certain, and why the output ended if it did."""

    tokens: tuple[int, ...]
    text: str
    finish: FinishReason | None = None


class Request:
    """Made by `Engine.submit`. Iterate over it for deltas as they come, or call `result` for all of them.

    `tokens` holds prompt and output. The other fields belong to the decode thread until `finish` is set.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        domain: str = "other",
        *,
        tokenizer: Tokenizer | None = None,
        stop_ids: frozenset[int] = frozenset(),
        on_delta: Callable[[Delta], None] | None = None,
    ) -> None:
        self.number = next(_numbers)
        self.params = params
        self.domain = domain
        self.tokens = list(prompt)
        self.prompt_len = len(prompt)
        self.finish: FinishReason | None = None
        self.error: BaseException | None = None
        self.text = ""
        # Set at admission.
        self.ticket: Ticket | None = None
        self.row: CacheRow | None = None
        self.draft: Any = None  # the loaded draft that guesses for it now, or None
        self.draft_states: dict[str, Any] = {}  # by name of the loaded draft, while the request has a cache row
        self._ends = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else stop_ids)
        self._random = random.Random(params.seed)
        self._detokenizer = Detokenizer(tokenizer, prompt) if tokenizer is not None else None
        self._stops = StopStrings(params.stop)
        self._deltas: queue.SimpleQueue[Delta] = queue.SimpleQueue()
        self._on_delta = on_delta
        self._abort = threading.Event()

    def __repr__(self) -> str:
        return f"Request(#{self.number} {self.domain}, {self.prompt_len}+{self.output_len} tokens, {self.finish})"

    @property
    def output_len(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.prompt_len

    @property
    def output(self) -> list[int]:
        """Tokens generated so far."""
        return self.tokens[self.prompt_len :]

    @property
    def aborted(self) -> bool:
        """Whether somebody gave up on this request."""
        return self._abort.is_set()

    def abort(self) -> None:
        """Ask for the end; takes effect between two steps. Any thread may call this."""
        self._abort.set()

    def luck(self, count: int) -> list[float]:
        """The next `count` uniform numbers of this request's own stream."""
        return [self._random.random() for _ in range(count)]

    def extend(self, tokens: Sequence[int], max_len: int) -> int:
        """Take over new tokens up to the one that ends the output, and stream them; how many were taken.

        `max_len`: the sequence may not become longer than this.
        """
        taken, text = 0, ""
        finish: FinishReason | None = None
        for token in tokens:
            self.tokens.append(token)
            taken += 1
            if token in self._ends:
                finish = "stop"
            elif self._detokenizer is not None:
                text += self._stops.push(self._detokenizer.push(token))
                if self._stops.found:
                    finish = "stop"
            if finish is None and (self.output_len >= self.params.max_tokens or len(self.tokens) >= max_len):
                finish = "length"
            if finish is not None:
                break
        self._emit(tuple(tokens[:taken]), text, finish)
        return taken

    def end(self, reason: FinishReason, error: BaseException | None = None) -> None:
        """End the output without a further token."""
        self.error = error
        self._emit((), "", reason)

    def _emit(self, tokens: tuple[int, ...], text: str, finish: FinishReason | None) -> None:
        if finish is not None and self._detokenizer is not None and not self._stops.found:
            text += self._stops.push(self._detokenizer.finish())
            text += self._stops.finish()
        self.text += text
        self.finish = finish
        delta = Delta(tokens, text, finish)
        if self._on_delta is None:
            self._deltas.put(delta)
            return
        try:
            self._on_delta(delta)
        except Exception as error:  # the owner's code; the batch must not suffer
            _log.warning("%r: its callback failed, the request ends: %r", self, error)
            self.finish, self.error = "error", error

    def __iter__(self) -> Iterator[Delta]:
        """Deltas as they come, the last one with its `finish`; waits for the decode thread."""
        while True:
            delta = self._deltas.get()
            yield delta
            if delta.finish is not None:
                return

    def result(self) -> "Request":
        """Wait for the end; this request, with `output`, `text` and `finish`. Raises the error that ended it."""
        for _ in self:
            pass
        if self.error is not None:
            raise self.error
        return self
