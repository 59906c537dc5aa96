"""A trace and a ladder: fitted together where they agree, told apart where they do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from advisor.comm_model import Transfer, estimate_compute_slowdown, fit_ladder, fit_sources, measure_overlap
from advisor.schema import Backend, Ladder, LadderPoint

KIB, MIB = 2**10, 2**20
SIZES = tuple(KIB * 4**power for power in range(9))


def trace(
    alpha_ns: float = 200_000, *, sizes: tuple[int, ...] = (MIB, 25 * MIB), complete: bool = True
) -> list[Transfer]:
    return [
        Transfer(("0", "all_reduce", "float32"), step, size, alpha_ns + size, 0.0, complete)
        for step in range(4)
        for size in sizes
    ]


def point(num_bytes: int, time_ns: float, **fields: object) -> LadderPoint:
    settings: dict[str, object] = {"kind": "all_reduce", "dtype": "float32", **fields}
    return LadderPoint(num_bytes=num_bytes, rounds_ns=((round(time_ns),) * 3,) * 3, **settings)  # type: ignore[arg-type]


def ladder(factor: float = 1.0, **fields: object) -> Ladder:
    settings: dict[str, object] = {
        "world_size": 2,
        "backend": "gloo",
        "points": tuple(point(size, factor * (200_000 + size)) for size in SIZES),
        **fields,
    }
    return Ladder(**settings)  # type: ignore[arg-type]


def test_sources_that_agree_are_fitted_together_at_the_level_of_the_trace() -> None:
    """The probe is 10 % slower throughout: it tells the latency of small messages, the trace says how much it is."""
    (fit,), _, notes = fit_sources(trace(), [ladder(1.1)], 2, "gloo")
    assert notes == []
    assert fit.model.sources == ("trace", "probe")
    assert fit.model.process_group == "0"
    assert fit.model.segments[0].alpha_ns.value == pytest.approx(200_000, rel=0.03)
    assert fit.model.predict(KIB).basis == "fitted"
    assert fit.model.predict(25 * MIB).value == pytest.approx(200_000 + 25 * MIB, rel=0.02)


def test_sources_that_differ_are_named_with_the_one_that_is_used() -> None:
    (fit,), _, (note,) = fit_sources(trace(), [ladder(2.0)], 2, "gloo")
    assert fit.model.sources == ("trace",)
    assert note.message.startswith(
        "The probe measured 2.00 times the trace's times for all_reduce of float32 (0.8 to 1.25 is agreement): "
        "of it the trace alone is used, because it was measured inside the job."
    )


def test_a_probe_replaces_a_trace_whose_peer_is_missing() -> None:
    (fit,), _, (note,) = fit_sources(trace(9_000_000, complete=False), [ladder()], 2, "gloo")
    assert fit.model.complete
    assert fit.model.sources == ("probe",)
    assert "a peer's trace is missing" in note.message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"world_size": 4}, "The probe ran on 4 ranks and the job on 2: it is not used."),
        ({"backend": "nccl"}, "The probe measured nccl and the job uses gloo: it is not used."),
    ],
)
def test_a_ladder_of_another_job_is_not_used(changes: dict[str, object], message: str) -> None:
    (fit,), _, notes = fit_sources(trace(), [ladder(**changes)], 2, "gloo")
    assert [note.message for note in notes] == [message]
    assert fit.model.sources == ("trace",)


DTYPES = ("float32", "bfloat16")


@pytest.mark.parametrize(
    ("changes", "used"),
    [
        ({"factors": {"float32": 1.1, "bfloat16": 1.0}}, {"float32", "bfloat16"}),
        ({"factors": {"float32": 2.0, "bfloat16": 1.0}}, set()),
        ({"factors": {"float32": 2.0, "bfloat16": 1.0}, "seen": DTYPES}, {"bfloat16"}),
        ({"factors": {"float32": 1.0, "bfloat16": 1.0}, "sizes": (KIB,)}, set()),
        ({"factors": {"float32": 2.0}, "complete": False}, {"float32"}),
        ({"factors": {"float32": 1.0}, "world_size": 4}, set()),
    ],
)
def test_a_ladder_that_is_not_used_for_the_model_tells_nothing_else(changes: dict[str, Any], used: set[str]) -> None:
    """Slow-downs and models of the all-reduce go with it, also of dtypes that the trace cannot vouch for."""
    factors, seen = changes["factors"], changes.get("seen", DTYPES[:1])
    transfers = [
        replace(each, key=("0", "all_reduce", dtype))
        for dtype in seen
        for each in trace(complete=changes.get("complete", True))
    ]
    points = tuple(
        point(size, factor * (200_000 + size), dtype=dtype, compute_slowdowns=(1.3,))
        for dtype, factor in factors.items()
        for size in changes.get("sizes", SIZES)
    )
    given = ladder(points=points, world_size=changes.get("world_size", 2))
    fits, ladders, _ = fit_sources(transfers, [given], 2, "gloo")
    assert {each.dtype for left in ladders for each in left.points} == used
    assert {fit.model.dtype for fit in fits if "probe" in fit.model.sources} == used
    assert (estimate_compute_slowdown(ladders) is None) == (not used)


def test_what_the_trace_does_not_show_comes_from_the_ladder_alone() -> None:
    points = tuple(point(size, 200_000 + size, dtype="bfloat16") for size in SIZES)
    own, other = fit_sources(trace(), [ladder(points=points)], 2, "gloo")[0]
    assert (own.model.dtype, other.model.dtype) == ("float32", "bfloat16")
    assert other.model.sources == ("probe",)


def test_each_kind_of_collective_is_compared_with_its_own() -> None:
    """Broadcasts agree, all-gathers take twice as long as in the trace, and a reduce-scatter is in the ladder alone."""
    kinds = ("broadcast", "all_gather")
    transfers = [replace(each, key=("0", kind, "float32")) for kind in kinds for each in trace()]
    factors = {"broadcast": 1.1, "all_gather": 2.0, "reduce_scatter": 1.0}
    points = tuple(
        point(size, factor * (200_000 + size), kind=kind) for kind, factor in factors.items() for size in SIZES
    )
    fits, _, (note,) = fit_sources(transfers, [ladder(points=points)], 2, "gloo")
    assert {fit.model.kind: fit.model.sources for fit in fits} == {
        "broadcast": ("trace", "probe"),
        "all_gather": ("trace",),
        "reduce_scatter": ("probe",),
    }
    assert note.message.startswith("The probe measured 2.00 times the trace's times for all_gather of float32")


def test_sizes_far_apart_are_not_compared() -> None:
    small = tuple(point(size, 1000) for size in (KIB, 4 * KIB))
    (fit,), _, (note,) = fit_sources(trace(), [ladder(points=small)], 2, "gloo")
    assert fit.model.sources == ("trace",)
    assert "no size near the trace's" in note.message


@pytest.mark.parametrize("backend", ["gloo", "unknown"])
def test_without_ladders_the_trace_stands_alone(backend: Backend) -> None:
    (fit,), _, notes = fit_sources(trace(), [], 2, backend)
    assert (fit.model.sources, notes) == (("trace",), [])


def test_a_ladder_alone_tells_how_computation_slows_communication() -> None:
    clean = tuple(point(size, 200_000 + size) for size in SIZES)
    beside = tuple(point(size, 1.5 * (200_000 + size), under_compute=True) for size in SIZES)
    (fit,) = fit_ladder(ladder(points=clean + beside))
    assert fit.communication_slowdown.value == pytest.approx(1.5, rel=0.01)
    assert fit.model.segments[0].alpha_ns.value == pytest.approx(200_000, rel=0.01)


def test_overlap_is_measured_on_large_messages() -> None:
    """4 MiB alone in 4 ms, two together in 7.6 ms, and computation 1.3 times slower; 1 KiB tells nothing."""
    points = (
        point(KIB, 1e5, under_compute=True, compute_slowdowns=(9.0,)),
        point(4 * MIB, 4e6),
        point(4 * MIB, 7.6e6, in_flight=2),
        point(4 * MIB, 5e6, under_compute=True, compute_slowdowns=(1.2, 1.3, 1.4)),
    )
    overlap = measure_overlap(ladder(points=points), "all_reduce", "float32")
    assert overlap.two_in_flight is not None and overlap.compute_slowdown is not None
    assert overlap.two_in_flight.value == pytest.approx(1.9)
    assert overlap.compute_slowdown.value == pytest.approx(1.3)
    assert estimate_compute_slowdown([ladder(points=points)]) == overlap.compute_slowdown
    assert estimate_compute_slowdown([ladder()]) is None
    nothing = measure_overlap(ladder(), "all_reduce", "bfloat16")
    assert (nothing.two_in_flight, nothing.compute_slowdown) == (None, None)


def test_samples_of_a_ladder_leave_the_job_alone() -> None:
    """What is measured two in flight is no sample, and repetitions of one visit are one."""
    points = (replace_point(point(4 * MIB, 4e6)), point(4 * MIB, 8e6, in_flight=2))
    (fit,) = fit_ladder(ladder(points=points))
    assert [(sample.num_bytes, sample.transfer_ns, sample.source) for sample in fit.model.samples] == [
        (4 * MIB, 4_000_000, "probe")
    ] * 3
    assert replace(trace()[0], source="probe").source == "probe"


def replace_point(original: LadderPoint) -> LadderPoint:
    """A spike in one repetition of each visit, which the median leaves out."""
    spiked = tuple((*repetitions[:2], 9 * repetitions[2]) for repetitions in original.rounds_ns)
    return LadderPoint(kind=original.kind, dtype=original.dtype, num_bytes=original.num_bytes, rounds_ns=spiked)
