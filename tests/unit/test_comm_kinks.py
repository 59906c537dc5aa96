"""Kinks: found exactly where samples are exact, never bought for noise, and known ones preferred."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from advisor.comm_model import Transfer, fit_comm_model
from advisor.comm_model.fit import list_known_kinks
from advisor.comm_model.lines import place_kinks, split_bytes
from advisor.schema import Backend, CommModel, broken_line

KIB, MIB = 2**10, 2**20
LADDER = tuple(KIB * 2**power for power in range(17))
KEY = ("0", "all_reduce", "float32")


def fit(
    betas: tuple[float, ...], kinks: tuple[int, ...] = (), *, backend: Backend = "unknown", **shape: object
) -> CommModel:
    return fit_comm_model(sample(betas, kinks, **shape), 2, backend).model  # type: ignore[arg-type]


def sample(
    betas: tuple[float, ...],
    kinks: tuple[int, ...] = (),
    *,
    sizes: tuple[int, ...] = LADDER,
    noise: float = 0.0,
    seed: int = 0,
) -> list[Transfer]:
    random = np.random.default_rng(seed)
    time_ns = broken_line(100_000, betas, kinks)
    return [
        Transfer(KEY, step, size, time_ns(size) * (1 + noise * float(random.standard_normal())), 0.0, True)
        for step in range(4)
        for size in sizes
    ]


@pytest.mark.parametrize("kink", [64 * KIB, MIB, 8 * MIB])
@pytest.mark.parametrize("betas", [(0.5, 2.0), (2.0, 0.5)])
def test_an_exact_kink_is_found_exactly(betas: tuple[float, float], kink: int) -> None:
    model = fit(betas, (kink,))
    assert model.kinks_bytes == pytest.approx((kink,), rel=0.01)
    assert [s.beta_ns_per_byte.value for s in model.segments] == pytest.approx(betas, rel=0.02)
    assert model.segments[0].alpha_ns.value == pytest.approx(100_000, rel=0.01)
    assert model.predict(3 * kink).value == pytest.approx(broken_line(100_000, betas, (kink,))(3 * kink), rel=0.01)


def test_segments_meet_at_their_kink() -> None:
    before, after = fit((0.5, 2.0), (MIB,)).segments
    kink = after.from_bytes
    assert before.to_bytes == kink
    left, right = (s.alpha_ns.value + s.beta_ns_per_byte.value * kink for s in (before, after))
    assert left == pytest.approx(right, rel=1e-3)


def test_two_kinks_are_found() -> None:
    assert fit((0.1, 2.0, 0.5), (64 * KIB, 4 * MIB)).kinks_bytes == pytest.approx((64 * KIB, 4 * MIB), rel=0.05)


def test_a_kink_between_two_sampled_sizes_is_found_between_them() -> None:
    assert fit((0.5, 2.0), (3 * MIB,)).kinks_bytes == pytest.approx((3 * MIB,), rel=0.05)


@pytest.mark.parametrize("seed", range(6))
def test_noise_alone_buys_no_kink(seed: int) -> None:
    assert fit((1.0,), noise=0.05, seed=seed).kinks_bytes == ()


@pytest.mark.parametrize("seed", range(6))
def test_a_kink_in_noise_is_found_within_one_step_of_the_ladder(seed: int) -> None:
    (kink,) = fit((0.5, 1.5), (2 * MIB,), noise=0.05, seed=seed).kinks_bytes
    assert MIB <= kink <= 4 * MIB


def test_the_kink_of_gloo_is_taken_where_it_is_known_to_be() -> None:
    """Two ranks move four pieces up to 4 MiB, and pieces of 1 MiB from there on."""
    model = fit((0.5, 0.8), (4 * MIB,), noise=0.02, backend="gloo")
    assert model.kinks_bytes == (4 * MIB,)


@pytest.mark.parametrize(
    ("kind", "known"),
    [("all_reduce", [6 * MIB]), ("reduce_scatter", [6 * MIB]), ("all_gather", []), ("broadcast", []), ("send", [])],
)
def test_only_what_runs_in_the_ring_of_gloo_has_its_kink(kind: str, known: list[float]) -> None:
    transfers = [replace(each, key=("0", kind, "float32")) for each in sample((1.0,))]
    assert list_known_kinks(transfers, 3, "gloo") == known
    assert list_known_kinks(transfers, 3, "nccl") == []


@pytest.mark.parametrize("betas", [(0.85, 2.6), (2.6, 0.85)])
def test_a_kink_is_told_from_what_computation_beside_the_largest_costs(betas: tuple[float, float]) -> None:
    """Nothing here is slowed down: a single line would explain the largest message by it, and then see no kink."""
    sizes = tuple(4 * KIB * 2**power for power in range(12))
    transfers = [
        replace(s, compute_fraction=0.6 if s.num_bytes == sizes[-1] else 0.0)
        for s in sample(betas, (1700 * KIB,), sizes=sizes, noise=0.005)
    ]
    found = fit_comm_model(transfers, 3, "nccl")
    assert found.model.kinks_bytes == pytest.approx((1700 * KIB,), rel=0.05)
    assert found.model.segments[-1].beta_ns_per_byte.value == pytest.approx(betas[1], rel=0.05)
    assert found.communication_slowdown.value == pytest.approx(1, abs=0.05)


def test_too_few_sizes_have_one_segment() -> None:
    assert fit((0.5, 2.0), (MIB,), sizes=(MIB // 4, MIB, 4 * MIB, 16 * MIB)).kinks_bytes == ()


def test_a_change_of_protocol_is_tried_first() -> None:
    """Small messages run as RING_LL, large ones as RING_SIMPLE: the slope may change between them."""
    transfers = [
        Transfer(
            KEY, s.step, s.num_bytes, s.exclusive_ns, 0.0, True, "RING_LL" if s.num_bytes <= MIB else "RING_SIMPLE"
        )
        for s in sample((2.0, 0.5), (round(2**0.5 * MIB),))
    ]
    model = fit_comm_model(transfers, 2, "nccl").model
    assert model.kinks_bytes == pytest.approx((2**0.5 * MIB,), rel=1e-6)


def test_small_messages_that_cost_less_than_the_link_sustains_are_told() -> None:
    model = fit((0.05, 1.0), (128 * KIB,))
    assert "Messages below 0.125 MiB cost less a byte than the link sustains" in model.message
    assert model.busbw_bytes_per_s is not None
    assert model.busbw_bytes_per_s.value == pytest.approx(1e9, rel=0.02)


def test_no_kink_is_looked_for_where_waiting_hides() -> None:
    transfers = [
        Transfer(KEY, s.step, s.num_bytes, s.exclusive_ns, 0.0, complete=False) for s in sample((0.5, 2.0), (MIB,))
    ]
    assert fit_comm_model(transfers, 2, "unknown").model.kinks_bytes == ()


def test_kinks_that_move_past_each_other_stay_ascending() -> None:
    """The columns: alpha, gamma, delta, three betas, and by how much each kink moves, as a logarithm."""
    solutions = np.array([[0.0, 0.0, 0.0, 1.0, 1.0, 1.0, np.log(2), -np.log(2)]])
    placed = place_kinks(np.array([[4.0, 6.0]]), solutions)
    assert placed.tolist() == [[8.0, 8.0]]
    assert split_bytes(np.array([10.0]), placed).tolist() == [[[8.0, 0.0, 2.0]]]
