"""Kineto's Chrome-trace JSON to a `Trace`: typed decoding of only the fields that are used, then columns.

Times: `ts` and `dur` are decimal microseconds. Epoch microseconds times 1000 exceed 2^53, so they are never floats:
the digits are split at the point and scaled as integers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Sequence
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pandas as pd
from msgspec import UNSET, Raw, UnsetType

from advisor.errors import InputError
from advisor.readers.names import (
    ACCUMULATE_GRAD_OP,
    COLLECTIVE_OP,
    COPY_BACK,
    GLOO_SPAN,
    KERNEL,
    NCCL_SPAN,
    OPERATOR,
    PROFILER_STEP,
    name_dtype,
)
from advisor.schema import DeviceType
from advisor.tables import EVENT_COLUMNS, Trace

Word = int | float | str | None


class _Args(msgspec.Struct):
    input_dims: Raw | UnsetType = msgspec.field(name="Input Dims", default=UNSET)
    input_type: Raw | UnsetType = msgspec.field(name="Input type", default=UNSET)
    external_id: Word = msgspec.field(name="External id", default=None)
    correlation: Word = None
    stream: Word = None
    collective: str | None = msgspec.field(name="Collective name", default=None)
    num_elements: Word = msgspec.field(name="In msg nelems", default=None)
    dtype: str | None = None
    process_group: Word = msgspec.field(name="Process Group Name", default=None)
    sequence: Word = msgspec.field(name="Seq", default=None)


class _Event(msgspec.Struct):
    ph: str = ""
    cat: str | None = None
    name: Any = ""
    pid: Word = None
    tid: Word = None
    ts: Raw | UnsetType = UNSET
    dur: Raw | UnsetType = UNSET
    args: _Args | None = None


class _DistributedInfo(msgspec.Struct):
    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None


class _Document(msgspec.Struct):
    traceEvents: list[_Event] | None = None  # noqa: N815 - the file's own spelling
    distributedInfo: _DistributedInfo | None = None  # noqa: N815
    host_name: str | None = None


_NO_ARGS = _Args()
_LIST_DECODER = msgspec.json.Decoder(list[_Event])
_DOCUMENT_DECODER = msgspec.json.Decoder(_Document)
_PLAIN_TIME = re.compile(rb'"?(-?\d+)(?:\.(\d{1,3}))?"?')
_LATEST_NS = 2**62
"""Times stay below, so that a start plus a duration fits 64 bits; the year 2116."""
_TENSOR_LIST = "TensorList"


def read_chrome_trace(data: bytes, file: str, rank: int | None = None) -> Trace:
    """Reads one rank's Kineto trace.

    Args:
        data: The decompressed JSON text.
        file: Its name, for messages.
        rank: The rank to assume where the file does not tell its own.

    Raises:
        InputError: The text is not a Kineto trace, has no events, or tells no rank.
    """
    document = _decode(data, file)
    complete = [event for event in document.traceEvents or [] if event.ph == "X" and event.ts is not UNSET]
    if not complete:
        raise InputError(f"{file} holds no timed events: record it with torch.profiler and export_chrome_trace.")
    info = document.distributedInfo or _DistributedInfo()
    rank = info.rank if info.rank is not None else rank
    if rank is None:
        raise InputError(
            f"{file} tells no rank: it has no distributedInfo and no number in its name; "
            "rename it to rank<number>.json."
        )
    events = _build_events(complete, file)
    on_gpu = bool(events["category"].isin(KERNEL).any())
    device_type: DeviceType = "cuda" if on_gpu else "cpu"
    return Trace(
        rank=rank,
        file=file,
        events=events,
        world_size=info.world_size,
        backend=_name_backend(info.backend or "", device_type, list(events["name"].cat.categories)),
        host=document.host_name,
        device_type=device_type,
        has_shapes=bool((events["input_dims"] != "").any()),
    )


def _decode(data: bytes, file: str) -> _Document:
    try:
        if data.lstrip()[:1] == b"[":
            return _Document(traceEvents=_LIST_DECODER.decode(data))
        document = _DOCUMENT_DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"{file} is not a Kineto trace in JSON ({error}): export it again.") from error
    if document.traceEvents is None:
        raise InputError(f"{file} is JSON but no Kineto trace (it has no traceEvents): give a torch.profiler trace.")
    return document


def _name_backend(stated: str, device_type: DeviceType, names: Sequence[str]) -> str:
    """The backend of the device's collectives, where torch states `undefined` or `cpu:gloo,cuda:nccl`."""
    per_device = dict(pair.split(":", 1) for pair in stated.lower().split(",") if ":" in pair)
    backend = per_device.get(device_type, stated.lower())
    if backend not in ("", "undefined"):
        return backend
    if device_type == "cuda":
        return "nccl"
    return "gloo" if any(GLOO_SPAN.match(name) for name in names) else "unknown"


