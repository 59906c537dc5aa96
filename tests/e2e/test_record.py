from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from advisor.errors import AdvisorError
from advisor.schema import DDPConfig, RunManifest, marks, read_json
from tests.gloo_pair import GlooPair
from workloads.ddp import BucketedDDP
from workloads.job import JobSpec
from workloads.launch import record_run
from workloads.record import record
from workloads.requests import RecordRequest


def read_events(folder: Path, rank: int) -> list[dict[str, Any]]:
    with gzip.open(folder / f"rank{rank}.pt.trace.json.gz") as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return events


def count(events: list[dict[str, Any]], prefix: str) -> int:
    return sum(event.get("ph") == "X" and event["name"].startswith(prefix) for event in events)


def test_a_run_leaves_a_whole_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    # A package of the person's own with our name must not be mistaken for ours.
    (tmp_path / "workloads").mkdir()
    (tmp_path / "workloads" / "__init__.py").write_text("raise RuntimeError('not ours')")
    monkeypatch.chdir(tmp_path)
    reports: list[tuple[int, int, str]] = []
    request = RecordRequest(
        job=JobSpec(workload="gpt", preset="tiny"),
        config=DDPConfig(world_size=2, backend="unknown", wrapper="bucketed", accumulation_steps=2),
        out="out",
        num_steps=3,
        device="cpu",
        command=("ddp-advisor", "run", "gpt"),
    )
    folder = record_run(request, lambda *report: reports.append(report))
    assert sorted(file.name for file in folder.iterdir()) == [
        "manifest.json",
        "rank0.pt.trace.json.gz",
        "rank1.pt.trace.json.gz",
    ]
    manifest = read_json(RunManifest, folder / "manifest.json")
    assert (manifest.workload, manifest.preset, manifest.command) == ("gpt", "tiny", ("ddp-advisor", "run", "gpt"))
    assert manifest.ddp.backend == "gloo"
    assert manifest.environment["NCCL_DEBUG"] == "WARN"
    assert [device.rank for device in manifest.devices] == [0, 1]
    for rank in range(2):
        events = read_events(folder, rank)
        assert count(events, "ProfilerStep#") == 3
        assert count(events, marks.FORWARD) == 6
        assert count(events, marks.GRADIENT_READY) == 3 * len(manifest.parameters)
        assert count(events, "gloo:all_reduce") == 3 * len(manifest.buckets)
    assert reports[-1] == (8, 8, "profiling gpt")


def record_own_loop(wrapper: type[nn.Module], out: Path, num_steps_trained: int, **options: Any) -> str:
    """A person's own training around `record`; returns the sentence it ended with, if any."""
    torch.manual_seed(0)
    model = wrapper(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        with record(model, out, num_steps=2) as recorder:
            for _ in range(num_steps_trained):
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                recorder.step()
    except AdvisorError as error:
        return str(error)
    dist.barrier()
    return ""


@pytest.mark.parametrize("wrapper", [DistributedDataParallel, BucketedDDP])
def test_a_persons_own_loop_is_recorded(gloo_pair: GlooPair, tmp_path: Path, wrapper: type[nn.Module]) -> None:
    assert gloo_pair.run(record_own_loop, wrapper, tmp_path / "run", 10, bucket_cap_mb=5) == ["", ""]
    manifest = read_json(RunManifest, tmp_path / "run" / "manifest.json")
    assert manifest.ddp.bucket_cap_mb == 5.0
    assert [bucket.num_bytes for bucket in manifest.buckets] == [4 * (4 * 4 + 4 + 4 + 1)]
    for rank in range(2):
        events = read_events(tmp_path / "run", rank)
        assert count(events, "ProfilerStep#") == 2
        assert count(events, "gloo:all_reduce") == 2


def test_a_loop_that_ends_too_early_says_so_and_leaves_nothing(gloo_pair: GlooPair, tmp_path: Path) -> None:
    sentences = gloo_pair.run(record_own_loop, DistributedDataParallel, tmp_path / "run", 4)
    assert all("ended before its 7 steps were done: call recorder.step()" in sentence for sentence in sentences)
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_used_is_the_same_sentence_on_every_rank(gloo_pair: GlooPair, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    sentences = gloo_pair.run(record_own_loop, DistributedDataParallel, tmp_path, 10)
    assert all("holds thesis.tex, which is never replaced" in sentence for sentence in sentences)
