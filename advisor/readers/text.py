"""The text of a trace as UTF-8, block by block, whatever encoding it was written in."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from typing import BinaryIO

BLOCK_BYTES = 2**18
"""Events of so much text fit the processor's cache once they are objects; more at a time is slower."""

_ENCODINGS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # begins like the one of UTF-16
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
    (b"{\0", "utf-16-le"),
    (b"[\0", "utf-16-le"),
    (b"\0{", "utf-16-be"),
    (b"\0[", "utf-16-be"),
)
"""By the first bytes of a file; PowerShell writes UTF-16 where it redirects output into a file."""


def read_text(data: bytes | BinaryIO) -> Iterator[bytes]:
    """Reads blocks of about `BLOCK_BYTES` as UTF-8 without a byte-order mark; what cannot be decoded is replaced."""
    stream = io.BytesIO(data) if isinstance(data, bytes) else data
    blocks = iter(lambda: stream.read(BLOCK_BYTES), b"")
    first = next(blocks, b"")
    encoding = next((name for start, name in _ENCODINGS if first.startswith(start)), None)
    if encoding is None:
        yield first
        yield from blocks
        return
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    yield decoder.decode(first).encode(errors="replace")
    for block in blocks:
        yield decoder.decode(block).encode(errors="replace")
    yield decoder.decode(b"", final=True).encode(errors="replace")
