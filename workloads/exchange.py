"""The folder through which the launcher and its ranks talk while a task runs: a request in, progress and failures out.

request.json         what to do, written by the launcher
progress.jsonl       one line a report, written by rank 0
rank<r>.pid          who to end when torchrun itself had to be killed
rank<r>.failure      why a rank ended early
stdout, stderr       of all processes together
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from advisor.schema import Struct

REQUEST = "request.json"
PROGRESS = "progress.jsonl"
STDOUT = "stdout"
STDERR = "stderr"


class Progress(Struct, frozen=True, kw_only=True):
    """How far rank 0 is: `done` of `total` units, and one line for a person."""

    done: int
    total: int
    text: str


class Failure(Struct, frozen=True, kw_only=True):
    """Why a rank ended early; `kind` is the exception's class, `trace` the end of its traceback."""

    rank: int
    time_ns: int
    kind: str
    message: str
    trace: str


class Reporter:
    """Rank 0's way to say how far it is; silent on every other rank."""

    def __init__(self, exchange: Path, rank: int) -> None:
        self._file = exchange / PROGRESS if rank == 0 else None

    def report(self, done: int, total: int, text: str) -> None:
        """Tells the launcher."""
        if self._file:
            with self._file.open("ab") as file:
                file.write(msgspec.json.encode(Progress(done=done, total=total, text=text)) + b"\n")


class ProgressReader:
    """The launcher's side of it: each call returns what came since the last one."""

    def __init__(self, exchange: Path) -> None:
        self._file = exchange / PROGRESS
        self._offset = 0

    def read(self) -> list[Progress]:
        """The new reports; a line that is still being written waits for the next call."""
        if not self._file.is_file():
            return []
        with self._file.open("rb") as file:
            file.seek(self._offset)
            whole, _, _ = file.read().rpartition(b"\n")
        self._offset += len(whole) + 1 if whole else 0
        return [msgspec.json.decode(line, type=Progress) for line in whole.splitlines()]


def leave_pid(exchange: Path, rank: int, pid: int) -> None:
    """Says which process a rank is."""
    (exchange / f"rank{rank}.pid").write_text(str(pid))


def read_pids(exchange: Path) -> list[int]:
    """The ranks' processes."""
    return [int(text) for file in exchange.glob("rank*.pid") if (text := file.read_text())]


def leave_failure(exchange: Path, failure: Failure) -> None:
    """Says why a rank ends early."""
    (exchange / f"rank{failure.rank}.failure").write_bytes(msgspec.json.encode(failure))


def read_first_failure(exchange: Path) -> Failure | None:
    """The failure that came first: the others are mostly peers that lost their connection."""
    files = exchange.glob("rank*.failure")
    failures = [msgspec.json.decode(file.read_bytes(), type=Failure) for file in files]
    return min(failures, key=lambda failure: failure.time_ns, default=None)
