from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from advisor.powersgd import AFTER, BEFORE, BETWEEN, OTHERS_WEIGHT, Parts, split_bucket
from advisor.replay import Job, Scenario, plan_backward, predict, replay_backward
from advisor.schema import DDPConfig, Estimate
from tests.job_builders import MS, build_config, build_job, exactly

ROWS, COLUMNS = 500, 750
MATRIX_BYTES, OTHER_BYTES = 4 * ROWS * COLUMNS, 4 * 1_000
P_NS, Q_NS, OTHER_NS = 4 * ROWS * 2, 4 * COLUMNS * 2, OTHER_BYTES
COST_NS = 1 * MS
COST = exactly(COST_NS)
"""Of a matrix, whatever its bytes."""


def build_powersgd_job(cost: Estimate = COST, **changes: object) -> Job:
    """A matrix ready at 1 ms, a vector and a matrix at 2 ms; backward takes 3 ms, a byte 1 ns, latency nothing."""
    gradients = [(1, MATRIX_BYTES), (2, OTHER_BYTES), (2, MATRIX_BYTES)]
    costs = {"hook_ns_per_byte": {"powersgd": exactly(0)}, "hook_ns_per_matrix": {"powersgd": cost}}
    job = build_job(gradients, backward_ms=3, **costs)
    shapes = ((ROWS, COLUMNS), (1000,), (ROWS, COLUMNS))
    return dataclasses.replace(job, profile=replace(job.profile, shapes=shapes, **changes))


def config_of(backend: str, **changes: object) -> DDPConfig:
    return build_config(backend=backend, comm_hook="powersgd:2", bucket_cap_mb=1.0, **changes)


def test_a_matrix_is_sent_as_two_thin_ones_where_that_halves_its_bytes() -> None:
    """100 × 50 of rank 2: 800 and 400 bytes; a kernel of 64 × (3, 3, 3): 91 · 2 · 2 < 1728. A vector, a scalar and
    8 × 8 stay whole, and so does 4 × 1000 whose rank would be 4: 4016 · 2 > 4000.
    """
    assert split_bucket([(20_000, (100, 50))], 2) == Parts(800, 400, 0, 20_000, 1)
    assert split_bucket([(6912, (64, 3, 3, 3))], 2) == Parts(512, 216, 0, 6912, 1)
    assert split_bucket([(400, (100,)), (4, ()), (256, (8, 8))], 2) == Parts(0, 0, 660, 0, 0)
    assert split_bucket([(16_000, (4, 1000))], 100) == Parts(0, 0, 16_000, 0, 0)
    assert split_bucket([(40, (10,)), (10_000, (100, 50))], 1) == Parts(200, 100, 40, 10_000, 1)
    assert Parts(0, 0, 100, 1000, 1).computed_bytes == 1000 + 100 * OTHERS_WEIGHT


def test_torchs_hook_holds_backward_up_until_its_bucket_is_done() -> None:
    """Ready at 1 ms, 1 ms of computation, P and Q; the second bucket the same 1 ms of backward later, with a vector."""
    prediction = predict(build_powersgd_job(), config_of("nccl"))
    first, second = prediction.buckets
    assert first.start_ns == first.ready_ns == 1 * MS + BEFORE * COST_NS
    assert first.end_ns == first.start_ns + P_NS + BETWEEN * COST_NS + Q_NS
    done = first.end_ns + AFTER * COST_NS
    assert second.start_ns == done + 1 * MS + BEFORE * COST_NS
    assert second.end_ns == second.start_ns + OTHER_NS + P_NS + BETWEEN * COST_NS + Q_NS
    sent = 2 * P_NS + 2 * Q_NS + OTHER_NS
    assert prediction.step_ns.value == 3 * MS + 2 * COST_NS + sent
    assert prediction.blocking_ns.value == prediction.exposed_ns.value == sent


