"""Kineto's Chrome-trace JSON to a `Trace`: one pass over the text, of any size, in any dialect (docs/dialects.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import BinaryIO

import pandas as pd

from advisor.errors import InputError, MixedRanksError
from advisor.readers.columns import EventColumns
from advisor.readers.damage import find_damaged_steps, find_damaged_times, list_steps, note_damage
from advisor.readers.display import list_names, show_name
from advisor.readers.document import TraceDocument
from advisor.readers.header import build_header
from advisor.readers.names import COMMUNICATION_LIBRARY, COMMUNICATION_WORD, GLOO_SPAN, KERNEL
from advisor.schema import DeviceType, QualityNote
from advisor.tables import Trace

LONGEST_WORD = 60


def read_chrome_trace(data: bytes | BinaryIO, file: str, rank: int | None = None) -> Trace:
    """Reads one rank's Kineto trace; what is damaged in it is left out and noted.

    Args:
        data: The decompressed JSON text, or a stream of it.
        file: Its name, for messages.
        rank: The rank to assume where the file does not tell its own.

    Raises:
        InputError: The text is not a Kineto trace, has no events, holds several ranks, or tells no rank.
    """
    document = TraceDocument(data, file)
    columns = EventColumns()
    for batch in document.read_batches():
        columns.add(batch)
        del batch  # so that the next one is made of the same memory, which the processor still has at hand
    if columns.num_rows == 0:
        raise InputError(f"{file} holds no timed events: record it with torch.profiler and export_chrome_trace.")
    header = build_header(document.fields)
    rank = header.rank if header.rank is not None else rank
    if rank is None:
        raise InputError(
            f"{file} tells no rank: it has no distributedInfo and no number in its name; "
            "rename it to rank<number>.json."
        )
    events = columns.build()
    damaged_ns = find_damaged_times(document.damage, events, columns.places, bool(header.devices))
    _require_one_rank(columns.processes, events, file)
    device_type: DeviceType = "cuda" if events["category"].isin(KERNEL).any() else "cpu"
    return Trace(
        rank=rank,
        file=file,
        events=events,
        world_size=header.world_size,
        backend=_name_backend(header.backend, device_type, list(events["name"].cat.categories)),
        host=header.host,
        device_type=device_type,
        has_shapes=bool((events["input_dims"] != "").any()),
        notes=(
            *note_damage(document.damage, file, find_damaged_steps(events, damaged_ns)),
            *_note_unknown_kernels(events, file),
        ),
        damaged_ns=damaged_ns,
        recording=header.describe(document.num_bytes, document.num_events),
    )


def _require_one_rank(processes: list[str], events: pd.DataFrame, file: str) -> None:
    """Refuses a file into which several ranks wrote: two processes that train, or two steps of one number."""
    steps = Counter(number for number, _, _ in list_steps(events))
    repeated = [number for number, count in steps.items() if count > 1]
    found = ""
    if len(processes) > 1:
        found = f"of {len(processes)} processes ({_list_words(processes)})"
    elif repeated:
        found = f"of several recordings (step {repeated[0]} is there {steps[repeated[0]]} times)"
    if found:
        raise MixedRanksError(
            f"{file} holds the events {found}: give every rank a file of its own, as "
            "torch.profiler.tensorboard_trace_handler(folder, worker_name=f'rank{rank}') does."
        )


def _name_backend(stated: str, device_type: DeviceType, names: Sequence[str]) -> str:
    """The backend of the device's collectives, where torch states `undefined` or `cpu:gloo,cuda:nccl`."""
    per_device = dict(pair.split(":", 1) for pair in stated.lower().split(",") if ":" in pair)
    backend = per_device.get(device_type, stated.lower())
    if backend not in ("", "undefined"):
        return backend
    if device_type == "cuda":
        return "nccl"
    return "gloo" if any(GLOO_SPAN.match(name) for name in names) else "unknown"


def _list_words(words: Iterable[str]) -> str:
    """Words of a trace as they may be shown: some of them, cut and printable."""
    return list_names([show_name(word[:LONGEST_WORD]) for word in words])


def _note_unknown_kernels(events: pd.DataFrame, file: str) -> list[QualityNote]:
    """Kernels that count as communication although no library that is known has such names."""
    kernels = events.loc[events["category"].isin(KERNEL), ["name", "collective"]]
    told = set(kernels["name"][kernels["collective"] != ""])
    unknown = {
        str(name): count
        for name, count in kernels["name"].value_counts().items()
        if count and (name in told or COMMUNICATION_WORD.search(str(name)))
        if not COMMUNICATION_LIBRARY.search(str(name))
    }
    if not unknown:
        return []
    return [
        QualityNote(
            message=f"{sum(unknown.values())} kernels are of no communication library that is known, but are named "
            f"after a collective or say that they run one ({_list_words(unknown)}): they "
            "count as communication.",
            file=file,
        )
    ]
