"""Mistakes that change what is trained or measured: one file an alarm, listed in ALARMS.

An alarm reads the analysis and says in one sentence each what is wrong and what to do, with the ranks, steps and
figures that show it; or it returns nothing, as it does for everything that may be meant.
"""

from __future__ import annotations

from collections.abc import Callable

from advisor.alarms import (
    bucket_plan_differs,
    cap_unit_suspect,
    collective_count_differs,
    harmful_environment,
    no_communication,
    partial_synchronization,
    reduced_bytes_mismatch,
    redundant_synchronization,
    uneven_loss_weighting,
    unsynced_last_micro_batch,
    zero_grad_inside_accumulation,
)
from advisor.schema import Alarm
from advisor.verdict import Analysis

AlarmCheck = Callable[[Analysis], Alarm | None]

ALARMS: tuple[AlarmCheck, ...] = (
    no_communication.check,
    unsynced_last_micro_batch.check,
    reduced_bytes_mismatch.check,
    zero_grad_inside_accumulation.check,
    bucket_plan_differs.check,
    collective_count_differs.check,
    redundant_synchronization.check,
    partial_synchronization.check,
    uneven_loss_weighting.check,
    harmful_environment.check,
    cap_unit_suspect.check,
)
"""Wrong results first, then waste."""
