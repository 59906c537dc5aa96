"""Small trace files on disk, in every packing, whose rank, process and times are chosen."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import zstandard

from tests.trace_builders import RankTrace

PACKINGS = {
    ".json": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def make_trace(
    rank: int = 0, *, world_size: int = 2, process: int | None = None, start: int = 10, step: int | None = 3
) -> bytes:
    """One rank's trace: an operator of 10 µs inside a step of 20 µs; process 4000 + rank unless told otherwise."""
    trace = RankTrace(rank, world_size)
    pid = 4000 + rank if process is None else process
    if step is not None:
        trace.add("user_annotation", f"ProfilerStep#{step}", start, start + 20, pid=pid)
    trace.add("cpu_op", "aten::mm", start + 5, start + 15, pid=pid)
    return trace.to_json()


def make_rankless_trace(process: int = 4000) -> bytes:
    """A trace in the oldest format, which tells no rank."""
    return b'[{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": %d, "tid": 1, "ts": 1, "dur": 2}]' % process


def write_file(path: Path, text: bytes) -> Path:
    """Writes the text, compressed as the name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(PACKINGS[path.suffix](text))
    return path


def write_ranks(folder: Path, num_ranks: int = 2, *, process: int = 4000, name: str = "rank{}.json") -> Path:
    """The traces of one run: rank r is process `process` + r."""
    for rank in range(num_ranks):
        text = make_trace(rank, world_size=num_ranks, process=process + rank)
        write_file(folder / name.format(rank), text)
    return folder


def pack_zip(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return packed.getvalue()


def pack_tar(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
    return packed.getvalue()
