"""All that a report needs of one rank, made where its trace is read: our observation and HTA's answers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from advisor.holistic import MOST_KERNELS, examine_rank
from advisor.observation import RankObservation, observe_rank
from advisor.schema import Holistic
from advisor.tables import Trace


@dataclass(frozen=True)
class RankSurvey:
    """What is kept of one rank; it holds no events, so it crosses processes cheaply."""

    observation: RankObservation
    holistic: Holistic | None
    """None where HTA was not to be asked about this rank."""


def survey_rank(trace: Trace, examined: Collection[int]) -> RankSurvey:
    """Reduces one rank's trace.

    Args:
        trace: The rank's events.
        examined: The ranks that HTA is asked about; they share the kernels that it can go through in time.
    """
    answers = examine_rank(trace, MOST_KERNELS // len(examined)) if trace.rank in examined else None
    return RankSurvey(observe_rank(trace), answers)
