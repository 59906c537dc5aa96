from __future__ import annotations

import numpy as np
import pytest

from advisor.comm_model import CommFit, Transfer, collect_transfers, fit_comm_models
from advisor.schema import Backend, CommSegment
from tests.trace_builders import RankTrace, lay_out

MIB = 2**20
KEY = ("0", "all_reduce", "float32")
LADDER = (MIB // 4, MIB, 4 * MIB, 16 * MIB)


# ---------------------------------------------------------------------------------------------------------- samples


def exchange(rank: int, *, late: int = 0) -> RankTrace:
    """A broadcast, then two buckets (in µs): 300 to 500 and 450 to 700; compute until 400, and from 600 to 620."""
    trace = RankTrace(rank)
    trace.step(2, 0, 1000)
    trace.forward(0, 100)
    trace.gloo(20, 25, 40, 7, kind="broadcast")
    trace.gradient(200, 300, MIB)
    trace.gloo(290, 300 + late, 500, MIB)
    trace.gradient(300, 400, 50)
    trace.gloo(390, 450, 700, 50, worker=1)
    trace.copy_back(600, 620)
    trace.optimizer(800, 900)
    return trace


def test_samples_are_transfers_without_waiting_and_what_else_ran() -> None:
    front = lay_out(exchange(0), exchange(1, late=50))
    first, second = collect_transfers(front.matched, front.observations)
    assert (first.key, first.step, first.num_bytes) == (("", "all_reduce", "float32"), 2, 4 * MIB)
    assert first.exclusive_ns == 100_000 + 50_000 / 2  # from the late rank's start at 350 on, half of 450 to 500
    assert second.exclusive_ns == 200_000 + 50_000 / 2
    assert first.compute_fraction == pytest.approx(50 / 150)
    assert second.compute_fraction == pytest.approx(20 / 250)
    assert first.complete and second.complete


def test_the_first_collective_after_the_profiler_started_is_set_aside() -> None:
    trace = RankTrace()
    trace.step(2, 0, 1000)
    for start in (100, 200):
        trace.gloo(start - 10, start, start + 50, 64)
    front = lay_out(trace)
    assert [t.exclusive_ns for t in collect_transfers(front.matched, front.observations)] == [50_000]
    assert collect_transfers([], front.observations) == []


def test_a_collective_that_is_set_aside_had_its_share_of_the_link() -> None:
    """The profiler's first one runs from 100 to 300, and the sample from 200 on beside it: 100 / 2 + 100."""
    trace = RankTrace()
    trace.step(2, 0, 1000)
    trace.gloo(90, 100, 300, 64)
    trace.gloo(190, 200, 400, 64, worker=1)
    front = lay_out(trace)
    assert [t.exclusive_ns for t in collect_transfers(front.matched, front.observations)] == [150_000]


def test_without_a_size_or_a_step_there_is_no_sample_and_without_the_peer_an_incomplete_one() -> None:
    trace = exchange(0)
    trace.add("user_annotation", "gloo:all_reduce", 750, 790, tid=101)
    trace.gloo(1100, 1110, 1150, 64)
    front = lay_out(trace)
    transfers = collect_transfers(front.matched, front.observations)
    assert [transfer.complete for transfer in transfers] == [False, False]


# -------------------------------------------------------------------------------------------------------------- fit


def transfers(
    alpha_ns: float,
    beta: float,
    *,
    sizes: tuple[int, ...] = LADDER,
    num_steps: int = 4,
    gamma: float = 0,
    complete: bool = True,
    key: tuple[str, str, str] = KEY,
) -> list[Transfer]:
    """Samples without noise; computation beside them takes turns over the sizes."""
    samples = []
    for step in range(num_steps):
        for index, num_bytes in enumerate(sizes):
            busy = ((step + index) % len(sizes)) / len(sizes) if gamma else 0.0
            time_ns = (alpha_ns + beta * num_bytes) * (1 + gamma * busy)
            samples.append(Transfer(key, step, num_bytes, time_ns, busy, complete))
    return samples


def fit(samples: list[Transfer], backend: Backend = "gloo") -> CommFit:
    (found,) = fit_comm_models(samples, 2, backend)
    return found


def line(found: CommFit) -> CommSegment:
    (segment,) = found.model.segments
    assert segment.alpha_ns.low <= segment.alpha_ns.value <= segment.alpha_ns.high
    assert segment.beta_ns_per_byte.low <= segment.beta_ns_per_byte.value <= segment.beta_ns_per_byte.high
    return segment


@pytest.mark.parametrize(
    ("alpha_ns", "beta", "backend"),
    [(200_000, 1.0, "gloo"), (1_000_000, 8.3, "gloo"), (1_000_000, 0.7, "gloo"), (30_000, 0.05, "nccl")],
)
def test_latency_and_bandwidth_are_recovered(alpha_ns: float, beta: float, backend: Backend) -> None:
    found = fit(transfers(alpha_ns, beta), backend)
    assert line(found).alpha_ns.value == pytest.approx(alpha_ns, rel=0.05)
    assert line(found).beta_ns_per_byte.value == pytest.approx(beta, rel=0.05)
    assert found.communication_slowdown.value == pytest.approx(1, abs=0.02)
    assert found.model.latency_known and found.model.complete
    assert found.model.message == ""
    assert len(found.model.samples) == 16


def test_the_slowdown_by_computation_is_told_from_both() -> None:
    found = fit(transfers(1_000_000, 1, gamma=0.5))
    assert line(found).alpha_ns.value == pytest.approx(1_000_000, rel=0.05)
    assert line(found).beta_ns_per_byte.value == pytest.approx(1, rel=0.05)
    assert found.communication_slowdown.value == pytest.approx(1.5, rel=0.05)


def test_a_few_spikes_move_nothing() -> None:
    samples = transfers(500_000, 1, num_steps=6)
    for index in (3, 13):
        samples[index] = Transfer(KEY, index, samples[index].num_bytes, 20 * samples[index].exclusive_ns, 0.0, True)
    assert line(fit(samples)).alpha_ns.value == pytest.approx(500_000, rel=0.05)
    assert line(fit(samples)).beta_ns_per_byte.value == pytest.approx(1, rel=0.05)


def test_one_step_of_two_sizes_leaves_the_latency_open_and_hardly_leans_on_what_is_usual() -> None:
    """A latency of 1 ms where 0.2 ms are usual: two samples without computation beside them are two unknowns."""
    found = fit(transfers(1_000_000, 1, sizes=(MIB, 4 * MIB), num_steps=1))
    assert not found.model.latency_known
    assert "Too few samples" in found.model.message
    assert line(found).alpha_ns.value == pytest.approx(1_000_000, rel=0.15)
    assert found.model.predict(2 * MIB).value == pytest.approx(1_000_000 + 2 * MIB, rel=0.05)


def test_predictions_take_latency_and_slope_jointly() -> None:
    """What latency gains the slope loses: between the sampled sizes the time is known better than either of them."""
    noise = np.random.default_rng(1).normal(1, 0.1, 16)
    samples = [
        Transfer(KEY, s.step, s.num_bytes, s.exclusive_ns * factor, 0.0, True)
        for s, factor in zip(transfers(500_000, 1), noise, strict=True)
    ]
    model = fit(samples).model
    (segment,) = model.segments
    apart = segment.alpha_ns.high + segment.beta_ns_per_byte.high * MIB
    joint = model.predict(MIB)
    assert joint.low < joint.value < joint.high < apart


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    """1 ns a byte on 4 ranks: algbw 1 GB/s, and 2 · 3/4 of it for an all-reduce; 3 times for what all ranks gather."""
    for kind, share in (("all_reduce", 1.5), ("reduce_scatter", 0.75), ("all_gather", 3), ("broadcast", 1)):
        (found,) = fit_comm_models(transfers(100_000, 1, key=("0", kind, "float32")), 4, "nccl")
        busbw = found.model.busbw_bytes_per_s
        assert busbw is not None
        assert busbw.low <= busbw.value <= busbw.high
        assert busbw.value == pytest.approx(share * 1e9, rel=0.02)
    (other,) = fit_comm_models(transfers(100_000, 1, key=("0", "send_recv", "float32")), 4, "nccl")
    assert other.model.busbw_bytes_per_s is None


@pytest.mark.parametrize("sizes", [(4 * MIB,), (4 * MIB, 5 * MIB)])
def test_one_size_gives_a_bandwidth_and_no_latency(sizes: tuple[int, ...]) -> None:
    found = fit(transfers(1_000_000, 1, sizes=sizes))
    assert not found.model.latency_known
    assert line(found).alpha_ns.value == 0
    assert found.model.predict(4 * MIB).value == pytest.approx(1_000_000 + 4 * MIB, rel=0.05)
    assert "One sampled size alone gives a bandwidth and no latency." in found.model.message


def test_latency_alone_is_fitted_too() -> None:
    found = fit(transfers(1_000_000, 0))
    assert found.model.predict(MIB).value == pytest.approx(1_000_000, rel=0.05)
    assert "tell no bandwidth" in found.model.message
    assert "tell no bandwidth" not in fit(transfers(1_000_000, 1)).model.message


def test_missing_peers_make_it_an_upper_limit_without_a_slowdown() -> None:
    found = fit(transfers(1_000_000, 1, gamma=0.5, complete=False))
    assert not found.model.complete
    assert not found.model.latency_known
    assert found.communication_slowdown.value == found.communication_slowdown.high == 1
    assert "upper limits" in found.model.message


def test_samples_with_a_missing_peer_are_left_out_where_there_are_others() -> None:
    found = fit([*transfers(1_000_000, 1), *transfers(9_000_000, 3, complete=False)])
    assert found.model.complete
    assert line(found).alpha_ns.value == pytest.approx(1_000_000, rel=0.05)
    assert len(found.model.samples) == 16


def test_every_group_kind_and_dtype_has_a_model_of_its_own() -> None:
    half = ("0", "all_reduce", "bfloat16")
    found = fit_comm_models([*transfers(200_000, 1), *transfers(200_000, 2, key=half)], 4, "gloo")
    assert [(f.model.process_group, f.model.kind, f.model.dtype) for f in found] == [KEY, half]
    assert [line(f).beta_ns_per_byte.value for f in found] == pytest.approx([1, 2], rel=0.05)
    assert {f.model.world_size for f in found} == {4}
    assert fit_comm_models([], 4, "gloo") == []


def test_a_fit_is_reproducible() -> None:
    noise = np.random.default_rng(0).normal(1, 0.05, 16)
    samples = [
        Transfer(s.key, s.step, s.num_bytes, s.exclusive_ns * factor, 0.0, True)
        for s, factor in zip(transfers(200_000, 1), noise, strict=True)
    ]
    assert fit(samples) == fit(samples)
    assert line(fit(samples)).beta_ns_per_byte.high > line(fit(samples)).beta_ns_per_byte.low


def test_predictions_say_when_they_leave_the_sampled_sizes() -> None:
    model = fit(transfers(200_000, 1)).model
    bases = [model.predict(size).basis for size in (MIB // 16, MIB // 8, 32 * MIB, 33 * MIB)]
    assert bases == ["extrapolated", "fitted", "fitted", "extrapolated"]
