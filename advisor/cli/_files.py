"""Where an analysis writes, and how: the report as JSON and as HTML, each whole or not at all."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from advisor.cli._again import spell_command
from advisor.errors import UsageError

if TYPE_CHECKING:
    from advisor.schema import Report


def choose_folder(paths: Sequence[str | Path], out: Path | None) -> Path:
    """Says where the report of these traces belongs: `out`, else into the run folder itself, else below `runs/`.

    Foreign traces are not ours to write beside. Their folder's name is for people, the hash tells two of that name
    apart and brings a second analysis of the same traces back to the same place.

    Raises:
        UsageError: Nothing can be written there.
    """
    if out is not None:
        folder = out
    elif len(paths) == 1 and (Path(paths[0]) / "manifest.json").is_file():
        folder = Path(paths[0])
    else:
        places = sorted(map(_place, paths))
        digest = hashlib.sha256("\n".join(places).encode(errors="surrogateescape")).hexdigest()[:8]
        folder = Path("runs") / f"{_name_traces(places[0])}-{digest}"
    _require_writable(folder)
    return folder


def write_report(report: Report, folder: Path) -> None:
    """Writes `report.json` and `report.html` into `folder`, which is made when it is missing.

    Raises:
        UsageError: Nothing can be written there; what was there before is as it was.
    """
    from advisor.schema import write_json
    from reports import render_html

    html = render_html(report)
    partial = folder / "report.html.partial"
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial.write_text(html, encoding="utf-8")
        write_json(report, folder / "report.json")
        partial.replace(folder / "report.html")
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
            if is_new:
                folder.rmdir()
        raise UsageError(
            f"The report cannot be written into {folder} ({error.strerror}): choose another folder with --out."
        ) from error


def tell_where(folder: Path) -> None:
    """Prints where the report is and how to open it as a page."""
    typer.echo(f"\nThe whole report:  {folder / 'report.html'}")
    typer.echo(f"As a live page:    {spell_command('report', folder, '--serve')}")


def tell_what_is_missing(report: Report) -> None:
    """Prints which files the report does without, since they could not be read."""
    for note in report.notes:
        if note.left_out:
            typer.echo(note.message)


def _require_writable(folder: Path) -> None:
    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise UsageError(f"The report cannot be written into {folder}: choose a writable folder with --out.")


def _place(path: str | Path) -> str:
    """The same for the same traces, however they are written."""
    is_elsewhere = str(path) == "-" or "://" in str(path)
    return str(path) if is_elsewhere else str(Path(path).resolve())


def _name_traces(place: str) -> str:
    """A word for some traces that is safe as a folder's name."""
    if place == "-":
        return "stdin"
    if "://" in place:
        name = place.partition("://")[2].partition("?")[0].rstrip("/").rpartition("/")[2].partition(".")[0]
    else:
        name = Path(place).name if Path(place).is_dir() else Path(place).parent.name
    return re.sub(r"[^\w.+-]+", "_", name.encode(errors="replace").decode()) or "traces"