def _build_events(complete: Sequence[_Event], file: str) -> pd.DataFrame:
    args = [event.args or _NO_ARGS for event in complete]
    start_ns = np.array([parse_time_ns(event.ts, file) for event in complete], dtype=np.int64)
    duration_ns = np.array([parse_time_ns(event.dur, file) for event in complete], dtype=np.int64)
    threads, _ = pd.factorize(pd.Series([f"{event.pid}/{event.tid}" for event in complete]))
    dims = _categorical([_text(arg.input_dims) for arg in args])
    types = _categorical([_text(arg.input_type) for arg in args])
    table = pd.DataFrame(
        {
            "name": _categorical([str(event.name) for event in complete]),
            "category": _categorical([_name_category(event) for event in complete]),
            "thread": threads.astype(np.int32),
            "start_ns": start_ns,
            "end_ns": start_ns + np.maximum(duration_ns, 0),
            "stream": _integers([arg.stream for arg in args]),
            "correlation": _integers([arg.correlation for arg in args]),
            "external_id": _integers([arg.external_id for arg in args]),
            "input_dims": dims,
            "collective": _categorical([arg.collective or "" for arg in args]),
            "num_elements": _integers([arg.num_elements for arg in args]),
            "dtype": _categorical([name_dtype(arg.dtype) if arg.dtype else "" for arg in args]),
            "process_group": _categorical([_word(arg.process_group) for arg in args]),
            "sequence": _integers([arg.sequence for arg in args]),
        },
        columns=list(EVENT_COLUMNS),
    )
    _fill_from_shapes(table, types)
    order = np.lexsort((-table["end_ns"].to_numpy(), table["start_ns"].to_numpy()))
    return table.take(order).reset_index(drop=True)


def _name_category(event: _Event) -> str:
    category = (event.cat or "").lower()
    is_step = category in OPERATOR and PROFILER_STEP.match(str(event.name))  # as the first formats have it
    return "user_annotation" if is_step else category


def _fill_from_shapes(table: pd.DataFrame, types: pd.Categorical) -> None:
    """Gives collectives without arguments of their own, and gradients, their elements and dtypes from their shapes."""
    names = table["name"].cat.categories
    shaped = np.array(
        [
            name in (ACCUMULATE_GRAD_OP, COPY_BACK)
            or any(pattern.match(name) for pattern in (GLOO_SPAN, NCCL_SPAN, COLLECTIVE_OP))
            for name in names
        ],
        dtype=bool,
    )
    rows = np.flatnonzero(shaped[table["name"].cat.codes] & (table["num_elements"] < 0).to_numpy())
    shapes = [*zip(table["input_dims"].iloc[rows], types[rows], strict=True)]
    elements = {shape: count_elements(*shape) for shape in set(shapes)}
    table.loc[rows, "num_elements"] = np.array([elements[shape] for shape in shapes], dtype=np.int64)
    dtypes = {text: _first_dtype(text) for text in types.categories}
    column = table["dtype"].astype(object)
    column.iloc[rows] = [dtypes[text] for _, text in shapes]
    table["dtype"] = column.astype("category")


def count_elements(input_dims: str, input_type: str = "") -> int:
    """Elements of the first argument (a tensor or a list of tensors) in the raw text of `Input Dims`; -1 where unknown.

    Example: `[[512, 4], []]` -> 2048, `[[[10], [2, 3]], []]` -> 16, `[[]]` -> 1, a scalar unless `input_type` says
    that it is a list of tensors: torch 1.13 to 2.1 wrote no sizes of those.
    """
    first = _decode_first(input_dims)
    if not isinstance(first, list) or (not first and _decode_first(input_type) == _TENSOR_LIST):
        return -1
    tensors = first if first and isinstance(first[0], list) else [first]
    if not all(isinstance(tensor, list) and all(isinstance(size, int) for size in tensor) for tensor in tensors):
        return -1
    return sum(math.prod(tensor) for tensor in tensors)


def _first_dtype(input_type: str) -> str:
    word = _decode_first(input_type)
    return name_dtype(word) if isinstance(word, str) and word != _TENSOR_LIST else ""


def _decode_first(text: str) -> object:
    """The first element of a JSON list; None where there is none."""
    try:
        words = msgspec.json.decode(text) if text else None
    except msgspec.MsgspecError:
        return None
    return words[0] if isinstance(words, list) and words else None


def parse_time_ns(raw: Raw | UnsetType, file: str = "trace") -> int:
    """Decimal microseconds, as they stand in the file, to exact integer nanoseconds; a missing one is 0.

    Example: `1711964646416788.066` -> 1711964646416788066.
    """
    if raw is UNSET:
        return 0
    text = bytes(raw)
    plain = _PLAIN_TIME.fullmatch(text)
    if plain:
        whole, fraction = plain.groups()
        below = int((fraction or b"").ljust(3, b"0"))
        time_ns = int(whole) * 1000 + (-below if whole.startswith(b"-") else below)
    else:
        time_ns = _round_time_ns(text)
    if abs(time_ns) >= _LATEST_NS:
        raise InputError(f"{file} has {text[:40]!r} where a time in microseconds belongs: export it again.")
    return time_ns


def _round_time_ns(text: bytes) -> int:
    """Nanoseconds of a number in any other spelling; `_LATEST_NS` where it is none."""
    try:
        exact = Decimal(text.decode().strip('"')) * 1000
        return int(exact.to_integral_value()) if abs(exact) < _LATEST_NS else _LATEST_NS
    except (ArithmeticError, ValueError):
        return _LATEST_NS


def _text(raw: Raw | UnsetType) -> str:
    return "" if raw is UNSET else bytes(raw).decode(errors="replace")


def _word(word: Word) -> str:
    return "" if word is None else str(word)


def _integers(words: Sequence[Word]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.fromiter((_integer(word) for word in words), dtype=np.int64, count=len(words))


def _integer(word: Word) -> int:
    if isinstance(word, int):
        return word if -(2**63) <= word < 2**63 else -1
    try:
        return int(word) if word is not None else -1
    except (ValueError, OverflowError):
        return -1


def _categorical(words: Sequence[str]) -> pd.Categorical:
    return pd.Categorical(list[Hashable](words))
