"""One request between two threads: the engine's thread delivers pieces, the server's event loop reads them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from engine.server.errors import ApiError
from engine.server.schema import Facts, FinishReason


class Piece(NamedTuple):
    """Some text and the number of tokens behind it.

    The last piece has `finish`, and `facts` about the whole request; `error` instead says that no more will come.
    """

    text: str
    tokens: int
    finish: FinishReason | None = None
    facts: Facts | None = None
    error: str | None = None


class Job:
    """The answer to one request as an asynchronous iterator of pieces, which ends after the one with `finish`.

    `deliver` may be called from any thread; everything else belongs to the event loop. After `abort` the iterator ends
    without a `finish`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, prompt_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.tokens = 0
        self.facts: Facts | None = None
        self.on_abort: Callable[[], None] | None = None  # set once the engine has the request
        self.ended = False
        self.aborted = False
        self._loop = loop
        self._pieces: asyncio.Queue[Piece] = asyncio.Queue()

    def deliver(self, piece: Piece) -> None:
        """Hand over a piece. After the loop has closed there is no reader, and it is dropped."""
        try:
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)
        except RuntimeError:  # the loop is closed: the server has gone, and the piece with it
            return

    async def __aiter__(self) -> AsyncIterator[Piece]:
        """Pieces as they come. Raises `ApiError` (500) when the engine gives the request up."""
        while not self.ended:
            piece = await self._pieces.get()
            if self.aborted:
                return
            if piece.error is not None:
                self.ended = True
                raise ApiError(500, piece.error, code="engine_stopped")
            self.tokens += piece.tokens
            self.ended = piece.finish is not None
            self.facts = piece.facts
            yield piece

    def fail(self, why: str) -> None:
        """Give the request up on the server's side: the client hears `why`."""
        if not self.ended:
            if self.on_abort is not None:
                self.on_abort()
            self._pieces.put_nowait(Piece("", 0, error=why))

    def abort(self) -> None:
        """Tell the engine that nobody reads on, and end the iterator. Harmless after the end."""
        if not self.ended:
            self.ended = self.aborted = True
            if self.on_abort is not None:
                self.on_abort()
            self._pieces.put_nowait(Piece("", 0))
