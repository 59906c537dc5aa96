"""The files of one run by rank, found and told apart before any of them is read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from advisor.errors import InputError, UsageError
from advisor.readers.display import list_names, show_path
from advisor.readers.locations import Location
from advisor.readers.manifest import read_manifest
from advisor.readers.probe import read_probe
from advisor.readers.separation import describe_runs, find_innermost, name_run, order_windows, separate_runs
from advisor.readers.sources import Found, Source, find_sources, search_sources
from advisor.schema import Ladder, QualityNote, RunManifest

MOST_FAILURES_SHOWN = 4
FAR_APART_NS = 600 * 10**9
"""Ranks of one run record the same steps; clocks of different hosts differ by less."""


@dataclass(frozen=True)
class RankFiles:
    """The files of one rank, in the order in which they were recorded."""

    rank: int
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class RunFiles:
    """What is known of a run before its traces are read: small, and each rank can be read in another process."""

    source: str
    ranks: tuple[RankFiles, ...]
    """By rank. Empty only where nothing looks like a trace: then `strays` say why."""
    strays: tuple[Source, ...]
    manifest: RunManifest | None
    probe: Ladder | None
    notes: tuple[QualityNote, ...]
    num_unranked: int = 0
    """Files that tell no rank and were given one for the time being."""


@dataclass(frozen=True)
class FoundRuns:
    """Every run below some paths."""

    source: str
    runs: tuple[RunFiles, ...]
    strays: tuple[Source, ...]
    failures: tuple[str, ...]
    """A sentence for each thing that cannot be read, or is left out."""


def find_runs(paths: Sequence[str | Path], ranks: Sequence[int] = ()) -> FoundRuns:
    """`find_run` for several runs or none; files that tell no rank get the free ones, folder by folder.

    Raises:
        InputError: A path does not exist or cannot be read.
        UsageError: `ranks` does not fit the files that tell none.
    """
    found = search_sources(paths)
    is_settled = bool(ranks) or len(found.sources) == 1
    ranked, assumed = _settle_ranks(found.sources, ranks) if is_settled else (_suppose_ranks(found.sources), [])
    unranked = {each.name for each in found.sources if each.rank is None and not is_settled}
    unique, repeated = _leave_out_repeats(ranked)
    groups = separate_runs(unique, found.manifests)
    source = list_names([show_path(path) for path in paths])
    runs, failures = [], [*found.failures, *(note.message for note in repeated)]
    for group in groups:
        place = _find_beside(group, found.manifests)
        manifest = None
        try:
            manifest = read_manifest(place) if place else None
        except InputError as error:
            failures.append(str(error))
        by_rank = _group_by_rank(group)
        run = RunFiles(
            source=source if len(groups) == 1 else name_run(group, unique) or group[0].name,
            ranks=tuple(by_rank),
            strays=(),
            manifest=manifest,
            probe=None,
            notes=(*assumed, *_note_windows(by_rank), *_note_distance(group)),
            num_unranked=sum(each.name in unranked for each in group),
        )
        runs.append(run)
    return FoundRuns(source, tuple(runs), tuple(found.strays), tuple(failures))


def find_run(paths: Sequence[str | Path], ranks: Sequence[int] = ()) -> RunFiles:
    """Finds the files of one run, by rank.

    Args:
        paths: Run folders, folders of traces, trace files, patterns, archives, URLs, or `-` for standard input.
        ranks: The ranks of the files that tell none, in the order of their names.

    Raises:
        InputError: Something is missing or cannot be read, there are several runs, or files tell no rank.
        UsageError: `ranks` does not fit the files that tell none.
    """
    found = find_sources(paths)
    notes = note_failures(found.failures)
    source = list_names([show_path(path) for path in paths])
    _require_one_run([each for each in found.sources if each.rank is not None], found, source)
    ranked, assumed = _settle_ranks(found.sources, ranks)
    unique, repeated = _leave_out_repeats(ranked)
    _require_one_run(unique, found, source)
    by_rank = _group_by_rank(unique)
    if unique:
        notes += [*assumed, *_note_strays(found.strays), *repeated, *_note_windows(by_rank), *_note_distance(unique)]
    return RunFiles(
        source=source,
        ranks=tuple(by_rank),
        strays=tuple(found.strays),
        manifest=read_manifest(manifest) if (manifest := _find_beside(unique, found.manifests)) else None,
        probe=read_probe(probe) if (probe := _find_beside(unique, found.probes)) else None,
        notes=tuple(notes),
    )


def note_failures(sentences: Sequence[str]) -> list[QualityNote]:
    """What could not be read, as notes on the rest."""
    told = [f"Left out: {sentence}" for sentence in sentences[:MOST_FAILURES_SHOWN]]
    more = len(sentences) - len(told)
    told += [f"{more} more files could not be read."] if more else []
    return [QualityNote(message=message, left_out=True) for message in told]


def _require_one_run(sources: Sequence[Source], found: Found, name: str) -> None:
    runs = separate_runs(_leave_out_repeats(sources)[0], found.manifests)
    if len(runs) > 1:
        raise InputError(f"{name} holds {len(runs)} runs: {describe_runs(runs)}.")


def _settle_ranks(sources: Sequence[Source], ranks: Sequence[int]) -> tuple[list[Source], list[QualityNote]]:
    """Gives a rank to the files that tell none: the one asked for, or 0 where there is only one file at all."""
    unknown = sorted((source for source in sources if source.rank is None), key=lambda source: source.name)
    notes = []
    if ranks and (len(ranks) != len(unknown) or min(ranks) < 0):
        names = f" ({_list_sources(unknown)})" if unknown else ""
        raise UsageError(
            f"--ranks has {len(ranks)} ranks but {len(unknown)} files tell none{names}: give one rank a file, in the "
            "order of their names."
        )
    if not ranks and len(unknown) == len(sources) == 1:
        ranks = (0,)
        notes = [QualityNote(message=f"{unknown[0].name} tells no rank and is taken for rank 0.")]
    if len(ranks) < len(unknown):
        raise InputError(
            f"{_list_sources(unknown)} {'tells' if len(unknown) == 1 else 'tell'} no rank, neither inside nor by name: "
            "rename to rank<number>.json, leave out what is no rank's trace, or give --ranks in the order of the names."
        )
    told = dict(zip((source.name for source in unknown), ranks, strict=True))
    return [replace(source, rank=told.get(source.name, source.rank)) for source in sources], notes


def _suppose_ranks(sources: Sequence[Source]) -> list[Source]:
    """Gives the files that tell no rank those that are free in their folder, in the order of their names."""
    taken: dict[str, set[int | None]] = defaultdict(set)
    for source in sources:
        taken[source.folder].add(source.rank)
    ranked = []
    for source in sorted(sources, key=lambda source: source.name):
        rank = source.rank
        if rank is None:
            rank = next(number for number in count() if number not in taken[source.folder])
            taken[source.folder].add(rank)
        ranked.append(replace(source, rank=rank))
    return ranked


def _leave_out_repeats(sources: Sequence[Source]) -> tuple[list[Source], list[QualityNote]]:
    """Leaves out a file that is another one again, such as `rank0.json` beside `rank0.json.gz`."""
    first: dict[tuple[int | None, str], Source] = {}
    notes = []
    for source in sources:
        kept = first.setdefault((source.rank, source.head.digest), source)
        if kept is not source:
            notes.append(QualityNote(message=f"{source.name} repeats {kept.name} and is left out."))
    return list(first.values()), notes


def _group_by_rank(sources: Sequence[Source]) -> list[RankFiles]:
    groups: dict[int, list[Source]] = defaultdict(list)
    for source in sources:
        assert source.rank is not None, "settled"
        groups[source.rank].append(source)
    return [RankFiles(rank, tuple(order_windows(groups[rank]))) for rank in sorted(groups)]


def _find_beside(sources: Sequence[Source], files: Mapping[str, Location]) -> Location | None:
    """The file that tells about all of the traces, by its folder."""
    folders = {find_innermost(source.folder, files) for source in sources}
    folder = folders.pop() if len(folders) == 1 else None
    return None if folder is None else files[folder]


def _note_strays(strays: Sequence[Source]) -> list[QualityNote]:
    verb = "is no trace and is" if len(strays) == 1 else "are no traces and are"
    return [QualityNote(message=f"{_list_sources(strays)} {verb} left out.")] if strays else []


def _note_windows(by_rank: Sequence[RankFiles]) -> list[QualityNote]:
    most = max(len(files.sources) for files in by_rank)
    if most == 1:
        return []
    counts = f"up to {most}" if any(len(files.sources) < most for files in by_rank) else str(most)
    return [
        QualityNote(
            message=f"Each rank has {counts} files, recorded one after the other: they are read as one recording."
        )
    ]


def _note_distance(sources: Sequence[Source]) -> list[QualityNote]:
    starts: dict[int | None, int] = {}
    for source in sources:
        if source.head.first_ns is not None:
            starts[source.rank] = min(source.head.first_ns, starts.get(source.rank, source.head.first_ns))
    first, last = min(starts, key=starts.__getitem__, default=None), max(starts, key=starts.__getitem__, default=None)
    apart_ns = starts[last] - starts[first] if first is not None and last is not None else 0
    if apart_ns <= FAR_APART_NS:
        return []
    return [
        QualityNote(
            message=f"Ranks {first} and {last} were recorded {apart_ns / 60e9:.0f} minutes apart: if they are of "
            "different runs, nothing that compares ranks holds."
        )
    ]


def _list_sources(sources: Sequence[Source]) -> str:
    return list_names([source.name for source in sources])
