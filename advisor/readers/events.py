"""Events as they stand in a trace: typed decoding of the fields that are used, and of nothing else.

Most traces pass the first of three decoders. The second one keeps the digits of the times, where floats do not tell
them or they are quoted. The third one takes JSON as it comes, where a field has another type than it should. All leave
the arguments as text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, TypeAlias

import msgspec
import numpy as np
from msgspec import Raw

from advisor.readers.loose import Word, decode_anything, to_digits, to_json, to_text, to_word
from advisor.readers.names import UNUSED_CATEGORIES
from advisor.readers.times import UNUSABLE, Times, parse_times_ns, round_times_ns

LONGEST_NS = 24 * 3600 * 10**9
"""No event of a recording lasts longer than a day: such a duration is damaged."""
NO_ARGUMENTS = Raw(b"{}")


class Event(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """One complete event."""

    cat: str | None = None
    name: str = ""
    pid: Word = None
    tid: Word = None
    ts: float = math.nan
    dur: float = 0.0
    args: Raw = NO_ARGUMENTS


class DigitsEvent(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """One complete event with its times as they are written."""

    cat: str | None = None
    name: str = ""
    pid: Word = None
    tid: Word = None
    ts: Raw = Raw()
    dur: Raw = Raw(b"0")
    args: Raw = NO_ARGUMENTS


AnyEvent: TypeAlias = Event | DigitsEvent

_OTHER_PHASES = tuple(
    msgspec.defstruct(f"Phase{ord(phase)}", [], tag_field="ph", tag=phase, gc=False)
    for phase in "BEiICbneSTpFsftPNODMVvRc"
)
_FLOAT_TIMES = msgspec.json.Decoder[list[Any]](list[reduce(or_, _OTHER_PHASES, Event)])  # type: ignore[misc]
_DIGIT_TIMES = msgspec.json.Decoder[list[Any]](list[reduce(or_, _OTHER_PHASES, DigitsEvent)])  # type: ignore[misc]


@dataclass(frozen=True)
class Batch:
    """Events that follow each other in a file, with their times."""

    events: Sequence[AnyEvent]
    start_ns: Times
    end_ns: Times
    num_decoded: int
    """All events, of every phase and category."""
    unusable: Sequence[int] = ()
    """The complete events left out because they have no time or an impossible one: how many were kept before each."""


class EventDecoder:
    """Decodes stretches of a trace's array of events."""

    def __init__(self) -> None:
        self._floats_tell = True

    def decode(self, text: bytes) -> Batch:
        """Decodes a JSON array of events; all but the complete ones of the categories in use are dropped.

        Raises:
            msgspec.DecodeError: It is no JSON.
            RecursionError: It is nested too deeply.
        """
        if self._floats_tell:
            try:
                return _decode_floats(text)
            except msgspec.ValidationError:
                pass
        try:
            batch = _time_digits(_DIGIT_TIMES.decode(text))
        except msgspec.ValidationError:
            return self.decode_loosely(text)
        self._floats_tell = False
        return batch

    def decode_loosely(self, text: bytes) -> Batch:
        """`decode` for fields of any type, and for all that Python takes for JSON.

        Raises:
            ValueError: It is no JSON.
            RecursionError: It is nested too deeply.
        """
        values = decode_anything(text)
        assert isinstance(values, list), "made of events with brackets around them"
        return _time_digits([_loosen(value) for value in values])


def _keep(events: Sequence[Any], wanted: type[AnyEvent]) -> list[Any]:
    return [event for event in events if event.__class__ is wanted and event.cat not in UNUSED_CATEGORIES]


def _decode_floats(text: bytes) -> Batch:
    """The quickest way.

    Raises:
        msgspec.ValidationError: Digits are needed, or a field has another type.
    """
    decoded = _FLOAT_TIMES.decode(text)
    events = _keep(decoded, Event)
    times_us = [event.ts for event in events] + [event.dur for event in events]
    times_ns = round_times_ns(np.fromiter(times_us, np.float64, len(times_us)))
    if times_ns is None:
        raise msgspec.ValidationError("digits are needed")
    return _build_batch(events, times_ns, len(decoded))


def _time_digits(decoded: Sequence[Any]) -> Batch:
    events = _keep(decoded, DigitsEvent)
    times_ns = parse_times_ns([event.ts for event in events] + [event.dur for event in events])
    return _build_batch(events, times_ns, len(decoded))


def _build_batch(events: Sequence[AnyEvent], times_ns: Times, num_decoded: int) -> Batch:
    """Takes the starts of all events, followed by their durations."""
    start_ns, duration_ns = times_ns[: len(events)], times_ns[len(events) :]
    usable = (start_ns != UNUSABLE) & (duration_ns != UNUSABLE) & (duration_ns < LONGEST_NS)
    unusable: list[int] = []
    if not usable.all():
        unusable = np.cumsum(usable)[~usable].tolist()
        events = [events[place] for place in np.flatnonzero(usable).tolist()]
        start_ns, duration_ns = start_ns[usable], duration_ns[usable]
    return Batch(events, start_ns, start_ns + np.maximum(duration_ns, 0), num_decoded, unusable)


def _loosen(fields: object) -> DigitsEvent | None:
    """An event of whatever JSON holds; None where that is none that is complete."""
    if not isinstance(fields, dict) or fields.get("ph") != "X":
        return None
    return DigitsEvent(
        cat=None if fields.get("cat") is None else to_text(fields["cat"]),
        name=to_text(fields.get("name", "")),
        pid=to_word(fields.get("pid")),
        tid=to_word(fields.get("tid")),
        ts=to_digits(fields.get("ts")),
        dur=to_digits(fields.get("dur", 0)),
        args=to_json(fields.get("args")),
    )
