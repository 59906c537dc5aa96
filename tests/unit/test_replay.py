from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from advisor.replay import (
    Backward,
    Scenario,
    check_baseline,
    estimate_residual,
    plan_backward,
    predict,
    predict_ceiling,
    replay_backward,
)
from advisor.schema import Baseline, Estimate
from tests.job_builders import MB, MS, build_config, build_job, exactly

FREE_OF_INTERFERENCE = {"compute_slowdown": 1.0, "communication_slowdown": 1.0, "copy_out_ns_per_byte": 0.0}


def scenario(alpha_ns: float = 0, beta_ns_per_byte: float = 1, launch_ns: float = 0, **changes: float) -> Scenario:
    return Scenario(alpha_ns, beta_ns_per_byte, **{**FREE_OF_INTERFERENCE, **changes}, launch_ns=launch_ns)


def test_four_buckets_queue_on_one_channel() -> None:
    """Ready at 2, 4, 6, 8 ms, 3 ms each: the last one ends at 14 ms, 6 ms after backward (C11)."""
    run = replay_backward(Backward([2 * MS, 4 * MS, 6 * MS, 8 * MS], [3 * MB] * 4, 8 * MS, 1), scenario())
    assert run.ends == [5 * MS, 8 * MS, 11 * MS, 14 * MS]
    assert run.starts == [2 * MS, 5 * MS, 8 * MS, 11 * MS]
    assert run.blocking == run.exposed == 6 * MS


@pytest.mark.parametrize(("bucket_mb", "exposed_ms"), [(25, 2.56), (5, 0.56), (1, 0.16), (0.25, 2.08)])
def test_the_exposed_tail_is_u_shaped_in_the_bucket_size(bucket_mb: float, exposed_ms: float) -> None:
    """50 MB ready evenly over 15 ms, 60 µs and 100 µs/MB: too large waits, too small pays latency (C8)."""
    num = round(50 / bucket_mb)
    ready = [15 * MS * (k + 1) / num for k in range(num)]
    run = replay_backward(Backward(ready, [bucket_mb * MB] * num, 15 * MS, 1), scenario(60_000, 0.1))
    assert run.exposed / MS == pytest.approx(exposed_ms, abs=0.005)


def test_the_best_uniform_size_is_where_sending_keeps_up_with_backward() -> None:
    """60 + 100 s µs a bucket of s MB, one every 300 s µs: they meet at 0.30 MB, and its own 0.09 ms stay (C8)."""

    def expose(num: int) -> float:
        ready = [15 * MS * (k + 1) / num for k in range(num)]
        return replay_backward(Backward(ready, [50 * MB / num] * num, 15 * MS, 1), scenario(60_000, 0.1)).exposed

    best = min(range(20, 400), key=expose)
    assert 50 / best == pytest.approx(0.30, abs=0.005)
    assert expose(best) / MS == pytest.approx(0.09, abs=0.005)


@pytest.mark.parametrize(
    ("comm_hook", "accumulation_steps", "per_micro_step_ms"),
    [("none", 1, 470), ("bf16", 1, 270), ("none", 4, 252.5), ("bf16", 4, 202.5)],
)
def test_bytes_and_accumulation_of_a_bandwidth_bound_step(
    comm_hook: str, accumulation_steps: int, per_micro_step_ms: float
) -> None:
    """400 MB of float32 over 1 GB/s, forward 60, backward 120, optimizer 10 ms; the ideal bound (C9)."""
    job = build_job([(0, 400 * MB)], backward_ms=120, around_ms=(0, 60, 10))
    config = build_config(comm_hook=comm_hook, accumulation_steps=accumulation_steps)
    assert predict(job, config).step_ns.value / MS / accumulation_steps == pytest.approx(per_micro_step_ms)


def test_two_in_flight_share_the_link_and_the_third_waits() -> None:
    """All ready at once, 2 ms each alone: two share until 4 ms, then the third has the link for itself."""
    run = replay_backward(Backward([0, 0, 0], [2 * MB] * 3, 0, 2), scenario())
    assert run.starts == [0, 0, 4 * MS]
    assert run.ends == [4 * MS, 4 * MS, 6 * MS]


def test_computation_and_communication_slow_each_other_down() -> None:
    """4 ms of backward, a 1 ms collective from 2 ms on, both at half speed side by side: ends at 4, backward at 5."""
    run = replay_backward(
        Backward([2 * MS], [1 * MB], 4 * MS, 1), scenario(compute_slowdown=2.0, communication_slowdown=2.0)
    )
    assert run.ends == [4 * MS]
    assert run.compute_end == 5 * MS


