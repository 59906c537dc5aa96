"""What holds events between the stages: one Trace a rank, a Run of them, and the declared columns of their tables."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd

from advisor.schema import DeviceType, QualityNote, RunManifest

EVENT_COLUMNS: dict[str, str] = {
    "name": "category",
    "category": "category",
    "thread": "int32",
    "start_ns": "int64",
    "end_ns": "int64",
    "stream": "int64",
    "correlation": "int64",
    "external_id": "int64",
    "input_dims": "category",
    "collective": "category",
    "num_elements": "int64",
    "dtype": "category",
    "process_group": "category",
    "sequence": "int64",
}
"""Columns of `Trace.events`, one row per complete event, sorted by start (longest first where equal).

Integers that a trace lacks are -1, words that it lacks are "". `thread` is a code for the pair
(pid, tid); `stream` is -1 off the GPU. `input_dims` is the raw JSON text of `Input Dims`. `category` is lower case. The
last five describe collectives; `num_elements` and `dtype` also gradients.
"""


@dataclass(frozen=True)
class Trace:
    """One rank's events and what its file says about the run."""

    rank: int
    file: str
    events: pd.DataFrame
    world_size: int | None
    backend: str
    host: str | None
    device_type: DeviceType
    has_shapes: bool


@dataclass(frozen=True)
class Run:
    """The traces of one run, by rank, with its manifest where the recorder left one."""

    source: str
    traces: tuple[Trace, ...]
    manifest: RunManifest | None
    notes: tuple[QualityNote, ...] = field(default=())
