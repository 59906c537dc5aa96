from __future__ import annotations

from pathlib import Path

import pytest

from advisor.errors import InputError
from advisor.schema import DDPConfig, RunManifest
from workloads.run_folder import (
    PARTIAL,
    abandon_run_folder,
    default_run_folder,
    open_run_folder,
    publish_manifest,
    publish_trace,
)

MANIFEST = RunManifest(
    tool_version="0",
    created="2026-01-01T00:00:00+00:00",
    workload="mlp",
    ddp=DDPConfig(world_size=1, backend="gloo", wrapper="torch"),
    parameters=(),
    initial_buckets=(),
    buckets=(),
    ready_order=(),
)


def record(folder: Path, content: str) -> None:
    (open_run_folder(folder) / "rank0.pt.trace.json.gz").write_text(content)
    publish_trace(folder, rank=0)
    publish_manifest(folder, MANIFEST)


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_a_recording_is_moved_up_whole(tmp_path: Path) -> None:
    record(tmp_path / "deep" / "run", "trace")
    assert names(tmp_path / "deep" / "run") == ["manifest.json", "rank0.pt.trace.json.gz"]


@pytest.mark.parametrize("more", [(), ("rank7.pt.trace.json.gz", "report.json", "probe.json", "notes of a person")])
def test_an_earlier_run_is_never_replaced(tmp_path: Path, more: tuple[str, ...]) -> None:
    record(tmp_path, "old")
    for name in more:
        (tmp_path / name).write_text("old")
    with pytest.raises(InputError, match="holds a run already, which is never replaced: choose a new folder"):
        record(tmp_path, "new")
    assert names(tmp_path) == sorted(["manifest.json", "rank0.pt.trace.json.gz", *more])
    assert (tmp_path / "rank0.pt.trace.json.gz").read_text() == "old"


def test_an_abandoned_recording_leaves_nothing(tmp_path: Path) -> None:
    open_run_folder(tmp_path / "run")
    abandon_run_folder(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_an_interrupted_recording_left_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / PARTIAL).mkdir()
    (tmp_path / PARTIAL / "rank0.pt.trace.json").write_text("half")
    assert names(open_run_folder(tmp_path)) == []


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(InputError, match=r"holds thesis\.tex, which is never replaced"):
        open_run_folder(tmp_path)


def test_a_file_in_the_way_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(InputError, match=r"run cannot be written \(File exists\): choose another folder"):
        open_run_folder(tmp_path / "run")


@pytest.mark.parametrize(
    ("workload", "stem"), [("gpt", "gpt"), ("jobs/mine.py:build", "mine"), ("pack.age:build", "pack.age")]
)
def test_a_run_is_named_after_its_workload_and_the_time(workload: str, stem: str) -> None:
    folder = default_run_folder(workload)
    assert folder.parent == Path("runs")
    assert folder.name.startswith(f"{stem}-20")
