"""One Kineto document, read from front to end: batches of events, and what stands around them.

A document is `{…, "traceEvents": [events], …}` or a bare array of events. It is cut between events, so that each piece
is an array of its own. A piece that is no JSON is mended, and where that does not help, searched for whole events.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, BinaryIO

import msgspec

from advisor.errors import InputError, MixedRanksError
from advisor.readers.events import Batch, EventDecoder
from advisor.readers.header import find_fields
from advisor.readers.loose import MALFORMED
from advisor.readers.salvage import find_whole_events, mend, mend_names
from advisor.readers.text import read_text

LONGEST_OPEN_BYTES = 2**20
"""No event is longer; what looks so has lost a bracket."""
LONGEST_HEAD_BYTES = 64 * 2**20
"""Where no events begin within this, the file is no trace; after the events no more is looked at either."""

_BARE = re.compile(rb"\s*\[")
_OPEN = re.compile(rb'"traceEvents"\s*:\s*\[')
_EVENT = re.compile(rb'\{\s*("(?:ph|cat|name|pid|tid|ts|dur|args|id)")\s*:')
_BETWEEN = re.compile(rb"\}(\s*,\s*)\{\s*\Z")
_LONGEST_BETWEEN = 256
_CLOSE = re.compile(rb"(?<=\})\s*\]")
_MOST_CLOSES = 8
_FIRST = re.compile(rb'\{\s*"ph"\s*:')
_SECOND = re.compile(rb'"(traceEvents|distributedInfo)"\s*:')
_SEPARATORS = b" \t\r\n,"


@dataclass(frozen=True)
class Hole:
    """Text that holds no whole event."""

    row: int
    """How many events were kept before it."""
    num_bytes: int


@dataclass
class Damage:
    """What was wrong with the text of a document."""

    holes: list[Hole] = field(default_factory=list)
    ends_early: bool = False
    head_is_damaged: bool = False
    tail_is_damaged: bool = False
    is_mended: bool = False
    """Whether text was changed in place, or searched for whole events."""
    unusable: list[int] = field(default_factory=list)
    """For each event without a possible time, how many were kept before it."""


class TraceDocument:
    """One document.

    Attributes:
        fields: What stands beside the events, once they have been read.
        damage: What was wrong, likewise.
        num_bytes: The length of its text so far.
        num_events: Its events so far, of every phase and category.
    """

    def __init__(self, data: bytes | BinaryIO, file: str) -> None:
        """Takes the decompressed bytes and, for messages, the file's name."""
        self.fields: dict[str, Any] = {}
        self.damage = Damage()
        self.num_bytes = 0
        self.num_events = 0
        self._file = file
        self._blocks = self._count(read_text(data))
        self._decoder = EventDecoder()
        self._num_rows = 0
        self._is_bare = False
        self._is_closed = False

    def read_batches(self) -> Iterator[Batch]:
        """Reads the events.

        Raises:
            InputError: The text is no trace, or of more than one rank.
        """
        start = self._read_head()
        first = _EVENT.search(start)
        key = first[1] if first else b'"ph"'
        rest: list[bytes] = []
        for block in chain((start,), self._blocks):
            cut = _find_cut(block, key)
            if cut is None:
                rest.append(block)
                continue
            end, next_start = cut
            left_over = yield from self._read_piece(b"".join((b"[", *rest, memoryview(block)[:end], b"]")))
            rest = [left_over, block[end if left_over or self._is_closed else next_start :]]
            if self._is_closed:
                break
        tail = b"".join(rest)
        if not self._is_closed:
            tail = yield from self._read_end(tail)
        self._read_tail(tail)

    def _count(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        for block in blocks:
            self.num_bytes += len(block)
            yield block

    # Before the events.

    def _read_head(self) -> bytes:
        """Reads up to the first event, and returns what is at hand from there on."""
        text, searched = b"", 0
        for block in self._blocks:
            text += block
            bare = _BARE.match(text)
            if bare:
                self._is_bare = True
                return text[bare.end() :]
            for match in _OPEN.finditer(text, searched):
                if self._open(text, match.end()):
                    return text[match.end() :]
            if len(text) > LONGEST_HEAD_BYTES:
                break
            searched = max(0, len(text) - _LONGEST_BETWEEN)
        return self._find_events(text)

    def _open(self, text: bytes, start: int) -> bool:
        """Whether the array that is opened before `start` is the one of the events; takes the fields before it."""
        head = text[:start]
        for candidate in (head, mend(head)):
            fields = _decode_fields(candidate + b"]}")
            if fields is not None:
                self.fields = fields
                self.damage.is_mended |= candidate is not head
                return True
        if _EVENT.match(text[start:].lstrip()):
            self._take_damaged_head(head)
        return self.damage.head_is_damaged

    def _find_events(self, text: bytes) -> bytes:
        """The text from the first event on, where what should come before it is missing."""
        first = _FIRST.search(text)
        if first:
            self._take_damaged_head(text[: first.start()])
            return text[first.start() :]
        if _decode_fields(text) is not None:
            raise InputError(
                f"{self._file} is JSON but no Kineto trace (it has no traceEvents): give a torch.profiler trace."
            )
        reason = "it is empty" if not text.strip() else "no event begins in it"
        raise InputError(f"{self._file} is not a Kineto trace in JSON ({reason}): export it again.")

    def _take_damaged_head(self, head: bytes) -> None:
        self.fields = find_fields(head)
        self.damage.head_is_damaged = True

    # The events.

    def _read_piece(self, array: bytes) -> Generator[Batch, None, bytes]:
        """Reads whole events; returns what belongs to the next piece or, once they are closed, to the tail."""
        for mended in _mend_if_needed(array):
            batch = self._try(mended)
            if batch is not None:
                self.damage.is_mended |= mended is not array
                yield batch
                return b""
        return (yield from self._salvage(mend(array)[1:-1], goes_on=True))

    def _read_end(self, text: bytes) -> Generator[Batch, None, bytes]:
        """Reads the last events; returns the tail."""
        for mended in _mend_if_needed(text):
            for end, start in _find_closes(mended):
                tail = mended[start:]
                batch = self._try(b"[%b]" % mended[:end]) if self._decode_tail(tail) is not None else None
                if batch is not None:
                    self.damage.is_mended |= mended is not text
                    self._is_closed = True
                    yield batch
                    return tail
        rest = yield from self._salvage(mend(text), goes_on=False)
        self.damage.ends_early = not self._is_closed
        return rest

    def _try(self, array: bytes) -> Batch | None:
        try:
            return self._note(self._decoder.decode(array))
        except MALFORMED:
            return None

    def _note(self, batch: Batch) -> Batch:
        self.num_events += batch.num_decoded
        self.damage.unusable += [self._num_rows + row for row in batch.unusable]
        self._num_rows += len(batch.events)
        return batch

    # Damaged events.

    def _salvage(self, text: bytes, *, goes_on: bool) -> Generator[Batch, None, bytes]:
        """Reads what is whole; returns the bracket that closes the events with what follows, or else an open event."""
        whole = find_whole_events(text, goes_on=goes_on)
        if whole.open_at is not None and len(text) - whole.open_at > LONGEST_OPEN_BYTES:
            whole = find_whole_events(text)
        self.damage.is_mended = True
        at = 0
        for start, end in whole.stretches:
            yield from self._mend_gap(text[at:start])
            yield from self._read_stretch(text[start:end])
            at = end
        self._is_closed = whole.closed_at is not None
        rest = next((place for place in (whole.closed_at, whole.open_at) if place is not None), len(text))
        if not self._is_closed:
            yield from self._mend_gap(text[at:rest])
        return text[rest:]

    def _mend_gap(self, text: bytes) -> Iterator[Batch]:
        """Reads what is whole once quotes inside names are mended; the rest is lost."""
        self._refuse_second(text)
        mended = mend_names(text)
        whole = find_whole_events(mended).stretches if mended != text else []
        at = 0
        for start, end in whole:
            self._lose(mended[at:start])
            self.damage.is_mended = True
            yield from self._read_stretch(mended[start:end])
            at = end
        self._lose(mended[at:])

    def _read_stretch(self, text: bytes) -> Iterator[Batch]:
        batch = self._try(b"[%b]" % text)
        if batch is None:
            try:
                batch = self._note(self._decoder.decode_loosely(b"[%b]" % text))
            except MALFORMED:
                self._lose(text)
                return
        yield batch

    def _lose(self, text: bytes) -> None:
        num_bytes = len(text.strip(_SEPARATORS))
        if num_bytes:
            self.damage.holes.append(Hole(self._num_rows, num_bytes))

    def _refuse_second(self, text: bytes) -> None:
        found = set(_SECOND.findall(text))
        if b"traceEvents" in found or (found and "distributedInfo" in self.fields):
            raise MixedRanksError(
                f"{self._file} holds more than one recording: give every rank a file of its own, as "
                "torch.profiler.tensorboard_trace_handler(folder, worker_name=f'rank{rank}') does."
            )

    # After the events.

    def _read_tail(self, text: bytes) -> None:
        for block in self._blocks:
            self._refuse_second(block)
            text += block if len(text) < LONGEST_HEAD_BYTES else b""
        if not self._is_closed:
            return
        fields = self._decode_tail(text)
        if fields is None:
            self._refuse_second(text)
            fields = find_fields(text)
            self.damage.tail_is_damaged = True
        self.fields |= fields

    def _decode_tail(self, text: bytes) -> dict[str, Any] | None:
        """The fields after the events; None where it is damaged."""
        if self._is_bare:
            return None if text.strip() else {}
        return _decode_fields(b'{"traceEvents":[]' + text)


def _decode_fields(text: bytes) -> dict[str, Any] | None:
    try:
        fields = msgspec.json.decode(text)
    except MALFORMED:
        return None
    return fields if isinstance(fields, dict) else None


def _mend_if_needed(text: bytes) -> Iterator[bytes]:
    """The text as it is, then more and more mended."""
    yield text
    mended = mend(text)
    yield mended
    yield mend_names(mended)


def _find_cut(text: bytes, key: bytes) -> tuple[int, int] | None:
    """Where the last event ends that another one follows, and where that one begins."""
    at = text.rfind(key)
    while at >= 0:
        start = max(0, at - _LONGEST_BETWEEN)
        between = _BETWEEN.search(text[start:at])
        if between:
            return start + between.start(1), start + between.end(1)
        at = text.rfind(key, 0, at)
    return None


def _find_closes(text: bytes) -> Iterator[tuple[int, int]]:
    """Where the events may end and the tail begin: at the last brackets, at once, or nowhere."""
    for close in reversed([*_CLOSE.finditer(text)][-_MOST_CLOSES:]):
        yield close.start(), close.end()
    if text.lstrip().startswith(b"]"):
        yield 0, text.index(b"]") + 1
    yield len(text.rstrip(_SEPARATORS)), len(text)  # an array may lack its bracket; nothing else may
