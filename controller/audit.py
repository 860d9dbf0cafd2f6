"""The audit log's entries: what operators did, and what the controller changed by itself."""

from typing import Literal

import msgspec

from controller.view import DecisionRecord


class Act(msgspec.Struct, frozen=True):
    """Somebody steered. `time`: Unix seconds; `revision`: of the orders that it made."""

    time: float
    who: str
    what: str
    why: str
    revision: int
    kind: Literal["act"] = "act"

    def encode(self) -> bytes:
        """As JSON, for the stream."""
        return msgspec.json.encode(self)


def decode(entry: bytes) -> Act | DecisionRecord | None:
    """An entry of the stream, None for one that this version does not know.

    >>> decode(Act(1.0, "ops", "mode off", "", 3).encode()).what
    'mode off'
    >>> decode(b"{}") is None
    True
    """
    try:
        return msgspec.json.decode(entry, type=Act)
    except msgspec.MsgspecError:
        pass
    try:
        return msgspec.json.decode(entry, type=DecisionRecord)
    except msgspec.MsgspecError:
        return None
