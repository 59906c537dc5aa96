"""Everything that a disk, an archive or a server raises, told in one sentence."""

from __future__ import annotations

import gzip
import lzma
import re
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import zstandard
from isal.igzip_lib import IsalError

from advisor.errors import InputError
from advisor.readers.display import show_name

DAMAGE: tuple[type[Exception], ...] = (
    EOFError,
    gzip.BadGzipFile,
    cast("type[Exception]", IsalError),  # its stub declares an instance
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    zstandard.ZstdError,
)
"""What decompressors and archives raise where bytes are missing or wrong."""

REMOTE_FAILURES: tuple[tuple[str, str], ...] = (
    ("aiohttp", "ClientError"),
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("gcsfs.retry", "HttpError"),
    ("google.auth.exceptions", "GoogleAuthError"),
    ("httpx", "HTTPError"),
    ("httpx2", "HTTPError"),
)
"""Failures of fsspec's file systems that are no OSError: module and name. None is imported for its error's sake."""

_QUERY = re.compile(r"\?[^\s'\"]+")
_LONGEST_REASON = 200


@contextmanager
def telling(name: str) -> Iterator[None]:
    """Turns what goes wrong while the block opens or reads `name` into an InputError."""
    try:
        yield
    except FileNotFoundError as error:
        raise InputError(f"{name} does not exist: give a run folder, a folder of traces or a trace file.") from error
    except DAMAGE as error:
        raise InputError(f"{name} is damaged ({explain(error)}): copy it again.") from error
    except _find_failures() as error:
        raise InputError(f"{name} cannot be read ({explain(error)}): check the path and who may read it.") from error


def explain(error: BaseException) -> str:
    """What an error says, in one line, without the secrets that a signed URL holds."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return show_name(_QUERY.sub("?…", " ".join(text.split()))[:_LONGEST_REASON]).rstrip(".")


def _find_failures() -> tuple[type[Exception], ...]:
    return (OSError, *(getattr(sys.modules[module], name) for module, name in REMOTE_FAILURES if module in sys.modules))
