"""Pieces of one rank's work, told apart by name and shapes, with communication beside them or without any."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from advisor.intervals import measure_coverage
from advisor.readers.names import KERNEL, OPERATOR
from advisor.timeline import RankTimeline

CLEAN_FRACTION = 0.05
OVERLAPPED_FRACTION = 0.95
"""Work counts as clean below the one, and as overlapped above the other share of communication beside it."""
SHORTEST_OPERATOR_NS = 20_000
SHORTEST_KERNEL_NS = 5_000
DEEPEST_OPERATOR = 8
"""How many operators that ended already may lie between a launch and the start of the operator around it."""

FEWEST_EXECUTIONS = 3
"""Clean executions that make a reference, and overlapped ones that make a slow-down."""
STEADY_SPREAD = 0.1
"""Clean executions whose median deviation is above this share of their median do not do the same work."""
IDENTITY = ["name", "dims"]

Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Comparison:
    """What ran beside communication in one step, and what the same work takes without any; sums."""

    step: int
    """By place."""
    num_executions: int
    duration_ns: int
    clean_ns: float


def find_work(timeline: RankTimeline) -> pd.DataFrame:
    """Operators without operators inside on CPU, kernels on a GPU, that ran wholly beside communication or without.

    Columns: step (by place), name, dims (the JSON text of the operator's shapes, on a GPU of the innermost one
    around the launch), duration in ns, overlapped. Without shapes the same name may stand for different work, and the
    table is empty.
    """
    on_gpu = timeline.trace.device_type == "cuda"
    rows = _find_kernels(timeline) if on_gpu else _find_leaf_operators(timeline)
    starts, ends = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    covered = measure_coverage(timeline.communication)
    place, inside = _find_places(timeline, *((rows["launch_ns"].to_numpy(),) * 2 if on_gpu else (starts, ends)))
    beside = (covered(ends) - covered(starts)) / np.maximum(ends - starts, 1)
    decided = inside & ((beside < CLEAN_FRACTION) | (beside > OVERLAPPED_FRACTION))
    table: pd.DataFrame = pd.DataFrame(
        {
            "step": place,
            "name": rows["name"].astype(str),
            "dims": rows["input_dims"].astype(str),
            "duration": ends - starts,
            "overlapped": beside > OVERLAPPED_FRACTION,
        }
    )
    return pd.DataFrame(table.loc[decided])


def compare_work(work: pd.DataFrame) -> tuple[Comparison, ...]:
    """Compares the work that ran beside communication, where it is known what it takes without, step by step."""
    overlapped = work["overlapped"].astype(bool)
    compared = work[overlapped].merge(_find_references(work[~overlapped]), left_on=IDENTITY, right_index=True)
    steps = compared.groupby("step").agg({"name": "size", "duration": "sum", "clean": "sum"})
    return tuple(
        Comparison(int(step), int(num), int(duration), float(clean))
        for step, num, duration, clean in zip(
            steps.index, steps["name"], steps["duration"], steps["clean"], strict=True
        )
    )


def _find_references(clean: pd.DataFrame) -> pd.Series:
    """What each piece of work takes without communication, where that is known."""
    groups = clean.groupby(IDENTITY, sort=False)["duration"]
    median = groups.median()
    distance = (clean["duration"] - groups.transform("median")).abs()
    spread = distance.groupby([clean[column] for column in IDENTITY], sort=False).median()
    return median[(groups.size() >= FEWEST_EXECUTIONS) & (spread <= STEADY_SPREAD * median)].rename("clean")


def _find_places(timeline: RankTimeline, starts: Times, ends: Times) -> tuple[Times, npt.NDArray[np.bool_]]:
    """The place among the steps, and whether host times lie within that step."""
    steps = timeline.steps
    place = np.searchsorted([step.host_start_ns for step in steps], starts, side="right") - 1
    limits = np.array([*(step.host_end_ns for step in steps), -1])  # the last one for what no step precedes
    return place, ends <= limits[place]


def _find_leaf_operators(timeline: RankTimeline) -> pd.DataFrame:
    events = timeline.trace.events
    rows = events.loc[events["category"].isin(OPERATOR), ["name", "input_dims", "thread", "start_ns", "end_ns"]]
    rows = rows.take(np.argsort(rows["thread"].to_numpy(), kind="stable"))  # by start, the longest first where equal
    starts, ends, threads = (rows[column].to_numpy() for column in ("start_ns", "end_ns", "thread"))
    leaf = np.append((starts[1:] >= ends[:-1]) | (threads[1:] != threads[:-1]), True)[: len(rows)]
    long = ends - starts >= SHORTEST_OPERATOR_NS
    return pd.DataFrame(rows[leaf & long & (rows["input_dims"] != "").to_numpy()])


def _find_kernels(timeline: RankTimeline) -> pd.DataFrame:
    events, device = timeline.trace.events, timeline.device
    is_kernel = events["category"].isin(KERNEL).to_numpy()[device["row"]] & ~device["communication"].to_numpy()
    long = (device["end_ns"] - device["start_ns"] >= SHORTEST_KERNEL_NS).to_numpy()
    kernels = device[is_kernel & long & (device["launch_ns"] >= 0).to_numpy()]
    shaped = events[events["category"].isin(OPERATOR).to_numpy() & (events["input_dims"] != "").to_numpy()]
    around = _find_operators_around(shaped, kernels)
    dims = shaped["input_dims"].cat.codes.to_numpy()[around] if len(shaped) else around
    words = np.array(["", *events["input_dims"].cat.categories], dtype=object)
    kernels = kernels.assign(input_dims=words[np.where(around < 0, 0, dims + 1)])
    return pd.DataFrame(kernels[around >= 0])


def _find_operators_around(operators: pd.DataFrame, kernels: pd.DataFrame) -> Times:
    """For each kernel the row of the innermost operator around its launch; -1 without one."""
    around = np.full(len(kernels), -1, dtype=np.int64)
    threads, launches = kernels["launch_thread"].to_numpy(), kernels["launch_ns"].to_numpy()
    for thread in np.unique(threads):
        rows = np.flatnonzero((operators["thread"] == thread).to_numpy())
        starts, ends = (operators[column].to_numpy()[rows] for column in ("start_ns", "end_ns"))
        own = np.flatnonzero(threads == thread)
        last = np.searchsorted(starts, launches[own], side="right") - 1
        for back in range(DEEPEST_OPERATOR):
            candidate = last - back
            holds = (candidate >= 0) & (around[own] < 0)
            holds[holds] = ends[candidate[holds]] > launches[own[holds]]
            around[own[holds]] = rows[candidate[holds]]
    return around
