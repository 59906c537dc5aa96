"""Analyses for rules: a replayed job with its baseline, steps, and what the ranks' traces show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.activity import Activity
from advisor.collectives import Collective
from advisor.exchange import StepExchange
from advisor.observation import RankObservation, RunObservation
from advisor.replay import Job, check_baseline, predict
from advisor.schema import (
    DDPConfig,
    DeviceType,
    Ladder,
    RunManifest,
    StepSummary,
    Straggler,
)
from advisor.timeline import PhaseSpan, StepTimeline
from advisor.verdict import Analysis
from tests.job_builders import exactly

STEPS = (2, 3, 4)


@dataclass(frozen=True)
class Shown:
    """What the traces show beside the job's times."""

    used: int = 0
    """Gradients in every backward."""
    mark: int = 0
    """Elements of the mark of unused parameters."""
    buffers_ns: int = 0
    """A broadcast of buffers in each step."""
    copies_alone_ns: int = 0
    copy_back_ns: int = 0
    host_bound_ns: int = 0
    data_ns: int = 0


def build_advice_analysis(
    job: Job,
    config: DDPConfig,
    shown: Shown = Shown(),
    *,
    torch: str = "2.13.0",
    straggler: Straggler | None = None,
    ladders: Sequence[Ladder] = (),
) -> Analysis:
    """An analysis whose replay is exact."""
    job = Job(job.profile, job.calibration, job.model, config)
    step_ns = round(predict(job, config).step_ns.value)
    manifest = RunManifest(
        tool_version="0",
        created="",
        workload="",
        ddp=config,
        parameters=(),
        initial_buckets=(),
        buckets=(),
        ready_order=(),
        versions={"torch": torch},
    )
    device = job.profile.device_type
    ranks = tuple(_observe(rank, device, shown) for rank in range(config.world_size))
    return Analysis(
        config=config,
        parallelism="ddp",
        world_size=config.world_size,
        steps=tuple(_step(rank, step, step_ns, shown) for rank in range(config.world_size) for step in STEPS),
        buckets=(),
        comm_model=job.model,
        job=job,
        baseline=check_baseline(job, config, exactly(step_ns)),
        straggler=straggler,
        run=RunObservation("run", ranks, manifest if torch else None, (), tuple(ladders)),
    )


def _step(rank: int, step: int, step_ns: int, shown: Shown) -> StepSummary:
    names = ("forward", "blocking", "optimizer", "other", "compute", "communication", "overlap", "exposed")
    zero = dict.fromkeys((f"{name}_ns" for name in names), 0)
    return StepSummary(
        rank=rank,
        step=step,
        start_ns=0,
        duration_ns=step_ns,
        backward_ns=step_ns - shown.data_ns,
        num_syncs=1,
        data_ns=shown.data_ns,
        host_bound_ns=shown.host_bound_ns,
        copy_back_ns=shown.copy_back_ns,
        num_copies_back=161 if shown.copy_back_ns else 0,
        **zero,
    )


def _observe(rank: int, device: DeviceType, shown: Shown) -> RankObservation:
    nothing = np.zeros((0, 2), dtype=np.int64)
    span = PhaseSpan("backward", 0, 1, 0, 1)
    collectives = [
        Collective(rank, step, phase, "0", kind, dtype, size, 4 * size, -1, 0, duration)  # type: ignore[arg-type]
        for step in STEPS
        for phase, kind, dtype, size, duration in (
            ("backward", "all_reduce", "int32", shown.mark, 1),
            ("forward", "broadcast", "float32", 64 * bool(shown.buffers_ns), shown.buffers_ns),
        )
        if size
    ]
    exchanges = [
        StepExchange(
            step=StepTimeline(step, 0, 1, (span,), 0),
            buckets=(),
            gradients=(None,) * shown.used,  # type: ignore[arg-type]
            backward=span,
            blocking=nothing,
            num_backwards=1,
            num_syncs=1,
            launch_spans=nothing,
            copy_back_ns=shown.copy_back_ns,
            num_copies_back=161 if shown.copy_back_ns else 0,
            host_tail_ns=0,
            copies_alone_ns=shown.copies_alone_ns,
        )
        for step in STEPS
    ]
    return RankObservation(
        rank=rank,
        file=f"rank{rank}.pt.trace.json",
        host="host",
        world_size=2,
        backend="nccl",
        device_type=device,
        has_shapes=True,
        num_events=1,
        num_communication_events=1,
        parallelism="ddp",
        wrapper="torch",
        searches_unused_parameters=bool(shown.mark),
        step_source="profiler",
        steps=(),
        activity=Activity(0, 0, 0, 0, 0),
        step_activities=(),
        communication=nothing,
        overlap=nothing,
        collectives=tuple(collectives),
        exchanges=tuple(exchanges),
        updates=(),
        comparisons=(),
    )
