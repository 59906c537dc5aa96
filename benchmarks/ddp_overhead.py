"""Our DDP beside torch's: step time in interleaved rounds with an A/A arm, and peak memory in processes of their own.

Targets: a ratio of step times of at most 1.03, and at most 2 % more peak memory than torch's.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from advisor.schema import DDPConfig, Estimate
from advisor.statistics import median_estimate
from benchmarks.result import Measurement, read_measurements, write_result

WORKLOADS = ("mlp", "gpt", "resnet")
CHOSEN = os.environ.get("DDP_OVERHEAD_WORKLOADS", ",".join(WORKLOADS)).split(",")
"""What is measured now; the rows of the others stay as they are."""
WRAPPERS = ("torch", "bucketed")
PRESET = "small"
BUDGET_S = float(os.environ.get("DDP_OVERHEAD_BUDGET_S", "120"))
MEMORY_REPEATS = 3
MEMORY_STEPS = 6
MIB = 2**20


def run() -> None:
    """Measures every workload under both wrappers."""
    load_before = os.getloadavg()[0]
    before = read_measurements("ddp_overhead")
    measurements: list[Measurement] = []
    for workload in WORKLOADS:
        if workload in CHOSEN:
            measurements += [*measure_steps(workload), *measure_memory(workload)]
        else:
            measurements += [row for row in before if row.name.startswith(f"{workload}: ")]
    write_result("ddp_overhead", load_before, ("ddp-advisor", "torch"), measurements)


def configure(wrapper: str) -> DDPConfig:
    """Two gloo ranks, DDP's default buckets."""
    return msgspec.convert({"world_size": 2, "backend": "gloo", "wrapper": wrapper}, DDPConfig)


def measure_steps(workload: str) -> list[Measurement]:
    """Ratios of step times to torch's own wrapper's; the A/A arm is torch's again."""
    from workloads.job import JobSpec
    from workloads.requests import Arm, SweepRequest
    from workloads.sweep import measure_arms, summarise

    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "sweep.sqlite"
        arms = tuple(Arm(name=wrapper, config=configure(wrapper)) for wrapper in WRAPPERS)
        job = JobSpec(workload=workload, preset=PRESET)
        measure_arms(SweepRequest(job=job, arms=arms, database=str(database), budget_s=BUDGET_S, device="cpu"))
        sweep = summarise(database)
    rows = []
    for arm in sweep.arms:
        if arm.step_ns is not None:
            rows.append(_scale(f"{workload}: step, {arm.name}", "ms", arm.step_ns, 1e-6, arm.num_steps))
        if arm.ratio is not None:
            rows.append(_scale(f"{workload}: step, {arm.name} / torch", "", arm.ratio, 1.0, arm.num_steps))
    return rows


def measure_memory(workload: str) -> list[Measurement]:
    """Peak resident memory of rank 0 after a few steps, each time in new processes, wrappers in turns."""
    peaks: dict[str, list[float]] = {wrapper: [] for wrapper in WRAPPERS}
    for _ in range(MEMORY_REPEATS):
        for wrapper in WRAPPERS:
            peaks[wrapper].append(_train_apart(workload, wrapper))
    ratios = [ours / theirs for ours, theirs in zip(peaks["bucketed"], peaks["torch"], strict=True)]
    rows = [
        Measurement(
            name=f"{workload}: peak memory, {wrapper}",
            unit="MiB",
            estimate=median_estimate(peaks[wrapper]),
            num_samples=MEMORY_REPEATS,
        )
        for wrapper in WRAPPERS
    ]
    ratio = median_estimate(ratios)
    name = f"{workload}: peak memory, bucketed / torch"
    return [*rows, Measurement(name=name, unit="", estimate=ratio, num_samples=MEMORY_REPEATS)]


def _train_apart(workload: str, wrapper: str) -> float:
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        arguments = (workload, wrapper, str(Path(folder) / "store"), send)
        ranks = [context.Process(target=_train, args=(rank, *arguments)) for rank in (0, 1)]
        for process in ranks:
            process.start()
        peak: float = receive.recv()
        for process in ranks:
            process.join()
    return peak


def _train(rank: int, workload: str, wrapper: str, store: str, send: Connection) -> None:
    import torch
    import torch.distributed as dist

    from workloads.factories import build_job
    from workloads.job import JobContext, JobSpec
    from workloads.place import Place
    from workloads.train import Training

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    device = torch.device("cpu")
    job = build_job(JobContext(JobSpec(workload=workload, preset=PRESET), rank=rank, world_size=2, device=device))
    training = Training(job, configure(wrapper), Place(rank, 2, device, "gloo"))
    for _ in range(MEMORY_STEPS):
        training.step()
    if rank == 0:
        send.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB)
    dist.destroy_process_group()


def _scale(name: str, unit: str, estimate: Estimate, factor: float, num_samples: int) -> Measurement:
    scaled = Estimate(
        value=estimate.value * factor,
        low=estimate.low * factor,
        high=estimate.high * factor,
        basis=estimate.basis,
    )
    return Measurement(name=name, unit=unit, estimate=scaled, num_samples=num_samples)
