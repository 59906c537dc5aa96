"""One communication model per process group, kind and dtype, from transfers, with intervals.

A profile often has few sizes, and its early buckets run beside computation while the last one does not; then latency
and slow-down explain the same samples. Weak expectations decide what the samples leave open: ln(alpha) near the
backend's usual latency, gamma near zero.

**Source**: Hockney, The communication challenge for MPP (1994); Thakur et al., Optimization of collective communication
operations in MPICH (2005).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from advisor.comm_model.bus import LARGE_BYTES, find_bus_share
from advisor.comm_model.draws import draw_lines, take_interval
from advisor.comm_model.kinks import find_kinks
from advisor.comm_model.lines import (
    ALPHA,
    FEWEST_FREE_SAMPLES,
    FIRST_BETA,
    GAMMA,
    SPREAD_OF_KINK,
    Floats,
    Samples,
    Terms,
    fit_line,
    place_kinks,
    pose,
)
from advisor.comm_model.transfers import Transfer
from advisor.schema import Backend, Basis, CommDraw, CommModel, CommSample, CommSegment, Estimate

SIZE_RATIO_FOR_LATENCY = 1.5
"""Below this ratio of largest to smallest sample, latency and bandwidth cannot be told apart."""
USUAL_LATENCY_NS: dict[Backend, float] = {"gloo": 200_000, "nccl": 30_000, "unknown": 100_000}
"""Expected latency of a collective inside one host, in ns: where ln(alpha) is centred."""
SPREAD_OF_ALPHA = 0.7 * float(np.log(10))
SPREAD_OF_GAMMA = 1.0
MOST_UNCERTAIN = 10.0
"""Beyond this ratio between the ends of its interval a slope gives no bandwidth."""
NO_BETA = 1e-6
"""A slope below this share of the usual time per byte is none."""
SPREAD_OF_DELTA = 0.1
"""How far another source may be off by a factor that is the same for all sizes."""
GLOO_KINK_BYTES = 2 * 2**20
"""Times the world size: up to here gloo's ring moves 2 P pieces, from here on pieces of 1 MiB (gloo/allreduce.cc)."""
GLOO_RING_KINDS = ("all_reduce", "reduce_scatter")
"""What runs in that ring: torch makes an all-reduce of gloo's reduce-scatter (torch 2.13, ProcessGroupGloo.cpp)."""


@dataclass(frozen=True)
class CommFit:
    """A fitted model, and how much computation slows communication down (a factor >= 1)."""

    model: CommModel
    communication_slowdown: Estimate


def fit_comm_models(transfers: Iterable[Transfer], world_size: int, backend: Backend) -> list[CommFit]:
    """Fits one model per process group, kind and dtype that has samples: complete ones where there are any."""
    groups: dict[tuple[str, str, str], list[Transfer]] = defaultdict(list)
    for transfer in transfers:
        groups[transfer.key].append(transfer)
    return [
        fit_comm_model([s for s in samples if s.complete] or samples, world_size, backend)
        for samples in groups.values()
    ]


def fit_comm_model(transfers: Sequence[Transfer], world_size: int, backend: Backend) -> CommFit:
    """Fits the model of transfers that all have the same key.

    Without several sizes alpha is zero. Without all ranks waiting hides in the samples, which has no usual size and is
    no slow-down: alpha is then free of its expectation, gamma is zero, and no kink is looked for.
    """
    samples = _tabulate(transfers)
    complete = all(transfer.complete for transfer in transfers)
    has_sizes = bool(samples.num_bytes.max() >= SIZE_RATIO_FOR_LATENCY * samples.num_bytes.min())
    terms = Terms(
        usual_latency_ns=USUAL_LATENCY_NS[backend],
        spread_of_alpha=(SPREAD_OF_ALPHA if complete else np.inf) if has_sizes else 0.0,
        spread_of_gamma=SPREAD_OF_GAMMA if complete else 0.0,
        spread_of_delta=SPREAD_OF_DELTA if 0 < samples.elsewhere.mean() < 1 else 0.0,
    )
    known = list_known_kinks(transfers, world_size, backend)
    kinks = find_kinks(samples, terms, known) if complete and has_sizes else ()
    terms = replace(terms, spread_of_kinks=tuple(0.0 if kink in known else SPREAD_OF_KINK for kink in kinks))
    line, terms = fit_line(samples, terms, kinks)
    drawn = draw_lines(pose(samples, terms, [kinks]), line, [f"{t.source} {t.step}" for t in transfers])
    enough = len(transfers) >= line.shape[1] + FEWEST_FREE_SAMPLES
    process_group, kind, dtype = transfers[0].key
    central, *draws = (_read_solution(row, samples, terms, kinks) for row in np.vstack([line, drawn]))
    segments = _cut_segments(central, draws)
    model = CommModel(
        process_group=process_group,
        kind=kind,
        dtype=dtype,
        world_size=world_size,
        segments=segments,
        samples=tuple(
            CommSample(num_bytes=t.num_bytes, transfer_ns=round(t.exclusive_ns), step=t.step, source=t.source)
            for t in transfers
        ),
        latency_known=has_sizes and enough and complete,
        complete=complete,
        message=_explain(has_sizes, enough, complete, segments),
        draws=tuple(draws),
        busbw_bytes_per_s=(
            _find_busbw(segments[-1], find_bus_share(kind, world_size))
            if samples.num_bytes.max() >= LARGE_BYTES
            else None
        ),
    )
    slowdown = _estimate(central.communication_slowdown, [draw.communication_slowdown for draw in draws])
    return CommFit(model=model, communication_slowdown=slowdown)


