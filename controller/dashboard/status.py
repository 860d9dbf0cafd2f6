"""`/status`: everything that is known of every pool, on one page without scripts and without any other host."""

import time
from importlib import resources

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from jinja2 import Environment, StrictUndefined

from controller.api.access import SupervisorOf
from controller.api.pools import summary
from controller.view import Interval

router = APIRouter(include_in_schema=False)

REFRESH_SECONDS = 3
RECORDS = 12
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}


def ago(then: float, now: float) -> str:
    """The time between, in words as short as they can be.

    >>> [ago(0, seconds) for seconds in (0.4, 59, 61, 7200, 200_000)]
    ['now', '59 s ago', '1 min ago', '2 h ago', '2 days ago']
    """
    seconds = max(0.0, now - then)
    if seconds < 1:
        return "now"
    for size, limit, unit in ((1, 60, " s"), (60, 3600, " min"), (3600, 86_400, " h")):
        if seconds < limit:
            return f"{int(seconds // size)}{unit} ago"
    return f"{int(seconds // 86_400)} days ago"


def number(value: float | None, digits: int = 0) -> str:
    """A number with thousands set apart, or a dash where nothing is known.

    >>> number(1234567), number(0.5, 2), number(None)
    ('1,234,567', '0.50', '–')
    """
    return "–" if value is None else f"{value:,.{digits}f}"


def interval(value: Interval | None) -> str:
    """A ratio with its interval.

    >>> interval(Interval(1.523, 1.47, 1.57))
    '1.52× (1.47–1.57)'
    """
    return "–" if value is None else f"{value.value:.2f}× ({value.low:.2f}–{value.high:.2f})"


def clock(then: float) -> str:
    """Time of day, UTC.

    >>> clock(3661)
    '01:01:01'
    """
    return time.strftime("%H:%M:%S", time.gmtime(then))


_environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
_environment.filters.update(number=number, interval=interval, clock=clock)
_template = _environment.from_string(resources.files(__package__).joinpath("status.html").read_text("utf-8"))


@router.get("/status", response_class=HTMLResponse)
async def status(supervisor: SupervisorOf) -> HTMLResponse:
    """Everything that is known of every pool on one page, without scripts."""
    now = time.time()
    pools = [(summary(loop), loop.view, loop.explain()) for _, loop in sorted(supervisor.pools.items())]
    html = _template.render(
        pools=pools,
        problem=supervisor.problem,
        now=now,
        ago=lambda then: ago(then, now),
        refresh=REFRESH_SECONDS,
        records=RECORDS,
    )
    return HTMLResponse(html, headers=_HEADERS)
