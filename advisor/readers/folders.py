"""The files below a folder of this machine, and those that a pattern names."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from advisor.errors import InputError
from advisor.readers.display import show_name
from advisor.readers.failures import telling

MOST_FILES = 200_000
"""A folder that holds more is no folder of traces, but perhaps a whole disk."""


def walk_folder(root: Path, wanted: Callable[[str], bool], on_failure: Callable[[str], None]) -> Iterator[Path]:
    """The wanted files below a folder, its own before those of its sub-folders, each in name order.

    Links are followed, and each folder is entered once, so that a loop of links ends. What is hidden stays hidden.

    Args:
        root: The folder.
        wanted: Whether a file of this name is looked for.
        on_failure: Told in one sentence about each sub-folder that cannot be read.

    Raises:
        InputError: The folder itself cannot be read, or holds too much.
    """
    entered: set[tuple[int, int]] = set()
    waiting = [root]
    num_files = 0
    while waiting:
        folder = waiting.pop()
        try:
            with telling(show_name(folder.as_posix())):
                if (identity := _identify(folder)) in entered:
                    continue
                entered.add(identity)
                entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
                folders = [entry for entry in entries if _is_folder(entry)]
        except InputError as error:
            if folder == root:
                raise
            on_failure(str(error))
            continue
        waiting += [folder / entry.name for entry in reversed(folders) if not _is_hidden(entry.name)]
        num_files += len(entries)
        if num_files > MOST_FILES:
            name = show_name(root.as_posix())
            raise InputError(f"{name} holds more than {MOST_FILES} files: give the folder of one run.")
        yield from (
            folder / entry.name
            for entry in entries
            if entry not in folders and not _is_hidden(entry.name) and wanted(entry.name)
        )


def match_paths(pattern: str) -> list[Path]:
    """What a pattern such as `traces/**/rank*.json` matches, in name order; nothing where it is no pattern."""
    if not glob.has_magic(pattern):
        return []
    return [Path(match) for match in sorted(glob.glob(pattern, recursive=True))]  # noqa: PTH207 - from any root


def _identify(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself: opening it as a file says so
        return False


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "__MACOSX"))
