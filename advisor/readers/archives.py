"""Zip and tar archives, read member by member in memory: nothing is ever unpacked to disk.

An archive may lie. Its names are shown and never used as paths; its sizes are limits that reading enforces.

A tar can only be read from its start. `Member.open` begins there for each member, `OpenArchives` after the last one.
"""

from __future__ import annotations

import io
import struct
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import IO, TypeAlias, cast

from advisor.errors import InputError
from advisor.readers.display import show_name
from advisor.readers.failures import explain, telling
from advisor.readers.locations import Location
from advisor.readers.streams import FREE_BYTES, LARGEST_EXPANSION, ZIP, Readable, Stored, TraceStream

MOST_MEMBERS = 100_000
"""An archive with more is refused."""
LARGEST_UNSEEKABLE_BYTES = 2 * 2**30
"""A zip is read from its end. From where only its start can be asked for, at most this much is kept in memory."""

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
_ENCRYPTED = 1
_TAR_MAGIC = slice(257, 262)

Members: TypeAlias = Generator[tuple["Member", Readable], None, None]


@dataclass(frozen=True)
class Member:
    """A file inside an archive."""

    archive: Location
    position: int
    path: str

    @property
    def name(self) -> str:
        """The archive's name and its own, printable."""
        return f"{self.archive.name}/{show_name(self.path)}"

    def open(self) -> Readable:
        """Opens the archive again and goes to the member."""
        members = walk_archive(self.archive, lambda path: path == self.path)
        for member, data in members:
            if member.position == self.position:
                return _OpenMember(data, members)
        raise FileNotFoundError(self.name)


class OpenArchives:
    """Archives that stay open between their members, so that members in the order in which they lie cost one pass.

    Example: of a tar with members 0 to 9, opening 2, 5 and 9 reads it once; then 4 reads its start again.
    """

    def __init__(self, locations: Iterable[Location]) -> None:
        """Opens nothing yet.

        Args:
            locations: All that will be opened. An archive is closed after the last of its members.
        """
        self._wanted: dict[Location, dict[int, str]] = defaultdict(dict)
        self._walks: dict[Location, tuple[Members, int]] = {}
        """Where each archive stands: at the member that was opened last."""
        for location in locations:
            if isinstance(location, Member):
                self._wanted[location.archive][location.position] = location.path

    def open(self, location: Location) -> Readable:
        """The bytes of a file or member. Those of the member before it, in the same archive, are gone then."""
        for archive in [archive for archive, (_, at) in self._walks.items() if at == max(self._wanted[archive])]:
            self._walks.pop(archive)[0].close()
        if not isinstance(location, Member):
            return location.open()
        members = self._go_before(location)
        for member, data in members:
            if member == location:
                self._walks[location.archive] = members, location.position
                return data
        raise FileNotFoundError(location.name)

    def close(self) -> None:
        """Closes every archive."""
        for members, _ in self._walks.values():
            members.close()
        self._walks.clear()

    def _go_before(self, location: Member) -> Members:
        members, at = self._walks.pop(location.archive, (None, -1))
        if members and at < location.position:
            return members
        if members:
            members.close()
        return walk_archive(location.archive, frozenset(self._wanted[location.archive].values()).__contains__)


def is_zip(start: bytes) -> bool:
    """Whether a file that starts so, as it is stored, is a zip archive."""
    return start.startswith(ZIP)


def is_tar(start: bytes) -> bool:
    """Whether a file that starts so, once decompressed, is a tar archive."""
    return start[_TAR_MAGIC] == b"ustar"


def walk_archive(location: Location, wanted: Callable[[str], bool]) -> Members:
    """The files of an archive whose names are wanted, each open until the next one is asked for.

    Raises:
        InputError: The archive is damaged, too large when unpacked, encrypted or packed by a method that is not read.
    """
    with telling(location.name), _as_damage():
        stored = Stored(location.open())
        start = stored.peek(max(map(len, ZIP)))
        stored.close()
        yield from _walk_zip(location, wanted) if is_zip(start) else _walk_tar(location, wanted)


def _walk_zip(location: Location, wanted: Callable[[str], bool]) -> Members:
    with ExitStack() as opened:
        raw = opened.enter_context(_open_seekable(location))
        size = raw.seek(0, io.SEEK_END)
        archive = opened.enter_context(zipfile.ZipFile(raw))
        entries = archive.infolist()
        _check_count(location.name, len(entries))
        chosen = [(at, entry) for at, entry in enumerate(entries) if not entry.is_dir() and wanted(entry.filename)]
        if sum(entry.file_size for _, entry in chosen) > FREE_BYTES + LARGEST_EXPANSION * size:
            raise InputError(
                f"{location.name} expands to more than {LARGEST_EXPANSION} times its size, as no traces do: it is "
                "refused."
            )
        for position, entry in chosen:
            member = Member(location, position, entry.filename)
            if entry.flag_bits & _ENCRYPTED:
                raise InputError(f"{member.name} is encrypted: unpack the archive yourself and give its folder.")
            if entry.compress_type not in _METHODS:
                raise InputError(f"{member.name} is packed by a method that is not read: zip it with deflate.")
            with archive.open(entry) as data:
                yield member, cast("Readable", data)


def _walk_tar(location: Location, wanted: Callable[[str], bool]) -> Members:
    with (
        TraceStream(location.open(), location.name) as stream,
        tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r|") as archive,
    ):
        for position, entry in enumerate(archive):
            _check_count(location.name, position)
            if entry.isreg() and not entry.issparse() and wanted(entry.name):
                data = archive.extractfile(entry)
                assert data is not None, "a regular file"
                yield Member(location, position, entry.name), cast("Readable", data)


@contextmanager
def _as_damage() -> Iterator[None]:
    """What Python's zip and tar readers raise for nonsense in an archive, as damage."""
    try:
        yield
    except (IndexError, OverflowError, RuntimeError, ValueError, struct.error) as error:
        raise zipfile.BadZipFile(explain(error)) from error


def _check_count(name: str, num_members: int) -> None:
    if num_members > MOST_MEMBERS:
        raise InputError(f"{name} holds more than {MOST_MEMBERS} files: give an archive of the traces alone.")


def _open_seekable(location: Location) -> IO[bytes]:
    raw = location.open()
    if hasattr(raw, "seek"):
        return cast("IO[bytes]", raw)
    with closing(raw):
        data = raw.read(LARGEST_UNSEEKABLE_BYTES + 1)
    if len(data) > LARGEST_UNSEEKABLE_BYTES:
        raise InputError(
            f"{location.name} is a zip of more than {LARGEST_UNSEEKABLE_BYTES >> 30} GiB on a web server: download "
            "it first."
        )
    return io.BytesIO(data)


class _OpenMember:
    """An open member; closing it closes its archive."""

    def __init__(self, data: Readable, members: Members) -> None:
        self._data = data
        self._members = members

    def read(self, size: int = -1, /) -> bytes:
        return self._data.read(size)

    def close(self) -> None:
        self._members.close()
