"""Where the stored bytes of a trace lie: in a file on this machine or on standard input (archives, servers: beside)."""

from __future__ import annotations

import io
import os
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from advisor.errors import InputError
from advisor.readers.display import show_name
from advisor.readers.failures import telling
from advisor.readers.streams import LARGEST_TEXT_BYTES, Readable, TraceStream

STANDARD_INPUT = "-"


class Location(Protocol):
    """A place that can be named and opened, here and in another process."""

    @property
    def name(self) -> str:
        """As it is shown, with `/` between folders."""

    def open(self) -> Readable:
        """The stored bytes; may raise whatever its place raises."""


@dataclass(frozen=True)
class LocalFile:
    """A file on this machine."""

    path: Path
    folder: str = field(default_factory=os.getcwd, repr=False, compare=False)
    """The working folder in which the path was given; another process may have another one."""

    @property
    def name(self) -> str:
        """The path as it was given, printable."""
        return show_name(self.path.as_posix())

    def open(self) -> Readable:
        """Opens it, unless it is a pipe or a device, which may never end."""
        path = Path(self.folder, self.path)
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            kind = "a pipe" if stat.S_ISFIFO(mode) else "a folder" if stat.S_ISDIR(mode) else "a device or socket"
            raise InputError(f"{self.name} is {kind}, not a file: send what it gives into `ddp-advisor analyze -`.")
        return path.open("rb")


@dataclass(frozen=True)
class StandardInput:
    """What was piped into the command, read once and kept; in another process it cannot be opened."""

    data: bytes | None = field(repr=False)
    name: str = "standard input"

    def __reduce__(self) -> tuple[type[StandardInput], tuple[None]]:
        return StandardInput, (None,)  # the bytes stay here: each rank of an archive would carry all of them

    def open(self) -> Readable:
        """Its bytes from the start."""
        if self.data is None:
            raise InputError("Standard input can only be read where it was piped in.")
        return io.BytesIO(self.data)


def read_standard_input() -> StandardInput:
    """Reads standard input to its end.

    Raises:
        InputError: It is a terminal, empty, or larger than any trace.
    """
    stream = sys.stdin.buffer
    if stream.isatty():
        raise InputError("Standard input is a terminal: pipe a trace into `ddp-advisor analyze -`.")
    with telling(StandardInput.name):
        data = stream.read(LARGEST_TEXT_BYTES + 1)
    if not data:
        raise InputError("Standard input is empty: pipe a trace into `ddp-advisor analyze -`.")
    if len(data) > LARGEST_TEXT_BYTES:
        raise InputError(f"Standard input holds more than {LARGEST_TEXT_BYTES >> 30} GiB: record fewer steps.")
    return StandardInput(data)


def open_stream(location: Location) -> TraceStream:
    """Opens a location as decompressed text.

    Raises:
        InputError: It cannot be opened, or is of a format that is not read.
    """
    with telling(location.name):
        raw = location.open()
    return TraceStream(raw, location.name)
