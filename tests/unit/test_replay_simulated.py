"""Replay against schedules that were worked out without it: the same ends and the same step, to a microsecond.

Replay is told what a scenario says, not what an analysis of its traces would find.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace

import msgspec
import pytest

from advisor.calibrate import CONCURRENCY
from advisor.powersgd import AFTER, BEFORE, BETWEEN, OTHERS_WEIGHT
from advisor.replay import Job, draw_scenarios, predict
from advisor.schema import Backend, DDPConfig, GradientReady, RankProfile, StepProfile
from tests.job_builders import build_calibration, build_comm_model, exactly
from tests.simulated_powersgd import Compression, play_powersgd
from tests.simulated_schedule import MS, US, Scenario, play_steps
from tests.simulator import draw_ladder, draw_scenario

MIB = 2**20
TOLERANCE_NS = 1 * US
HOOKS = ("none", "allreduce", "fp16", "bf16", "noop")


def undisturbed(scenario: Scenario, hook: str, micro_steps: int) -> Scenario:
    """One step of a scenario without noise, with a hook and several micro-steps."""
    return replace(
        scenario,
        num_steps=1,
        noise=0.0,
        jitter_us=0.0,
        copy_ms=0.0,
        copy_ns_per_byte=0.2 if scenario.backend == "gloo" else 0.0,
        comm_hook=hook,
        cast_ns_per_byte=0.3 if hook in ("fp16", "bf16") else 0.0,
        micro_steps=micro_steps,
    )


def tell(scenario: Scenario) -> tuple[Job, DDPConfig, float]:
    """What replay needs, from the scenario alone, and when the last rank's last backward begins.

    Per gradient the last rank counts, from the last rank's backward.
    """
    late = {scenario.late_phase: scenario.late_ms}
    forward, backward = (scenario.forward_ms, scenario.backward_ms)
    begins, stretches = [], []
    for rank in range(scenario.num_ranks):
        own = late if rank == scenario.late_rank else {}
        computing = forward + own.get("forward", 0) + backward + own.get("backward", 0)
        begins.append(scenario.data_ms + own.get("data", 0) + scenario.micro_steps * computing)
        begins[-1] -= backward + own.get("backward", 0)
        stretches.append(1 + own.get("backward", 0) / backward)

    def last_ns(at_ms: float) -> int:
        ends = [begin + at_ms * stretch for begin, stretch in zip(begins, stretches, strict=True)]
        return round((max(ends) - max(begins)) * MS)

    slowest = RankProfile(
        rank=-1,
        data_ns=round((scenario.data_ms + late.get("data", 0)) * MS),
        forward_ns=round((forward + late.get("forward", 0)) * MS),
        backward_ns=last_ns(backward),
        optimizer_ns=round(scenario.optimizer_ms * MS),
        other_ns=0,
        host_bound_fraction=0.0,
        gradients=tuple(
            GradientReady(
                index=index,
                num_bytes=4 * elements,
                dtype="float32",
                ready_host_ns=last_ns(at),
                ready_device_ns=last_ns(at),
            )
            for index, (at, elements) in enumerate(scenario.gradients)
        ),
    )
    profile = StepProfile(
        device_type="cpu",
        num_steps=1,
        num_micro_steps=scenario.micro_steps,
        sizes_known=True,
        ranks=(slowest,),
        slowest=slowest,
    )
    ((_, alpha_us, beta),) = scenario.segments
    calibration = build_calibration(
        concurrency=CONCURRENCY[scenario.backend],
        copy_out_ns_per_byte=exactly(scenario.copy_ns_per_byte),
        hook_ns_per_byte={hook: exactly(scenario.cast_ns_per_byte) for hook in ("fp16", "bf16")},
    )
    config = DDPConfig(
        world_size=scenario.num_ranks,
        backend=scenario.backend,
        wrapper="torch",
        bucket_cap_mb_list=tuple(num_bytes / MIB for num_bytes in scenario.count_bytes()),
        comm_hook=scenario.comm_hook,
        accumulation_steps=scenario.micro_steps,
    )
    return Job(profile, calibration, build_comm_model(alpha_us * US, beta)), config, max(begins) * MS


@pytest.mark.parametrize("micro_steps", [1, 4])
@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_replay_ends_every_bucket_and_the_step_when_the_simulator_does(
    backend: Backend, hook: str, micro_steps: int
) -> None:
    for seed in range(8):
        for draw in (draw_scenario, draw_ladder):
            scenario = undisturbed(draw(seed, backend), hook, micro_steps)  # type: ignore[arg-type]
            (step,) = play_steps(scenario, random.Random(0))
            job, config, begin = tell(scenario)
            prediction = predict(job, config)
            assert [span.end_ns for span in prediction.buckets] == pytest.approx(
                [end - begin for end in step.exchange.ends], abs=TOLERANCE_NS
            )
            assert prediction.step_ns.value == pytest.approx(max(step.ends), abs=TOLERANCE_NS)


def compress(scenario: Scenario, rank: int, costs: tuple[float, float]) -> tuple[Scenario, Compression]:
    """The scenario with gradients that are vectors, matrices and kernels in turn, of about as many elements."""
    shapes = []
    for number, (_, elements) in enumerate(scenario.gradients):
        shapes.append([(elements,), (64, 1 + elements // 64), (16, 1 + elements // 48, 3)][number % 3])
    gradients = tuple((at, math.prod(shape)) for (at, _), shape in zip(scenario.gradients, shapes, strict=True))
    compression = Compression(
        rank=rank,
        shapes=tuple(shapes),
        ns_per_byte=costs[0],
        us_per_matrix=costs[1],
        others_weight=OTHERS_WEIGHT,
        shares=(BEFORE, BETWEEN, AFTER),
    )
    return replace(scenario, gradients=gradients), compression


def tell_powersgd(scenario: Scenario, compression: Compression) -> tuple[Job, DDPConfig, float]:
    job, config, begin = tell(scenario)
    profile = msgspec.structs.replace(job.profile, shapes=compression.shapes)
    calibration = msgspec.structs.replace(
        job.calibration,
        hook_ns_per_byte={"powersgd": exactly(compression.ns_per_byte)},
        hook_ns_per_matrix={"powersgd": exactly(compression.us_per_matrix * US)},
    )
    return replace(job, profile=profile, calibration=calibration), config, begin


@pytest.mark.parametrize("micro_steps", [1, 4])
@pytest.mark.parametrize("costs", [(0.0, 0.0), (0.7, 90.0)])
@pytest.mark.parametrize("rank", [1, 4, 100])
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_replay_ends_powersgds_chains_and_the_step_when_the_simulator_does(
    backend: Backend, rank: int, costs: tuple[float, float], micro_steps: int
) -> None:
    """With rank 100 no gradient is worth compressing."""
    for seed in range(4):
        for draw in (draw_scenario, draw_ladder):
            drawn = undisturbed(draw(seed, backend), f"powersgd:{rank}", micro_steps)  # type: ignore[arg-type]
            scenario, compression = compress(drawn, rank, costs)
            ends, done = play_powersgd(scenario, compression)
            job, config, begin = tell_powersgd(scenario, compression)
            prediction = predict(job, config, draw_scenarios(job)[:1])
            assert [span.end_ns for span in prediction.buckets] == pytest.approx(
                [end - begin for end in ends], abs=TOLERANCE_NS
            )
            assert prediction.step_ns.value == pytest.approx(max(done), abs=TOLERANCE_NS)
