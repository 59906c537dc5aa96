"""What a person gives `analyze` to the files that may be traces: folders walked, patterns matched, URLs listed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from advisor.errors import InputError
from advisor.readers.display import is_url, show_name
from advisor.readers.failures import telling
from advisor.readers.folders import match_paths, walk_folder
from advisor.readers.locations import STANDARD_INPUT, LocalFile, Location, read_standard_input

MANIFEST = "manifest.json"
PROBE = "probe.json"
NOT_TRACES = frozenset({"report.json"})
"""What else a run folder holds."""

_TRACE = re.compile(r"\.json(\.gz|\.zst|\.zstd)?$", re.IGNORECASE)
_ARCHIVE = re.compile(r"\.(zip|tar|tgz|tar\.gz|tar\.zst|tar\.zstd)$", re.IGNORECASE)
_PERFETTO = re.compile(r"\.(pftrace|perfetto-trace)(\.gz)?$", re.IGNORECASE)
_INSIDE = re.compile(r"^(?P<archive>.+?\.(?:zip|tar|tgz|tar\.gz|tar\.zst|tar\.zstd))/(?P<inside>.+)$", re.IGNORECASE)
_LOCAL_URL = re.compile(r"^(?:file|local)://", re.IGNORECASE)

OnFailure = Callable[[str], None]


@dataclass(frozen=True)
class Candidate:
    """A file that may be a trace, an archive of traces, a manifest or a probe."""

    location: Location
    is_named: bool
    """A person named this very file, so that its own name need not look like a trace's."""
    inside: str = ""
    """Only what lies below this folder of the archive, or matches this pattern."""


def resolve_path(text: str, on_failure: OnFailure) -> Iterator[Candidate]:
    """The files that a path stands for.

    Args:
        text: A file, folder, pattern, archive, path inside an archive or URL, or `-`.
        on_failure: Told in one sentence about each folder on the way that cannot be read.

    Raises:
        InputError: There is no such thing, or it cannot be read.
    """
    if not text:
        raise InputError("A path is empty: give a run folder, a folder of traces or a trace file.")
    inside = _INSIDE.match(text)
    if text == STANDARD_INPUT:
        yield Candidate(read_standard_input(), is_named=True)
    elif _LOCAL_URL.match(text):
        yield from resolve_path(_LOCAL_URL.sub("", text), on_failure)
    elif is_url(text):
        yield from _resolve_remote(inside["archive"] if inside else text, inside["inside"] if inside else "")
    elif inside and Path(inside["archive"]).is_file():
        yield Candidate(LocalFile(Path(inside["archive"])), is_named=True, inside=inside["inside"])
    else:
        yield from _resolve_local(Path(text), on_failure)


def is_wanted(name: str) -> bool:
    """Whether a file of this name is looked into although nobody named it."""
    return name not in NOT_TRACES and bool(_TRACE.search(name) or is_archive_name(name) or is_perfetto_name(name))


def is_archive_name(name: str) -> bool:
    """Whether the name is that of an archive."""
    return bool(_ARCHIVE.search(name))


def is_perfetto_name(name: str) -> bool:
    """Whether the name is that of a trace in Perfetto's own format, as torch writes it on request."""
    return bool(_PERFETTO.search(name))


def base_name(name: str) -> str:
    """The part after the last folder."""
    return name.rpartition("/")[2]


def _resolve_remote(url: str, inside: str) -> Iterator[Candidate]:
    from advisor.readers.remote import find_remote

    for location, is_named in find_remote(url):
        if is_named or is_wanted(base_name(location.name)):
            yield Candidate(location, is_named, inside)


def _resolve_local(path: Path, on_failure: OnFailure) -> Iterator[Candidate]:
    name = show_name(path.as_posix())
    with telling(name):
        exists, is_folder, is_link = path.exists(), path.is_dir(), path.is_symlink()
    matches = [path] if exists else match_paths(str(path))
    if not matches:
        what = "is a link that leads nowhere" if is_link else "does not exist"
        raise InputError(f"{name} {what}: give a run folder, a folder of traces or a trace file.")
    for match in matches:
        if is_folder or match.is_dir():
            files = walk_folder(match, is_wanted, on_failure)
            yield from (Candidate(LocalFile(file), is_named=False) for file in files)
        elif exists or is_wanted(match.name):
            yield Candidate(LocalFile(match), is_named=exists)
            beside = (match.with_name(MANIFEST), match.with_name(PROBE))
            yield from (Candidate(LocalFile(file), is_named=False) for file in beside if file.is_file())
