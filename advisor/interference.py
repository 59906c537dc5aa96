"""What hidden communication costs: how much slower the same work runs while communication is active.

Work is the same where rank, name and shapes are, and its clean executions take the same time. Its slow-down in a step
is what ran beside communication over what the same work takes without any (the median of its clean executions), and
the overlap tax of the step is

    compute time beside communication · (1 - 1 / slow-down)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from advisor.observation import RankObservation
from advisor.schema import Interference
from advisor.statistics import median_estimate
from advisor.work import FEWEST_EXECUTIONS

COMPARED_ENOUGH = 0.05
"""The share of the compute time beside communication from which on its slow-down is known."""


def measure_interference(observations: Sequence[RankObservation]) -> Interference | None:
    """How much communication slows computation down, and what that costs a step.

    Returns:
        None where too little work ran both beside communication and without any.
    """
    steps = [(one, rank.step_activities[one.step].overlap_ns) for rank in observations for one in rank.comparisons]
    beside_ns = sum(activity.overlap_ns for rank in observations for activity in rank.step_activities)
    compared_fraction = sum(one.duration_ns for one, _ in steps) / max(1, beside_ns)
    num_executions = sum(one.num_executions for one, _ in steps)
    if num_executions < FEWEST_EXECUTIONS or compared_fraction < COMPARED_ENOUGH:
        return None
    slowdowns = np.array([one.duration_ns / one.clean_ns for one, _ in steps])
    overlaps_ns = np.array([overlap_ns for _, overlap_ns in steps], dtype=np.float64)
    return Interference(
        slowdown=median_estimate(slowdowns),
        tax_ns=median_estimate(overlaps_ns * (1 - 1 / slowdowns)),
        num_executions=num_executions,
        compared_fraction=min(1.0, compared_fraction),
    )
