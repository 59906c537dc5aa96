"""Paths to traces: files, folders, patterns, archives, standard input and URLs, each looked into just far enough."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from advisor.errors import InputError
from advisor.readers.archives import OpenArchives, is_tar, is_zip, walk_archive
from advisor.readers.display import list_names, show_path
from advisor.readers.failures import DAMAGE, telling
from advisor.readers.heads import HEAD_BYTES, Head, read_head
from advisor.readers.locations import LocalFile, Location
from advisor.readers.paths import (
    MANIFEST,
    PROBE,
    Candidate,
    base_name,
    is_archive_name,
    is_perfetto_name,
    is_wanted,
    resolve_path,
)
from advisor.readers.ranks import guess_rank
from advisor.readers.streams import Readable, Stored, TraceStream

_NUM_READERS = 8


@dataclass(frozen=True)
class Source:
    """One trace: where it lies, what it says at its start, and its rank as far as that or its name tells it."""

    location: Location
    head: Head
    rank: int | None

    @property
    def name(self) -> str:
        """As it is shown, with `/` between folders."""
        return self.location.name

    @property
    def folder(self) -> str:
        """Its name without the last part."""
        return self.name.rpartition("/")[0]

    def open(self, archives: OpenArchives) -> TraceStream:
        """The decompressed text.

        Raises:
            InputError: It cannot be opened, or is of a format that is not read.
        """
        with telling(self.name):
            raw = archives.open(self.location)
        return TraceStream(raw, self.name)


@dataclass
class Found:
    """What lies below some paths."""

    sources: list[Source] = field(default_factory=list)
    strays: list[Source] = field(default_factory=list)
    """JSON files that do not look like traces."""
    manifests: dict[str, Location] = field(default_factory=dict)
    """By folder."""
    probes: dict[str, Location] = field(default_factory=dict)
    """By folder."""
    failures: list[str] = field(default_factory=list)
    """A sentence for each thing that cannot be read."""


def find_sources(paths: Sequence[str | Path]) -> Found:
    """Finds the traces below the given paths and reads the start of each.

    Args:
        paths: Files, folders, patterns, archives, paths inside archives, URLs, or `-`.

    Raises:
        InputError: A path does not exist or cannot be read, or nothing below them looks like a trace.
    """
    found = search_sources(paths)
    if not found.sources and (found.failures or not found.strays):
        names = list_names([show_path(path) for path in paths])
        raise InputError(
            found.failures[0]
            if found.failures
            else f"{names} holds no trace (*.json, *.json.gz, *.json.zst, *.zip or *.tar.gz): give the folder that "
            "torch.profiler wrote to."
        )
    return found


def search_sources(paths: Sequence[str | Path]) -> Found:
    """`find_sources` where nothing need be found.

    Raises:
        InputError: A path does not exist or cannot be read.
    """
    found = Found()
    candidates: dict[object, Candidate] = {}
    for path in paths:
        for candidate in resolve_path(os.fspath(path), found.failures.append):
            candidates.setdefault(_identify(candidate.location), candidate)
    with ThreadPoolExecutor(_NUM_READERS) as readers:
        for part in readers.map(_inspect, candidates.values()):
            found.sources += part.sources
            found.strays += part.strays
            found.manifests |= part.manifests
            found.probes |= part.probes
            found.failures += part.failures
    return found


def _inspect(candidate: Candidate) -> Found:
    found = Found()
    if not candidate.is_named and _is_beside_traces(candidate.location, found):
        return found
    try:
        if not candidate.is_named and is_perfetto_name(candidate.location.name):
            found.failures.append(_refuse_perfetto(candidate.location.name))
        else:
            _look_into(candidate, found)
    except InputError as error:
        is_damage = isinstance(error.__cause__, DAMAGE)  # then what comes before it can be used
        found = found if is_damage else Found()
        found.failures.append(str(error))
    return found


def _is_beside_traces(location: Location, found: Found) -> bool:
    """Keeps what tells about the traces of its folder and is none itself."""
    folder, _, name = location.name.rpartition("/")
    kept = {MANIFEST: found.manifests, PROBE: found.probes}.get(name)
    if kept is not None:
        kept[folder] = location
    return kept is not None


def _look_into(candidate: Candidate, found: Found) -> None:
    location = candidate.location
    with telling(location.name):
        stored = Stored(location.open())
        if not is_zip(stored.peek(4)):
            with TraceStream(stored, location.name) as stream:
                head = stream.peek(HEAD_BYTES)
            if not is_tar(head):
                _sort_in(location, head, found)
                return
        stored.close()
    _look_into_archive(candidate, found)


def _look_into_archive(candidate: Candidate, found: Found) -> None:
    def lies_here(path: str) -> bool:
        hidden = any(part.startswith((".", "__MACOSX")) and part.strip(".") for part in path.split("/"))
        return not hidden and is_wanted(base_name(path)) and _lies_inside(path.removeprefix("./"), candidate.inside)

    for member, data in walk_archive(candidate.location, lies_here):
        if _is_beside_traces(member, found):
            continue
        if is_archive_name(member.path):
            found.failures.append(_refuse_nested(member.name))
        elif is_perfetto_name(member.path):
            found.failures.append(_refuse_perfetto(member.name))
        else:
            _look_into_member(member, data, found)


def _look_into_member(member: Location, data: Readable, found: Found) -> None:
    try:
        head = TraceStream(data, member.name).peek(HEAD_BYTES)
    except InputError as error:
        found.failures.append(str(error))
        return
    if is_tar(head):
        found.failures.append(_refuse_nested(member.name))
    else:
        _sort_in(member, head, found)


def _sort_in(location: Location, start: bytes, found: Found) -> None:
    head = read_head(start)
    folder, _, name = location.name.rpartition("/")
    rank = head.rank if head.rank is not None else guess_rank(name, folder)
    if not head.is_trace and is_perfetto_name(name):
        raise InputError(_refuse_perfetto(location.name))
    (found.sources if head.is_trace else found.strays).append(Source(location, head, rank))


def _lies_inside(path: str, inside: str) -> bool:
    inside = inside.rstrip("/")
    return not inside or path == inside or path.startswith(f"{inside}/") or fnmatch.fnmatch(path, inside)


def _identify(location: Location) -> object:
    """The same for a file reached twice."""
    return os.path.realpath(location.path) if isinstance(location, LocalFile) else location


def _refuse_nested(name: str) -> str:
    return f"{name} is an archive inside an archive, which is not opened: unpack the outer one first."


def _refuse_perfetto(name: str) -> str:
    return (
        f"{name} is a Perfetto trace, which is not read yet: export JSON with "
        'prof.export_chrome_trace("rank0.json.gz").'
    )
