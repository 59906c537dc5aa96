"""Recordings as people make them, with torch's profiler around torch's DDP on two gloo ranks, and what doctor says.

Case C7 is here: one path for both ranks, and a schedule whose steps are never announced.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

from advisor.doctor.diagnosis import diagnose
from advisor.doctor.recipe import write_recipe
from advisor.schema import RunDiagnosis
from tests.gloo_pair import GlooPair

NUM_STEPS = 13
CPU = [ProfilerActivity.CPU]


def build_step() -> Callable[[], None]:
    """One optimizer step of four layers whose gradients fill four buckets, after DDP's first all-reduce of them all."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    batch = torch.randn(8, 64)

    def train_step() -> None:
        optimizer.zero_grad()
        ddp(batch).sum().backward()
        optimizer.step()

    return train_step


def train(profiler: profile, *, announces: bool = True) -> None:
    train_step = build_step()
    with profiler:
        for _ in range(NUM_STEPS):
            train_step()
            if announces:
                profiler.step()


def own_file(folder: str) -> Callable[[profile], None]:
    """A handler that gives every rank a file of its own."""
    Path(folder).mkdir(exist_ok=True)
    path = f"{folder}/rank{dist.get_rank()}.json"
    return lambda profiler: profiler.export_chrome_trace(path)


def shared_file(path: str) -> Callable[[profile], None]:
    """A handler that writes to one path on all ranks; in turn, as what comes of it is a matter of luck otherwise."""
    Path(path).parent.mkdir(exist_ok=True)

    def export(profiler: profile) -> None:
        for rank in range(dist.get_world_size()):
            if rank == dist.get_rank():
                profiler.export_chrome_trace(path)
            dist.barrier()

    return export


def record_everything(folder: Path) -> None:
    steady = schedule(wait=3, warmup=2, active=8, repeat=1)
    at_once = schedule(wait=0, warmup=0, active=8, repeat=1)
    late = schedule(wait=3 + dist.get_rank(), warmup=2, active=8, repeat=1)
    shaped: dict[str, Any] = {"activities": CPU, "record_shapes": True}
    with chdir(folder):
        train(profile(**shaped, schedule=steady, on_trace_ready=shared_file("shared/trace.json")))
        train(profile(**shaped, schedule=steady, on_trace_ready=own_file("silent")), announces=False)
        train(profile(**shaped, schedule=at_once, on_trace_ready=own_file("one")), announces=False)
        train(profile(**shaped, schedule=at_once, on_trace_ready=own_file("early")))
        train(profile(**shaped, schedule=late, on_trace_ready=own_file("apart")))
        train(profile(**shaped, on_trace_ready=own_file("unmarked")))
        train(profile(activities=CPU, schedule=steady, on_trace_ready=own_file("shapeless")))
        train(profile(**shaped, schedule=steady, on_trace_ready=own_file("stacks"), with_stack=True))
        step = build_step()
        exec(write_recipe(uses_gpu=False), {"loader": range(NUM_STEPS), "train_step": lambda _: step()})


@pytest.fixture(scope="module")
def recordings(gloo_pair: GlooPair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recordings")
    gloo_pair.run(record_everything, folder, timeout_s=120)
    return folder


def look_at(folder: Path) -> RunDiagnosis:
    (run,) = diagnose([folder]).runs
    return run


def list_codes(run: RunDiagnosis) -> list[tuple[str, str]]:
    return [(finding.code, finding.severity) for finding in run.findings]


def list_figures(run: RunDiagnosis, code: str) -> list[float]:
    (finding,) = [finding for finding in run.findings if finding.code == code]
    return [evidence.value for evidence in finding.evidence]


def test_the_lines_to_paste_record_well(recordings: Path) -> None:
    run = look_at(recordings / "traces")
    assert (run.quality, run.findings, run.left_out, run.recipe) == ("good", (), (), "")
    assert [rank.steps for rank in run.ranks] == [(5, 6, 7, 8, 9, 10, 11, 12)] * 2
    assert [(rank.num_collectives, rank.num_sized_collectives) for rank in run.ranks] == [(32, 32)] * 2
    assert {(rank.packing, rank.record_shapes, rank.with_stack) for rank in run.ranks} == {("gzip", True, None)}


def test_one_path_for_both_ranks_leaves_the_file_of_one(recordings: Path) -> None:
    run = look_at(recordings / "shared")
    assert list_codes(run) == [("missing_ranks", "warning"), ("shared_path", "hint")]
    assert ([rank.rank for rank in run.ranks], run.world_size, run.missing_ranks) == ([1], 2, (0,))
    assert list_figures(run, "missing_ranks") == [1, 2]
    assert "tensorboard_trace_handler" in run.recipe


def test_a_schedule_without_step_leaves_nothing_and_is_explained(recordings: Path) -> None:
    run = look_at(recordings / "silent")
    assert (run.quality, run.ranks, list_codes(run)) == ("unusable", (), [("no_trace", "error")])
    assert "prof.step()" in run.findings[0].fix
    assert "prof.step()" in run.recipe


def test_without_step_all_that_is_recorded_is_one_step(recordings: Path) -> None:
    run = look_at(recordings / "one")
    assert list_codes(run) == [("step_not_called", "warning")]
    assert list_figures(run, "step_not_called") == [NUM_STEPS]


def test_ddps_first_all_reduce_and_its_rebuild_are_seen(recordings: Path) -> None:
    run = look_at(recordings / "early")
    assert (run.quality, list_codes(run)) == ("good", [("warm_up_recorded", "hint")])
    assert list_figures(run, "warm_up_recorded") == [1, 1, 4]


def test_ranks_that_record_different_steps_are_told(recordings: Path) -> None:
    run = look_at(recordings / "apart")
    assert list_codes(run) == [("different_steps", "warning")]
    assert list_figures(run, "different_steps") == [7, 9]


def test_without_a_schedule_there_are_no_marks(recordings: Path) -> None:
    assert list_codes(look_at(recordings / "unmarked")) == [("no_step_marks", "warning")]


def test_without_shapes_gloo_tells_no_sizes(recordings: Path) -> None:
    run = look_at(recordings / "shapeless")
    assert list_codes(run) == [("no_collective_sizes", "warning"), ("no_shapes", "warning")]
    assert list_figures(run, "no_collective_sizes") == [2 * 8 * 4, 2 * 8 * 4]
    assert list_figures(run, "no_shapes") == [8, 0]


def test_stacks_cost_a_hint(recordings: Path) -> None:
    run = look_at(recordings / "stacks")
    assert (run.quality, list_codes(run)) == ("good", [("stacks", "hint")])
    unread, num_bytes = list_figures(run, "stacks")
    assert 0.5 < unread < 1
    assert num_bytes == max((recordings / "stacks" / f"rank{rank}.json").stat().st_size for rank in range(2))
