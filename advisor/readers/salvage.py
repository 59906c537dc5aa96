r"""What can be mended in damaged JSON text, and what is whole in it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Literal

MOST_RESCANS = 16
"""How many times the length of a text may be scanned in vain for whole events: what nests deeply is damage."""
DEAD_END = 2**13
"""How much text counts as scanned where Python does not say how far it got: too deep nesting, too long numbers."""
WINDOWS = (2**14, 2**18, 2**30)
"""Numbers of characters in which the end of an event is looked for: an error costs as much as lies before it."""

_OBJECT = re.compile(rb'\{\s*"[^"\\]{1,64}"\s*:')
_BETWEEN = re.compile(rb"\s*,\s*(?=\{)")
_CLOSE = re.compile(rb'\s*(?=\]\s*(?:,\s*"|\}|\Z))')
_NAME = re.compile(rb"""("name"\s*:\s*")((?:(?!"\s*:)[^\0\n]){0,4096}?)("\s*(?:,\s*"[A-Za-z][\w ]{0,40}"\s*:|\}))""")

_SPACES = bytes.maketrans(bytes(range(1, 32)), b" " * 31)
_ZEROS = re.compile(rb"\0+")
_MOST_STRAY_ZEROS = 2
_BACKSLASH = re.compile(rb'\\(\\|["/bfnrt]|u[0-9a-fA-F]{4})?')
_NOT_FINITE = re.compile(rb"(?<=[:,\[])(\s*)[+-]?(?:nan|inf|infinity)(?=\s*[,\]}])", re.IGNORECASE)

_LONGEST_WORD = 16
_scan = json.JSONDecoder(strict=False).raw_decode


@dataclass(frozen=True)
class Whole:
    """Stretches [start, end) of a text that are whole events with commas between them."""

    stretches: list[tuple[int, int]]
    closed_at: int | None = None
    """Where the bracket stands that closes the array, if it does."""
    open_at: int | None = None
    """Where an event begins that goes on beyond the text, if one does."""


def mend(text: bytes) -> bytes:
    r"""Makes JSON of what writers get wrong: control characters and stray backslashes in strings, NaN, bytes not UTF-8.

    They become spaces, slashes, null and U+FFFD. Where a disk has left zeros, text is missing: they become what is no
    JSON, inside a string or outside.

    Example: `{"name": "C:\Users", "x": -inf}` -> `{"name": "C:/Users", "x": null}`.
    """
    text = _ZEROS.sub(_mend_zeros, text.translate(_SPACES))
    text = _BACKSLASH.sub(lambda match: match[0] if match[1] else b"/", text)
    text = _NOT_FINITE.sub(rb"\1null", text)
    return text.decode(errors="replace").encode()


def mend_names(text: bytes) -> bytes:
    """Replaces quotes inside names, up to the quote before the next field, by apostrophes; none before a colon is one.

    Example: `"name": "f<"int">", "pid": 1` -> `"name": "f<'int'>", "pid": 1`.
    """
    return _NAME.sub(lambda match: match[1] + _mend_name(match[2]) + match[3], text)


def find_whole_events(text: bytes, *, goes_on: bool = False) -> Whole:
    """Finds every whole event in a stretch of an array, whatever stands between them.

    Args:
        text: The stretch.
        goes_on: Whether more text follows, so that an event may be cut at its end.
    """
    characters = text.decode("latin-1")  # one for every byte
    stretches: list[tuple[int, int]] = []
    effort = MOST_RESCANS * len(text)
    at, follows = 0, False
    while match := _OBJECT.search(text, at):
        start = match.start()
        follows &= start == at
        end, found = _scan_event(characters, start)
        if found == "cut" and goes_on:
            return Whole(stretches, open_at=start)
        if found != "event":
            effort -= end - start
            at, follows = (start + 1 if effort > 0 else end), False
            continue
        stretches.append((stretches.pop()[0] if follows else start, end))
        close = _CLOSE.match(text, end)
        if close:
            return Whole(stretches, closed_at=close.end())
        between = _BETWEEN.match(text, end)
        at, follows = (between.end() if between else end), between is not None
    return Whole(stretches)


def _scan_event(characters: str, start: int) -> tuple[int, Literal["event", "cut", "other"]]:
    """How far the object that begins here could be read, and what it is."""
    end = start
    for size in WINDOWS:
        window = characters[start : start + size]
        try:
            value, length = _scan(window)
        except json.JSONDecodeError as error:
            is_cut = error.pos + _LONGEST_WORD >= len(window) or error.msg.startswith("Unterminated")
            end = start + (len(window) if is_cut else max(error.pos, 1))
            if not is_cut:
                return end, "other"
            if len(window) < size:
                return end, "cut"
        except (ValueError, RecursionError):
            return start + DEAD_END, "other"
        else:
            return start + length, "event" if "ph" in value else "other"
    return end, "cut"


def _mend_zeros(zeros: re.Match[bytes]) -> bytes:
    num_zeros = len(zeros[0])
    return b" " * num_zeros if num_zeros <= _MOST_STRAY_ZEROS else b'\0"'.ljust(num_zeros, b"\0")


def _mend_name(name: bytes) -> bytes:
    backslashes = len(name) - len(name.rstrip(b"\\"))
    name = name[:-1] + b"/" if backslashes % 2 else name
    return re.sub(rb'(?<!\\)"', b"'", name)
