"""How fast a question is answered: one what-if, hundreds of bucketings, the exact best buckets; on ResNet-50's sizes.

Targets: 800 distinct bucketings replayed in under 1 s, one what-if with its interval in under 20 ms. Beside them, how
much later the buckets of MG-WFBP's merge rule are through than the best ones, over a range of links. Times are those of
the processor, on one thread, so that a busy machine adds little to them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from random import Random

import numpy as np

from advisor.best_buckets import Cost, find_best_buckets, list_caps_mb, list_uniform_buckets
from advisor.replay import Job, bucket_gradients, draw_scenarios, predict, replay_scenarios, step_ns
from advisor.schema import (
    Calibration,
    CommModel,
    CommSegment,
    DDPConfig,
    Estimate,
    GradientReady,
    RankProfile,
    StepProfile,
)
from advisor.statistics import median_estimate
from benchmarks.mg_wfbp import merge_gradients
from benchmarks.result import Measurement, write_result

NUM_SAMPLES = 15
NUM_BUCKETINGS = 800
BACKWARD_NS = 100_000_000
CONFIG = DDPConfig(world_size=2, backend="gloo", wrapper="torch")
LATENCIES_NS = (20_000, 60_000, 200_000, 600_000)
NS_PER_BYTE = (0.1, 0.3, 1.0, 3.0)


def run() -> None:
    """Measures each question in turns."""
    load_before = os.getloadavg()[0]
    job = build_job()
    configs = list(list_configs(job))
    scenarios = draw_scenarios(job)[:1]

    def replay_all() -> None:
        for config in configs:
            step_ns(job, config, *replay_scenarios(job, config, scenarios))

    sizes, ready = list_gradient_bytes(), [g.ready_device_ns for g in job.profile.slowest.gradients]
    one_mib, every_gradient_alone = (
        DDPConfig(world_size=2, backend="gloo", wrapper="torch", bucket_cap_mb=cap) for cap in (1.0, 0.0)
    )
    questions: dict[str, Callable[[], object]] = {
        f"{NUM_BUCKETINGS} bucketings replayed": replay_all,
        "one what-if, default buckets": lambda: predict(job, CONFIG),
        "one what-if, a cap of 1 MiB": lambda: predict(job, one_mib),
        "one what-if, every gradient alone": lambda: predict(job, every_gradient_alone),
        "the exact best buckets": lambda: find_best_buckets(ready, sizes, _line(200_000, 1.0)),
    }
    samples_ms: dict[str, list[float]] = {name: [] for name in questions}
    for _ in range(NUM_SAMPLES):
        for name, ask in questions.items():
            started = time.process_time()
            ask()
            samples_ms[name].append((time.process_time() - started) * 1e3)
    rows = [
        Measurement(name=name, unit="ms", estimate=median_estimate(samples), num_samples=NUM_SAMPLES)
        for name, samples in samples_ms.items()
    ]
    write_result("what_if", load_before, ("ddp-advisor", "numpy"), [*rows, compare_with_mg_wfbp(ready, sizes)])


def list_gradient_bytes() -> list[int]:
    """ResNet-50's 161 float32 gradients in the order in which backward makes them: the last layer first."""
    elements = [64 * 3 * 7 * 7, 64, 64]
    channels = 64
    for width, num_blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(num_blocks):
            elements += [channels * width, width, width, 9 * width * width, width, width]
            elements += [4 * width * width, 4 * width, 4 * width]
            if block == 0:
                elements += [4 * width * channels, 4 * width, 4 * width]
            channels = 4 * width
    elements += [2048 * 1000, 1000]
    return [4 * count for count in reversed(elements)]


def build_job() -> Job:
    """Gradients ready evenly over backward, on a machine where two collectives share the link and slow each other."""
    sizes = list_gradient_bytes()
    gradients = tuple(
        GradientReady(index=k, num_bytes=size, dtype="float32", ready_host_ns=ready, ready_device_ns=ready)
        for k, size in enumerate(sizes)
        for ready in [round(BACKWARD_NS * (k + 1) / len(sizes))]
    )
    slowest = RankProfile(
        rank=-1,
        data_ns=0,
        forward_ns=BACKWARD_NS // 2,
        backward_ns=BACKWARD_NS,
        optimizer_ns=0,
        other_ns=0,
        host_bound_fraction=0.0,
        gradients=gradients,
    )
    profile = StepProfile(
        device_type="cpu", num_steps=8, num_micro_steps=1, sizes_known=True, ranks=(slowest,), slowest=slowest
    )
    calibration = Calibration(
        concurrency=2,
        compute_slowdown=_about(1.3),
        communication_slowdown=_about(1.1),
        copy_in_ns_per_byte=_about(0.0),
        copy_out_ns_per_byte=_about(0.2),
        launch_ns=_about(50_000),
        host_tail_ns=_about(0.0),
        baseline_residual_fraction=_about(0.0),
    )
    segment = CommSegment(alpha_ns=_about(200_000), beta_ns_per_byte=_about(1.0), from_bytes=0, to_bytes=None)
    model = CommModel(
        process_group="0",
        kind="all_reduce",
        dtype="float32",
        world_size=2,
        segments=(segment,),
        samples=(),
        latency_known=True,
        complete=True,
        message="",
    )
    return Job(profile, calibration, model)


def list_configs(job: Job) -> Iterator[DDPConfig]:
    """Settings of which no two give the same buckets: every distinct uniform cap, then random lists."""
    random = Random(0)
    sizes = list_gradient_bytes()
    seen: set[tuple[tuple[int, ...], ...]] = set()
    bucketings = iter(list_uniform_buckets(sizes))
    while len(seen) < NUM_BUCKETINGS:
        borders = random.sample(range(1, len(sizes)), random.randint(1, 40))
        ends = next(bucketings, None) or (*sorted(borders), len(sizes))
        config = DDPConfig(world_size=2, backend="gloo", wrapper="torch", bucket_cap_mb_list=list_caps_mb(sizes, ends))
        buckets = tuple(map(tuple, bucket_gradients(job.profile, config)))
        if buckets not in seen:
            seen.add(buckets)
            yield config


def compare_with_mg_wfbp(ready: list[int], sizes: list[int]) -> Measurement:
    """How much later MG-WFBP's buckets are through than the best, over all pairs of latency and bandwidth: a ratio."""
    ratios = []
    for alpha in LATENCIES_NS:
        for beta in NS_PER_BYTE:
            now = 0.0
            for start, end in pairwise((0, *merge_gradients(ready, sizes, alpha=alpha, beta=beta))):
                now = max(now, ready[end - 1]) + alpha + beta * sum(sizes[start:end])
            ratios.append(now / find_best_buckets(ready, sizes, _line(alpha, beta)).finish)
    estimate = Estimate(value=float(np.median(ratios)), low=min(ratios), high=max(ratios), basis="measured")
    return Measurement(name="MG-WFBP's end / the best end", unit="", estimate=estimate, num_samples=len(ratios))


def _line(alpha: float, beta: float) -> Cost:
    return lambda num_bytes: alpha + beta * num_bytes


def _about(value: float) -> Estimate:
    return Estimate(value=value, low=0.9 * value, high=1.1 * value, basis="fitted")
