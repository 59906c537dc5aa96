"""What doctor finds in small recordings that lack one thing each."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.doctor.examination import RecordedStep
from advisor.doctor.steps import find_steps_before_rebuild
from advisor.schema import DDPConfig, FindingCode, RunManifest, write_json
from tests.doctor_builders import (
    LENGTH,
    STEPS,
    Change,
    build_rank,
    codes,
    figures,
    lay_gpu_step,
    lay_step,
    look_at,
    write,
    write_both,
)
from tests.trace_builders import RankTrace

# ------------------------------------------------------------------------------------------------ nothing to complain


@pytest.mark.parametrize(("lay", "backend"), [(lay_step, "gloo"), (lay_gpu_step, "nccl")])
def test_a_good_recording_has_no_findings(tmp_path: Path, lay: Change, backend: str) -> None:
    run = look_at(write_both(tmp_path / "run", lay, backend=backend))
    assert (run.quality, run.findings, run.recipe) == ("good", (), "")
    assert (run.world_size, run.missing_ranks, run.notes) == (2, (), ())
    first = run.ranks[0]
    assert first.files == (f"{tmp_path.as_posix()}/run/rank0.json",)
    assert (first.packing, first.num_bytes) == ("json", (tmp_path / "run" / "rank0.json").stat().st_size)
    assert (first.versions, first.record_shapes, first.with_stack) == ({"schemaVersion": "1"}, True, None)
    assert (first.steps, first.num_used_steps, first.step_source) == (tuple(STEPS), 8, "profiler")
    assert (first.num_collectives, first.num_sized_collectives) == (16, 16)
    assert first.clock_ns == 1000


def test_half_microseconds_are_finer_than_whole_ones(tmp_path: Path) -> None:
    trace = build_rank()
    trace.events[0]["ts"] += 0.5
    assert look_at(write(tmp_path, trace)).ranks[0].clock_ns == 1


def test_devices_and_versions_are_told_as_the_file_has_them(tmp_path: Path) -> None:
    properties = [{"id": 0, "name": "NVIDIA H200"}]
    folder = write(tmp_path, build_rank(lay=lay_gpu_step), deviceProperties=properties, cuda_runtime_version=12060)
    (rank,) = look_at(folder).ranks
    assert (rank.devices, rank.device_type) == (("NVIDIA H200",), "cuda")
    assert rank.versions == {"schemaVersion": "1", "cuda_runtime_version": "12060"}


# ------------------------------------------------------------------------------------------------------ the contents


def without(trace: RankTrace, *categories: str) -> RankTrace:
    trace.events[:] = [event for event in trace.events if event["cat"] not in categories]
    return trace


def test_a_gpu_job_without_kernels_shows_neither_side(tmp_path: Path) -> None:
    ranks = [without(build_rank(rank, lay_gpu_step, backend="nccl"), "kernel") for rank in range(2)]
    run = look_at(write(tmp_path, *ranks))
    assert (run.quality, codes(run)) == ("unusable", ["no_device_activity"])
    assert "ProfilerActivity.CUDA" in run.recipe


def test_a_gloo_job_on_a_machine_with_gpus_lacks_no_kernels(tmp_path: Path) -> None:
    ranks = [build_rank(rank) for rank in range(2)]
    run = look_at(write(tmp_path, *ranks, deviceProperties=[{"id": 0, "name": "NVIDIA H200"}]))
    assert codes(run) == []


def test_a_gpu_job_without_the_host_has_no_steps(tmp_path: Path) -> None:
    ranks = [without(build_rank(rank, lay_gpu_step, backend="nccl"), "cpu_op", "user_annotation") for rank in range(2)]
    run = look_at(write(tmp_path, *ranks))
    assert run.quality == "unusable"
    assert codes(run)[0] == "no_host_activity"


def test_several_ranks_without_a_collective_are_an_error(tmp_path: Path) -> None:
    def lay_silent_step(trace: RankTrace, number: int, zero: int) -> None:
        trace.step(number, zero, zero + LENGTH)
        trace.forward(zero + 5, zero + 20)
        trace.gradient(zero + 30, zero + 35, 64)

    run = look_at(write_both(tmp_path, lay_silent_step))
    assert (run.quality, codes(run)) == ("unusable", ["no_communication"])


def test_what_is_not_ddp_is_said_with_what_communicates(tmp_path: Path) -> None:
    def lay_foreign_step(trace: RankTrace, number: int, zero: int) -> None:
        trace.step(number, zero, zero + LENGTH)
        trace.gloo(zero + 33, zero + 36, zero + 45, 64)

    run = look_at(write_both(tmp_path, lay_foreign_step))
    assert (run.quality, codes(run)) == ("usable", ["no_ddp"])
    assert figures(run, "no_ddp") == {"all_reduce": 16}
    assert run.recipe == ""


def test_ddp_without_a_reduced_gradient_has_no_buckets(tmp_path: Path) -> None:
    def lay_forward(trace: RankTrace, number: int, zero: int) -> None:
        trace.step(number, zero, zero + LENGTH)
        trace.forward(zero + 5, zero + 50)
        trace.gloo(zero + 6, zero + 7, zero + 10, 64, kind="broadcast")

    run = look_at(write_both(tmp_path, lay_forward))
    assert (run.quality, codes(run)) == ("usable", ["no_exchange"])
    assert figures(run, "no_exchange") == {"broadcast": 16}


def test_without_shapes_neither_gloo_nor_gradients_tell_their_size(tmp_path: Path) -> None:
    ranks = [build_rank(rank) for rank in range(2)]
    for trace in ranks:
        for event in trace.events:
            event["args"] = {}
    run = look_at(write(tmp_path, *ranks))
    assert (run.quality, codes(run)) == ("usable", ["no_collective_sizes", "no_shapes"])
    assert figures(run, "no_collective_sizes") == {"without a size": 32, "all-reduces of gradients": 32}
    assert figures(run, "no_shapes") == {"gradients in a step": 2, "gradients of known size": 0}


def test_gradients_that_are_not_what_the_buckets_carry_cannot_be_moved(tmp_path: Path) -> None:
    def lay_sparse_step(trace: RankTrace, number: int, zero: int) -> None:
        lay_step(trace, number, zero)
        trace.node(zero + 50, zero + 55, "torch::autograd::AccumulateGrad")
        trace.add("cpu_op", "torch::autograd::AccumulateGrad", zero + 50, zero + 51)

    run = look_at(write_both(tmp_path, lay_sparse_step))
    assert (run.quality, codes(run)) == ("usable", ["unmatched_gradients"])
    assert figures(run, "unmatched_gradients") == {"gradients in a step": 3, "gradients of known size": 2}


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({"TORCH_NCCL_ENABLE_TIMING": "1"}, ["harmful_environment"]),
        ({"TORCH_DISTRIBUTED_DEBUG": "detail"}, ["harmful_environment"]),
        ({"TORCH_NCCL_ENABLE_TIMING": "0", "OMP_NUM_THREADS": "1"}, []),
    ],
)
def test_a_manifest_may_tell_of_a_disturbed_job(
    tmp_path: Path, environment: dict[str, str], found: list[FindingCode]
) -> None:
    manifest = RunManifest(
        tool_version="1", created="2026-01-01T00:00:00+00:00", workload="mlp", environment=environment,
        ddp=DDPConfig(world_size=2, backend="nccl", wrapper="torch"), parameters=(), initial_buckets=(), buckets=(),
        ready_order=(), versions={"torch": "2.13.0"},
    )  # fmt: skip
    write_json(manifest, write_both(tmp_path) / "manifest.json")
    run = look_at(tmp_path)
    assert (codes(run), run.torch_version) == (found, "2.13.0")


# --------------------------------------------------------------------------------------------------------- the steps


@pytest.mark.parametrize(
    ("number", "found", "quality"),
    [(1, ["one_step"], "usable"), (4, ["few_steps"], "good"), (5, [], "good")],
)
def test_few_steps_tell_little(tmp_path: Path, number: int, found: list[FindingCode], quality: str) -> None:
    run = look_at(write_both(tmp_path, steps=range(3, 3 + number)))
    assert (codes(run), run.quality) == (found, quality)


def test_nothing_that_tells_steps_apart_is_one_window(tmp_path: Path) -> None:
    def lay_unmarked_step(trace: RankTrace, number: int, zero: int) -> None:
        trace.gloo(zero + 33, zero + 36, zero + 45, 64)

    run = look_at(write_both(tmp_path, lay_unmarked_step))
    assert (run.quality, codes(run)) == ("unusable", ["no_steps", "no_ddp"])
    assert [rank.step_source for rank in run.ranks] == ["window", "window"]


def test_a_single_step_without_marks_can_still_be_used(tmp_path: Path) -> None:
    ranks = [build_rank(rank, steps=range(3, 4)) for rank in range(2)]
    for trace in ranks:
        trace.events[:] = [event for event in trace.events if not event["name"].startswith("ProfilerStep")]
    run = look_at(write(tmp_path, *ranks))
    assert (run.quality, codes(run)) == ("usable", ["no_steps"])


def test_optimizer_steps_stand_in_for_marks_at_a_price(tmp_path: Path) -> None:
    ranks = [build_rank(rank) for rank in range(2)]
    for trace in ranks:
        trace.events[:] = [event for event in trace.events if not event["name"].startswith("ProfilerStep")]
    run = look_at(write(tmp_path, *ranks))
    assert (run.quality, codes(run)) == ("usable", ["no_step_marks"])
    assert run.ranks[0].step_source == "optimizer"


def test_one_mark_around_many_updates_means_that_step_was_not_called(tmp_path: Path) -> None:
    def lay_long_step(trace: RankTrace, number: int, zero: int) -> None:
        lay_step(trace, number, zero)
        for place in (91, 93):
            trace.optimizer(zero + place, zero + place + 1)

    run = look_at(write_both(tmp_path, lay_long_step, steps=range(1)))
    assert (run.quality, codes(run)) == ("usable", ["step_not_called"])
    assert figures(run, "step_not_called") == {"optimizer steps in one ProfilerStep": 3}


def lay_first_step(trace: RankTrace, number: int, zero: int) -> None:
    """DDP's first step: one all-reduce of both gradients."""
    trace.step(number, zero, zero + LENGTH)
    trace.forward(zero + 5, zero + 20)
    trace.gradient(zero + 30, zero + 35, 64)
    trace.gradient(zero + 40, zero + 45, 64)
    trace.gloo(zero + 43, zero + 47, zero + 60, 128)
    trace.copy_back(zero + 61, zero + 62)
    trace.optimizer(zero + 70, zero + 90)


