"""What hidden communication costs: how much slower the same work runs while communication is active.

Work is the same where rank, name and shapes are, and its clean executions take the same time. Its slow-down in a step
is what ran beside communication over what the same work takes without any (the median of its clean executions), and
the overlap tax of the step is

    compute time beside communication · (1 - 1 / slow-down)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from advisor.intervals import clip, intersection, total
from advisor.observation import RankObservation
from advisor.schema import Interference
from advisor.statistics import median_estimate

FEWEST_EXECUTIONS = 3
"""Clean executions that make a reference, and overlapped ones that make a slow-down."""
STEADY_SPREAD = 0.1
"""Clean executions whose median deviation is above this share of their median do not do the same work."""
COMPARED_ENOUGH = 0.05
"""The share of the compute time beside communication from which on its slow-down is known."""
IDENTITY = ["rank", "name", "dims"]


def measure_interference(observations: Sequence[RankObservation]) -> Interference | None:
    """How much communication slows computation down, and what that costs a step.

    Returns:
        None where too little work ran both beside communication and without any.
    """
    work = pd.concat([observation.work for observation in observations], ignore_index=True)
    overlapped = work["overlapped"].astype(bool)
    compared = work[overlapped].merge(_find_references(work[~overlapped]), left_on=IDENTITY, right_index=True)
    beside = _measure_overlaps(observations)
    compared_fraction = float(compared["duration"].sum() / max(1, sum(beside.values())))
    if len(compared) < FEWEST_EXECUTIONS or compared_fraction < COMPARED_ENOUGH:
        return None
    per_step = compared.groupby(["rank", "step"])[["duration", "clean"]].sum()
    slowdowns = (per_step["duration"] / per_step["clean"]).to_numpy(dtype=np.float64)
    overlap_ns = np.array([beside[rank, step] for rank, step in per_step.index], dtype=np.float64)
    return Interference(
        slowdown=median_estimate(slowdowns),
        tax_ns=median_estimate(overlap_ns * (1 - 1 / slowdowns)),
        num_executions=len(compared),
        compared_fraction=min(1.0, compared_fraction),
    )


def _find_references(clean: pd.DataFrame) -> pd.Series:
    """What each piece of work takes without communication, where that is known."""
    groups = clean.groupby(IDENTITY, sort=False)["duration"]
    median = groups.median()
    distance = (clean["duration"] - groups.transform("median")).abs()
    spread = distance.groupby([clean[column] for column in IDENTITY], sort=False).median()
    return median[(groups.size() >= FEWEST_EXECUTIONS) & (spread <= STEADY_SPREAD * median)].rename("clean")


def _measure_overlaps(observations: Sequence[RankObservation]) -> dict[tuple[int, int], int]:
    """Compute time beside communication, by rank and place of the step."""
    overlaps = {}
    for observation in observations:
        overlap = intersection(observation.compute, observation.communication)
        for place, step in enumerate(observation.steps):
            overlaps[observation.rank, place] = total(clip(overlap, step.start_ns, step.end_ns))
    return overlaps
