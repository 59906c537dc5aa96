"""Paths to the bytes of traces: run folders, folders of traces, single files, plain or gzip-compressed."""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from isal import igzip
from isal.igzip_lib import IsalError

from advisor.errors import InputError

TRACE_SUFFIXES = (".json", ".json.gz")
MANIFEST = "manifest.json"
NOT_TRACES = frozenset({MANIFEST, "report.json", "probe.json"})

DAMAGED_GZIP = (EOFError, gzip.BadGzipFile, cast("type[Exception]", IsalError))
"""What isal raises on a damaged file; its stub declares the last one as an instance."""

_RANK = re.compile(r"rank[-_]?(\d+)", re.IGNORECASE)
_NUMBER = re.compile(r"(\d+)")


@dataclass(frozen=True)
class Source:
    """One trace file, and the rank its name suggests."""

    path: Path
    rank_hint: int | None

    def read(self) -> bytes:
        """The decompressed bytes.

        Raises:
            InputError: The file cannot be opened or decompressed.
        """
        try:
            data = self.path.read_bytes()
            return bytes(igzip.decompress(data)) if data[:2] == b"\x1f\x8b" else data
        except DAMAGED_GZIP as error:
            raise InputError(f"{self.path} is not a whole gzip file ({error}): copy it again.") from error
        except OSError as error:
            raise InputError(f"{self.path} cannot be read ({error.strerror}): check the file.") from error


def find_sources(paths: Sequence[str | Path]) -> list[Source]:
    """Finds the trace files below the given paths, in name order.

    Raises:
        InputError: A path does not exist, or none of them holds a trace.
    """
    files: list[Path] = []
    for given in paths:
        path = Path(given)
        if path.is_dir():
            files += sorted(p for p in path.iterdir() if p.name.endswith(TRACE_SUFFIXES) and p.name not in NOT_TRACES)
        elif path.exists():
            files.append(path)
        else:
            raise InputError(f"{path} does not exist: give a run folder, a folder of traces or a trace file.")
    if not files:
        names = ", ".join(str(path) for path in paths)
        raise InputError(f"{names} holds no trace (*.json or *.json.gz): give the folder that torch.profiler wrote to.")
    return [Source(path=file, rank_hint=guess_rank(file.name)) for file in files]


def guess_rank(name: str) -> int | None:
    """The rank that a file name suggests: `rank3…`, else its only number, else nothing."""
    match = _RANK.search(name)
    if match:
        return int(match.group(1))
    numbers = _NUMBER.findall(name)
    return int(numbers[0]) if len(numbers) == 1 else None