def test_launching_costs_the_backward_thread_once_a_bucket() -> None:
    """0.1 ms a launch: the second bucket's gradient is ready 0.1 ms later, backward ends 0.2 ms later."""
    run = replay_backward(Backward([1 * MS, 2 * MS], [0, 0], 3 * MS, 1), scenario(launch_ns=0.1 * MS))
    assert run.readies == pytest.approx([1 * MS, 2.1 * MS])
    assert run.compute_end == pytest.approx(3.2 * MS)


def test_copies_out_wait_for_their_bucket_in_order() -> None:
    """Both end with backward at 2 and 6 ms; 1 ms of copying each: copy, wait until 6, copy, done at 7."""
    run = replay_backward(Backward([0, 1 * MS], [2 * MB, 4 * MB], 2 * MS, 1), scenario(copy_out_ns_per_byte=0.25))
    assert run.ends == [2 * MS, 6 * MS]
    assert run.finish_end == 7 * MS
    assert run.blocking == 3.5 * MS


def test_a_hook_casts_before_its_bucket_is_launched_and_after_it_ended() -> None:
    """4 MB at 0.5 ns a byte: 1 ms before the launch, 2 MB take 2 ms on the wire, 1 ms after it, and 1 ms of copying."""
    backward = Backward([2 * MS], [2 * MB], 2 * MS, 1, gradient_bytes=[4 * MB], hook="bf16")
    machine = Scenario(0, 1, 1.0, 1.0, 0.25, 0, hook_ns_per_byte={"bf16": 0.5})
    run = replay_backward(backward, machine)
    assert (run.readies, run.ends, run.compute_end) == ([3 * MS], [5 * MS], 3 * MS)
    assert (run.blocking, run.finish_end) == (3 * MS, 7 * MS)
    already = replay_backward(dataclasses.replace(backward, casts_before=False), machine)
    assert (already.ends, already.finish_end) == ([4 * MS], 6 * MS)


def test_gradients_that_are_views_of_buckets_are_not_copied_out() -> None:
    job = build_job([(1, 4 * MB)], backward_ms=2, copy_out_ns_per_byte=exactly(0.25))
    assert predict(job, build_config()).step_ns.value == 6 * MS
    assert predict(job, build_config(gradient_as_bucket_view=True)).step_ns.value == 5 * MS


def test_what_computation_loses_to_communication_is_lost_in_the_gaps_of_a_late_host() -> None:
    """The host lets the second half, 1 ms, begin only at 4 ms. A collective from 1 to 5 ms halves the speed of
    computation: it advances by half until 5 ms, and the rest takes 0.5 ms.
    """
    late = Backward([1 * MS], [4 * MB], 2 * MS, 1, not_before=[0, 4 * MS])
    run = replay_backward(late, scenario(compute_slowdown=2.0))
    assert (run.ends, run.compute_end) == ([5 * MS], 5.5 * MS)
    assert (
        replay_backward(Backward([1 * MS], [4 * MB], 2 * MS, 1), scenario(compute_slowdown=2.0)).compute_end == 3 * MS
    )


def test_the_idling_of_a_device_becomes_the_hosts_time() -> None:
    """Ready at 2 and 5 ms, of which the device idled 1 and 3: it works 1 ms each time, from 1 and 4 ms on."""
    job = build_job([(2, MB), (5, MB)], backward_ms=6)
    idles = [replace(g, idle_ns=idle * MS) for g, idle in zip(job.profile.slowest.gradients, (1, 3), strict=True)]
    slowest = replace(job.profile.slowest, gradients=tuple(idles))
    plan = plan_backward(
        dataclasses.replace(job, profile=replace(job.profile, slowest=slowest)), build_config(bucket_cap_mb=0.0)
    )
    assert (list(plan.work), plan.backward_ns) == ([1 * MS, 2 * MS], 3 * MS)
    assert list(plan.not_before) == [1 * MS, 4 * MS, 5 * MS]
    run = replay_backward(plan, scenario(0, 0))
    assert (run.readies, run.compute_end) == ([2 * MS, 5 * MS], 6 * MS)


