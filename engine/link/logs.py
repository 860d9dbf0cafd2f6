"""Log lines that machines read: one JSON object each, with the pool, engine and policy version they are about.

Whoever logs attaches what it knows (`Told`, or `extra=` of any logging call); the formatter shows it. In text nothing
of it is seen: there messages say themselves what they are about.
"""

import json
import logging
from collections.abc import Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any, Literal

LogFormat = Literal["text", "json"]
FIELDS = ("pool", "engine", "policy_version")
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

# What a line is about, by the names of `FIELDS`; a callable is asked when the line is made.
Known = Mapping[str, object | Callable[[], object]]


class Told(logging.LoggerAdapter[logging.Logger]):
    """A logger whose lines carry what is known; `extra` of a call goes first."""

    def __init__(self, logger: logging.Logger, **known: object) -> None:
        super().__init__(logger, {})
        self._known: Known = known

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Attach it."""
        kwargs["extra"] = {**_asked(self._known), **(kwargs.get("extra") or {})}
        return msg, kwargs


class JsonFormatter(logging.Formatter):
    """One line of ASCII per record: `time` (UTC), `level`, `logger`, `message`, what of `FIELDS` is known, and
    `exception` with its traceback where there is one.

    >>> record = logging.LogRecord("controller", logging.WARNING, "", 0, "pool %s: late\\n", ("p",), None)
    >>> record.created, record.pool = 0.25, "p"
    >>> print(JsonFormatter({"engine": "e"}).format(record))
    {"time": "1970-01-01T00:00:00.250Z", "level": "warning", "logger": "controller", "message": "pool p: late\\n", \
"pool": "p", "engine": "e"}
    """

    def __init__(self, known: Known | None = None) -> None:
        super().__init__()
        self._known = {} if known is None else known

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        known = _asked(self._known)
        for name in FIELDS:
            value = getattr(record, name, None)
            value = known.get(name) if value is None else value
            if value is not None:
                line[name] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        return json.dumps(line, default=str)


def configure(level: str, format_: LogFormat, known: Known | None = None) -> None:
    """Set up the process's log on standard error, unless something has set one up before. `known`: of all its lines."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(known) if format_ == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def uvicorn_log(format_: LogFormat) -> dict[str, Any]:
    """What to tell uvicorn: in JSON its lines go the way of all others instead of its own."""
    return {"log_config": None} if format_ == "json" else {}


def _asked(known: Known) -> dict[str, object]:
    return {name: value() if callable(value) else value for name, value in known.items()}
