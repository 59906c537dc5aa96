"""What holds the step back: one code, the numbers that decide it, and the thresholds they are judged by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.replay import Job, predict_ceiling
from advisor.schema import (
    Baseline,
    BucketSummary,
    CommModel,
    DDPConfig,
    Evidence,
    StepSummary,
    Verdict,
    VerdictCode,
)

STRAGGLER_OF_COMMUNICATION = 0.50
STRAGGLER_OF_STEP = 0.05
STRAGGLER_ARRIVES_LAST = 0.75
"""One rank must be the last at this share of the buckets: ranks that are late in turn are noise, not a straggler."""
INPUT_OF_STEP = 0.10
HOST_OF_STEP = 0.25
COMPUTE_BLOCKING = 0.03
DOMINANT_TERM = 2 / 3


@dataclass(frozen=True)
class Analysis:
    """Everything that verdict, alarms and rules read."""

    config: DDPConfig | None
    is_ddp: bool
    world_size: int
    steps: tuple[StepSummary, ...]
    buckets: tuple[BucketSummary, ...]
    comm_model: CommModel | None
    job: Job | None
    baseline: Baseline | None


@dataclass(frozen=True)
class _Shares:
    """The typical step as fractions of its length (median over steps and ranks)."""

    step_ns: float
    blocking: float
    data: float
    host_bound: float
    wait: float
    wait_of_communication: float
    straggler: int | None
    straggler_last: float
    latency: float | None


def judge(analysis: Analysis) -> Verdict:
    """Decides the verdict; the first threshold that is crossed wins, in the order of `_decide`."""
    shares = _measure_shares(analysis)
    code = _decide(analysis, shares)
    ceiling = predict_ceiling(analysis.job, analysis.config) if analysis.job and analysis.config else None
    return Verdict(code=code, message=_explain(code, shares), evidence=_list_evidence(shares), ceiling_ns=ceiling)


def _decide(analysis: Analysis, shares: _Shares | None) -> VerdictCode:
    if analysis.world_size == 1:
        return "single_rank"
    if not analysis.is_ddp:
        return "not_ddp"
    if shares is None or not analysis.buckets:
        return "unknown"
    if (
        shares.wait_of_communication >= STRAGGLER_OF_COMMUNICATION
        and shares.wait >= STRAGGLER_OF_STEP
        and shares.straggler_last >= STRAGGLER_ARRIVES_LAST
    ):
        return "straggler"
    if shares.data >= INPUT_OF_STEP and shares.data > shares.blocking:
        return "input_bound"
    if shares.host_bound >= HOST_OF_STEP and shares.host_bound > shares.blocking:
        return "host_bound"
    if shares.blocking < COMPUTE_BLOCKING:
        return "compute_bound"
    if shares.latency is not None and shares.latency >= DOMINANT_TERM:
        return "latency_bound"
    if shares.latency is not None and 1 - shares.latency >= DOMINANT_TERM:
        return "bandwidth_bound"
    return "balanced"


def _measure_shares(analysis: Analysis) -> _Shares | None:
    if not analysis.steps:
        return None
    lengths = np.array([max(1, step.duration_ns) for step in analysis.steps])

    def typical(values: Sequence[int]) -> float:
        return float(np.median(np.array(values) / lengths))

    wait, wait_of_communication = _measure_waiting(analysis)
    straggler, last = _find_straggler(analysis.buckets)
    return _Shares(
        step_ns=float(np.median(lengths)),
        blocking=typical([step.blocking_ns for step in analysis.steps]),
        data=typical([step.data_ns for step in analysis.steps]),
        host_bound=typical([step.host_bound_ns for step in analysis.steps]),
        wait=wait,
        wait_of_communication=wait_of_communication,
        straggler=straggler,
        straggler_last=last,
        latency=_measure_latency_share(analysis),
    )


def _measure_waiting(analysis: Analysis) -> tuple[float, float]:
    """Shares of the most patient rank's step, and of all communication, that are waiting for peers."""
    waits = [bucket.peer_wait_ns or 0 for bucket in analysis.buckets]
    spans = [bucket.end_ns - bucket.start_ns for bucket in analysis.buckets]
    length_of = {(step.rank, step.step): max(1, step.duration_ns) for step in analysis.steps}
    waited: dict[tuple[int, int], int] = dict.fromkeys(length_of, 0)
    for bucket, wait in zip(analysis.buckets, waits, strict=True):
        waited[bucket.rank, bucket.step] = max(waited[bucket.rank, bucket.step], wait)
    by_rank = {
        rank: float(np.median([waited[key] / length_of[key] for key in waited if key[0] == rank]))
        for rank in {key[0] for key in waited}
    }
    return max(by_rank.values(), default=0.0), sum(waits) / max(1, sum(spans))