def test_ours_sends_what_comes_first_beside_backward_and_the_rest_behind_it() -> None:
    """The second bucket is ready 2.6 ms after all; P and the vector, 4000 ns each, share the link until then + 8000.
    Q of the first bucket is sent as soon as it is computed, and hides behind the computation of the second one's.
    """
    job = build_powersgd_job()
    both = dataclasses.replace(job, calibration=replace(job.calibration, concurrency=2))
    prediction = predict(both, config_of("gloo"))
    first, second = prediction.buckets
    assert first.start_ns == 1 * MS + BEFORE * COST_NS
    begin = 2 * MS + 2 * BEFORE * COST_NS
    assert second.start_ns == begin
    assert first.end_ns == begin + BETWEEN * COST_NS + Q_NS
    assert second.end_ns == begin + 2 * BETWEEN * COST_NS + Q_NS
    # Before Q of the second bucket ends, what comes after that of the first one is computed.
    assert prediction.blocking_ns.value == 0
    assert prediction.step_ns.value == 3 * MS + 2 * COST_NS


def test_ours_waits_where_nothing_is_left_to_compute() -> None:
    """Free computation: P and the vector of the last bucket share the link from 2 ms on, then both Q do."""
    job = build_powersgd_job(exactly(0))
    both = dataclasses.replace(job, calibration=replace(job.calibration, concurrency=2))
    prediction = predict(both, config_of("gloo"))
    firsts = 2 * MS + P_NS + OTHER_NS
    assert [span.end_ns for span in prediction.buckets] == [firsts + 2 * Q_NS] * 2
    assert prediction.blocking_ns.value == P_NS + OTHER_NS + 2 * Q_NS
    assert prediction.step_ns.value == 3 * MS + P_NS + OTHER_NS + 2 * Q_NS


def test_the_mark_of_used_parameters_follows_the_last_chain() -> None:
    """Three parameters, so 12 bytes, of which backward's last millisecond hides all."""
    config = config_of("nccl", find_unused_parameters=True)
    job = build_powersgd_job(registered=(2, 1, 0))
    plan = plan_backward(job, config)
    assert plan.sizes[-1] == 12
    run = predict(job, config)
    assert run.step_ns.value == 3 * MS + 2 * COST_NS + 2 * P_NS + 2 * Q_NS + OTHER_NS
    assert len(run.buckets) == 2


def test_a_host_that_is_held_up_is_as_late_as_before() -> None:
    """The device idled 0.5 ms until the first gradient and 0.8 until the others: so it does again."""
    job = build_powersgd_job(exactly(0))
    idle_ns = (500_000, 800_000, 800_000)
    gradients = zip(job.profile.slowest.gradients, idle_ns, strict=True)
    late = replace(job.profile.slowest, gradients=tuple(replace(g, idle_ns=ns) for g, ns in gradients))
    prediction = predict(dataclasses.replace(job, profile=replace(job.profile, slowest=late)), config_of("nccl"))
    assert prediction == predict(job, config_of("nccl"))


def test_what_it_computes_is_named_and_shown_in_the_waterfall() -> None:
    job = build_powersgd_job(Estimate(value=COST_NS, low=0, high=3 * COST_NS, basis="extrapolated"))
    prediction = predict(job, config_of("nccl"))
    terms = {term.name: term.value_ns for term in prediction.waterfall}
    assert terms["compressing"] == 2 * COST_NS
    assert "casting" not in terms
    assert prediction.step_ns.basis == "extrapolated"
    assert prediction.step_ns.low < prediction.step_ns.value - 1.5 * COST_NS
    assert prediction.step_ns.high > prediction.step_ns.value + 3 * COST_NS
    assert "0 to 3,000 µs a matrix" in prediction.assumed[0]


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_nothing_is_computed_beside_what_is_waited_for(backend: str) -> None:
    """So a slow-down of computation changes nothing for torch's hook, and for ours only while backward goes on."""
    job = build_powersgd_job(exactly(0))
    config = config_of(backend)
    plan = plan_backward(job, config)
    run = replay_backward(plan, Scenario(0, 1, 1.0, 1.0, 0, 0))
    slowed = replay_backward(plan, Scenario(0, 1, 2.0, 1.0, 0, 0))
    hidden = P_NS if backend == "gloo" else 0
    assert slowed.compute_end - run.compute_end == pytest.approx(hidden / 2)
