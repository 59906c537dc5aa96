"""How long a rank computed, communicated and copied: the sums that are kept of a timeline's intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.intervals import Intervals, difference, intersection, measure_coverage, total, union
from advisor.timeline import RankTimeline


@dataclass(frozen=True)
class Activity:
    """What ran within a stretch of time on one rank, in ns; overlap + exposed = communication."""

    compute_ns: int
    communication_ns: int
    overlap_ns: int
    """Communication with compute beside it."""
    exposed_ns: int
    """Communication without."""
    copy_ns: int
    """Copies and fills on the device with neither beside them."""


def measure_activities(timeline: RankTimeline) -> tuple[Activity, tuple[Activity, ...]]:
    """The activity over the whole file, and in each step."""
    compute, communication = timeline.compute, timeline.communication
    parts = (
        compute,
        communication,
        intersection(compute, communication),
        difference(communication, compute),
        difference(timeline.memory, union(compute, communication)),
    )
    starts = np.array([step.start_ns for step in timeline.steps], dtype=np.int64)
    ends = np.array([step.end_ns for step in timeline.steps], dtype=np.int64)
    of_steps = zip(*(_measure(part, starts, ends) for part in parts), strict=True)
    return Activity(*map(total, parts)), tuple(Activity(*row) for row in of_steps)


def _measure(part: Intervals, starts: Intervals, ends: Intervals) -> list[int]:
    """How much of the set lies in each of some windows."""
    covered = measure_coverage(part)
    inside: list[int] = np.rint(covered(ends) - covered(starts)).astype(np.int64).tolist()
    return inside