def _find_straggler(buckets: Sequence[BucketSummary]) -> tuple[int | None, float]:
    """The rank that waits least, and the share of the steps in which it waits less than every other rank."""
    waits: dict[tuple[int, int], int] = {}
    for bucket in buckets:
        if bucket.peer_wait_ns is not None:
            waits[bucket.step, bucket.rank] = waits.get((bucket.step, bucket.rank), 0) + bucket.peer_wait_ns
    ranks = sorted({rank for _, rank in waits})
    if len(ranks) < 2:
        return None, 0.0
    steps = sorted({step for step, _ in waits})
    late = [min(ranks, key=lambda rank, step=step: waits.get((step, rank), 0)) for step in steps]  # type: ignore[misc]
    straggler = max(ranks, key=late.count)
    return straggler, late.count(straggler) / len(steps)


def _measure_latency_share(analysis: Analysis) -> float | None:
    """The share of alpha in the predicted time of the buckets that block, weighted by how much they do."""
    model = analysis.comm_model
    if model is None or not model.latency_known or not model.complete:
        return None
    alpha, beta = model.segments[0].alpha_ns.value, model.segments[0].beta_ns_per_byte.value
    weighted = [
        (b.blocking_ns, alpha / max(1e-9, alpha + beta * b.num_bytes)) for b in analysis.buckets if b.num_bytes > 0
    ]
    weight = sum(blocking for blocking, _ in weighted)
    return sum(blocking * share for blocking, share in weighted) / weight if weight else None


def _list_evidence(shares: _Shares | None) -> tuple[Evidence, ...]:
    if shares is None:
        return ()
    step, communication = "of the step", "of communication"
    rows: list[tuple[str, float, str, float | None, str]] = [
        ("typical step", shares.step_ns / 1e6, "ms", None, "steps"),
        ("blocking communication", shares.blocking, step, COMPUTE_BLOCKING, "steps"),
        ("waiting for late ranks", shares.wait_of_communication, communication, STRAGGLER_OF_COMMUNICATION, "buckets"),
        ("waiting for late ranks", shares.wait, step, STRAGGLER_OF_STEP, "buckets"),
        ("the same rank is last", shares.straggler_last, "of the steps", STRAGGLER_ARRIVES_LAST, "ranks"),
        ("data", shares.data, step, INPUT_OF_STEP, "steps"),
        ("device idle for late launches", shares.host_bound, step, HOST_OF_STEP, "steps"),
    ]
    if shares.latency is not None:
        rows.append(("latency", shares.latency, "of blocking transfers", DOMINANT_TERM, "buckets"))
    return tuple(Evidence(name=n, value=v, unit=u, threshold=limit, table=table) for n, v, u, limit, table in rows)


def _explain(code: VerdictCode, shares: _Shares | None) -> str:
    """Why, and what next, in two sentences."""
    if code == "single_rank":
        return "One rank alone exchanges no gradients. Profile the job with at least two ranks."
    if code == "not_ddp":
        return (
            "No DistributedDataParallel was found: no DDP forward, no reducer, no bucket marks. "
            "Communication is summarised below, but advice on DDP's settings does not apply."
        )
    if code == "unknown" or shares is None:
        return (
            "No gradient all-reduce was found inside a step. Record complete steps with torch.profiler, "
            "with prof.step() after each and record_shapes=True."
        )
    blocking = f"{_percent(shares.blocking)} of the step"
    wait, last = _percent(shares.wait_of_communication), _percent(shares.straggler_last)
    sentences: dict[VerdictCode, str] = {
        "straggler": f"Rank {shares.straggler} is late in {last} of the steps, and waiting for late ranks is {wait} "
        "of communication. Find out why that rank is slow: no bucket size or hook helps.",
        "input_bound": f"Loading data takes {_percent(shares.data)} of the step, more than communication blocks "
        f"({blocking}). Speed up the input first: more workers, pinned memory, prefetching.",
        "host_bound": f"The device idles {_percent(shares.host_bound)} of the step because the host launches too late, "
        f"while communication blocks {blocking}. Reduce the host's work first (torch.compile, CUDA graphs, a larger "
        "batch): bucket sizes cannot help.",
        "compute_bound": f"Communication blocks only {blocking}: it hides behind computation. "
        "DDP's settings have nothing left to give.",
        "latency_bound": f"Communication blocks {blocking}, and most of that is the fixed cost of each collective. "
        "Fewer, larger buckets can help.",
        "bandwidth_bound": f"Communication blocks {blocking}, and most of that is bytes over bandwidth. "
        "Start sending earlier, or send fewer bytes.",
        "balanced": f"Communication blocks {blocking}, and neither latency nor bandwidth dominates. "
        "Bucket sizes trade one against the other.",
    }
    return sentences[code]


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %"


def summarize_step_time(steps: Sequence[StepSummary]) -> list[float]:
    """Per step, the mean of the ranks' durations in ns: what a sweep measures too."""
    by_step: dict[int, list[int]] = {}
    for step in steps:
        by_step.setdefault(step.step, []).append(step.duration_ns)
    return [float(np.mean(durations)) for _, durations in sorted(by_step.items())]
