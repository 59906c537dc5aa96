"""Where an analysis writes, and how: the report as JSON and as HTML, each whole or not at all."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from advisor.errors import UsageError

if TYPE_CHECKING:
    from advisor.schema import Report


def choose_folder(paths: Sequence[Path], out: Path | None) -> Path:
    """Says where the report of these traces belongs: `out`, else into the run folder itself, else below `runs/`.

    Foreign traces are not ours to write beside. Their folder's name is for people, the hash tells two of that name
    apart and brings a second analysis of the same traces back to the same place.

    Raises:
        UsageError: Nothing can be written there.
    """
    if out is not None:
        folder = out
    elif len(paths) == 1 and (paths[0] / "manifest.json").is_file():
        folder = paths[0]
    else:
        resolved = sorted(path.resolve() for path in paths)
        name = resolved[0].name if resolved[0].is_dir() else resolved[0].parent.name
        digest = hashlib.sha256("\n".join(map(str, resolved)).encode()).hexdigest()[:8]
        folder = Path("runs") / f"{name}-{digest}"
    _require_writable(folder)
    return folder


def write_report(report: Report, folder: Path) -> None:
    """Writes `report.json` and `report.html` into `folder`, which is made when it is missing.

    Raises:
        UsageError: Nothing can be written there; what was there before is as it was.
    """
    from advisor.schema import write_json
    from reports import write_html

    partial = folder / "report.html.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_html(report, partial)
        write_json(report, folder / "report.json")
        partial.replace(folder / "report.html")
    except OSError as error:
        raise UsageError(
            f"The report cannot be written into {folder} ({error.strerror}): choose another folder with --out."
        ) from error
    finally:
        if folder.is_dir():
            partial.unlink(missing_ok=True)


def _require_writable(folder: Path) -> None:
    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise UsageError(f"The report cannot be written into {folder}: choose a writable folder with --out.")
