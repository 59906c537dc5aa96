"""How long a collective of n bytes takes: alpha + beta · n, fitted on transfers, with intervals.

Two collectives in flight share the link, so a sample is the *exclusive* time of a transfer: the integral of
1 / (number of transfers under way) from its last arrival to its end. Computation beside it may slow it down, so the
fit is

    exclusive time = (alpha + beta · n) · (1 + gamma · f)

with f the fraction of the transfer during which some rank computed. Errors are relative (a 1 MiB bucket counts as much
as a 25 MiB one) and robust (soft L1); gamma is drawn to zero unless the samples pay for it.

**Source**: Hockney's model (The communication challenge for MPP, 1994); Thakur et al., Optimization of collective
communication operations in MPICH (2005).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from advisor.collectives import Collective, MatchedCollective
from advisor.intervals import build_intervals, intersection, total
from advisor.schema import CommModel, CommSample, CommSegment, Estimate
from advisor.timeline import RankTimeline

NUM_RESAMPLES = 100
SIZE_RATIO_FOR_LATENCY = 1.5
"""Below this ratio of largest to smallest sample, latency and bandwidth cannot be told apart."""
GAMMA_PENALTY = 0.05
"""Weight of gamma beside relative errors: a slow-down of 1 costs as much as one sample that is off by 5 %."""
OUTLIER_SCALE = 0.1
"""Relative error from which a sample counts as an outlier."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Transfer:
    """One sample of the fit."""

    key: tuple[str, str, str]
    """Process group, kind, dtype."""
    step: int
    num_bytes: int
    exclusive_ns: float
    compute_fraction: float
    complete: bool
    """False where a peer's trace is missing, so that waiting may hide in it."""


@dataclass(frozen=True)
class CommFit:
    """A fitted model, and how much computation slows communication down (a factor >= 1)."""

    model: CommModel
    communication_slowdown: Estimate


def collect_transfers(
    matched: Sequence[MatchedCollective], timelines: Sequence[RankTimeline], *, concurrency: int
) -> list[Transfer]:
    """Turns matched collectives of known size into samples; the first one after the profiler started is set aside.

    Args:
        matched: Collectives seen from all ranks.
        timelines: The ranks, the reference rank first.
        concurrency: How many collectives the backend runs at once (gloo 2, NCCL 1).
    """
    usable = [match for match in matched[1:] if match.members[0].step is not None and match.members[0].num_bytes > 0]
    usable.sort(key=lambda match: match.last_arrival_ns)
    compute_of = {timeline.trace.rank: timeline.compute for timeline in timelines}
    spans = [(match.last_arrival_ns, match.last_arrival_ns + match.transfer_ns) for match in usable]
    transfers = []
    for index, match in enumerate(usable):
        reference = match.members[0]
        start, end = spans[index]
        near = spans[max(0, index - concurrency * 4) : index + concurrency * 4]
        own = build_intervals([start - match.offsets_ns[0]], [end - match.offsets_ns[0]])
        busy = max(_busy_fraction(member, match, compute_of[member.rank]) for member in match.members if len(own))
        transfers.append(
            Transfer(
                key=(reference.process_group, str(reference.kind), reference.dtype),
                step=int(reference.step or 0),
                num_bytes=reference.num_bytes,
                exclusive_ns=exclusive_time(start, end, near),
                compute_fraction=busy,
                complete=match.complete,
            )
        )
    return transfers


def exclusive_time(start: int, end: int, spans: Sequence[tuple[int, int]]) -> float:
    """The integral over [start, end) of 1 / (number of `spans` under way), `spans` including this one.

    Example: [0, 10) beside [6, 14): 6 alone and 4 shared by two, 6 + 4 / 2 = 8.
    """
    cuts = sorted({start, end, *(t for span in spans for t in span if start < t < end)})
    shared = 0.0
    for low, high in pairwise(cuts):
        shared += (high - low) / max(1, sum(a <= low and high <= b for a, b in spans))
    return max(shared, 1.0)


def _busy_fraction(member: Collective, match: MatchedCollective, compute: npt.NDArray[np.int64]) -> float:
    arrival = match.arrival_on_clock_of(member)
    own = build_intervals([arrival], [member.end_ns])
    return total(intersection(own, compute)) / total(own) if len(own) else 0.0


