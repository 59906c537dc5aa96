"""What holds the step back: one code, the numbers that decide it, and the thresholds they are judged by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.observation import NO_RUN, RunObservation
from advisor.replay import Job, predict_ceiling
from advisor.schema import (
    Baseline,
    BucketSummary,
    CommModel,
    DDPConfig,
    Estimate,
    Evidence,
    Parallelism,
    StepSummary,
    Straggler,
    Verdict,
    VerdictCode,
)
from advisor.statistics import median_estimate

STRAGGLER_OF_COMMUNICATION = 0.50
STRAGGLER_OF_STEP = 0.05
STRAGGLER_ARRIVES_LAST = 0.75
"""One rank must be waited for longest in this share of the steps: ranks that are late in turn are noise."""
STRAGGLER_STEPS = 2
"""Of a single step nobody can tell whether the same rank is always late."""
INPUT_OF_STEP = 0.10
HOST_OF_STEP = 0.25
COMPUTE_BLOCKING = 0.03
DOMINANT_TERM = 2 / 3


@dataclass(frozen=True, eq=False)
class Analysis:
    """Everything that verdict, alarms and rules read; two are the same only if they are one."""

    config: DDPConfig | None
    parallelism: Parallelism
    world_size: int
    steps: tuple[StepSummary, ...]
    buckets: tuple[BucketSummary, ...]
    comm_model: CommModel | None
    job: Job | None
    baseline: Baseline | None
    straggler: Straggler | None = None
    run: RunObservation = NO_RUN
    """What the traces and the manifest show, for what is not a matter of time."""

    @property
    def is_ddp(self) -> bool:
        """Whether the run shows DistributedDataParallel."""
        return self.parallelism == "ddp"


@dataclass(frozen=True)
class _Shares:
    """The typical step as fractions of its length (median over steps and ranks)."""

    step_ns: float
    blocking: float
    data: float
    host_bound: float
    wait_of_communication: float
    straggler: Straggler | None
    latency: float | None

    @property
    def lost(self) -> float:
        """To the straggler."""
        return self.straggler.step_fraction if self.straggler else 0.0


def judge(analysis: Analysis) -> Verdict:
    """Decides the verdict; the first threshold that is crossed wins, in the order of `_decide`."""
    shares = _measure_shares(analysis)
    code = _decide(analysis, shares)
    ceiling = predict_ceiling(analysis.job, analysis.config) if analysis.job and analysis.config else None
    message = _say_other_parallelism(analysis.parallelism) if code == "not_ddp" else _explain(code, shares)
    return Verdict(
        code=code,
        message=message,
        evidence=_list_evidence(shares),
        ceiling_ns=ceiling,
        observed_ceiling_ns=observe_ceiling(analysis.steps) if analysis.buckets else None,
    )


def _decide(analysis: Analysis, shares: _Shares | None) -> VerdictCode:
    if analysis.world_size == 1:
        return "single_rank"
    if not analysis.is_ddp:
        return "not_ddp"
    if shares is None:
        return "unknown"
    if (
        shares.wait_of_communication >= STRAGGLER_OF_COMMUNICATION
        and shares.lost >= STRAGGLER_OF_STEP
        and shares.straggler is not None
        and shares.straggler.num_steps >= STRAGGLER_STEPS
        and shares.straggler.last_fraction >= STRAGGLER_ARRIVES_LAST
    ):
        return "straggler"
    if not analysis.buckets:
        return "unknown"
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

    return _Shares(
        step_ns=float(np.median(lengths)),
        blocking=typical([step.blocking_ns for step in analysis.steps]),
        data=typical([step.data_ns for step in analysis.steps]),
        host_bound=typical([step.host_bound_ns for step in analysis.steps]),
        wait_of_communication=_measure_waiting(analysis.steps),
        straggler=analysis.straggler,
        latency=_measure_latency_share(analysis),
    )


def _measure_waiting(steps: Sequence[StepSummary]) -> float:
    """The share of all communication that is waiting for later ranks."""
    return sum(step.wait_ns or 0 for step in steps) / max(1, sum(step.communication_ns for step in steps))


def _measure_latency_share(analysis: Analysis) -> float | None:
    """The share of alpha in the predicted time of the buckets that block, weighted by how much they do."""
    model = analysis.comm_model
    if model is None or not model.latency_known or not model.complete:
        return None
    sizes = {bucket.num_bytes for bucket in analysis.buckets if bucket.num_bytes > 0}
    alpha = model.segments[0].alpha_ns.value
    share_of = {num_bytes: alpha / max(1e-9, model.predict(num_bytes).value) for num_bytes in sizes}
    weighted = [(b.blocking_ns, share_of[b.num_bytes]) for b in analysis.buckets if b.num_bytes > 0]
    weight = sum(blocking for blocking, _ in weighted)
    return sum(blocking * share for blocking, share in weighted) / weight if weight else None


def _list_evidence(shares: _Shares | None) -> tuple[Evidence, ...]:
    if shares is None:
        return ()
    step, communication = "of the step", "of communication"
    last = shares.straggler.last_fraction if shares.straggler else 0.0
    rows: list[tuple[str, float, str, float | None, str]] = [
        ("typical step", shares.step_ns / 1e6, "ms", None, "steps"),
        ("blocking communication", shares.blocking, step, COMPUTE_BLOCKING, "steps"),
        ("waiting for late ranks", shares.wait_of_communication, communication, STRAGGLER_OF_COMMUNICATION, "steps"),
        ("lost to the latest rank", shares.lost, step, STRAGGLER_OF_STEP, "ranks"),
        ("that rank is the latest", last, "of the steps", STRAGGLER_ARRIVES_LAST, "ranks"),
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
    if code == "unknown" or shares is None:
        return (
            "No gradient all-reduce was found inside a step. Record complete steps with torch.profiler, "
            "with prof.step() after each and record_shapes=True."
        )
    blocking = f"{_percent(shares.blocking)} of the step"
    wait = _percent(shares.wait_of_communication)
    sentences: dict[VerdictCode, str] = {
        "straggler": f"{_say_straggler(shares.straggler)}, and waiting for late ranks is {wait} of communication. "
        "Find out why that rank is slow: no bucket size or hook helps.",
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


def _say_straggler(straggler: Straggler | None) -> str:
    if straggler is None:
        return "One rank is late"
    delay_ms = straggler.delay_ns.value / 1e6
    by = f"{delay_ms:.0f} ms" if delay_ms >= 100 else f"{delay_ms:.3g} ms"
    late = f"Rank {straggler.rank} is late in {_percent(straggler.last_fraction)} of the steps, by {by}"
    where = {
        "data": "while loading data",
        "optimizer": "in the optimizer",
        "other": "outside of forward, backward and optimizer",
    }
    if straggler.phase is None:
        return late
    where_late = where.get(straggler.phase, f"in {straggler.phase}")
    return f"{late} that it loses {where_late}"


def _say_other_parallelism(parallelism: Parallelism) -> str:
    seen: dict[Parallelism, str] = {
        "fsdp": "This run shards its parameters with FSDP",
        "deepspeed": "This run trains with DeepSpeed",
        "tensor_parallel": "This run splits its layers over the ranks (tensor parallelism)",
        "hand_written": "This run reduces its gradients by hand: no wrapper that is known wrote these traces",
    }
    what = seen.get(parallelism, "No DistributedDataParallel was found: no DDP forward, no reducer, no bucket marks")
    return f"{what}. Communication is summarised below, but advice on DDP's settings does not apply."


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %"


def observe_ceiling(steps: Sequence[StepSummary]) -> Estimate:
    """The typical step minus what blocked it, in ns: the mean over the ranks, then the median over the steps."""
    by_step: dict[int, list[int]] = {}
    for step in steps:
        by_step.setdefault(step.step, []).append(step.duration_ns - step.blocking_ns)
    return median_estimate([float(np.mean(rest)) for rest in by_step.values()])


def summarize_step_time(steps: Sequence[StepSummary]) -> list[float]:
    """Per step, the mean of the ranks' durations in ns: what a sweep measures too."""
    by_step: dict[int, list[int]] = {}
    for step in steps:
        by_step.setdefault(step.step, []).append(step.duration_ns)
    return [float(np.mean(durations)) for _, durations in sorted(by_step.items())]
