"""Finding and opening the reports that `analyze` wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from advisor.errors import InputError
from advisor.schema import Report, read_json

REPORT = "report.json"
"""The name of the file in a run folder."""


def find_runs(folder: Path) -> tuple[Path, ...]:
    """The run folders directly below `folder` that hold a report, the last written first."""
    written = sorted(_written(folder), key=lambda found: (-found[0], found[1]))
    return tuple(run for _, run in written)


def open_report(path: Path) -> Report:
    """The report of a run folder, or of a `report.json` given itself.

    Raises:
        InputError: There is no report, or it cannot be read; `SchemaVersionError` where it is too new.
    """
    file = path / REPORT if path.is_dir() else path
    if not file.exists():
        raise InputError(f"{file} does not exist: run `ddp-advisor analyze` on the run folder first.")
    return read_json(Report, file)


def _written(folder: Path) -> Iterator[tuple[int, Path]]:
    for file in folder.glob(f"*/{REPORT}"):
        try:
            yield file.stat().st_mtime_ns, file.parent
        except OSError:  # gone between listing and looking
            continue
