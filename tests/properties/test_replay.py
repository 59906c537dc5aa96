from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from advisor.replay import Scenario, free_communication, replay_backward

TIMES = st.lists(st.integers(0, 1000), min_size=1, max_size=12).map(sorted)


@st.composite
def schedules(draw: st.DrawFn) -> tuple[list[float], list[float], float, int, Scenario]:
    """Ready times and sizes of a few buckets, a backward that ends no earlier, and a machine."""
    work = [float(t) for t in draw(TIMES)]
    sizes = [float(draw(st.integers(1, 500))) for _ in work]
    scenario = Scenario(
        alpha_ns=draw(st.integers(0, 50)),
        beta_ns_per_byte=draw(st.floats(0.01, 3)),
        compute_slowdown=draw(st.floats(1, 3)),
        communication_slowdown=draw(st.floats(1, 3)),
        copy_out_ns_per_byte=draw(st.floats(0, 0.5)),
        launch_ns=draw(st.integers(0, 20)),
    )
    return work, sizes, work[-1] + draw(st.integers(0, 200)), draw(st.sampled_from([1, 2])), scenario


@given(schedules())
def test_every_bucket_runs_once_after_it_is_ready_and_in_order(
    schedule: tuple[list[float], list[float], float, int, Scenario],
) -> None:
    run = replay_backward(*schedule)
    assert all(ready <= start <= end for ready, start, end in zip(run.readies, run.starts, run.ends, strict=True))
    assert run.starts == sorted(run.starts)
    assert run.finish_end >= run.compute_end
    assert 0 <= run.blocking <= run.exposed + 1e-3


@given(schedules())
def test_free_communication_is_the_compute_timeline(
    schedule: tuple[list[float], list[float], float, int, Scenario],
) -> None:
    work, sizes, backward, concurrency, scenario = schedule
    run = replay_backward(work, sizes, backward, concurrency, free_communication(scenario))
    assert run.blocking == 0
    assert abs(run.compute_end - backward - len(work) * scenario.launch_ns) < 1e-3


@given(schedules(), st.floats(0.1, 0.99))
def test_a_faster_link_never_predicts_a_longer_backward(
    schedule: tuple[list[float], list[float], float, int, Scenario], factor: float
) -> None:
    work, sizes, backward, concurrency, slow = schedule
    fast = Scenario(
        slow.alpha_ns * factor,
        slow.beta_ns_per_byte * factor,
        slow.compute_slowdown,
        slow.communication_slowdown,
        slow.copy_out_ns_per_byte,
        slow.launch_ns,
    )
    quick = replay_backward(work, sizes, backward, concurrency, fast)
    late = replay_backward(work, sizes, backward, concurrency, slow)
    assert quick.finish_end <= late.finish_end + 1e-3


@given(schedules(), st.lists(st.floats(0, 1), min_size=12, max_size=12), st.floats(0, 1))
def test_fewer_bytes_and_less_latency_never_predict_a_longer_backward(
    schedule: tuple[list[float], list[float], float, int, Scenario], shares: list[float], latency: float
) -> None:
    """With two in flight the copies come in bucket order, whichever ended first, so they are left out there."""
    work, sizes, backward, concurrency, scenario = schedule
    much = replace(scenario, copy_out_ns_per_byte=scenario.copy_out_ns_per_byte * (concurrency == 1))
    little = replace(much, alpha_ns=much.alpha_ns * latency)
    fewer = [size * share for size, share in zip(sizes, shares, strict=False)]
    quick = replay_backward(work, fewer, backward, concurrency, little)
    late = replay_backward(work, sizes, backward, concurrency, much)
    assert quick.compute_end <= late.compute_end + 1e-3
    assert quick.finish_end <= late.finish_end + 1e-3
