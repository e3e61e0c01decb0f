"""A bar on standard error for the commands of the lab that count messages, where that is a terminal."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Any]:
    """Yields what moves the bar: by one, or to a number of a total."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    errors = Console(stderr=True)
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task(what, total=total)

        def advance(completed: int | None = None, of: int | None = None) -> None:
            if completed is None:
                bar.advance(task)
            else:
                bar.update(task, completed=completed, total=of)

        yield advance
