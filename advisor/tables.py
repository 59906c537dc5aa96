"""What holds events between the stages: one Trace a rank, a Run of them, and the declared columns of their tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
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
    "num_output_elements": "int64",
    "group_size": "int32",
    "wait_on_stream": "int64",
    "wait_on_cuda_event_record_corr_id": "int64",
}
"""Columns of `Trace.events`, one row per complete event of a category in use (`readers/names.py`), sorted by start
(longest first where equal).

Integers that a trace lacks are -1, words that it lacks are "". `thread` is a code for the pair (pid, tid); `stream` is
-1 off the GPU. `external_id` is kept of device events and of `record_param_comms`, which it links. `input_dims` is the
raw JSON text of `Input Dims`, of collectives, gradients and operators of at least `SHORTEST_SHAPED_NS`. `category` is
lower case. From `collective` to `group_size` the columns describe collectives; `num_elements` and `dtype` also
gradients. The last two tell what a row of `cuda_sync` waits for, in Kineto's words.
"""
SHORTEST_SHAPED_NS = 20_000
"""Operators shorter than this are kept without their shapes."""


@dataclass(frozen=True)
class Recording:
    """How a trace was recorded, as far as its file says it; None where it does not."""

    packing: str = "json"
    """How the text was packed: `json` (not at all), `gzip` or `zstd`."""
    num_bytes: int = 0
    """Of JSON text."""
    num_events: int = 0
    """Of every phase and category, those that are not kept included."""
    base_ns: int = 0
    """What Kineto subtracted from every time, since the epoch."""
    devices: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    record_shapes: bool | None = None
    with_stack: bool | None = None
    profile_memory: bool | None = None


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
    notes: tuple[QualityNote, ...] = ()
    """What was missing, repaired or lost while reading."""
    damaged_ns: tuple[tuple[int, int], ...] = ()
    """Intervals [start, end) in which events were lost; a step that overlaps one is incomplete."""
    recording: Recording = Recording()


@dataclass(frozen=True)
class Run:
    """The traces of one run, by rank, with its manifest where the recorder left one."""

    source: str
    traces: tuple[Trace, ...]
    manifest: RunManifest | None
    notes: tuple[QualityNote, ...] = field(default=())


def match_names(events: pd.DataFrame, matches: Callable[[str], object]) -> npt.NDArray[np.bool_]:
    """Rows whose name satisfies a predicate, asked once per distinct name."""
    wanted = np.array([bool(matches(name)) for name in events["name"].cat.categories], dtype=bool)
    return np.asarray(wanted[events["name"].cat.codes.to_numpy()]) if len(wanted) else np.zeros(len(events), bool)
