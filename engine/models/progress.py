"""Progress of slow stages on the terminal: one bar per stage, or nothing at all."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int], None]  # called with the amount done so far


class Progress:
    """Bars on stderr; `Progress(shown=False)` keeps still. Outside a terminal rich prints nothing that moves.

    >>> with Progress(shown=False).stage("copy", 3) as advance:
    ...     advance(3)
    """

    def __init__(self, shown: bool = True) -> None:
        self._shown = shown

    @contextmanager
    def stage(self, title: str, total: int) -> Iterator[Advance]:
        """A bar named `title` until the block ends; yields the function that takes the amount done, of `total`."""
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        columns = (TextColumn("{task.description:<34}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
        with Bars(*columns, TimeElapsedColumn(), console=Console(stderr=True), disable=not self._shown) as bars:
            task = bars.add_task(title, total=total)
            yield lambda done: bars.update(task, completed=min(done, total))
            bars.update(task, completed=total)
