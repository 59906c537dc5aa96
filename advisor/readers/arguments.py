"""What is used of an event's `args`, by the kind of event: each field has the name of its column.

An event brings the raw text of its arguments along; it is decoded only where a column needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from advisor.readers.loose import MALFORMED, Word, decode_anything, to_json, to_text, to_word

Kind = TypeVar("Kind", bound=msgspec.Struct)

ABSENT = Raw()


class Call(msgspec.Struct, gc=False):
    """Of a call of the device's runtime."""

    correlation: Word = -1


class Link(msgspec.Struct, gc=False):
    """Of what runs on a device, and of the record of a collective."""

    stream: Word = -1
    correlation: Word = -1
    external_id: Word = msgspec.field(name="External id", default=-1)
    collective: str = msgspec.field(name="Collective name", default="")


class Collective(msgspec.Struct, gc=False):
    """Of whatever describes a collective."""

    collective: str = msgspec.field(name="Collective name", default="")
    dtype: str = ""
    process_group: Word = msgspec.field(name="Process Group Name", default="")
    num_elements: Word = msgspec.field(name="In msg nelems", default=-1)
    num_output_elements: Word = msgspec.field(name="Out msg nelems", default=-1)
    group_size: Word = msgspec.field(name="Group size", default=-1)
    sequence: Word = msgspec.field(name="Seq", default=-1)


class Wait(msgspec.Struct, gc=False):
    """Of a synchronisation."""

    wait_on_stream: Word = -1
    wait_on_cuda_event_record_corr_id: Word = -1


class Shapes(msgspec.Struct, gc=False):
    """Of an operator that was recorded with its shapes."""

    input_dims: Raw = msgspec.field(name="Input Dims", default=ABSENT)
    input_type: Raw = msgspec.field(name="Input type", default=ABSENT)


_CONVERSIONS: dict[Any, Callable[[Any], Any]] = {Raw: to_json, Word: to_word, str: to_text}
_DECODERS: dict[type[msgspec.Struct], msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]
    for kind in (Call, Link, Collective, Wait, Shapes)
}


def decode_arguments(kind: type[Kind], texts: Sequence[Raw]) -> list[Kind]:
    """Decodes the arguments of events of one kind; what is missing or of no possible type has its default."""
    try:
        decoded: list[Kind] = _DECODERS[kind].decode(b"[%b]" % b",".join(texts))
    except MALFORMED:
        return [_decode_loosely(kind, text) for text in texts]
    return decoded


def _decode_loosely(kind: type[Kind], text: Raw) -> Kind:
    try:
        fields = decode_anything(text)
    except MALFORMED:
        return kind()
    known = fields if isinstance(fields, dict) else {}
    return kind(
        **{
            field.name: _CONVERSIONS[field.type](known[field.encode_name])
            for field in msgspec.structs.fields(kind)
            if known.get(field.encode_name) is not None
        }
    )
