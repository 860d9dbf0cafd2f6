"""HTTP connections that do not wait for ever: a request's head must arrive in time, or the connection is closed."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol


def timely(seconds: float) -> type[H11Protocol]:
    """uvicorn's protocol with a bound on the time from a head's first byte (or the connection's begin) to its last.

    uvicorn itself bounds only the silence after a response; a client that connects and says nothing, or a byte now and
    then, would hold the connection for good. Bodies have their own bound (`controller.api.limits`).
    """

    class Timely(H11Protocol):
        _late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._rest()
            super().connection_lost(exc)

        def _watch(self) -> None:
            if self.cycle is not None and not self.cycle.response_complete:
                self._rest()  # a request is being served
            elif self._late is None:
                self._late = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

        def _rest(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

    return Timely
