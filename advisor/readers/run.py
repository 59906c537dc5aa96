"""Paths in, `Run` out: every trace read, ranks told apart, the manifest beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from advisor.errors import InputError
from advisor.readers.chrome import read_chrome_trace
from advisor.readers.manifest import read_manifest
from advisor.readers.sources import Source, find_sources
from advisor.schema import QualityNote
from advisor.tables import Run, Trace

Progress = Callable[[int, int, str], None]


def read_run(paths: Sequence[str | Path], on_progress: Progress | None = None) -> Run:
    """Reads the traces below `paths` as one run.

    Args:
        paths: Run folders, folders of traces or trace files.
        on_progress: Called with (files read, files in all, file name).

    Raises:
        InputError: Something is missing, unreadable, no trace, or two files claim the same rank.
    """
    sources = find_sources(paths)
    traces: dict[int, Trace] = {}
    for number, source in enumerate(sources):
        if on_progress:
            on_progress(number, len(sources), source.path.name)
        trace = read_chrome_trace(source.read(), str(source.path), source.rank_hint)
        if trace.rank in traces:
            raise InputError(
                f"{trace.file} and {traces[trace.rank].file} are both rank {trace.rank}: give the traces of one run, "
                "one file a rank."
            )
        traces[trace.rank] = trace
    if on_progress:
        on_progress(len(sources), len(sources), "read")
    return Run(
        source=", ".join(str(path) for path in paths),
        traces=tuple(traces[rank] for rank in sorted(traces)),
        manifest=read_manifest(_folders(sources)),
        notes=tuple(_note_missing_ranks(traces)),
    )


def _folders(sources: Sequence[Source]) -> list[Path]:
    return list(dict.fromkeys(source.path.parent for source in sources))


def _note_missing_ranks(traces: dict[int, Trace]) -> list[QualityNote]:
    world_size = max((trace.world_size or 0 for trace in traces.values()), default=0)
    missing = sorted(set(range(world_size)) - set(traces))
    if not missing:
        return []
    shown = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
    return [
        QualityNote(
            message=f"{len(missing)} of {world_size} ranks are missing ({shown}): waiting for peers cannot be told "
            "from transfer, and communication times are upper limits."
        )
    ]
