"""The bars as a Markdown table, and its place in a document."""

from collections.abc import Sequence
from pathlib import Path

from tests.bench.bars import Line

BEGIN, END = "<!-- bench-learner: begin -->", "<!-- bench-learner: end -->"


class MarkerError(ValueError):
    """A document without the place for the table."""


def table(shipped: Sequence[Line], unseen: Sequence[Line]) -> str:
    """Both kinds beside each other, one bar a row; under it the worst seeds of those that were missed.

    >>> print(table([Line("share", "0.9", "0.95", True)], [Line("share", "0.9", "0.85", False, "seed 3: 0.8")]))
    | what | asked | shipped | met | unseen | met |
    | --- | --- | --- | --- | --- | --- |
    | share | 0.9 | 0.95 | yes | 0.85 | **no** |
    <BLANKLINE>
    Missed, with the worst seeds, the domain that earned least there, and where it ended:
    <BLANKLINE>
    * share, unseen: seed 3: 0.8
    """
    kinds = {line.what: line.asked for line in (*shipped, *unseen)}
    first, second = ({line.what: line for line in lines} for lines in (shipped, unseen))
    rows = ["| what | asked | shipped | met | unseen | met |", "| --- | --- | --- | --- | --- | --- |"]
    for what, asked in kinds.items():
        rows.append(f"| {what} | {asked} | {_cells(first.get(what))} | {_cells(second.get(what))} |")
    missed = [
        f"* {line.what}, {kind}: {line.worst}"
        for what in kinds
        for kind, lines in (("shipped", first), ("unseen", second))
        if (line := lines.get(what)) is not None and line.worst
    ]
    if missed:
        said = "Missed, with the worst seeds, the domain that earned least there, and where it ended:"
        rows += ["", said, "", *missed]
    return "\n".join(rows)


def _cells(line: Line | None) -> str:
    return "- | -" if line is None else f"{line.measured} | {'yes' if line.met else '**no**'}"


def place(path: Path, text: str) -> None:
    """Put the text between the markers of a document. Raises `MarkerError` where they are not there once each."""
    document = path.read_text(encoding="utf-8")
    if document.count(BEGIN) != 1 or document.count(END) != 1 or document.index(BEGIN) > document.index(END):
        raise MarkerError(f"{path}: needed is one line {BEGIN!r} and below it one line {END!r}")
    before, rest = document.split(BEGIN)
    _, after = rest.split(END)
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")