def test_more_micro_steps_copy_nothing_into_buckets() -> None:
    """Backward of 2 ms, of which 1 ms copies 4 MB in: a silent one takes 1 ms; 3 ms of the exchange stick out."""
    job = build_job([(1, 4 * MB)], backward_ms=2, copy_in_ns_per_byte=exactly(0.25))
    assert predict(job, build_config()).step_ns.value == 5 * MS
    assert predict(job, build_config(accumulation_steps=3)).step_ns.value == 7 * MS


def test_a_profiled_silent_micro_step_is_not_freed_of_its_copies_twice() -> None:
    """Two micro-steps of 2 ms, one of them without its copy of 1 ms, which what has no name makes up for: 1 + 2 + 3 ms.
    Four micro-steps, three of them silent: 3 + 2 + 3 ms.
    """
    job = build_job([(1, 4 * MB)], backward_ms=2, copy_in_ns_per_byte=exactly(0.25))
    slowest = replace(job.profile.slowest, other_ns=-1 * MS)
    job = dataclasses.replace(job, profile=replace(job.profile, num_micro_steps=2, slowest=slowest))
    assert predict(job, build_config(accumulation_steps=2)).step_ns.value == 6 * MS
    assert predict(job, build_config(accumulation_steps=4)).step_ns.value == 8 * MS
    assert predict(job, build_config(accumulation_steps=1)).step_ns.value == 5 * MS


def test_each_micro_step_loads_its_own_data() -> None:
    """5 ms of data, 1 ms of what has no name and 2 ms of backward, three times."""
    job = build_job([(1, 4 * MB)], backward_ms=2)
    slowest = replace(job.profile.slowest, data_ns=5 * MS, other_ns=1 * MS)
    job = dataclasses.replace(job, profile=replace(job.profile, slowest=slowest))
    once, thrice = (predict(job, build_config(accumulation_steps=k)).step_ns.value for k in (1, 3))
    assert thrice - once == 2 * (5 + 1 + 2) * MS


@pytest.mark.parametrize("hook", ["none", "bf16", "noop"])
@pytest.mark.parametrize("accumulation_steps", [1, 4])
def test_the_terms_of_the_waterfall_add_up_exactly(hook: str, accumulation_steps: int) -> None:
    job = build_job(
        [(1, 3 * MB), (2, 5 * MB), (4, 7 * MB)],
        backward_ms=5,
        around_ms=(1, 2, 3),
        concurrency=2,
        compute_slowdown=exactly(1.3),
        copy_out_ns_per_byte=exactly(0.21),
        launch_ns=exactly(12_345.6),
        hook_ns_per_byte={"bf16": exactly(0.3)},
        baseline_residual_fraction=exactly(0.017),
    )
    prediction = predict(job, build_config(comm_hook=hook, accumulation_steps=accumulation_steps, bucket_cap_mb=0.0))
    assert sum(term.value_ns for term in prediction.waterfall) == round(prediction.step_ns.value)
    assert ("casting" in {term.name for term in prediction.waterfall}) == (hook == "bf16")


def test_the_waterfall_of_two_buckets_by_hand() -> None:
    """Ready at 1 and 2 of 2 ms, 2 ms each, so naively 4 ms after backward and 1 ms of forward.

    On links of their own they end at 3 and 4 ms; on one link at 3 and 5. The measured step is 0.5 ms longer.
    """
    job = build_job([(1, 2 * MB), (2, 2 * MB)], backward_ms=2, around_ms=(0, 1, 0))
    terms = predict(job, build_config(bucket_cap_mb=0.0), measured_ns=6.5 * MS).waterfall
    assert {term.name: term.value_ns / MS for term in terms if term.value_ns} == {
        "one after the other": 7.0,
        "hidden beside backward": -2.0,
        "queueing for the link": 1.0,
        "not explained": 0.5,
    }


def test_a_late_host_hides_what_communication_would_block() -> None:
    """The host launches what follows 5 ms after backward, communication ends 3 ms after it: the host decides."""
    job = build_job([(1, 4 * MB)], backward_ms=2, host_tail_ns=exactly(5 * MS))
    assert predict(job, build_config()).step_ns.value == 7 * MS


def test_the_ceiling_is_the_step_without_communication() -> None:
    job = build_job([(1, 4 * MB)], backward_ms=2, around_ms=(1, 1, 1))
    assert predict_ceiling(job, build_config()).value == 5 * MS
    assert predict(job, build_config()).step_ns.value == 8 * MS