@pytest.mark.parametrize(("first", "quality"), [(0, "good"), (4, "usable")])
def test_the_rebuild_of_the_buckets_is_seen_whatever_its_step_is_called(
    tmp_path: Path, first: int, quality: str
) -> None:
    def lay(trace: RankTrace, number: int, zero: int) -> None:
        (lay_first_step if number == first else lay_step)(trace, number, zero)

    run = look_at(write_both(tmp_path, lay, steps=range(first, first + 8)))
    assert (run.quality, codes(run)) == (quality, ["warm_up_recorded"])
    assert list(figures(run, "warm_up_recorded").values()) == [1, 1, 2]


def test_ranks_with_other_steps_are_told(tmp_path: Path) -> None:
    ranks = (build_rank(0, steps=range(3, 11)), build_rank(1, steps=range(5, 13)))
    run = look_at(write(tmp_path, *ranks))
    assert (run.quality, codes(run)) == ("usable", ["different_steps"])
    assert figures(run, "different_steps") == {"steps on every rank": 6, "steps on any rank": 10}


@pytest.mark.parametrize(
    ("reduced", "before"),
    [
        ([(2101248,), (262656, 1838592), (262656, 1838592)], [0]),
        ([(3, 4), (3, 4)], []),
        ([(4, 3), (3, 4)], []),  # the same buckets in another order
        ([(), (3, 4)], []),  # a micro-step that does not synchronise
        ([(9,), (3, 4)], []),  # not the same gradients
        ([(-1,), (-1, -1), (-1, -1)], [0]),  # sizes unknown
        ([(-1, -1), (-1, -1)], []),
        ([], []),
    ],
)
def test_steps_before_the_rebuild(reduced: list[tuple[int, ...]], before: list[int]) -> None:
    steps = tuple(RecordedStep(number, 1, elements) for number, elements in enumerate(reduced))
    assert [step.number for step in find_steps_before_rebuild(steps)] == before
