"""Ways in which trace files come to harm, as hypothesis strategies over the bytes of small traces."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

from hypothesis import strategies as st

from tests.trace_builders import RankTrace

Draw = Callable[[st.SearchStrategy[Any]], Any]

ODD_VALUES = (
    "null", "true", "[]", "{}", "[[1, 2], {}]", '""', '"NaN"', '"1e999"', "NaN", "-Infinity", "inf", "-1", "0", "0.1",
    "01", "1e400", "1e-400", "9" * 30, "9" * 5000, str(2**63), str(-(2**63)), str(2**31), str(10**12), '"7"',
    '"\\ud800"', '"\\u0000"', "'x'",
)  # fmt: skip
FIELDS = (
    "ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "stream", "correlation", "Input Dims", "Input type", "Seq",
    "Process Group Name", "In msg nelems", "rank", "world_size",
)  # fmt: skip
ENCODINGS = ("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1", "cp1252")
STRAY_TEXT = (
    b'"', b"\\", b"\x00", b"\x1b[2J", b"\n", b"\xff\xfe", b"C:\\Users\\new", b"{", b"}", b"]", b"[", b",", b"/*",
    b"\xe2\x80\xae",
)  # fmt: skip

_VALUE = re.compile(r'(?<=: )(?:-?[\d.]+|"[^"]*")')
_KEY = re.compile(r'"([A-Za-z][A-Za-z ]*)"(?=: )')


@cache
def record_small_trace(kind: str, rank: int = 1) -> bytes:
    """A whole trace of two steps on `gloo` or `nccl`, as Python writes JSON."""
    trace = RankTrace(rank=rank, world_size=2, backend=kind, clock_us=1_000)
    for number in (2, 3):
        at = 1000 * number
        trace.step(number, at, at + 1000)
        trace.forward(at + 100, at + 300)
        trace.node(at + 400, at + 450)
        trace.gradient(at + 450, at + 500, 64)
        if kind == "gloo":
            trace.gloo(at + 498, at + 510, at + 580, 128)
            trace.copy_back(at + 580, at + 620)
        else:
            trace.kernel(at + 410, at + 430, at + 520)
            trace.nccl(at + 498, at + 525, at + 580, 128, sequence=number)
        trace.optimizer(at + 900, at + 950)
    trace.events.append({"ph": "s", "id": 1, "pid": 4000, "tid": 1, "ts": 2400, "cat": "ac2g", "name": "ac2g"})
    trace.events.append({"name": "process_name", "ph": "M", "pid": 4000, "tid": 0, "ts": 0, "args": {"name": "python"}})
    return trace.to_json(schemaVersion=1, deviceProperties=[{"id": 0}] if kind == "nccl" else [])


@st.composite
def damaged_traces(draw: Draw) -> bytes:
    """A small trace after up to three harms."""
    text = draw(st.sampled_from(LAYOUTS))(record_small_trace(draw(st.sampled_from(("gloo", "nccl")))))
    for harm in draw(st.lists(st.sampled_from(HARMS), max_size=3)):
        text = harm(draw, text)
    return text


# ------------------------------------------------------------------------------------------------------ layouts


def _as_kineto(text: bytes) -> bytes:
    document = json.loads(text)
    events = ",\n".join(f"  {json.dumps(event)}" for event in document.pop("traceEvents"))
    head = json.dumps(document, indent=2)[:-2]
    tail = '"traceName": "a.json",\n  "baseTimeNanoseconds": 0\n}\n'
    return f'\n{head},\n  "traceEvents": [\n{events}\n  ],\n  {tail}'.encode()


def _compact(text: bytes) -> bytes:
    return json.dumps(json.loads(text), separators=(",", ":")).encode()


def _bare(text: bytes) -> bytes:
    return json.dumps(json.loads(text)["traceEvents"]).encode()


def _sorted(text: bytes) -> bytes:
    return json.dumps(json.loads(text), sort_keys=True, indent=1).encode()


LAYOUTS = (_as_kineto, _compact, _bare, _sorted)

# -------------------------------------------------------------------------------------------------------- harms


def _cut_end(draw: Draw, text: bytes) -> bytes:
    return text[: draw(st.integers(0, len(text)))]


def _cut_out(draw: Draw, text: bytes) -> bytes:
    start = draw(st.integers(0, len(text)))
    return text[:start] + text[start + draw(st.integers(0, 400)) :]


def _repeat_part(draw: Draw, text: bytes) -> bytes:
    start = draw(st.integers(0, len(text)))
    end = start + draw(st.integers(0, 400))
    return text[:end] + text[start:]


def _flip_bits(draw: Draw, text: bytes) -> bytes:
    flipped = bytearray(text)
    for place in draw(st.lists(st.integers(0, max(0, len(text) - 1)), max_size=8)):
        if flipped:
            flipped[place] ^= 1 << draw(st.integers(0, 7))
    return bytes(flipped)


def _blank(draw: Draw, text: bytes) -> bytes:
    start = draw(st.integers(0, len(text)))
    length = min(draw(st.integers(0, 600)), len(text) - start)
    return text[:start] + b"\x00" * length + text[start + length :]


def _insert(draw: Draw, text: bytes) -> bytes:
    start = draw(st.integers(0, len(text)))
    return text[:start] + draw(st.sampled_from(STRAY_TEXT)) + text[start:]


def _swap_value(draw: Draw, text: bytes) -> bytes:
    return _replace_one(draw, text, _VALUE, draw(st.sampled_from(ODD_VALUES)))


def _swap_key(draw: Draw, text: bytes) -> bytes:
    return _replace_one(draw, text, _KEY, draw(st.sampled_from(('"ph"', '"ts"', '"dur"', '"name"', '"args"', '"x"'))))


def _swap_values(draw: Draw, text: bytes) -> bytes:
    """The value of one field in every event."""
    key = draw(st.sampled_from(FIELDS))
    value = draw(st.sampled_from(ODD_VALUES)).encode()
    return re.sub(rb'("%b": ?)(?:-?[\d.]+|"[^"]*"|\[\[?[\d, ]*\]?\])' % key.encode(), lambda m: m[1] + value, text)


def _name(draw: Draw, text: bytes) -> bytes:
    word = draw(st.sampled_from(STRAY_TEXT)) + draw(st.binary(max_size=8))
    return text.replace(b"aten::mm", word, 1).replace(b"autograd::", word, 3)


def _nest(draw: Draw, text: bytes) -> bytes:
    depth = draw(st.sampled_from((3, 200, 20_000)))
    bracket = draw(st.sampled_from(("[", '{"ph":')))
    return _replace_one(draw, text, _VALUE, bracket * depth + ("]" * depth if bracket == "[" else ""))


def _encode(draw: Draw, text: bytes) -> bytes:
    return text.decode(errors="replace").encode(draw(st.sampled_from(ENCODINGS)), errors="replace")


def _join(draw: Draw, text: bytes) -> bytes:
    other = record_small_trace(draw(st.sampled_from(("gloo", "nccl"))))
    return text + draw(st.sampled_from((b"", b"\n", b","))) + other


def _replace_one(draw: Draw, text: bytes, pattern: re.Pattern[str], value: str) -> bytes:
    characters = text.decode("latin-1")
    places = [match.span() for match in pattern.finditer(characters)]
    if not places:
        return text
    start, end = draw(st.sampled_from(places))
    return (characters[:start] + value + characters[end:]).encode("latin-1")


HARMS = (
    _cut_end, _cut_out, _repeat_part, _flip_bits, _blank, _insert, _swap_value, _swap_key, _swap_values, _name, _nest,
    _encode, _join,
)  # fmt: skip
