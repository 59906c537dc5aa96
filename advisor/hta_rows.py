"""Our events as the rows that HolisticTraceAnalysis (HTA) would have made of them.

HTA's parser is passed by: it is slow, rounds to whole microseconds, and takes host rows that carry a stream (Triton's
operators do) for kernels. These rows are integer nanoseconds since the first of them, and only those that HTA reads.

**Source**: HolisticTraceAnalysis 0.5.0, `hta/common/trace.py` (`transform_correlation_to_index`, `load_traces`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from advisor.readers.names import ANNOTATION, KERNEL, MEMORY, OPERATOR, PROFILER_STEP, RUNTIME
from advisor.tables import match_names
from advisor.timeline import find_communication

LAUNCH = "cudaLaunchKernel"
"""HTA counts the launches of some calls only, so all of them get the name of one."""
SYNCHRONIZATION = "cuda_sync"
WAITS = ["wait_on_stream", "wait_on_cuda_event_record_corr_id"]
"""Columns of the event table that tell what a synchronisation waits for, in Kineto's words, where it has them."""


def build_kernel_rows(events: pd.DataFrame, most_kernels: int) -> pd.DataFrame:
    """Kernels and copies with their kind, the call that launched each, and the profiler's steps.

    Where there are more kernels, only the last whole steps that hold at most so many.
    """
    events = events[_choose(events, most_kernels)]
    device, memory = is_on_device(events), events["category"].isin(MEMORY).to_numpy()
    rows = _build_rows(events, device)
    rows["stream"] = np.where(device, np.maximum(events["stream"], 0), -1)
    rows["cat"] = np.select([memory, device], ["gpu_memcpy", "kernel"], "cuda_runtime")
    rows.loc[_is_launch(events), "name"] = LAUNCH
    rows["kind"] = np.select([find_communication(events), memory], ["communication", "memory"], "computation")
    return rows


def build_step_rows(events: pd.DataFrame) -> tuple[str, pd.DataFrame] | None:
    """The step in the middle by name, with its host work and all that this launched; None without synchronisation.

    Without that, HTA's critical path does not see what waits for what: it misses communication, or outlasts the step.
    """
    steps = events[_is_step(events)]
    if steps.empty or not set(WAITS) <= set(events.columns) or not (events[WAITS] >= 0).to_numpy().any():
        return None
    step = steps.iloc[len(steps) // 2]
    inside = events[events["start_ns"].between(step["start_ns"], step["end_ns"])]
    operators = inside[inside["category"].isin(OPERATOR)]
    calls = inside[inside["category"].isin(RUNTIME) & (inside["correlation"] >= 0)].drop_duplicates("correlation")
    on_gpu = events["category"].isin({*KERNEL, *MEMORY, SYNCHRONIZATION})
    caused = events[on_gpu & events["correlation"].isin(calls["correlation"])]
    kept = events.loc[sorted({step.name, *operators.index, *calls.index, *caused.index})]
    rows = _build_rows(kept, kept.index.isin(caused.index))
    rows[WAITS] = kept[WAITS].to_numpy()
    return step["name"], rows


def is_on_device(events: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Mask of kernels and copies."""
    return events["category"].isin(KERNEL | MEMORY).to_numpy()


def _choose(events: pd.DataFrame, most_kernels: int) -> npt.NDArray[np.bool_]:
    device, launches, steps = is_on_device(events), _is_launch(events), _is_step(events)
    if device.sum() > most_kernels:
        start_ns = events["start_ns"].to_numpy()
        since = np.sort(start_ns[launches])[-most_kernels:].min(initial=np.iinfo(np.int64).max)
        late = start_ns >= min(start_ns[steps & (start_ns >= since)], default=since)
        launches, steps = launches & late, steps & late
        device &= events["correlation"].isin(events["correlation"][launches]).to_numpy()
    return np.asarray(device | launches | steps)


def _is_launch(events: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """The first runtime call with the correlation of each kernel or copy."""
    correlation = events["correlation"]
    linked = correlation.isin(correlation[is_on_device(events)]) & (correlation >= 0)
    calls = correlation[linked & events["category"].isin(RUNTIME)].drop_duplicates()
    return events.index.isin(calls.index)


def _is_step(events: pd.DataFrame) -> npt.NDArray[np.bool_]:
    return events["category"].isin(ANNOTATION).to_numpy() & match_names(events, PROFILER_STEP.match)


def _build_rows(events: pd.DataFrame, gpu: npt.NDArray[np.bool_]) -> pd.DataFrame:
    """The columns that HTA's analyses read; `gpu` tells which rows its own parser would take for the device's."""
    rows = pd.DataFrame(
        {
            "index": events.index + 1,  # HTA takes a link to 0 for one that leads outside the trace
            "cat": events["category"].astype(object).to_numpy(),
            "name": events["name"].astype(object).to_numpy(),
            "pid": 0,
            "tid": events["thread"].to_numpy(),
            "ts": (events["start_ns"] - events["start_ns"].min()).to_numpy(),
            "dur": (events["end_ns"] - events["start_ns"]).to_numpy(),
            "stream": events["stream"].to_numpy(),
            "correlation": events["correlation"].to_numpy(),
        }
    )
    rows["end"] = rows["ts"] + rows["dur"]
    rows["index_correlation"] = np.minimum(rows["correlation"], 0)  # -1: none, 0: not recorded
    for side in (gpu, ~gpu):
        others = rows[~side & (rows["correlation"] >= 0)].drop_duplicates("correlation", keep="last")
        found = rows["correlation"].map(others.set_index("correlation")["index"])
        rows.loc[side & found.notna(), "index_correlation"] = found
    return rows
