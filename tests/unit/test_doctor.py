"""What doctor finds in small recordings that lack one thing each."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from advisor.doctor.diagnosis import diagnose
from advisor.doctor.examination import RecordedStep
from advisor.doctor.steps import find_steps_before_rebuild
from advisor.errors import InputError, UsageError
from advisor.readers import locations
from advisor.schema import DDPConfig, FindingCode, RunDiagnosis, RunManifest, write_json
from tests.trace_builders import RankTrace
from tests.trace_files import make_rankless_trace, pack_zip

STEPS = range(3, 11)
LENGTH = 100
"""Of a step, in µs."""
Change = Callable[[RankTrace, int, int], None]


def lay_step(trace: RankTrace, number: int, zero: int) -> None:
    """One step on CPU: two gradients of 64 elements, one bucket each."""
    trace.step(number, zero, zero + LENGTH)
    trace.forward(zero + 5, zero + 20)
    trace.gradient(zero + 30, zero + 35, 64)
    trace.gloo(zero + 33, zero + 36, zero + 45, 64)
    trace.gradient(zero + 40, zero + 45, 64)
    trace.gloo(zero + 43, zero + 47, zero + 60, 64)
    trace.copy_back(zero + 61, zero + 62)
    trace.optimizer(zero + 70, zero + 90)


def lay_gpu_step(trace: RankTrace, number: int, zero: int) -> None:
    """The same on a GPU that follows the host at once."""
    trace.step(number, zero, zero + LENGTH)
    trace.forward(zero + 5, zero + 20)
    for start in (30, 40):
        trace.gradient(zero + start, zero + start + 5, 64)
        trace.kernel(zero + start, zero + start + 1, zero + start + 4)
        trace.nccl(zero + start + 3, zero + start + 5, zero + start + 12, 64)
    trace.copy_back(zero + 61, zero + 62)
    trace.optimizer(zero + 70, zero + 90)


def build_rank(rank: int = 0, lay: Change = lay_step, steps: range = STEPS, **fields: Any) -> RankTrace:
    trace = RankTrace(rank, **fields)
    for place, number in enumerate(steps):
        lay(trace, number, LENGTH * place)
    return trace


def write(folder: Path, *ranks: RankTrace, **document: Any) -> Path:
    folder.mkdir(exist_ok=True)
    for trace in ranks:
        process = 4000 + trace.rank
        for event in trace.events:
            event["pid"] = process if event["pid"] == 4000 else event["pid"]
        (folder / f"rank{trace.rank}.json").write_bytes(trace.to_json(record_shapes=1, schemaVersion=1, **document))
    return folder


def write_both(folder: Path, lay: Change = lay_step, **fields: Any) -> Path:
    return write(folder, *(build_rank(rank, lay, **fields) for rank in range(2)))


def look_at(*paths: Path, **options: Any) -> RunDiagnosis:
    (run,) = diagnose(paths, **options).runs
    return run


def codes(run: RunDiagnosis) -> list[FindingCode]:
    return [finding.code for finding in run.findings]


def figures(run: RunDiagnosis, code: FindingCode) -> dict[str, float]:
    (finding,) = [finding for finding in run.findings if finding.code == code]
    return {evidence.name: evidence.value for evidence in finding.evidence}


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


# --------------------------------------------------------------------------------------------------------- the files


def test_an_empty_folder_speaks_of_step(tmp_path: Path) -> None:
    run = look_at(tmp_path)
    assert (run.quality, codes(run), run.ranks) == ("unusable", ["no_trace"], ())
    assert "prof.step()" in run.findings[0].fix
    assert "ProfilerActivity.CUDA" in run.recipe


def test_a_path_that_is_not_there_is_bad_use(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        diagnose([tmp_path / "missing"])


def test_other_json_alone_is_no_trace_and_named(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text('{"name": "x"}')
    diagnosis = diagnose([tmp_path])
    assert codes(diagnosis.runs[0]) == ["no_trace"]
    assert ["package.json is JSON but no Kineto trace" in sentence for sentence in diagnosis.left_out] == [True]


def test_a_trace_that_does_not_begin_like_one_is_read_all_the_same(tmp_path: Path) -> None:
    padding = json.dumps("x" * 2**18).encode()
    (tmp_path / "rank0.json").write_bytes(b'{"padding": ' + padding + b"," + build_rank().to_json()[1:])
    run = look_at(tmp_path)
    assert (len(run.ranks), codes(run)[0]) == (1, "missing_ranks")


def test_a_file_that_cannot_be_read_is_named_and_does_not_stop_the_others(tmp_path: Path) -> None:
    write(tmp_path, build_rank())
    (tmp_path / "rank1.json").write_bytes(b'{"distributedInfo": {"rank": 1, "world_size": 2}, "traceEvents": []}')
    run = look_at(tmp_path)
    assert (run.quality, codes(run)) == ("usable", ["unreadable_files", "missing_ranks"])
    assert ["rank1.json holds no timed events" in sentence for sentence in run.left_out] == [True]
    assert figures(run, "unreadable_files") == {"unreadable": 1}


def test_a_file_that_cannot_even_be_opened_is_named_too(tmp_path: Path) -> None:
    write_both(tmp_path)
    (tmp_path / "rank2.json.gz").write_bytes(b"\x1f\x8bnot gzip at all")
    (tmp_path / "rank3.pftrace").touch()
    diagnosis = diagnose([tmp_path])
    assert [run.quality for run in diagnosis.runs] == ["good"]
    assert ["rank2" in sentence or "rank3" in sentence for sentence in diagnosis.left_out] == [True, True]


def test_only_unreadable_files_are_unusable(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_bytes(b'{"traceEvents": []}')
    run = look_at(tmp_path)
    assert (run.quality, codes(run), len(run.left_out)) == ("unusable", ["unreadable_files"], 1)


@pytest.mark.parametrize("separator", [b"", b"\n"])
def test_two_ranks_in_one_file_are_refused_with_advice(tmp_path: Path, separator: bytes) -> None:
    first, second = (build_rank(rank).to_json() for rank in range(2))
    (tmp_path / "trace.json").write_bytes(first + separator + second)
    run = look_at(tmp_path)
    assert (run.quality, codes(run)) == ("unusable", ["mixed_ranks"])
    assert figures(run, "mixed_ranks") == {"with several recordings": 1}
    assert "give every rank a file of its own" in run.left_out[0]


def test_a_missing_rank_limits_what_can_be_said(tmp_path: Path) -> None:
    run = look_at(write(tmp_path, build_rank(0, world_size=4), build_rank(2, world_size=4)))
    assert (run.quality, codes(run), run.missing_ranks) == ("usable", ["missing_ranks"], (1, 3))
    assert figures(run, "missing_ranks") == {"missing": 2, "world size": 4}


@pytest.mark.parametrize(
    ("name", "is_shared"),
    [("trace.json", True), ("rank1.json", False), ("host_4000.1698955063520869240.pt.trace.json", False)],
)
def test_a_lone_file_without_a_rank_in_its_name_may_have_been_overwritten(
    tmp_path: Path, name: str, is_shared: bool
) -> None:
    (tmp_path / name).write_bytes(build_rank(1).to_json())
    assert codes(look_at(tmp_path)) == ["missing_ranks"] + ["shared_path"] * is_shared


def test_files_that_tell_no_rank_are_numbered_and_it_is_said(tmp_path: Path) -> None:
    for name, process in (("a.json", 1), ("b.json", 2)):
        (tmp_path / name).write_bytes(make_rankless_trace(process))
    run = look_at(tmp_path)
    assert [rank.rank for rank in run.ranks] == [0, 1]
    assert {"unknown_ranks", "unknown_world_size"} <= set(codes(run))
    assert figures(run, "unknown_ranks") == {"without a rank": 2}
    told = look_at(tmp_path, ranks=[1, 0])
    assert [rank.files[0][-6:] for rank in told.ranks] == ["b.json", "a.json"]
    assert "unknown_ranks" not in codes(told)
    with pytest.raises(UsageError):
        diagnose([tmp_path], ranks=[0])


def test_a_file_without_distributed_info_counts_as_a_run_of_one(tmp_path: Path) -> None:
    document = json.loads(build_rank().to_json())
    del document["distributedInfo"]
    (tmp_path / "rank0.json").write_text(json.dumps(document))
    run = look_at(tmp_path)
    assert (run.quality, codes(run), run.world_size) == ("unusable", ["unknown_world_size"], None)
    document["traceEvents"] = [{**event, "pid": 4001} for event in document["traceEvents"]]
    (tmp_path / "rank1.json").write_text(json.dumps(document))
    assert (look_at(tmp_path).quality, codes(look_at(tmp_path))) == ("good", ["unknown_world_size"])


def test_one_rank_has_nothing_to_exchange(tmp_path: Path) -> None:
    run = look_at(write(tmp_path, build_rank(world_size=1)))
    assert (run.quality, codes(run)) == ("unusable", ["single_rank"])


def test_a_file_that_is_cut_off_loses_steps(tmp_path: Path) -> None:
    write_both(tmp_path)
    text = (tmp_path / "rank1.json").read_bytes()
    (tmp_path / "rank1.json").write_bytes(text[: len(text) * 3 // 4])
    run = look_at(tmp_path)
    assert (run.quality, codes(run)[0], run.findings[0].ranks) == ("usable", "damaged_files", (1,))
    assert (
        figures(run, "damaged_files")["steps left out, at most"]
        == len(run.ranks[1].steps) - run.ranks[1].num_used_steps
    )


def test_stacks_are_only_worth_a_word_where_they_are_many(tmp_path: Path) -> None:
    traces = [build_rank(rank) for rank in range(2)]
    assert codes(look_at(write(tmp_path, *traces, with_stack=1))) == []
    num_events = len(traces[0].events)
    for trace in traces:
        for number in range(3 * num_events):
            trace.add("python_function", f"model.py({number}): forward", number, number + 1)
    run = look_at(write(tmp_path, *traces, with_stack=1))
    assert (run.quality, codes(run)) == ("good", ["stacks"])
    assert figures(run, "stacks")["events that are not read"] == pytest.approx(0.75)


def test_everything_that_analyze_reads_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {f"rank{rank}.json": build_rank(rank).to_json() for rank in range(2)}
    archive = tmp_path / "run.zip"
    archive.write_bytes(pack_zip(texts))
    assert [rank.rank for rank in look_at(archive).ranks] == [0, 1]
    (tmp_path / "rank0.json.gz").write_bytes(gzip.compress(texts["rank0.json"]))
    assert look_at(tmp_path / "rank*.json.gz").ranks[0].packing == "gzip"
    pipe = io.TextIOWrapper(io.BytesIO(texts["rank1.json"]))
    monkeypatch.setattr(locations.sys, "stdin", pipe)
    piped = look_at(Path("-"))
    assert (piped.ranks[0].rank, codes(piped)) == (1, ["missing_ranks"])


def test_several_runs_are_told_apart_and_each_has_its_own_verdict(tmp_path: Path) -> None:
    write_both(tmp_path / "a")
    write(tmp_path / "b", build_rank(world_size=1))
    diagnosis = diagnose([tmp_path])
    assert [(run.source, run.quality) for run in diagnosis.runs] == [
        (f"{tmp_path.as_posix()}/a", "good"),
        (f"{tmp_path.as_posix()}/b", "unusable"),
    ]
    assert diagnosis.quality == "unusable"


def test_a_manifest_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (write_both(tmp_path) / "manifest.json").write_text("{}")
    diagnosis = diagnose([tmp_path])
    assert diagnosis.runs[0].quality == "good"
    assert ["manifest.json is not a RunManifest" in sentence for sentence in diagnosis.left_out] == [True]


def test_progress_goes_by_file(tmp_path: Path) -> None:
    told: list[tuple[int, int, str]] = []
    diagnose([write_both(tmp_path)], on_progress=lambda *what: told.append(what))
    assert told == [(0, 2, "rank0.json"), (1, 2, "rank1.json")]


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
