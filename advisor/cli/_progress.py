"""Progress on standard error, where a person watches; silent in a pipe, a log or beside `--json`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

OnProgress: TypeAlias = Callable[[int, int, str], None]
"""Called with how many are done, of how many, and what is being done."""


@contextmanager
def show_progress(title: str, *, visible: bool = True) -> Iterator[OnProgress]:
    """Shows a bar while the block runs and yields the function that moves it; the bar leaves no trace.

    Args:
        title: What is being done, until the first call says it better.
        visible: False hides the bar even on a terminal.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not (visible and console.is_terminal)) as bar:
        task = bar.add_task(title, total=None)

        def on_progress(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what)

        yield on_progress
