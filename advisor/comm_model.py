"""How long a collective of n bytes takes: alpha + beta · n, fitted on transfers, with intervals.

Two collectives in flight share the link, so a sample is the *exclusive* time of a transfer: the integral of
1 / (number of transfers under way) from its last arrival to its end. Computation beside it may slow it down, so the
fit is

    exclusive time = (alpha + beta · n) · (1 + gamma · f)

with f the fraction of the transfer during which some rank computed. Errors are relative (a 1 MiB bucket counts as much
as a 25 MiB one) and robust (soft L1).

A profile often has few sizes, and its early buckets run beside computation while the last one does not; then latency
and slow-down explain the same samples. Weak priors decide what the samples leave open: log10(alpha) is expected within
`LATENCY_DECADES` of the backend's usual latency, gamma within 1 of zero. Intervals come from resampling the steps and
drawing the priors' centres along with them (randomized maximum a posteriori), so that what is open shows as width.

**Source**: Hockney's model (The communication challenge for MPP, 1994); Thakur et al., Optimization of collective
communication operations in MPICH (2005); for the intervals Bardsley et al., Randomize-Then-Optimize (2014).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from advisor.collectives import Collective, MatchedCollective
from advisor.intervals import build_intervals, intersection, total
from advisor.observation import RankObservation
from advisor.schema import Backend, CommModel, CommSample, CommSegment, Estimate

NUM_RESAMPLES = 100
SIZE_RATIO_FOR_LATENCY = 1.5
"""Below this ratio of largest to smallest sample, latency and bandwidth cannot be told apart."""
USUAL_LATENCY_NS: dict[Backend, float] = {"gloo": 200_000, "nccl": 30_000, "unknown": 100_000}
"""Expected latency of a collective inside one host, in ns: where the prior of alpha is centred."""
LATENCY_DECADES = 0.7
SLOWDOWN_SPREAD = 1.0
OUTLIER_SCALE = 0.1
"""Relative error of a sample: the unit of the residuals, and from where on one counts as an outlier."""

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
    matched: Sequence[MatchedCollective], observations: Sequence[RankObservation], *, concurrency: int
) -> list[Transfer]:
    """Turns matched collectives of known size into samples; the first one after the profiler started is set aside.

    Args:
        matched: Collectives seen from all ranks.
        observations: The ranks, the reference rank first.
        concurrency: How many collectives the backend runs at once (gloo 2, NCCL 1).
    """
    usable = [match for match in matched[1:] if match.members[0].step is not None and match.members[0].num_bytes > 0]
    usable.sort(key=lambda match: match.last_arrival_ns)
    compute_of = {observation.rank: observation.compute for observation in observations}
    spans = [(match.last_arrival_ns, match.last_arrival_ns + match.transfer_ns) for match in usable]
    transfers = []
    for index, match in enumerate(usable):
        reference = match.members[0]
        start, end = spans[index]
        near = spans[max(0, index - concurrency * 4) : index + concurrency * 4]
        busy = max(_busy_fraction(member, match, compute_of[member.rank]) for member in match.members)
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


def fit_comm_models(transfers: Sequence[Transfer], world_size: int, backend: Backend) -> list[CommFit]:
    """Fits one model per process group, kind and dtype that has samples: complete ones where there are any."""
    groups: dict[tuple[str, str, str], list[Transfer]] = defaultdict(list)
    for transfer in transfers:
        groups[transfer.key].append(transfer)
    return [
        _fit_group(key, [s for s in samples if s.complete] or samples, world_size, USUAL_LATENCY_NS[backend])
        for key, samples in groups.items()
    ]


@dataclass(frozen=True)
class _Problem:
    """Samples as columns, and what may be asked of them."""

    sizes: Floats
    times: Floats
    busy: Floats
    latency_known: bool
    complete: bool
    usual_latency_ns: float

    def resample(self, rows: npt.NDArray[np.int64]) -> _Problem:
        return replace(self, sizes=self.sizes[rows], times=self.times[rows], busy=self.busy[rows])

    def fit(self, latency_shift: float = 0.0, slowdown_shift: float = 0.0) -> Floats:
        """(alpha in ns, beta in ns per byte, gamma) at the optimum; the shifts move the priors' centres.

        Without several sizes alpha is zero. Without all ranks waiting hides in the samples, which has no usual size
        and is no slow-down: alpha is then free of its prior, and gamma is zero.
        """
        per_byte = float(np.median(self.times / self.sizes))
        centre = np.array([latency_shift * LATENCY_DECADES, 0.0, slowdown_shift * SLOWDOWN_SPREAD])
        weight = np.array([self.complete / LATENCY_DECADES, 0.0, 1 / SLOWDOWN_SPREAD])

        def terms(parameters: Floats) -> tuple[float, Floats, Floats]:
            decades, beta, gamma = parameters
            alpha = self.usual_latency_ns * 10.0**decades * self.latency_known
            return alpha, alpha + beta * per_byte * self.sizes, 1 + gamma * self.complete * self.busy

        def residuals(parameters: Floats) -> Floats:
            _, alone, slower = terms(parameters)
            return np.append((alone * slower / self.times - 1) / OUTLIER_SCALE, (parameters - centre) * weight)

        def slopes(parameters: Floats) -> Floats:
            alpha, alone, slower = terms(parameters)
            by = [alpha * np.log(10) * slower, per_byte * self.sizes * slower, alone * self.complete * self.busy]
            return np.vstack([(np.array(by) / self.times / OUTLIER_SCALE).T, np.diag(weight)])

        bounds = ([-4.0, 1e-6, 0.0], [6.0, np.inf, np.inf])
        found = least_squares(residuals, [0.0, 1.0, 0.1], jac=slopes, bounds=bounds, loss="soft_l1").x
        return np.array([terms(found)[0], found[1] * per_byte, found[2] * self.complete])


def _fit_group(key: tuple[str, str, str], samples: list[Transfer], world_size: int, usual_latency_ns: float) -> CommFit:
    sizes = np.array([s.num_bytes for s in samples], dtype=np.float64)
    problem = _Problem(
        sizes=sizes,
        times=np.array([s.exclusive_ns for s in samples]),
        busy=np.array([s.compute_fraction for s in samples]),
        latency_known=bool(sizes.max() >= SIZE_RATIO_FOR_LATENCY * sizes.min()),
        complete=all(s.complete for s in samples),
        usual_latency_ns=usual_latency_ns,
    )
    draws = _draw_fits(problem, [sample.step for sample in samples])
    alpha, beta, gamma = (
        Estimate(value=float(value), low=float(min(low, value)), high=float(max(high, value)), basis="fitted")
        for value, low, high in zip(problem.fit(), *np.quantile(draws, [0.025, 0.975], axis=0), strict=True)
    )
    notes = []
    if not problem.latency_known:
        notes.append("One sampled size alone gives a bandwidth and no latency.")
    if not problem.complete:
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
        latency_known=problem.latency_known,
        complete=problem.complete,
        message=" ".join(notes),
    )
    slowdown = Estimate(value=1 + gamma.value, low=1 + gamma.low, high=1 + gamma.high, basis="fitted")
    return CommFit(model=model, communication_slowdown=slowdown)


def _draw_fits(problem: _Problem, steps: Sequence[int]) -> Floats:
    """Refits on resampled steps (samples of one step share its disturbances) with the priors' centres drawn anew."""
    random = np.random.default_rng(0)
    rows_of = [np.flatnonzero(np.array(steps) == step) for step in dict.fromkeys(steps)]
    draws = []
    for _ in range(NUM_RESAMPLES):
        rows = np.concatenate([rows_of[i] for i in random.integers(len(rows_of), size=len(rows_of))])
        draws.append(problem.resample(rows).fit(*random.standard_normal(2)))
    return np.array(draws)