def test_predicted_buckets_follow_the_cap() -> None:
    """Three gradients of 1 MiB; a cap of 2 MiB closes after two."""
    mib = 2**20
    job = build_job([(1, mib), (2, mib), (3, mib)], backward_ms=3)
    prediction = predict(job, build_config(bucket_cap_mb=2.0))
    assert [(b.num_bytes, b.ready_ns) for b in prediction.buckets] == [(2 * mib, 2 * MS), (mib, 3 * MS)]


def test_intervals_come_from_the_uncertain_terms() -> None:
    job = build_job([(1, 4 * MB)], backward_ms=2)
    exact = predict(job, build_config()).step_ns
    assert exact.low == exact.value == exact.high
    job = build_job(
        [(1, 4 * MB)],
        backward_ms=2,
        communication_slowdown=Estimate(value=1.5, low=1.2, high=1.8, basis="fitted"),
    )
    uncertain = predict(job, build_config()).step_ns
    assert uncertain.low < uncertain.value < uncertain.high


def test_no_draw_of_a_wide_interval_speeds_up_what_overlaps() -> None:
    """A slow-down of 1.2 known only to lie between -1 and 3.4 must not be drawn as zero, or as time that runs back."""
    vague = Estimate(value=1.2, low=-1.0, high=3.4, basis="fitted")
    job = build_job([(1, 4 * MB)], backward_ms=2, compute_slowdown=vague, communication_slowdown=vague)
    free = build_job([(1, 4 * MB)], backward_ms=2)
    assert predict(job, build_config()).step_ns.low >= predict(free, build_config()).step_ns.value


def test_the_baseline_compares_replay_with_the_measured_step() -> None:
    """Replayed 5 ms, measured 4 ms give an error of a quarter; a noisy measurement widens the limit."""
    job = build_job([(1, 4 * MB)], backward_ms=2)
    sharp = check_baseline(job, build_config(), exactly(4 * MS))
    assert sharp.error_fraction == pytest.approx(0.25)
    assert sharp.limit_fraction == 0.10
    assert not sharp.trusted
    noisy = check_baseline(
        job, build_config(), Estimate(value=4 * MS, low=(4 - 0.784) * MS, high=(4 + 0.784) * MS, basis="measured")
    )
    assert noisy.noise_floor_fraction == pytest.approx(0.1)
    assert noisy.limit_fraction == pytest.approx(0.3)
    assert noisy.trusted


def test_one_measured_step_tells_no_noise_and_corrects_nothing() -> None:
    """Replayed 5 ms, measured 4.8: the step may be 4 % shorter than replay says, or it was an odd one."""
    job = build_job([(1, 4 * MB)], backward_ms=2)
    alone = dataclasses.replace(job, profile=replace(job.profile, num_steps=1))
    baseline = check_baseline(alone, build_config(), exactly(4.8 * MS))
    assert baseline.noise_floor_fraction is None
    assert baseline.limit_fraction == 0.10
    residual = estimate_residual(baseline)
    assert (residual.low, residual.value, residual.high) == pytest.approx((-0.04, 0, 0))


@pytest.mark.parametrize(("measured", "floor", "correction"), [(110, 0.02, 0.056), (104, 0.02, 0.0), (90, 0.0, -0.1)])
def test_the_residual_corrects_only_what_exceeds_the_noise(measured: float, floor: float, correction: float) -> None:
    """Replayed 100; twice the standard error (2 % of the measured step) is forgiven."""
    baseline = Baseline(
        measured_ns=exactly(measured),
        replayed_ns=exactly(100),
        error_fraction=0,
        noise_floor_fraction=floor,
        limit_fraction=1,
    )
    assert estimate_residual(baseline).value == pytest.approx(correction)


def test_only_fewer_launches_may_beat_the_ceiling() -> None:
    """Four buckets of 1 MB are launched in 1 ms each, in a backward of 4 ms: without transfers the step takes 8 ms.
    One bucket takes 4 + 1 ms, or 4 + 2 with its transfer, beside which the host launches it.
    """
    job = build_job([(k, MB) for k in range(1, 5)], backward_ms=4, beta_ns_per_byte=0.5, launch_ns=exactly(MS))
    assert predict_ceiling(job, build_config(bucket_cap_mb=0.1)).value == 8 * MS
    assert predict(job, build_config(bucket_cap_mb=100.0)).step_ns.value == 6 * MS
    assert predict_ceiling(job, build_config(bucket_cap_mb=100.0)).value == 5 * MS
