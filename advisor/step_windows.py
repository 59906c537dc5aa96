"""Where steps begin and end on the host, and what told them apart.

A step is what ends with an update of the weights. Where `prof.step()` is called after every micro-batch, the windows
of one accumulation are joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from advisor.readers.names import DDP_FORWARD, OPTIMIZER_STEP, PROFILER_STEP, find_step_number
from advisor.schema import StepSource
from advisor.tables import match_names

FIRST_STEADY_STEP = 2
"""ProfilerStep#0 and #1 hold DDP's rebuild of its buckets and are left out where later steps were recorded."""

Window: TypeAlias = tuple[int, int, int]
"""Number, start and end on the host."""


def find_steps(host: pd.DataFrame) -> tuple[list[Window], StepSource]:
    """Every steady step, and what told them apart; no steps where nothing does."""
    marks = host[match_names(host, PROFILER_STEP.match)]
    updates = host[match_names(host, OPTIMIZER_STEP.match)]
    spans = zip(marks["name"], marks["start_ns"].tolist(), marks["end_ns"].tolist(), strict=True)
    windows = [(number, *span) for name, *span in spans if (number := find_step_number(name)) is not None]
    if windows:
        steady = [window for window in windows if window[0] >= FIRST_STEADY_STEP] or windows
        return join_micro_steps(steady, updates["start_ns"].to_numpy()), "profiler"
    if len(updates) > 1:
        return _between(updates["end_ns"].tolist()), "optimizer"
    forwards = host["start_ns"][host["name"].isin(DDP_FORWARD)].tolist()
    return (_between(forwards), "forward") if len(forwards) > 1 else ([], "window")


def join_micro_steps(windows: Sequence[Window], updates: npt.NDArray[np.int64]) -> list[Window]:
    """Joins the windows up to each one that holds an update of the weights, if these come in a regular rhythm.

    A joined window has the number of its last one. What precedes the first update is left out where it may be only a
    part of its accumulation, and so is what follows the last one.

    Example: windows 3 to 8 with updates in 4, 6 and 8 become 4 (3 and 4), 6 (5 and 6) and 8 (7 and 8).

    Args:
        windows: In time order.
        updates: When the optimizer's steps began, sorted.
    """
    starts, ends = ([window[side] for window in windows] for side in (1, 2))
    has_update = np.searchsorted(updates, ends) > np.searchsorted(updates, starts)
    places = np.flatnonzero(has_update)
    rhythm = set(np.diff(places).tolist())
    if len(rhythm) != 1 or rhythm == {1}:
        return list(windows)
    (length,) = rhythm
    groups = [windows[place - length + 1 : place + 1] for place in places.tolist() if place >= length - 1]
    whole = [group for group in groups if group[-1][0] - group[0][0] == length - 1]
    return [(group[-1][0], group[0][1], group[-1][2]) for group in whole] or list(windows)


def _between(moments: Sequence[int]) -> list[Window]:
    return [(number, start, end) for number, (start, end) in enumerate(pairwise(moments))]