def list_known_kinks(transfers: Sequence[Transfer], world_size: int, backend: Backend) -> list[float]:
    """Where the slope may change for a known reason: gloo's pieces, and NCCL's change of algorithm or protocol."""
    if backend == "gloo":
        return [float(GLOO_KINK_BYTES * world_size)] if transfers[0].key[1] in GLOO_RING_KINDS else []
    sizes_of: dict[str, list[int]] = defaultdict(list)
    for transfer in transfers:
        sizes_of[transfer.protocol].append(transfer.num_bytes)
    spans = sorted((min(sizes), max(sizes)) for protocol, sizes in sizes_of.items() if protocol)
    return [float(np.sqrt(high * low)) for (_, high), (low, _) in pairwise(spans) if high < low]


def _tabulate(transfers: Sequence[Transfer]) -> Samples:
    return Samples(
        num_bytes=np.array([t.num_bytes for t in transfers], dtype=np.float64),
        times_ns=np.array([t.exclusive_ns for t in transfers], dtype=np.float64),
        busy=np.array([t.compute_fraction for t in transfers], dtype=np.float64),
        elsewhere=np.array([t.source != "trace" for t in transfers], dtype=np.float64),
    )


def _read_solution(row: Floats, samples: Samples, terms: Terms, kinks: Sequence[float]) -> CommDraw:
    betas = row[FIRST_BETA : FIRST_BETA + len(kinks) + 1]
    placed = place_kinks(np.reshape(kinks, (1, -1)), row[None])[0]
    return CommDraw(
        alpha_ns=float(np.exp(row[ALPHA])) * terms.usual_latency_ns if terms.spread_of_alpha else 0.0,
        communication_slowdown=1 + float(row[GAMMA]),
        betas_ns_per_byte=tuple(float(beta) * samples.ns_per_byte if beta > NO_BETA else 0.0 for beta in betas),
        kinks_bytes=tuple(map(float, placed)),
    )


def _cut_segments(central: CommDraw, draws: Sequence[CommDraw]) -> tuple[CommSegment, ...]:
    edges = (0, *(round(kink) for kink in central.kinks_bytes))
    return tuple(
        CommSegment(
            alpha_ns=_estimate(_start(central, index), [_start(draw, index) for draw in draws]),
            beta_ns_per_byte=_estimate(
                central.betas_ns_per_byte[index], [draw.betas_ns_per_byte[index] for draw in draws]
            ),
            from_bytes=edge,
            to_bytes=edges[index + 1] if index + 1 < len(edges) else None,
        )
        for index, edge in enumerate(edges)
    )


def _start(draw: CommDraw, index: int) -> float:
    """Where the line of a segment would start at zero bytes, so that it meets the one before at their kink."""
    betas = draw.betas_ns_per_byte
    return draw.alpha_ns - sum(kink * (betas[k + 1] - betas[k]) for k, kink in enumerate(draw.kinks_bytes[:index]))


def _find_busbw(segment: CommSegment, share: float | None) -> Estimate | None:
    beta = segment.beta_ns_per_byte
    if share is None or beta.low <= 0 or beta.high > MOST_UNCERTAIN * beta.low:
        return None
    rate = 1e9 * share
    return Estimate(value=rate / beta.value, low=rate / beta.high, high=rate / beta.low, basis=beta.basis)


def _estimate(value: float, draws: Sequence[float], basis: Basis = "fitted") -> Estimate:
    low, high = take_interval(np.array(draws))
    return Estimate(value=value, low=min(low, value), high=max(high, value), basis=basis)


def _explain(has_sizes: bool, enough: bool, complete: bool, segments: Sequence[CommSegment]) -> str:
    notes = []
    if not has_sizes:
        notes.append("One sampled size alone gives a bandwidth and no latency.")
    elif not enough:
        notes.append("Too few samples tell latency from bandwidth: the latency leans on what is usual.")
    if not complete:
        notes.append("A peer's trace is missing: waiting may hide in these times, which are upper limits.")
    betas = [segment.beta_ns_per_byte.value for segment in segments]
    if complete and segments[-1].beta_ns_per_byte.low <= 0:
        notes.append("Messages of these sizes tell no bandwidth: what much larger ones take is unknown.")
    if betas[0] < betas[-1]:
        kink = segments[1].from_bytes / 2**20
        notes.append(
            f"Messages below {kink:.3g} MiB cost less a byte than the link sustains (credit of the link, or caches): "
            "the bandwidth is that of the large ones."
        )
    return " ".join(notes)
