"""What holds the step back: one code, the numbers that decide it, and the thresholds they are judged by."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.observation import NO_RUN, RunObservation
from advisor.powersgd import find_powersgd_rank
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
    broken_line,
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
class _Split:
    """What blocks, as shares that add up to 1: waiting for late ranks, and latency and bandwidth of the transfers."""

    waiting: float
    latency_of_transfers: Estimate

    @property
    def latency(self) -> Estimate:
        """Of all that blocks."""
        return _scale(self.latency_of_transfers, 1 - self.waiting)

    @property
    def bandwidth(self) -> Estimate:
        """Of all that blocks."""
        own = self.latency_of_transfers
        rest = Estimate(value=1 - own.value, low=1 - own.high, high=1 - own.low, basis=own.basis)
        return _scale(rest, 1 - self.waiting)


@dataclass(frozen=True)
class _Shares:
    """The typical step as fractions of its length (median over steps and ranks); None where nobody knows."""

    step_ns: float
    blocking: float | None
    data: float
    host_bound: float
    wait_of_communication: float | None
    wait_of_blocking: float | None
    straggler: Straggler | None
    latency: Estimate | None

    @property
    def lost(self) -> float | None:
        """To the straggler."""
        return self._of_straggler(self.straggler.step_fraction if self.straggler else 0.0)

    @property
    def latest(self) -> float | None:
        """The share of the steps in which the straggler is the latest."""
        return self._of_straggler(self.straggler.last_fraction if self.straggler else 0.0)

    @property
    def split(self) -> _Split | None:
        """What blocking consists of."""
        if self.wait_of_blocking is None or self.latency is None:
            return None
        return _Split(self.wait_of_blocking, self.latency)

    def _of_straggler(self, share: float) -> float | None:
        """Nobody is one only where the ranks are known not to wait for a single one."""
        return None if self.wait_of_communication is None else share


def judge(analysis: Analysis) -> Verdict:
    """Decides the verdict; the first threshold that is crossed wins, in the order of `_decide`."""
    shares = _measure_shares(analysis)
    code = _decide(analysis, shares)
    ceiling = predict_ceiling(analysis.job, analysis.config) if analysis.job and analysis.config else None
    message = _say_other_parallelism(analysis.parallelism) if code == "not_ddp" else _explain(code, shares)
    if code == "compute_bound" and analysis.config and find_powersgd_rank(analysis.config.comm_hook):
        message = (
            f"{message} What {analysis.config.comm_hook} computes is part of the step: compare with comm_hook none."
        )
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
        (shares.wait_of_communication or 0.0) >= STRAGGLER_OF_COMMUNICATION
        and (shares.lost or 0.0) >= STRAGGLER_OF_STEP
        and shares.straggler is not None
        and shares.straggler.num_steps >= STRAGGLER_STEPS
        and shares.straggler.last_fraction >= STRAGGLER_ARRIVES_LAST
    ):
        return "straggler"
    if shares.blocking is None:
        return "unknown"
    if shares.data >= INPUT_OF_STEP and shares.data > shares.blocking:
        return "input_bound"
    if shares.host_bound >= HOST_OF_STEP and shares.host_bound > shares.blocking:
        return "host_bound"
    if shares.blocking < COMPUTE_BLOCKING:
        return "compute_bound"
    if shares.split is not None and shares.split.latency.value >= DOMINANT_TERM:
        return "latency_bound"
    if shares.split is not None and shares.split.bandwidth.value >= DOMINANT_TERM:
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
        blocking=typical([step.blocking_ns for step in analysis.steps]) if analysis.buckets else None,
        data=typical([step.data_ns for step in analysis.steps]),
        host_bound=typical([step.host_bound_ns for step in analysis.steps]),
        wait_of_communication=_measure_waiting([(step.wait_ns, step.communication_ns) for step in analysis.steps]),
        wait_of_blocking=_measure_waiting([(step.blocking_wait_ns, step.blocking_ns) for step in analysis.steps]),
        straggler=analysis.straggler,
        latency=_measure_latency_share(analysis),
    )


def _measure_waiting(steps: Sequence[tuple[int | None, int]]) -> float | None:
    """The share that is waiting for later ranks, over all steps of which it is known.

    Args:
        steps: Per rank and step the waiting and the whole, in ns.
    """
    known = [(wait_ns, whole_ns) for wait_ns, whole_ns in steps if wait_ns is not None]
    whole_ns = sum(whole_ns for _, whole_ns in known)
    return sum(wait_ns for wait_ns, _ in known) / whole_ns if whole_ns else None


def _measure_latency_share(analysis: Analysis) -> Estimate | None:
    """The share of alpha in the predicted time of the buckets that block, weighted by how much they do.

    Its interval takes alpha and beta from the model's joint draws.
    """
    model = analysis.comm_model
    if model is None or not model.latency_known or not model.complete:
        return None
    blocking_ns: dict[int, int] = defaultdict(int)
    for bucket in analysis.buckets:
        if bucket.num_bytes > 0:
            blocking_ns[bucket.num_bytes] += bucket.blocking_ns
    if not any(blocking_ns.values()):
        return None

    def share(alpha_ns: float, predict: Callable[[int], float]) -> float:
        weighted = sum(ns * alpha_ns / max(1e-9, predict(num_bytes)) for num_bytes, ns in blocking_ns.items())
        return weighted / sum(blocking_ns.values())

    value = share(model.segments[0].alpha_ns.value, lambda num_bytes: model.predict(num_bytes).value)
    drawn = [
        share(draw.alpha_ns, broken_line(draw.alpha_ns, draw.betas_ns_per_byte, draw.kinks_bytes))
        for draw in model.draws
    ]
    low, high = np.quantile(drawn or [value], [0.025, 0.975])
    return Estimate(value=value, low=min(value, float(low)), high=max(value, float(high)), basis="fitted")


def _scale(share: Estimate, factor: float) -> Estimate:
    return Estimate(value=share.value * factor, low=share.low * factor, high=share.high * factor, basis=share.basis)


def _list_evidence(shares: _Shares | None) -> tuple[Evidence, ...]:
    if shares is None:
        return ()
    step, communication, blocking = "of the step", "of communication", "of what blocks"
    rows: list[tuple[str, float | None, str, float | None, str]] = [
        ("typical step", shares.step_ns / 1e6, "ms", None, "steps"),
        ("blocking communication", shares.blocking, step, COMPUTE_BLOCKING, "steps"),
        ("waiting for late ranks", shares.wait_of_communication, communication, STRAGGLER_OF_COMMUNICATION, "steps"),
        ("lost to the latest rank", shares.lost, step, STRAGGLER_OF_STEP, "ranks"),
        ("that rank is the latest", shares.latest, "of the steps", STRAGGLER_ARRIVES_LAST, "ranks"),
        ("data", shares.data, step, INPUT_OF_STEP, "steps"),
        ("device idle for late launches", shares.host_bound, step, HOST_OF_STEP, "steps"),
    ]
    if shares.blocking:
        rows.append(("blocked by late ranks", shares.wait_of_blocking, blocking, DOMINANT_TERM, "steps"))
    listed = [Evidence(name=n, value=v, unit=u, threshold=limit, table=table) for n, v, u, limit, table in rows]
    if shares.blocking:
        listed.append(_show_latency(shares.split))
    return tuple(listed)


def _show_latency(split: _Split | None) -> Evidence:
    latency = split.latency if split else None
    return Evidence(
        name="blocked by latency",
        value=latency.value if latency else None,
        low=latency.low if latency else None,
        high=latency.high if latency else None,
        unit="of what blocks",
        threshold=DOMINANT_TERM,
        table="buckets",
    )


def _explain(code: VerdictCode, shares: _Shares | None) -> str:
    """Why, and what next, in two sentences."""
    if code == "single_rank":
        return "One rank alone exchanges no gradients. Profile the job with at least two ranks."
    if shares is None:
        return "No step was recorded from its beginning to its end. Record several, with prof.step() after each."
    if code == "unknown":
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
        "Bucket sizes have nothing left to give.",
    }
    return sentences.get(code) or f"Communication blocks {blocking}{_say_split(shares)}"


def _say_split(shares: _Shares) -> str:
    """What of it dominates, and what next; `probably` where the interval reaches below the threshold."""
    waiting, split = shares.wait_of_blocking, shares.split
    if waiting is None:
        return (
            ", but how much of that is waiting for late ranks, latency or bandwidth is unknown. "
            "Record every rank, and time the link with `ddp-advisor probe`."
        )
    if waiting >= DOMINANT_TERM:
        return (
            f", and {_percent(waiting)} of that is waiting for ranks that come later, which no bucket size and no hook "
            "shortens. Look in which phase the ranks differ."
        )
    if split is None:
        return (
            ", but how much of that is latency and how much bandwidth is unknown. "
            "Time the link with `ddp-advisor probe`, or record buckets of another size too."
        )
    for term, what, following in (
        (split.latency, "the fixed cost of each collective", "Fewer, larger buckets can help."),
        (split.bandwidth, "bytes over bandwidth", "Start sending earlier, or send fewer bytes."),
    ):
        if term.value >= DOMINANT_TERM:
            surely = "" if term.low >= DOMINANT_TERM else "probably "
            return f", and most of that is {surely}{what}. {following}"
    return (
        f", and neither latency nor bandwidth dominates: {_percent(split.waiting)} of that is waiting for late ranks, "
        f"{_percent(split.latency.value)} latency and {_percent(split.bandwidth.value)} bandwidth. "
        "Bucket sizes trade one against the other."
    )


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
    return f"{what}, so advice on DDP's settings does not apply."


def _percent(fraction: float | None) -> str:
    return "an unknown share" if fraction is None else f"{100 * fraction:.0f} %"


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
