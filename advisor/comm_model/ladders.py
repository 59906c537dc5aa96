"""What a ladder (our probe, nccl-tests) adds to the transfers of a trace: samples, and how much overlap costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from advisor.comm_model.fit import CommFit, fit_comm_models
from advisor.comm_model.transfers import Transfer
from advisor.schema import Estimate, Ladder, LadderPoint
from advisor.statistics import median_estimate

LARGE_BYTES = 2**20
"""From here on a collective is long enough for what runs beside it to be measured."""


def list_transfers(ladder: Ladder) -> list[Transfer]:
    """The collectives that had the link for themselves, one sample a visit: the median of its repetitions."""
    numbers = count()
    return [
        Transfer(
            key=("", point.kind, point.dtype),
            step=next(numbers),
            num_bytes=point.num_bytes,
            exclusive_ns=float(np.median(repetitions)),
            compute_fraction=float(point.under_compute),
            complete=True,
            source=ladder.source,
        )
        for point in ladder.points
        if point.in_flight == 1 and point.num_bytes > 0
        for repetitions in point.rounds_ns
        if repetitions and min(repetitions) > 0
    ]


def fit_ladder(ladder: Ladder) -> list[CommFit]:
    """The models of a ladder alone, by kind and dtype."""
    return fit_comm_models(list_transfers(ladder), ladder.world_size, ladder.backend)


@dataclass(frozen=True)
class Overlap:
    """What large messages of one kind and dtype cost each other and computation; None where it was not measured."""

    two_in_flight: Estimate | None
    """The time of two started together over that of one: 2 where they share the link, 1 where they do not notice."""
    compute_slowdown: Estimate | None
    """Computing time beside communication over that alone."""


def measure_overlap(ladder: Ladder, kind: str, dtype: str) -> Overlap:
    """Medians over the visits of the large messages."""
    points = [p for p in ladder.points if (p.kind, p.dtype) == (kind, dtype) and p.num_bytes >= LARGE_BYTES]
    alone = {p.num_bytes: p for p in points if p.in_flight == 1 and not p.under_compute}
    pairs = [
        (p, alone[p.num_bytes]) for p in points if p.in_flight == 2 and not p.under_compute and p.num_bytes in alone
    ]
    ratios = [_visit_ns(visit) / _typical_ns(one) for two, one in pairs for visit in two.rounds_ns]
    slowdowns = [slowdown for p in points if p.in_flight == 1 for slowdown in p.compute_slowdowns]
    return Overlap(_summarize(ratios), _summarize([max(1.0, slowdown) for slowdown in slowdowns]))


def estimate_compute_slowdown(ladders: Sequence[Ladder]) -> Estimate | None:
    """How much longer computation takes beside a gradient all-reduce, over all dtypes; None where nobody measured."""
    found = [
        slowdown
        for ladder in ladders
        for point in ladder.points
        if point.kind == "all_reduce" and point.in_flight == 1 and point.num_bytes >= LARGE_BYTES
        for slowdown in point.compute_slowdowns
    ]
    return _summarize([max(1.0, slowdown) for slowdown in found])


def _visit_ns(repetitions: Sequence[int]) -> float:
    return float(np.median(repetitions))


def _typical_ns(point: LadderPoint) -> float:
    return float(np.median([_visit_ns(visit) for visit in point.rounds_ns]))


def _summarize(values: Sequence[float]) -> Estimate | None:
    return median_estimate(values) if values else None
