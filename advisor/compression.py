"""What a hook that multiplies matrices, such as PowerSGD's, does inside backward: when it computed, and when it waited.

It runs at the end of the AccumulateGrad node that completes its bucket, from the gradient's copy into the bucket to the
end of the node. While an all-reduce runs and no operator does, it waits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from advisor.intervals import Intervals, build_intervals, difference, intersection
from advisor.readers.names import (
    ACCUMULATE_GRAD,
    ACCUMULATE_GRAD_OP,
    AUTOGRAD_NODE,
    COLLECTIVE_OP,
    COPY_IN,
    MATRIX_PRODUCT,
    OPERATOR,
)
from advisor.schema import marks
from advisor.tables import match_names
from advisor.timeline import RankTimeline


@dataclass(frozen=True)
class HookWork:
    """The host's time inside the hook in one backward, without launching all-reduces in the last two."""

    spans: Intervals
    computing: Intervals
    waiting: Intervals


def find_hook_work(timeline: RankTimeline, window: pd.DataFrame) -> HookWork | None:
    """Finds the hook's work among the events of one backward.

    Returns:
        None where no such hook ran; and on a GPU, where the host only launches what the hook computes.
    """
    nodes = window[match_names(window, lambda name: name == ACCUMULATE_GRAD)]
    launches = window[match_names(window, COLLECTIVE_OP.match)]
    starts, ends = nodes["start_ns"].to_numpy(), nodes["end_ns"].to_numpy()
    launch_ns = launches["start_ns"].to_numpy()
    first = np.searchsorted(launch_ns, starts)
    launching = first < np.searchsorted(launch_ns, ends)
    products = window["start_ns"].to_numpy()[match_names(window, MATRIX_PRODUCT.match)]
    multiplies = np.searchsorted(products, starts) < np.searchsorted(products, ends)
    if timeline.trace.device_type == "cuda" or not (launching & multiplies).any():
        return None
    complete = np.sort(window["end_ns"].to_numpy()[match_names(window, _completes_bucket)])
    begins = complete[np.searchsorted(complete, launch_ns[first[launching]], side="right") - 1]
    spans = build_intervals(begins, ends[launching])
    own = window["thread"].isin(nodes["thread"].unique()) & window["category"].isin(OPERATOR)
    busy = window[own.to_numpy() & ~match_names(window, lambda name: name.startswith(AUTOGRAD_NODE))]
    idle = difference(spans, build_intervals(busy["start_ns"], busy["end_ns"]))
    waiting = intersection(idle, timeline.communication)
    outside = difference(spans, build_intervals(launches["start_ns"], launches["end_ns"]))
    return HookWork(spans, computing=difference(outside, waiting), waiting=waiting)


def _completes_bucket(name: str) -> bool:
    return name in (ACCUMULATE_GRAD_OP, COPY_IN) or name.startswith(marks.BUCKET_READY)
