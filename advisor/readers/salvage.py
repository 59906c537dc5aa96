r"""What can be mended in damaged JSON text, and what is whole in it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

MOST_RESCANS = 64
"""How many times the length of a text may be scanned in vain for whole events: what nests deeply is damage."""
DEAD_END = 2**13
"""How much text counts as scanned where Python does not say how far it got: too deep nesting, too long numbers."""

_OBJECT = re.compile(rb'\{\s*"[^"\\]{1,64}"\s*:')
_BETWEEN = re.compile(rb"\s*,\s*(?=\{)")
_CLOSE = re.compile(rb'\s*(?=\]\s*(?:,\s*"|\}|\Z))')
_NAME = re.compile(rb"""("name"\s*:\s*")((?:(?!"\s*:).){0,4096}?)("\s*(?:,\s*"[A-Za-z][\w ]{0,40}"\s*:|\}))""")

_SPACES = bytes.maketrans(bytes(range(32)), b" " * 32)
_BACKSLASH = re.compile(rb'\\(\\|["/bfnrt]|u[0-9a-fA-F]{4})?')
_NOT_FINITE = re.compile(rb"(?<=[:,\[])(\s*)[+-]?(?:nan|inf|infinity)(?=\s*[,\]}])", re.IGNORECASE)

_scan = json.JSONDecoder(strict=False).raw_decode


@dataclass(frozen=True)
class Whole:
    """Stretches [start, end) of a text that are whole events with commas between them."""

    stretches: list[tuple[int, int]]
    closed_at: int | None
    """Where the bracket stands that closes the array, if it does."""


def mend(text: bytes) -> bytes:
    r"""Makes JSON of what writers get wrong: control characters and stray backslashes in strings, NaN, bytes not UTF-8.

    They become spaces, slashes, null and U+FFFD.

    Example: `{"name": "C:\Users", "x": -inf}` -> `{"name": "C:/Users", "x": null}`.
    """
    text = text.translate(_SPACES)
    text = _BACKSLASH.sub(lambda match: match[0] if match[1] else b"/", text)
    text = _NOT_FINITE.sub(rb"\1null", text)
    return text.decode(errors="replace").encode()


def mend_names(text: bytes) -> bytes:
    """Replaces quotes inside names, up to the quote before the next field, by apostrophes; none before a colon is one.

    Example: `"name": "f<"int">", "pid": 1` -> `"name": "f<'int'>", "pid": 1`.
    """
    return _NAME.sub(lambda match: match[1] + _mend_name(match[2]) + match[3], text)


def find_whole_events(text: bytes) -> Whole:
    """Finds every whole event in a stretch of an array, whatever stands between them."""
    characters = text.decode("latin-1")  # one for every byte
    stretches: list[tuple[int, int]] = []
    effort = MOST_RESCANS * len(text)
    at, follows = 0, False
    while match := _OBJECT.search(text, at):
        start = match.start()
        follows &= start == at
        end, is_event = _scan_event(characters, start)
        if not is_event:
            effort -= end - start
            at, follows = (start + 1 if effort > 0 else end), False
            continue
        stretches.append((stretches.pop()[0] if follows else start, end))
        close = _CLOSE.match(text, end)
        if close:
            return Whole(stretches, close.end())
        between = _BETWEEN.match(text, end)
        at, follows = (between.end() if between else end), between is not None
    return Whole(stretches, None)


def _scan_event(characters: str, start: int) -> tuple[int, bool]:
    """How far the object that begins here could be read, and whether it is an event."""
    try:
        value, end = _scan(characters, start)
    except json.JSONDecodeError as error:
        return max(error.pos, start + 1), False
    except (ValueError, RecursionError):
        return start + DEAD_END, False
    return end, "ph" in value


def _mend_name(name: bytes) -> bytes:
    backslashes = len(name) - len(name.rstrip(b"\\"))
    name = name[:-1] + b"/" if backslashes % 2 else name
    return re.sub(rb'(?<!\\)"', b"'", name)
