"""Names from files, archives and servers as they may be shown: nothing in them moves a cursor or breaks a line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from itertools import groupby

WEB = re.compile(r"^https?://", re.IGNORECASE)
_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")
_USER = re.compile(r"(?<=://)[^/@]*@")
_FIRST_BYTE = 0xDC00
"""Python holds a byte that is not UTF-8 as this plus the byte (PEP 383)."""


def show_name(text: str) -> str:
    r"""The name with every character that is not printable as its escape.

    Example: an escape character becomes `\x1b`, a right-to-left override `\u202e`, a stray byte 255 `\xff`.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else _escape(c) for c in text)


def show_path(path: str | os.PathLike[str]) -> str:
    """What a person gave, as it may be shown."""
    text = os.fspath(path)
    return show_url(text) if is_url(text) else show_name(text)


def is_url(text: str) -> bool:
    """Whether a path that a person gave is a URL."""
    return bool(_URL.match(text))


def show_url(url: str) -> str:
    """A URL as it may be shown: without user, password and the query that signs it."""
    return show_name(_USER.sub("", url.partition("?")[0] if WEB.match(url) else url))


def list_names(names: list[str] | tuple[str, ...], most: int = 3) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def list_numbers(numbers: Iterable[int], most: int = 8) -> str:
    """Numbers in order, stretches drawn together, the first few of them.

    Example: 0, 1, 2, 5 is `0–2, 5`.
    """
    stretches = []
    for _, group in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
        stretch = [number for _, number in group]
        stretches.append(f"{stretch[0]}" if len(stretch) == 1 else f"{stretch[0]}–{stretch[-1]}")
    return ", ".join(stretches[:most]) + (" and more" if len(stretches) > most else "")


def _escape(character: str) -> str:
    stray = ord(character) - _FIRST_BYTE
    return f"\\x{stray:02x}" if 0x80 <= stray <= 0xFF else character.encode("unicode_escape").decode()
