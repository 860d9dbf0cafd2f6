"""Answers: the OpenAI objects of both endpoints, whole or as a stream of server-sent events."""

import time
import uuid
from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from engine.server.errors import ApiError
from engine.server.job import Job
from engine.server.schema import Answer, Choice, Delta, FinishReason, Message, Usage

_encode = msgspec.json.Encoder().encode


class Shape(Protocol):
    """How an endpoint words its objects."""

    @property
    def whole(self) -> str:
        """Object name of a whole answer."""

    @property
    def chunk(self) -> str:
        """Object name of a chunk."""

    @property
    def prefix(self) -> str:
        """Prefix of the id."""

    def choice(self, text: str, finish: FinishReason) -> Choice:
        """The choice of a whole answer."""

    def opening(self) -> list[Choice]:
        """Choices of the first chunk, if the endpoint has one without text."""

    def piece(self, text: str, finish: FinishReason | None) -> Choice:
        """The choice of a chunk."""


class ChatShape:
    """`/v1/chat/completions`."""

    whole, chunk, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def choice(self, text: str, finish: FinishReason) -> Choice:
        """A message."""
        return Choice(message=Message(text), finish_reason=finish)

    def opening(self) -> list[Choice]:
        """The role comes first, with empty content."""
        return [Choice(delta=Delta(role="assistant", content=""))]

    def piece(self, text: str, finish: FinishReason | None) -> Choice:
        """A delta; empty at the end."""
        return Choice(delta=Delta(content=text or None), finish_reason=finish)


class TextShape:
    """`/v1/completions`."""

    whole, chunk, prefix = "text_completion", "text_completion", "cmpl"

    def choice(self, text: str, finish: FinishReason) -> Choice:
        """Plain text."""
        return Choice(text=text, finish_reason=finish)

    def opening(self) -> list[Choice]:
        """Nothing comes before the text."""
        return []

    def piece(self, text: str, finish: FinishReason | None) -> Choice:
        """Plain text again."""
        return Choice(text=text, finish_reason=finish)


class Writer:
    """Writes a job's answer in one shape. `explain`: with the field `akc`; `usage`: with a final chunk of counts."""

    def __init__(self, shape: Shape, model: str, job: Job, *, explain: bool, usage: bool) -> None:
        self._shape = shape
        self._model = model
        self._job = job
        self._explain = explain
        self._usage = usage
        self._id = f"{shape.prefix}-{uuid.uuid4().hex}"
        self._created = int(time.time())

    def _answer(self, name: str, choices: list[Choice]) -> Answer:
        return Answer(id=self._id, object=name, created=self._created, model=self._model, choices=choices)

    def _counts(self) -> Usage:
        prompt, tokens = self._job.prompt_tokens, self._job.tokens
        return Usage(prompt, tokens, prompt + tokens)

    def _facts(self, answer: Answer) -> None:
        if self._explain and self._job.facts is not None:
            answer.akc = self._job.facts

    async def whole(self) -> bytes:
        """The answer once the job has ended. Raises `ApiError` when the engine gave it up."""
        parts = []
        finish: FinishReason = "stop"
        async for piece in self._job:
            parts.append(piece.text)
            finish = piece.finish or finish
        answer = self._answer(self._shape.whole, [self._shape.choice("".join(parts), finish)])
        answer.usage = self._counts()
        self._facts(answer)
        return _encode(answer)

    async def events(self) -> AsyncIterator[bytes]:
        """Server-sent events. The job is aborted when the reader stops before the end."""
        name = self._shape.chunk
        try:
            opening = self._shape.opening()
            if opening:
                yield self._event(self._answer(name, opening))
            async for piece in self._job:
                if not piece.text and piece.finish is None:
                    continue
                answer = self._answer(name, [self._shape.piece(piece.text, piece.finish)])
                if piece.finish is not None:
                    self._facts(answer)
                yield self._event(answer)
            if self._usage and not self._job.aborted:
                answer = self._answer(name, [])
                answer.usage = self._counts()
                yield b"data: " + _encode(answer) + b"\n\n"
        except ApiError as error:  # the status line is long gone; the error travels as an event
            yield b"data: " + _encode(error.body) + b"\n\n"
        finally:
            self._job.abort()
        yield b"data: [DONE]\n\n"

    def _event(self, answer: Answer) -> bytes:
        if self._usage:
            answer.usage = None  # clients that asked for usage expect the field, null until the last chunk
        return b"data: " + _encode(answer) + b"\n\n"
