"""The operators of one rank that ran with communication beside them, or without any."""

from __future__ import annotations

import numpy as np
import pandas as pd

from advisor.intervals import measure_coverage
from advisor.readers.names import OPERATOR
from advisor.timeline import RankTimeline

CLEAN_FRACTION = 0.05
OVERLAPPED_FRACTION = 0.95
"""An operator counts as clean below the one, and as overlapped above the other share of communication beside it."""
SHORTEST_OPERATOR_NS = 20_000


def find_leaf_operators(timeline: RankTimeline) -> pd.DataFrame:
    """Operators without operators inside that ran wholly beside communication, or wholly without.

    Columns: rank, step (by place), name, dims (the shapes' JSON text), duration in ns, overlapped. CPU traces with
    shapes only: elsewhere the same name may stand for different work, and the table is empty.
    """
    events = timeline.trace.events
    on_cpu = timeline.trace.device_type == "cpu"
    rows = events[events["category"].isin(OPERATOR) & on_cpu]
    rows = rows.sort_values(["thread", "start_ns", "end_ns"], ascending=[True, True, False], kind="stable")
    starts, ends, threads = (rows[column].to_numpy() for column in ("start_ns", "end_ns", "thread"))
    leaf = np.append((starts[1:] >= ends[:-1]) | (threads[1:] != threads[:-1]), True)[: len(rows)]
    keep = leaf & (ends - starts >= SHORTEST_OPERATOR_NS) & (rows["input_dims"] != "").to_numpy()
    rows = rows[keep]
    starts, ends = starts[keep], ends[keep]
    covered = measure_coverage(timeline.communication)
    steps = timeline.steps
    place = np.searchsorted([step.host_start_ns for step in steps], starts, side="right") - 1
    limits = np.array([*(step.host_end_ns for step in steps), -1])  # the last one for what no step precedes
    inside = ends <= limits[place]
    beside = (covered(ends) - covered(starts)) / np.maximum(ends - starts, 1)
    decided = inside & ((beside < CLEAN_FRACTION) | (beside > OVERLAPPED_FRACTION))
    table: pd.DataFrame = pd.DataFrame(
        {
            "rank": timeline.trace.rank,
            "step": place,
            "name": rows["name"].astype(str),
            "dims": rows["input_dims"].astype(str),
            "duration": ends - starts,
            "overlapped": beside > OVERLAPPED_FRACTION,
        }
    )
    return pd.DataFrame(table.loc[decided])
