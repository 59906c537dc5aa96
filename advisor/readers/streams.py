"""One trace as a stream of its JSON text: decompressed on the way, within limits, and up to where it is damaged.

What a file is, its first bytes say; its name is not asked. No format is read that can do more than hold bytes.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from typing import IO, Protocol, cast

import zstandard
from isal.igzip_lib import DECOMP_GZIP, IgzipDecompressor

from advisor.errors import InputError
from advisor.readers.failures import DAMAGE, explain, telling

LARGEST_TEXT_BYTES = 16 * 2**30
"""A trace with more text is refused."""
LARGEST_EXPANSION = 250
"""Text bytes for one compressed byte, beyond the first `FREE_BYTES`.

Real traces reach 18 with gzip and 28 with zstd, a gzip bomb 1030.
"""
FREE_BYTES = 64 * 2**20

_INPUT_BYTES = 2**16
_OUTPUT_BYTES = 2**16  # small: what one call has decompressed before it finds damage is lost
_PLAIN_BYTES = 2**20
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
ZIP = (b"PK\x03\x04", b"PK\x05\x06")

_PICKLE = "is a Python pickle, which is never opened: give the JSON that torch.profiler exports"
_REFUSED: tuple[tuple[bytes, str], ...] = (
    (ZIP[0], "is a zip archive inside another file: unpack the outer one first"),
    (ZIP[1], "is an empty zip archive: give the traces themselves"),
    (b"BZh", "is compressed with bzip2, which is not read: compress it with gzip or zstd, or not at all"),
    (b"\xfd7zXZ", "is compressed with xz, which is not read: compress it with gzip or zstd, or not at all"),
    (b"7z\xbc\xaf", "is a 7z archive, which is not read: give a zip or tar.gz archive"),
    *((bytes((0x80, protocol)), _PICKLE) for protocol in range(2, 6)),
)


class Readable(Protocol):
    """What a location opens as: stored bytes, from the first to the last."""

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes, none at the end."""

    def close(self) -> None:
        """Frees what is open."""


class Stored:
    """The stored bytes of a file: counted as they are read, the first ones at hand beforehand."""

    def __init__(self, raw: Readable) -> None:
        self.num_bytes = 0
        self._raw = raw
        self._start = b""

    def peek(self, size: int) -> bytes:
        """The first `size` bytes, which stay to be read."""
        self._start += self._raw.read(size - len(self._start)) if len(self._start) < size else b""
        return self._start[:size]

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes, none at the end."""
        data, self._start = self._start or self._raw.read(size), b""
        self.num_bytes += len(data)
        return data

    def close(self) -> None:
        """Closes the file below."""
        self._raw.close()


class TraceStream(io.BufferedIOBase):
    """The decompressed bytes of one file; it ends where the file does, or where it is damaged.

    Attributes:
        name: For messages.
        packing: `json` (plain text), `gzip` or `zstd`.
        damage: What is wrong with the compressed data from here on, once it has been met.
    """

    def __init__(self, raw: Readable | Stored, name: str) -> None:
        """Looks at the first bytes.

        Raises:
            InputError: They cannot be read, or are of a format that is not read.
        """
        self.name = name
        self.damage: str | None = None
        self._raw = raw if isinstance(raw, Stored) else Stored(raw)
        self._num_bytes = 0
        self._rest = b""
        try:
            self._chunks = self._open()
        except InputError:
            raw.close()
            raise

    def readable(self) -> bool:
        """Always."""
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """The next `size` bytes, fewer only at the end; all of them where no size is given.

        Raises:
            InputError: They cannot be read, or the file expands beyond the limits.
        """
        wanted = sys.maxsize if size is None or size < 0 else size
        parts = []
        while wanted > 0 and (chunk := self._rest or self._pull()):
            parts.append(chunk[:wanted])
            self._rest = chunk[wanted:]
            wanted -= len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read1(self, size: int = -1, /) -> bytes:
        """What is at hand, at most `size` bytes."""
        chunk = self._rest or self._pull()
        wanted = len(chunk) if size < 0 else size
        self._rest = chunk[wanted:]
        return chunk[:wanted]

    def peek(self, size: int) -> bytes:
        """The next `size` bytes, which stay to be read."""
        self._rest = self.read(size) + self._rest
        return self._rest[:size]

    def close(self) -> None:
        """Closes the file below."""
        if not self.closed:
            self._raw.close()
        super().close()

    def _open(self) -> Iterator[bytes]:
        with telling(self.name):
            start = self._raw.peek(8)
        for magic, reason in _REFUSED:
            if start.startswith(magic):
                raise InputError(f"{self.name} {reason}.")
        packings: tuple[tuple[bytes, str, Callable[[Stored], Iterator[bytes]]], ...] = (
            (_GZIP, "gzip", _read_gzip),
            (_ZSTD, "zstd", _read_zstd),
            (b"", "json", _read_plain),
        )
        self.packing, read = next((name, read) for magic, name, read in packings if start.startswith(magic))
        return read(self._raw)

    def _pull(self) -> bytes:
        try:
            with telling(self.name):
                chunk = self._pull_unguarded()
        except InputError as error:
            if not isinstance(error.__cause__, DAMAGE):
                raise
            self.damage = explain(error.__cause__)
            return b""
        self._num_bytes += len(chunk)
        if self._num_bytes > LARGEST_TEXT_BYTES:
            raise InputError(f"{self.name} holds more than {LARGEST_TEXT_BYTES >> 30} GiB of text: record fewer steps.")
        if self._num_bytes > FREE_BYTES + LARGEST_EXPANSION * self._raw.num_bytes:
            raise InputError(
                f"{self.name} expands to more than {LARGEST_EXPANSION} times its size, as no trace does: it is refused."
            )
        return chunk

    def _pull_unguarded(self) -> bytes:
        return next((chunk for chunk in self._chunks if chunk), b"")


def _read_plain(raw: Stored) -> Iterator[bytes]:
    while chunk := raw.read(_PLAIN_BYTES):
        yield chunk


def _read_gzip(raw: Stored) -> Iterator[bytes]:
    """Every gzip member of the file; what follows the last one is padding."""
    data = raw.read(_INPUT_BYTES)
    while data.startswith(_GZIP):
        member = IgzipDecompressor(flag=DECOMP_GZIP)
        while not member.eof:
            if member.needs_input and not data and not (data := raw.read(_INPUT_BYTES)):
                raise EOFError("it ends too early")
            yield member.decompress(data, _OUTPUT_BYTES)
            data = b""
        data = member.unused_data + (raw.read(_INPUT_BYTES) if len(member.unused_data) < len(_GZIP) else b"")


def _read_zstd(raw: Stored) -> Iterator[bytes]:
    """Every zstd frame of the file. A frame that is cut off ends silently, so its stated size is compared."""
    stated = zstandard.get_frame_parameters(raw.peek(18)).content_size
    source = cast("IO[bytes]", raw)
    reader = zstandard.ZstdDecompressor().stream_reader(source, read_size=_INPUT_BYTES, read_across_frames=True)
    num_bytes = 0
    while chunk := reader.read(_OUTPUT_BYTES):
        num_bytes += len(chunk)
        yield chunk
    if stated != zstandard.CONTENTSIZE_UNKNOWN and num_bytes < stated:
        raise EOFError("it ends too early")
