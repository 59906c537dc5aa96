from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.powersgd import Parts, list_rounds
from advisor.replay import Backward, Chains, Scenario, free_communication, predict, replay_backward
from tests.job_builders import build_config, build_job, exactly

TIMES = st.lists(st.integers(0, 1000), min_size=1, max_size=12).map(sorted)
Schedule = tuple[Backward, Scenario]


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Ready times and sizes of a few buckets, a backward that ends no earlier, a host that may be late, a machine."""
    work = [float(t) for t in draw(TIMES)]
    hook = draw(st.sampled_from(["none", "bf16"]))
    held = [float(draw(st.integers(1, 500))) for _ in work]
    begins = draw(st.lists(st.integers(0, 1500), min_size=len(work) + 1, max_size=len(work) + 1).map(sorted))
    backward = Backward(
        work=work,
        sizes=[size / 2 for size in held] if hook == "bf16" else held,
        backward_ns=work[-1] + draw(st.integers(0, 200)),
        concurrency=draw(st.sampled_from([1, 2])),
        not_before=[float(t) for t in begins] if draw(st.booleans()) else (),
        gradient_bytes=held,
        hook=hook,
    )
    scenario = Scenario(
        alpha_ns=draw(st.integers(0, 50)),
        beta_ns_per_byte=draw(st.floats(0.01, 3)),
        compute_slowdown=draw(st.floats(1, 3)),
        communication_slowdown=draw(st.floats(1, 3)),
        copy_out_ns_per_byte=draw(st.floats(0, 0.5)),
        launch_ns=draw(st.integers(0, 20)),
        two_in_flight=draw(st.floats(1, 2)),
        hook_ns_per_byte={"bf16": draw(st.floats(0, 0.5))},
    )
    return backward, scenario


@st.composite
def chains(draw: st.DrawFn) -> Schedule:
    """The same under PowerSGD: buckets of which each sends some bytes of P and Q, and some as they are."""
    backward, scenario = draw(schedules())
    sizes = st.sampled_from([0, 0, 1, 7, 40, 300])
    parts = []
    for _ in backward.work:
        p_bytes, others = draw(sizes), draw(sizes)
        q_bytes = draw(st.integers(1, 100)) if p_bytes else 0
        parts.append(Parts(p_bytes, q_bytes, others or not p_bytes, draw(sizes), bool(p_bytes)))
    rounds = list_rounds(parts, holds=draw(st.booleans()))
    chained = replace(
        backward,
        work=list(accumulate((backward.work[each.bucket] for each in rounds), max)),
        sizes=[each.num_bytes for each in rounds],
        gradient_bytes=[0.0 if each.num_bytes else backward.gradient_bytes[each.bucket] for each in rounds],
        not_before=(),
        hook="powersgd",
        chains=Chains(
            buckets=[each.bucket for each in rounds],
            awaits=[each.awaits for each in rounds],
            hook_bytes=[each.share * parts[each.bucket].computed_bytes for each in rounds],
            hook_matrices=[each.share * parts[each.bucket].num_matrices for each in rounds],
        ),
    )
    per_byte, per_matrix = draw(st.floats(0, 2)), draw(st.integers(0, 100))
    return chained, replace(
        scenario, hook_ns_per_byte={"powersgd": per_byte}, hook_ns_per_matrix={"powersgd": per_matrix}
    )


@given(st.one_of(schedules(), chains()))
def test_every_bucket_runs_once_after_it_is_ready_and_in_order(schedule: Schedule) -> None:
    backward, scenario = schedule
    run = replay_backward(backward, scenario)
    assert all(ready <= start <= end for ready, start, end in zip(run.readies, run.starts, run.ends, strict=True))
    assert run.starts == sorted(run.starts)
    assert run.finish_end >= run.compute_end
    casts = sum(backward.gradient_bytes) * scenario.hook_ns_per_byte.get("bf16", 0.0) * (backward.hook == "bf16")
    assert 0 <= run.blocking <= run.exposed + casts + 1e-3


@given(st.one_of(schedules(), chains()))
def test_free_communication_is_the_compute_timeline(schedule: Schedule) -> None:
    backward, scenario = schedule
    run = replay_backward(backward, free_communication(scenario))
    own = compute_alone(backward, scenario.launch_ns)
    assert run.blocking == 0
    assert run.compute_end == pytest.approx(own, abs=1e-3)


@given(chains())
def test_a_free_link_leaves_a_hook_its_computation(schedule: Schedule) -> None:
    backward, scenario = schedule
    run = replay_backward(backward, replace(scenario, alpha_ns=0.0, beta_ns_per_byte=0.0))
    hook = sum(backward.time_hook(scenario))
    assert run.blocking == 0
    assert run.compute_end == pytest.approx(compute_alone(backward, scenario.launch_ns) + hook, abs=1e-3)


def compute_alone(backward: Backward, launch_ns: float) -> float:
    """The end of the computation of a thread that launches as it goes and waits for its host where that is late."""
    begins = backward.not_before or [0.0] * (len(backward.work) + 1)
    untils = [*backward.work, backward.backward_ns]
    now = before = 0.0
    launches = [0.0, *(launch_ns * (size > 0 or backward.chains is None) for size in backward.sizes)]
    for begin, until, launching in zip(begins, untils, launches, strict=True):
        length = until - before + launching
        now = max(now, begin) + length if length else now
        before = until
    return now


@given(st.one_of(schedules(), chains()), st.floats(0.1, 0.99))
def test_a_faster_link_never_predicts_a_longer_backward(schedule: Schedule, factor: float) -> None:
    """Casts and copies follow in bucket order, so that they are late only where a bucket ends later, and none does.

    Nor does a chain's transfer, since all that it waits for ends no later.
    """
    backward, slow = schedule
    fast = replace(slow, alpha_ns=slow.alpha_ns * factor, beta_ns_per_byte=slow.beta_ns_per_byte * factor)
    quick, late = replay_backward(backward, fast), replay_backward(backward, slow)
    assert quick.compute_end <= late.compute_end + 1e-3
    assert quick.finish_end <= late.finish_end + 1e-3


@given(st.one_of(schedules(), chains()), st.lists(st.floats(0, 1), min_size=60, max_size=60), st.floats(0, 1))
def test_fewer_bytes_and_less_latency_never_predict_a_longer_backward(
    schedule: Schedule, shares: list[float], latency: float
) -> None:
    backward, much = schedule
    little = replace(much, alpha_ns=much.alpha_ns * latency)
    fewer = replace(backward, sizes=[size * share for size, share in zip(backward.sizes, shares, strict=False)])
    quick, late = replay_backward(fewer, little), replay_backward(backward, much)
    assert quick.compute_end <= late.compute_end + 1e-3
    assert quick.finish_end <= late.finish_end + 1e-3


@given(schedules(), st.sampled_from(["none", "bf16", "noop", "powersgd:1"]), st.integers(1, 5), st.floats(0.1, 1))
def test_a_waterfall_adds_up_and_a_faster_link_never_predicts_a_slower_step(
    schedule: Schedule, hook: str, micro_steps: int, factor: float
) -> None:
    backward, scenario = schedule
    gradients = [(at / 1e6, 4 * round(size)) for at, size in zip(backward.work, backward.gradient_bytes, strict=True)]
    job = build_job(
        gradients,
        backward_ms=backward.backward_ns / 1e6,
        around_ms=(1e-4, 2e-4, 3e-4),
        concurrency=backward.concurrency,
        copy_in_ns_per_byte=exactly(0.1),
    )
    shaped = msgspec.structs.replace(job.profile, shapes=((10, 50),) * len(gradients))
    job = replace(job, profile=shaped)
    config = build_config(comm_hook=hook, accumulation_steps=micro_steps, bucket_cap_mb_list=(1e-3, 5e-4))
    late = predict(job, config, [scenario])
    fast = replace(scenario, alpha_ns=scenario.alpha_ns * factor, beta_ns_per_byte=scenario.beta_ns_per_byte * factor)
    assert sum(term.value_ns for term in late.waterfall) == round(late.step_ns.value)
    assert predict(job, config, [fast]).step_ns.value <= late.step_ns.value + 1e-3
