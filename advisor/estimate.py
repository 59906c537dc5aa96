"""The step of a job that exists only as a sketch: layers, a link and a few times, through the same replay as a trace.

    four layers of 3 MB, backward 8 ms, 1 GB/s, two ranks, every layer a bucket: they are ready at 2, 4, 6 and 8 ms and
    take 3 ms each, so they end at 5, 8, 11 and 14 ms and 6 ms of the last two stick out

An all-reduce of n bytes on P ranks takes latency + 2 (P - 1) / P · n / bandwidth, as a ring does.

**Source**: Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH (2005) for the
ring; Rajbhandari et al., ZeRO (2020), section 3.1, for the bytes that mixed-precision Adam keeps a parameter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from advisor.all_reduce import traffic_factor
from advisor.best_settings import find_best_cap, find_best_list
from advisor.errors import UsageError
from advisor.replay import (
    Job,
    Scenario,
    count_wire_bytes,
    draw_scenarios,
    free_communication,
    predict,
    sends_nothing,
)
from advisor.schema import (
    Calibration,
    CommModel,
    CommSegment,
    DDPConfig,
    Estimate,
    GradientReady,
    JobEstimate,
    JobSketch,
    MemoryPerRank,
    RankProfile,
    SettingEstimate,
    StepProfile,
)

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
"""Bytes a parameter of the dtypes that a sketch may have."""
MASTER_BYTES = 4
"""A float32 copy of a weight that is kept in 16 bits."""
NUM_MOMENTS = 2
MOST_LAYERS = 1000
MOST_PARAMETERS = 10**14
MOST_SECONDS = 10**6
"""Beyond these a number was mistyped: a hundred million million parameters, a step of eleven days."""


def estimate_job(sketch: JobSketch, configs: Sequence[tuple[str, DDPConfig]]) -> JobEstimate:
    """Estimates a sketched job under several settings.

    Args:
        sketch: The job.
        configs: Settings by the name that they are to carry.

    Raises:
        UsageError: The sketch cannot be meant.
    """
    _check(sketch)
    return JobEstimate(
        sketch=sketch,
        memory=count_memory(sketch),
        settings=tuple(_estimate_setting(name, sketch, config) for name, config in configs),
    )


def find_best_configs(sketch: JobSketch, config: DDPConfig) -> tuple[DDPConfig, DDPConfig]:
    """`config` with the best uniform cap, and with the best `bucket_cap_mb_list`.

    Raises:
        UsageError: The sketch cannot be meant.
    """
    _check(sketch)
    job = build_job(sketch, config.world_size)
    best_cap = find_best_cap(job, config)
    return best_cap, find_best_list(job, config) or best_cap


def build_job(sketch: JobSketch, world_size: int) -> Job:
    """What replay needs, from a sketch: computation without noise, and communication that disturbs nothing."""
    parameters = np.array(sketch.layer_parameters[::-1])
    ready_ns = np.rint(np.cumsum(parameters) / parameters.sum() * sketch.backward_ns).astype(int)
    slowest = RankProfile(
        rank=-1,
        data_ns=0,
        forward_ns=sketch.forward_ns,
        backward_ns=sketch.backward_ns,
        optimizer_ns=sketch.optimizer_ns,
        other_ns=0,
        host_bound_fraction=0.0,
        gradients=tuple(
            GradientReady(
                index=index,
                num_bytes=int(count) * ITEM_BYTES[sketch.dtype],
                dtype=sketch.dtype,
                ready_host_ns=int(ready),
                ready_device_ns=int(ready),
            )
            for index, (count, ready) in enumerate(zip(parameters, ready_ns, strict=True))
        ),
    )
    profile = StepProfile(
        device_type="cuda", num_steps=1, num_micro_steps=1, sizes_known=True, ranks=(slowest,), slowest=slowest
    )
    nothing, unchanged = _assume(0.0), _assume(1.0)
    calibration = Calibration(
        concurrency=sketch.concurrency,
        compute_slowdown=unchanged,
        communication_slowdown=unchanged,
        copy_in_ns_per_byte=nothing,
        copy_out_ns_per_byte=nothing,
        launch_ns=nothing,
        host_tail_ns=nothing,
        baseline_residual_fraction=nothing,
        assumed=("computation and communication do not disturb each other", "copies and launches cost nothing"),
    )
    segment = CommSegment(
        alpha_ns=_assume(sketch.latency_ns),
        beta_ns_per_byte=_assume(1e9 * traffic_factor(world_size) / sketch.bandwidth_bytes_per_s),
        from_bytes=0,
        to_bytes=None,
    )
    model = CommModel(
        process_group="",
        kind="all_reduce",
        dtype=sketch.dtype,
        world_size=world_size,
        segments=(segment,),
        samples=(),
        latency_known=True,
        complete=True,
        message="Assumed, not measured.",
    )
    return Job(profile, calibration, model)


def count_memory(sketch: JobSketch) -> MemoryPerRank:
    """Weights, gradients and Adam's state: 16 bytes a parameter, in float32 as in the usual mixed precision.

    float32: 4 + 4 + 2 · 4. 16 bits: 2 + 2, a float32 copy of 4, and 2 · 4.
    """
    num_parameters, own = sum(sketch.layer_parameters), ITEM_BYTES[sketch.dtype]
    copy = MASTER_BYTES if own < MASTER_BYTES else 0
    return MemoryPerRank(
        weights_bytes=num_parameters * own,
        gradients_bytes=num_parameters * own,
        optimizer_bytes=num_parameters * (copy + NUM_MOMENTS * max(own, MASTER_BYTES)),
        buckets_bytes=num_parameters * own,
    )


def _estimate_setting(name: str, sketch: JobSketch, config: DDPConfig) -> SettingEstimate:
    job = build_job(sketch, config.world_size)
    scenario = _find_scenario(job, config)
    prediction = predict(job, config, [scenario])
    times = {field: _assume(getattr(prediction, field).value) for field in ("step_ns", "blocking_ns", "exposed_ns")}
    wire_bytes = sum(count_wire_bytes(gradient, config) for gradient in job.profile.slowest.gradients)
    return SettingEstimate(
        name=name,
        prediction=replace(prediction, **times),
        communication_ns=scenario.alpha_ns * len(prediction.buckets) + scenario.beta_ns_per_byte * wire_bytes,
        bound_ns=_bound_step(job, config, scenario),
        traffic_bytes=0.0 if sends_nothing(config) else traffic_factor(config.world_size) * wire_bytes,
    )


def _bound_step(job: Job, config: DDPConfig, scenario: Scenario) -> float:
    """The step if all gradients were one and ready when backward begins."""
    slowest = job.profile.slowest
    whole = replace(slowest.gradients[0], num_bytes=sum(g.num_bytes for g in slowest.gradients), ready_device_ns=0)
    ideal = Job(replace(job.profile, slowest=replace(slowest, gradients=(whole,))), job.calibration, job.model)
    return predict(ideal, config, [scenario]).step_ns.value


def _find_scenario(job: Job, config: DDPConfig) -> Scenario:
    """The one scenario of a job of which nothing is uncertain."""
    central = draw_scenarios(job)[0]
    return free_communication(central) if sends_nothing(config) else central


def _assume(value: float) -> Estimate:
    return Estimate(value=value, low=value, high=value, basis="extrapolated")


def _check(sketch: JobSketch) -> None:
    """Refuses what cannot be meant.

    Raises:
        UsageError: There are no layers, too many, empty ones, a negative time, no bandwidth or an unknown dtype.
    """
    num_layers = len(sketch.layer_parameters)
    if not 0 < num_layers <= MOST_LAYERS:
        raise UsageError(f"A sketch of {num_layers} layers cannot be drawn: give 1 to {MOST_LAYERS} layers.")
    if min(sketch.layer_parameters) < 1:
        raise UsageError("A layer without parameters has no gradient: give every layer at least one parameter.")
    if min(sketch.forward_ns, sketch.backward_ns, sketch.optimizer_ns, sketch.latency_ns) < 0:
        raise UsageError("A time below zero cannot be meant: give times of 0 ms or more.")
    if not sketch.bandwidth_bytes_per_s > 0:
        raise UsageError("Without bandwidth no gradient ever arrives: give a bandwidth above zero, such as 10GB/s.")
    if sketch.dtype not in ITEM_BYTES:
        raise UsageError(f"The dtype {sketch.dtype!r} is not known: choose one of {', '.join(ITEM_BYTES)}.")
    if sum(sketch.layer_parameters) > MOST_PARAMETERS:
        raise UsageError(f"{sum(sketch.layer_parameters):.0e} parameters cannot be meant: look at the sizes' units.")
    sending_s = sum(sketch.layer_parameters) * ITEM_BYTES[sketch.dtype] / sketch.bandwidth_bytes_per_s
    computing_s = (sketch.forward_ns + sketch.backward_ns + sketch.optimizer_ns + sketch.latency_ns) / 1e9
    if max(sending_s, computing_s) > MOST_SECONDS:
        raise UsageError("A step of more than eleven days cannot be meant: look at the units of times and bandwidth.")
