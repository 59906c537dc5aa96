"""A run's ranks, read here or by workers elsewhere, and everything said that a person should know about the files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar, cast

from advisor.errors import InputError
from advisor.readers.archives import OpenArchives
from advisor.readers.batches import open_archives, order_ranks, split_ranks
from advisor.readers.chrome import read_chrome_trace
from advisor.readers.run_files import RankFiles, RunFiles, find_run, note_failures
from advisor.readers.sources import Source
from advisor.readers.windows import join_windows
from advisor.schema import QualityNote
from advisor.tables import Run, Trace

T = TypeVar("T")
Progress = Callable[[int, int, str], None]
MOST_RANKS_SHOWN = 8


@dataclass(frozen=True)
class RankReading(Generic[T]):
    """One rank that was read, and what was made of its trace."""

    rank: int
    file: str
    world_size: int | None
    notes: tuple[QualityNote, ...]
    made: T


def read_run(paths: Sequence[str | Path], on_progress: Progress | None = None, ranks: Sequence[int] = ()) -> Run:
    """Reads the traces below `paths` as one run; a rank that cannot be read is named in a note, if there are others.

    Args:
        paths: Run folders, folders of traces, trace files, patterns, archives, URLs, or `-` for standard input.
        on_progress: Called with (ranks read, ranks in all, file name).
        ranks: The ranks of the files that tell none, in the order of their names.

    Raises:
        InputError: Something is missing, no trace can be read, or the files are not of one run.
        UsageError: `ranks` does not fit the files that tell none.
    """
    run = find_run(paths, ranks)
    traces, notes = read_ranks(run, _keep, on_progress=on_progress)
    return Run(run.source, tuple(traces), run.manifest, notes)


def read_ranks(
    run: RunFiles,
    make: Callable[[Trace], T],
    *,
    executor: Executor | None = None,
    on_progress: Progress | None = None,
) -> tuple[list[T], tuple[QualityNote, ...]]:
    """Reads every rank and keeps what `make` makes of its trace, so that the traces need not fit into memory together.

    Args:
        run: The files.
        make: Called with each trace, by a worker where there are any: it and what it returns must be picklable.
        executor: Its workers read the ranks; None reads them here, one after the other. What a worker cannot open
            (a pipe, a disk that it does not see) is read here.
        on_progress: Called with (ranks read, ranks in all, file name).

    Returns:
        What was made, by rank, and the notes on the run; one that cannot be read is named there, if there are others.

    Raises:
        InputError: No trace can be read, or two files are of the same rank.
    """
    readings: dict[int, RankReading[T]] = {}
    failures: list[InputError] = []
    num_handed_back = 0
    batches = split_ranks(run.ranks) if executor else [order_ranks(run.ranks)]
    ordered = tuple(chain.from_iterable(batches))
    with open_archives(ordered) as archives:
        attempts: Iterator[RankReading[T] | InputError] = (
            chain.from_iterable(executor.map(partial(_attempt_all, make), batches))
            if executor
            else (_attempt(make, files, archives) for files in ordered)
        )
        for number, files in enumerate(ordered):
            if on_progress:
                on_progress(number, len(run.ranks), files.sources[0].name.rpartition("/")[2])
            reading = next(attempts)
            if executor and isinstance(reading, InputError):
                reading = _attempt(make, files, archives)
                num_handed_back += isinstance(reading, RankReading)
            if isinstance(reading, InputError):
                failures.append(reading)
                continue
            if reading.rank in readings:
                raise InputError(
                    f"{reading.file} and {readings[reading.rank].file} are both rank {reading.rank}: give the traces "
                    "of one run, one file a rank."
                )
            readings[reading.rank] = reading
    if not readings:
        raise failures[0] if failures else _explain_stray(run.strays[0])
    if on_progress:
        on_progress(len(run.ranks), len(run.ranks), "read")
    notes = (
        *run.notes,
        *(note for rank in sorted(readings) for note in readings[rank].notes),
        *_note_handed_back(num_handed_back, len(run.ranks)),
        *note_failures([str(error) for error in failures]),
        *note_missing_ranks(readings, max(reading.world_size or 0 for reading in readings.values())),
    )
    return [readings[rank].made for rank in sorted(readings)], notes


def _attempt_all(make: Callable[[Trace], T], batch: Sequence[RankFiles]) -> list[RankReading[T] | InputError]:
    """What a worker does."""
    with open_archives(batch) as archives:
        return [_attempt(make, files, archives) for files in batch]


def _attempt(make: Callable[[Trace], T], files: RankFiles, archives: OpenArchives) -> RankReading[T] | InputError:
    """Reads one rank; a failure is a result, since it must not stop the others."""
    try:
        trace, notes = read_rank(files, archives)
    except InputError as error:
        return error
    return RankReading(trace.rank, trace.file, trace.world_size, notes, make(trace))


def _keep(trace: Trace) -> Trace:
    return trace


def _note_handed_back(num_ranks: int, num_all: int) -> list[QualityNote]:
    if num_ranks == 0:
        return []
    message = f"Workers could not open the files of {num_ranks} of {num_all} ranks, so these were read without them."
    return [QualityNote(message=message)]


def read_rank(files: RankFiles, archives: OpenArchives) -> tuple[Trace, tuple[QualityNote, ...]]:
    """Reads the trace of one rank, its windows joined, and says what is missing or damaged in it.

    Args:
        files: The rank's files.
        archives: What they are opened with.

    Raises:
        InputError: A file cannot be read, or the files are not windows of one recording.
    """
    read = [_read_source(source, archives) for source in files.sources]
    traces = [trace for trace, _ in read]
    notes = tuple(note for _, notes in read for note in notes)
    return (join_windows(traces) if len(traces) > 1 else traces[0]), notes


def note_missing_ranks(ranks: Collection[int], world_size: int) -> list[QualityNote]:
    """Which ranks of the run are missing, and what that costs."""
    missing = sorted(set(range(world_size)) - set(ranks))
    if not missing:
        return []
    shown = ", ".join(map(str, missing[:MOST_RANKS_SHOWN])) + (", …" if len(missing) > MOST_RANKS_SHOWN else "")
    return [
        QualityNote(
            message=f"{len(missing)} of {world_size} ranks are missing ({shown}): waiting for peers cannot be told "
            "from transfer, and communication times are upper limits."
        )
    ]


def _read_source(source: Source, archives: OpenArchives) -> tuple[Trace, tuple[QualityNote, ...]]:
    with source.open(archives) as stream:
        try:
            trace = read_chrome_trace(cast("BinaryIO", stream), source.name, source.rank)
        except InputError as error:
            if stream.damage is None:
                raise
            raise InputError(f"{source.name} is damaged ({stream.damage}): copy it again.") from error
        trace = replace(trace, recording=replace(trace.recording, packing=stream.packing))
        if stream.damage is None:
            return trace, trace.notes
    message = f"{source.name} is damaged ({stream.damage}): only what comes before is used."
    return trace, (QualityNote(message=message, file=source.name), *trace.notes)


def _explain_stray(stray: Source) -> InputError:
    """Why a file that does not look like a trace is none."""
    try:
        with closing(OpenArchives([stray.location])) as archives:
            _read_source(stray, archives)
    except InputError as error:
        return error
    return InputError(f"{stray.name} is no trace of torch.profiler: give one that export_chrome_trace wrote.")
