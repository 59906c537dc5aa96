"""Several recordings of one rank as one: the windows that torch.profiler writes when its schedule repeats."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np
import pandas as pd
from pandas.api.types import union_categoricals

from advisor.errors import InputError
from advisor.readers.names import find_step_number
from advisor.tables import EVENT_COLUMNS, Trace

_LOCAL_CODES = {
    "thread": "thread",
    "correlation": "correlation",
    "wait_on_cuda_event_record_corr_id": "correlation",
    "external_id": "external_id",
}
"""Columns whose numbers mean something only within one file, and which numbers they are."""


def join_windows(traces: Sequence[Trace]) -> Trace:
    """Joins the windows of one rank's recording, in any order.

    Each window keeps its steps and its links between launch and kernel; threads are told apart by window. Without
    `ProfilerStep` marks the pauses between windows would count as steps, so then the last window stands for all.

    Raises:
        InputError: Two of them were recorded at the same time or hold the same step, so they are of different runs.
    """
    windows = sorted(traces, key=_find_start_ns)
    for earlier, later in pairwise(windows):
        _require_successor(earlier, later)
    if not all(map(_find_steps, windows)):
        return windows[-1]
    used = accumulate(map(_count_codes, windows[:-1]), operator.add, initial=Counter[str]())
    shifted = [_shift_codes(window.events, offsets) for window, offsets in zip(windows, used, strict=True)]
    events = pd.DataFrame({column: _join_column(column, shifted) for column in EVENT_COLUMNS})
    return replace(
        windows[0],
        file=f"{windows[0].file} and {len(windows) - 1} more",
        events=events,
        has_shapes=any(window.has_shapes for window in windows),
        notes=tuple(note for window in windows for note in window.notes),
        damaged_ns=tuple(span for window in windows for span in window.damaged_ns),
        recording=replace(
            windows[0].recording,
            num_bytes=sum(window.recording.num_bytes for window in windows),
            num_events=sum(window.recording.num_events for window in windows),
        ),
    )


def _require_successor(earlier: Trace, later: Trace) -> None:
    same_rank = f"{earlier.file} and {later.file} are both rank {earlier.rank}"
    if int(earlier.events["end_ns"].max()) > _find_start_ns(later):
        raise InputError(f"{same_rank}, recorded at the same time: give the traces of one run, one file a rank.")
    shared = _find_steps(earlier) & _find_steps(later)
    if shared:
        raise InputError(f"{same_rank} and both hold step {min(shared)}: they are of different runs, give one of them.")


def _find_start_ns(trace: Trace) -> int:
    return int(trace.events["start_ns"].min())


def _find_steps(trace: Trace) -> set[int]:
    names = trace.events["name"].cat.categories
    return {number for name in names if (number := find_step_number(name)) is not None}


def _count_codes(trace: Trace) -> Counter[str]:
    """How many numbers of each kind a window uses up."""
    return Counter({kind: max(0, int(trace.events[kind].max()) + 1) for kind in _LOCAL_CODES.values()})


def _shift_codes(events: pd.DataFrame, offsets: Counter[str]) -> pd.DataFrame:
    """The events with their local numbers moved up; a missing one stays -1."""
    shifted = {}
    for column in _LOCAL_CODES:
        codes = events[column].to_numpy()
        moved = np.where(codes < 0, codes, codes + offsets[_LOCAL_CODES[column]])
        shifted[column] = moved.astype(EVENT_COLUMNS[column])
    return events.assign(**shifted)


def _join_column(column: str, windows: Sequence[pd.DataFrame]) -> pd.Series | pd.Categorical:
    parts = [window[column] for window in windows]
    return union_categoricals(parts) if EVENT_COLUMNS[column] == "category" else pd.concat(parts, ignore_index=True)
