"""A run folder from the writing side: named, checked, filled beside its final place and published whole.

A recording is written into `<folder>/.partial` and moved up when every rank is done, the manifest last; so a folder
with a manifest is whole, whatever was interrupted. Nothing that is there already is ever replaced.
"""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from advisor.errors import InputError
from advisor.schema import RunManifest, write_json

MANIFEST = "manifest.json"
PARTIAL = ".partial"


def trace_name(rank: int) -> str:
    """The file name of one rank's trace."""
    return f"rank{rank}.pt.trace.json.gz"


def default_run_folder(workload: str) -> Path:
    """`runs/<workload>-<YYYYmmdd-HHMMSS>` below the working directory."""
    name = re.sub(r"[^\w.-]+", "-", Path(workload.partition(":")[0]).name.removesuffix(".py"))
    return Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"


def open_run_folder(folder: Path) -> Path:
    """Makes `folder` ready for a recording and returns the folder to write into.

    Raises:
        InputError: It cannot be written, or holds something already, if only an earlier run.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        there = sorted(entry.name for entry in folder.iterdir() if entry.name != PARTIAL)
        if there:
            held = "a run already" if MANIFEST in there else there[0]
            raise InputError(f"{folder} holds {held}, which is never replaced: choose a new folder.")
        shutil.rmtree(folder / PARTIAL, ignore_errors=True)
        (folder / PARTIAL).mkdir()
    except OSError as error:
        raise InputError(f"{folder} cannot be written ({error.strerror}): choose another folder.") from error
    return folder / PARTIAL


def publish_trace(folder: Path, rank: int) -> None:
    """Moves one rank's finished trace up."""
    (folder / PARTIAL / trace_name(rank)).replace(folder / trace_name(rank))


def publish_manifest(folder: Path, manifest: RunManifest) -> None:
    """Writes the manifest, which declares the folder whole; every trace is in its place by now."""
    write_json(manifest, folder / MANIFEST)
    shutil.rmtree(folder / PARTIAL, ignore_errors=True)


def abandon_run_folder(folder: Path) -> None:
    """Removes an unfinished recording, and the folder itself where nothing else is in it."""
    shutil.rmtree(folder / PARTIAL, ignore_errors=True)
    with suppress(OSError):
        folder.rmdir()