def fit_comm_models(transfers: Sequence[Transfer], world_size: int) -> list[CommFit]:
    """Fits one model per process group, kind and dtype that has samples."""
    groups: dict[tuple[str, str, str], list[Transfer]] = defaultdict(list)
    for transfer in transfers:
        groups[transfer.key].append(transfer)
    return [_fit_group(key, samples, world_size) for key, samples in groups.items()]


def _fit_group(key: tuple[str, str, str], samples: list[Transfer], world_size: int) -> CommFit:
    sizes = np.array([s.num_bytes for s in samples], dtype=np.float64)
    times = np.array([s.exclusive_ns for s in samples])
    busy = np.array([s.compute_fraction for s in samples])
    latency_known = bool(sizes.max() >= SIZE_RATIO_FOR_LATENCY * sizes.min())
    free = latency_known, all(s.complete for s in samples)
    columns = sizes, times, busy
    central = _fit(columns, free, np.array([0.0, float(np.median(times / sizes)), 0.0]))
    draws = _bootstrap(samples, columns, free, central)
    alpha, beta, gamma = (
        Estimate(value=float(value), low=float(min(low, value)), high=float(max(high, value)), basis="fitted")
        for value, low, high in zip(central, *np.quantile(draws, [0.025, 0.975], axis=0), strict=True)
    )
    notes = []
    if not latency_known:
        notes.append("One sampled size alone gives a bandwidth and no latency.")
    if not all(s.complete for s in samples):
        notes.append("A peer's trace is missing: waiting may hide in these times, which are upper limits.")
    process_group, kind, dtype = key
    model = CommModel(
        process_group=process_group,
        kind=kind,
        dtype=dtype,
        world_size=world_size,
        segments=(CommSegment(alpha_ns=alpha, beta_ns_per_byte=beta, from_bytes=0, to_bytes=None),),
        samples=tuple(
            CommSample(num_bytes=s.num_bytes, transfer_ns=round(s.exclusive_ns), step=s.step) for s in samples
        ),
        latency_known=latency_known,
        complete=all(s.complete for s in samples),
        message=" ".join(notes),
    )
    slowdown = Estimate(value=1 + gamma.value, low=1 + gamma.low, high=1 + gamma.high, basis="fitted")
    return CommFit(model=model, communication_slowdown=slowdown)


def _fit(columns: tuple[Floats, Floats, Floats], free: tuple[bool, bool], start: Floats) -> Floats:
    """Fits (alpha in ns, beta in ns per byte, gamma), all at least 0, to (bytes, ns, share of computation beside it).

    `free` says whether alpha and gamma may leave zero. Parameters are scaled so that the optimizer sees numbers near 1.
    """
    sizes, times, busy = columns
    latency_known, waits_known = free
    largest = sizes.max()
    scale = float(np.median(times * largest / sizes))

    def residuals(parameters: Floats) -> Floats:
        alpha, beta, gamma = parameters
        predicted = (alpha * latency_known + beta * sizes / largest) * (1 + gamma * waits_known * busy)
        return np.append((predicted * scale - times) / times, GAMMA_PENALTY * gamma)

    units = np.array([scale, scale / largest, 1.0])
    found = least_squares(
        residuals,
        start / units,
        bounds=([0, 1e-9, 0], np.inf),
        loss="soft_l1",
        f_scale=OUTLIER_SCALE,
        x_scale=[0.1, 1, 1],
    )
    return np.asarray(found.x * units * [latency_known, 1, waits_known])


def _bootstrap(
    samples: list[Transfer], columns: tuple[Floats, Floats, Floats], free: tuple[bool, bool], central: Floats
) -> Floats:
    """Refits on resampled steps; samples of one step share its disturbances and stay together."""
    random = np.random.default_rng(0)
    by_step: dict[int, list[int]] = defaultdict(list)
    for index, sample in enumerate(samples):
        by_step[sample.step].append(index)
    steps = list(by_step.values())
    draws = []
    for _ in range(NUM_RESAMPLES):
        chosen = np.concatenate([steps[i] for i in random.integers(len(steps), size=len(steps))])
        sizes, times, busy = columns
        draws.append(_fit((sizes[chosen], times[chosen], busy[chosen]), free, central))
    return np.array(draws)
