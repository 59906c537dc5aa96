"""Anything fsspec has a file system for: `s3://`, `gs://`, `hf://`, `http://`, `memory://` and the rest."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import fsspec

from advisor.errors import InputError
from advisor.readers.display import WEB, show_url
from advisor.readers.failures import explain, telling
from advisor.readers.streams import Readable

BROUGHT_BY_EXTRA = frozenset({"s3", "s3a", "gs", "gcs", "hf", "http", "https"})
"""Protocols whose packages `ddp-advisor[remote]` installs."""

BLOCK_BYTES = 4 * 2**20
MOST_FILES = 20_000
DEEPEST_FOLDER = 6
"""Levels of folders below a URL: pages of a web server can link for ever."""

for _logger in ("fsspec", "gcsfs", "s3fs"):  # these log the failures that we tell, with tracebacks
    logging.getLogger(_logger).addHandler(logging.NullHandler())

_MAGIC = re.compile(r"[*[]")


@dataclass(frozen=True)
class RemoteFile:
    """A file that fsspec opens."""

    url: str

    @property
    def name(self) -> str:
        """The URL, printable and without what may be secret: user, password and query."""
        return show_url(self.url)

    def open(self) -> Readable:
        """Opens it for reading from the start."""
        files, path = connect(self.url)
        with _telling(self.url):
            return self._open(files, path)

    def _open(self, files: Any, path: str) -> Readable:
        if WEB.match(self.url):
            # Not every web server sends parts of a file. A size, of any value, spares asking for it: whatever fails
            # there is told as "not found".
            return _Sequential(files.open(path, "rb", block_size=0, size=1))
        return cast("Readable", files.open(path, "rb", block_size=BLOCK_BYTES))


def find_remote(url: str) -> Iterator[tuple[RemoteFile, bool]]:
    """The files that a URL names or holds, and whether it names them.

    A web server has no folders: there, a URL that ends in `/` is a page of links, and any other one is a file.

    Raises:
        InputError: It does not exist, holds too much, is denied, or its protocol is not installed or not known.
    """
    files, path = connect(url)
    with _telling(url):
        if _MAGIC.search(url.partition("?")[0] if WEB.match(url) else url):
            found, named = files.glob(path, maxdepth=DEEPEST_FOLDER), True
            folders = [name for name in found if not WEB.match(url) and files.isdir(name)]
        elif url.endswith("/") if WEB.match(url) else files.isdir(path):
            found, named, folders = [], False, [path]
        else:
            if not WEB.match(url):
                files.info(path)  # says what is wrong, if it is
            found, named, folders = [path], True, []
        for name in found:
            if name not in folders:
                yield RemoteFile(files.unstrip_protocol(name)), named
        for folder in folders:
            inside = files.find(folder, maxdepth=DEEPEST_FOLDER)
            if len(inside) > MOST_FILES:
                raise InputError(f"{show_url(url)} holds more than {MOST_FILES} files: give the folder of one run.")
            for name in inside:
                yield RemoteFile(files.unstrip_protocol(name)), False


def connect(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the URL as a path in it.

    Raises:
        InputError: The protocol is not known or not installed, or the URL chains several.
    """
    protocol = url.partition("://")[0]
    if "::" in url:
        raise InputError(f"{show_url(url)} chains protocols with `::`: give the inner URL, archives are opened anyway.")
    try:
        with _telling(url):
            files, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        how = (
            "pip install 'ddp-advisor[remote]'" if protocol in BROUGHT_BY_EXTRA else f"{explain(error)}, or download it"
        )
        raise InputError(f"{show_url(url)} needs a package for {protocol}:// that is not installed: {how}.") from error
    return files, path


@contextmanager
def _telling(url: str) -> Iterator[None]:
    """Turns what fsspec raises for this URL into an InputError."""
    name = show_url(url)
    try:
        with telling(name):
            yield
    except (NotImplementedError, ValueError) as error:
        raise InputError(f"{name} cannot be opened ({explain(error)}): give a URL that fsspec knows.") from error


class _Sequential:
    """A file that can only be read from its start; its reads are whole until its end."""

    def __init__(self, raw: Readable) -> None:
        self._raw = raw

    def read(self, size: int = -1, /) -> bytes:
        parts: list[bytes] = []
        wanted = sys.maxsize if size < 0 else size
        while wanted > 0 and (part := self._raw.read(min(wanted, BLOCK_BYTES))):
            parts.append(part)
            wanted -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        self._raw.close()
