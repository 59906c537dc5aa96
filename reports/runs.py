"""Finding the runs for which `analyze` wrote a report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

REPORT = "report.json"
"""The name of the file in a run folder."""


def find_runs(folder: Path) -> tuple[Path, ...]:
    """The run folders directly below `folder` that hold a report, the last written first."""
    written = sorted(_written(folder), key=lambda found: (-found[0], found[1]))
    return tuple(run for _, run in written)


def _written(folder: Path) -> Iterator[tuple[int, Path]]:
    for file in folder.glob(f"*/{REPORT}"):
        try:
            yield file.stat().st_mtime_ns, file.parent
        except OSError:  # gone between listing and looking
            continue
