"""Paths in, `Run` out: every rank read, and everything said that a person should know about the files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from advisor.errors import InputError
from advisor.readers.chrome import read_chrome_trace
from advisor.readers.run_files import RankFiles, find_run, note_failures
from advisor.readers.sources import Source
from advisor.readers.windows import join_windows
from advisor.schema import QualityNote
from advisor.tables import Run, Trace

Progress = Callable[[int, int, str], None]
MOST_RANKS_SHOWN = 8


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
    traces: dict[int, Trace] = {}
    notes = list(run.notes)
    failures: list[InputError] = []
    for number, files in enumerate(run.ranks):
        if on_progress:
            on_progress(number, len(run.ranks), files.sources[0].name.rpartition("/")[2])
        try:
            trace, about = read_rank(files)
        except InputError as error:
            failures.append(error)
            continue
        if trace.rank in traces:
            raise InputError(
                f"{trace.file} and {traces[trace.rank].file} are both rank {trace.rank}: give the traces of one run, "
                "one file a rank."
            )
        traces[trace.rank] = trace
        notes += about
    if not traces:
        raise failures[0] if failures else _explain_stray(run.strays[0])
    if on_progress:
        on_progress(len(run.ranks), len(run.ranks), "read")
    return Run(
        source=run.source,
        traces=tuple(traces[rank] for rank in sorted(traces)),
        manifest=run.manifest,
        notes=(
            *notes,
            *note_failures([str(error) for error in failures]),
            *note_missing_ranks(traces, max(trace.world_size or 0 for trace in traces.values())),
        ),
    )


def read_rank(files: RankFiles) -> tuple[Trace, tuple[QualityNote, ...]]:
    """Reads the trace of one rank, its windows joined, and says what is missing or damaged in it.

    Raises:
        InputError: A file cannot be read, or the files are not windows of one recording.
    """
    read = [_read_source(source) for source in files.sources]
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


def _read_source(source: Source) -> tuple[Trace, tuple[QualityNote, ...]]:
    with source.open() as stream:
        try:
            trace = read_chrome_trace(cast("BinaryIO", stream), source.name, source.rank)
        except InputError as error:
            if stream.damage is None:
                raise
            raise InputError(f"{source.name} is damaged ({stream.damage}): copy it again.") from error
        if stream.damage is None:
            return trace, trace.notes
    message = f"{source.name} is damaged ({stream.damage}): only what comes before is used."
    return trace, (QualityNote(message=message, file=source.name), *trace.notes)


def _explain_stray(stray: Source) -> InputError:
    """Why a file that does not look like a trace is none."""
    try:
        _read_source(stray)
    except InputError as error:
        return error
    return InputError(f"{stray.name} is no trace of torch.profiler: give one that export_chrome_trace wrote.")
