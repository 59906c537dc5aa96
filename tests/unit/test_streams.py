"""Stored bytes in, text out: every compression, every way in which it can be damaged, and no bomb."""

from __future__ import annotations

import gzip
import io

import pytest
import zstandard

from advisor.errors import InputError
from advisor.readers import streams
from advisor.readers.streams import TraceStream

TEXT = b"".join(b'{"name": "aten::mm", "ts": %d}\n' % number for number in range(20_000))
GZIP = gzip.compress(TEXT, 1)
ZSTD = zstandard.ZstdCompressor().compress(TEXT)
UNSIZED_ZSTD = zstandard.ZstdCompressor(write_content_size=False).compress(TEXT)


def open_bytes(stored: bytes) -> TraceStream:
    return TraceStream(io.BytesIO(stored), "rank0.json")


@pytest.mark.parametrize(
    "stored", [TEXT, GZIP, ZSTD, UNSIZED_ZSTD, GZIP + bytes(512)], ids=["plain", "gzip", "zstd", "unsized", "padded"]
)
def test_the_first_bytes_say_how_it_is_packed(stored: bytes) -> None:
    with open_bytes(stored) as stream:
        assert stream.peek(20) == TEXT[:20]
        assert stream.read(5) == TEXT[:5]
        assert stream.read() == TEXT[5:]
        assert stream.read() == b""
        assert stream.damage is None


@pytest.mark.parametrize("stored", [GZIP + GZIP, ZSTD + ZSTD], ids=["gzip", "zstd"])
def test_members_follow_each_other(stored: bytes) -> None:
    assert open_bytes(stored).read() == TEXT + TEXT


def test_reads_are_whole_until_the_end() -> None:
    stream = open_bytes(GZIP)
    parts = list(iter(lambda: stream.read(100_000), b""))
    assert {len(part) for part in parts[:-1]} == {100_000}
    assert b"".join(parts) == TEXT


@pytest.mark.parametrize(
    ("stored", "damage"),
    [
        (GZIP[: len(GZIP) // 2], "it ends too early"),
        (GZIP[:-4], "it ends too early"),
        (GZIP[:-8] + bytes(8), "Error -6 Incorrect checksum found"),
        (GZIP[:2], "it ends too early"),
        (ZSTD[: len(ZSTD) // 2], "it ends too early"),
    ],
    ids=["half", "no size", "checksum", "header", "zstd"],
)
def test_a_damaged_file_ends_where_the_damage_is_and_says_so(stored: bytes, damage: str) -> None:
    stream = open_bytes(stored)
    text = stream.read()
    assert TEXT.startswith(text)
    assert stream.damage == damage
    assert stream.read() == b""


def test_what_comes_before_the_damage_is_kept() -> None:
    stored = GZIP[: len(GZIP) // 2]
    assert len(open_bytes(stored).read()) > len(TEXT) // 3


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        (b"PK\x03\x04", "is a zip archive inside another file"),
        (b"BZh91AY", "is compressed with bzip2, which is not read"),
        (b"\xfd7zXZ\x00", "is compressed with xz, which is not read"),
        (b"\x80\x04\x95", "is a Python pickle, which is never opened"),
    ],
)
def test_what_is_not_read_is_refused_before_it_is_opened(start: bytes, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        open_bytes(start + bytes(100))


@pytest.mark.parametrize(
    "bomb",
    [gzip.compress(bytes(2**20)), zstandard.ZstdCompressor().compress(bytes(2**20))],
    ids=["gzip", "zstd"],
)
def test_a_bomb_is_refused_while_it_expands(bomb: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "FREE_BYTES", 2**16)
    stream = open_bytes(bomb)
    with pytest.raises(InputError, match="expands to more than 250 times its size, as no trace does: it is refused"):
        stream.read()


def test_no_trace_may_be_larger_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LARGEST_TEXT_BYTES", len(TEXT) - 1)
    with pytest.raises(InputError, match="holds more than 0 GiB of text: record fewer steps"):
        open_bytes(TEXT).read()


def test_a_failing_disk_is_one_sentence() -> None:
    class Disk(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() > 0:
                raise OSError(5, "Input/output error")
            return super().read(size)

    with pytest.raises(InputError, match=r"rank0\.json cannot be read \(Input/output error\): check"):
        TraceStream(Disk(TEXT), "rank0.json").read()


def test_the_file_below_is_closed() -> None:
    below = io.BytesIO(GZIP)
    with TraceStream(below, "rank0.json") as stream:
        stream.read(10)
    assert below.closed
    refused = io.BytesIO(b"BZh9")
    with pytest.raises(InputError):
        TraceStream(refused, "rank0.json")
    assert refused.closed
