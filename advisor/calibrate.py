"""How computation and communication disturb each other on this machine, and what bucketing itself costs.

The slow-down of computation is measured on operators that ran both beside communication and alone, on the same shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from advisor.comm_model import CommFit
from advisor.intervals import measure_coverage, total
from advisor.readers.names import OPERATOR
from advisor.schedule import StepSchedule
from advisor.schema import Backend, Calibration, Estimate, StepProfile
from advisor.statistics import median_estimate
from advisor.step_profile import build_step_profile
from advisor.timeline import RankTimeline

CONCURRENCY: dict[Backend, int] = {"gloo": 2, "nccl": 1, "unknown": 1}
"""Collectives in flight per process group: gloo runs two worker threads, NCCL one stream."""

CLEAN_FRACTION = 0.05
OVERLAPPED_FRACTION = 0.95
"""An operator counts as clean below the one, and as overlapped above the other share of communication beside it."""
SHORTEST_OPERATOR_NS = 20_000
FEWEST_OPERATORS = 3


@dataclass(frozen=True)
class Calibrated:
    """What replay needs; no profile where the buckets' bytes or the steps are unknown."""

    profile: StepProfile | None
    calibration: Calibration


def calibrate(
    timelines: Sequence[RankTimeline], schedules: Sequence[StepSchedule], fit: CommFit | None, backend: Backend
) -> Calibrated:
    """Builds the step profile and the calibration of one run.

    Args:
        timelines: All ranks.
        schedules: Their gradient exchanges.
        fit: The communication model of the gradients' all-reduce.
        backend: Decides how many collectives run at once.
    """
    assumed: list[str] = []
    compute_slowdown = _measure_compute_slowdown(timelines)
    if compute_slowdown is None:
        assumed.append("computation is not slowed down by communication (no operator ran both with and without it)")
        compute_slowdown = _assume(1.0)
    if fit is None:
        assumed.append("communication is not slowed down by computation (no communication model)")
    on_cpu = timelines[0].trace.device_type == "cpu"
    copied = [(s.copy_back_ns, sum(max(b.num_bytes, 0) for b in s.buckets)) for s in schedules] if on_cpu else []
    launches = [total(s.launch_spans) / max(1, len(s.buckets)) for s in schedules] if on_cpu else []
    if not on_cpu:
        assumed.append("copies out of the bucket cost no device time")
    calibration = Calibration(
        concurrency=CONCURRENCY[backend],
        compute_slowdown=compute_slowdown,
        communication_slowdown=fit.communication_slowdown if fit else _assume(1.0),
        copy_in_ns_per_byte=_assume(0.0),
        copy_out_ns_per_byte=median_estimate([t / n for t, n in copied if n])
        if any(n for _, n in copied)
        else _assume(0),
        launch_ns=median_estimate(launches) if launches else _assume(0.0),
        host_tail_ns=median_estimate([s.host_tail_ns for s in schedules]) if schedules else _assume(0.0),
        baseline_residual_fraction=_assume(0.0),
        assumed=tuple(assumed),
    )
    return Calibrated(build_step_profile(timelines, schedules, compute_slowdown.value), calibration)


def _assume(value: float) -> Estimate:
    return Estimate(value=value, low=value, high=value, basis="extrapolated")


# ------------------------------------------------------------------------------------------------ interference


def _measure_compute_slowdown(timelines: Sequence[RankTimeline]) -> Estimate | None:
    """How much longer the same operator on the same shapes takes beside communication; CPU traces with shapes only."""
    tables = [_leaf_operators(timeline) for timeline in timelines if timeline.trace.has_shapes]
    tables = [table for table in tables if len(table)]
    if not tables or timelines[0].trace.device_type != "cpu":
        return None
    operators = pd.concat(tables, ignore_index=True)
    clean = operators[operators["beside"] < CLEAN_FRACTION].groupby(["name", "dims"])["duration"]
    overlapped = operators[operators["beside"] > OVERLAPPED_FRACTION]
    reference = clean.median()[clean.size() >= FEWEST_OPERATORS].rename("clean")
    pairs = overlapped.merge(reference, left_on=["name", "dims"], right_index=True)
    if len(pairs) < FEWEST_OPERATORS:
        return None
    per_step = pairs.groupby(["rank", "step"])[["duration", "clean"]].sum()
    found = median_estimate((per_step["duration"] / per_step["clean"]).to_numpy())
    return Estimate(value=max(1.0, found.value), low=max(1.0, found.low), high=max(1.0, found.high), basis="fitted")


def _leaf_operators(timeline: RankTimeline) -> pd.DataFrame:
    """Operators without operators inside, in steps, with the share of communication beside them."""
    events = timeline.trace.events
    rows = events[events["category"].isin(OPERATOR)]
    rows = rows.sort_values(["thread", "start_ns", "end_ns"], ascending=[True, True, False], kind="stable")
    starts, ends, threads = (rows[column].to_numpy() for column in ("start_ns", "end_ns", "thread"))
    leaf = np.append((starts[1:] >= ends[:-1]) | (threads[1:] != threads[:-1]), True)
    keep = leaf & (ends - starts >= SHORTEST_OPERATOR_NS) & (rows["input_dims"] != "").to_numpy()
    rows = rows[keep]
    starts, ends = starts[keep], ends[keep]
    covered = measure_coverage(timeline.communication)
    steps = timeline.steps
    edges = np.array([step.host_start_ns for step in steps])
    place = np.searchsorted(edges, starts, side="right") - 1
    inside = (place >= 0) & (ends <= np.array([step.host_end_ns for step in steps])[place])
    table: pd.DataFrame = pd.DataFrame(
        {
            "rank": timeline.trace.rank,
            "step": place,
            "name": rows["name"].astype(str),
            "dims": rows["input_dims"].astype(str),
            "duration": ends - starts,
            "beside": (covered(ends) - covered(starts)) / np.maximum(ends - starts, 1),
        }
    )
    return pd.DataFrame(table.loc[inside])
