"""The live view: one row per domain, read from the controller's API once a second."""

from typing import Any

import httpx
from rich.table import Table


def number(value: object, form: str, missing: str = "-") -> str:
    """`value` by the format `form`, or `missing` where there is none yet.

    >>> number(1.234, ".1f"), number(None, ".1f")
    ('1.2', '-')
    """
    return missing if value is None else format(value, form)


def interval(value: object, form: str = ".2f") -> str:
    """An estimate with its interval, from the API's object {value, low, high}.

    >>> interval({"value": 1.21, "low": 1.1, "high": 1.3})
    '1.21x (1.10-1.30)'
    """
    if not isinstance(value, dict) or value.get("value") is None:
        return "-"
    return f"{value['value']:{form}}x ({value['low']:{form}}-{value['high']:{form}})"


def live_table(rows: list[dict[str, Any]], caption: str) -> Table:
    """The table of the demo. Each row: domain, draft, k, p, accepted, tokens_per_second, speedup {value, low, high}."""
    table = Table(title="K by domain, as the controller decides it now", caption=caption, caption_justify="left")
    for name, justify in (
        ("domain", "left"),
        ("draft", "left"),
        ("K", "right"),
        ("probability", "right"),
        ("accepted / step", "right"),
        ("tokens/s per row", "right"),
        ("speedup over plain (90% interval)", "right"),
    ):
        table.add_column(name, justify="right" if justify == "right" else "left")
    for row in rows:
        table.add_row(
            str(row["domain"]),
            str(row["draft"] or "-"),
            number(row["k"], "d"),
            number(row["p"], ".2f"),
            number(row["accepted"], ".2f"),
            number(row["tokens_per_second"], ".1f"),
            interval(row["speedup"]),
        )
    return table


def fetch_json(client: httpx.Client, path: str) -> Any:
    """One GET of the controller's API; None while it does not answer."""
    try:
        answer = client.get(path)
    except httpx.TransportError:
        return None
    return answer.json() if answer.status_code == httpx.codes.OK else None
