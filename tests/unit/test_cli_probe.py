"""`ddp-advisor probe` around its measurement, which is replaced by a ladder in the hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from advisor.cli import app
from advisor.cli.probe import read_budget
from advisor.errors import RunError, UsageError
from advisor.schema import Ladder, LadderPoint, read_json
from workloads import launch

MIB = 2**20
LADDER = Ladder(
    world_size=2,
    backend="gloo",
    points=tuple(
        LadderPoint(kind="all_reduce", dtype="float32", num_bytes=size, rounds_ns=((200_000 + size,),) * 2, **fields)
        for size in (MIB // 4, MIB, 4 * MIB)
        for fields in ({}, {"under_compute": True, "compute_slowdowns": (1.25, 1.25)})
    ),
    left_out=("float16 not measured: gloo does not reduce it.",),
)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(launch, "probe_run", lambda request, on_progress: LADDER)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_was_measured_is_written_and_summed_up(measured: Path) -> None:
    result = CliRunner().invoke(app, ["probe", "--budget", "5s"])
    assert result.exit_code == 0, result.output
    assert read_json(Ladder, measured / "probe.json") == LADDER
    for text in ("all-reduce on 2 ranks, gloo", "200", "GB/s", "1.25 ×", "float16 not measured"):
        assert text in result.output, text


def test_a_run_folder_gets_its_probe(measured: Path) -> None:
    (measured / "run").mkdir()
    assert CliRunner().invoke(app, ["probe", "--out", "run"]).exit_code == 0
    assert (measured / "run" / "probe.json").is_file()


def test_a_failed_probe_leaves_the_old_one(measured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(request: object, on_progress: object) -> Ladder:
        raise RunError("Rank 1 was killed by signal 9 (SIGKILL).")

    (measured / "probe.json").write_text("old")
    monkeypatch.setattr(launch, "probe_run", fail)
    result = CliRunner().invoke(app, ["probe"])
    assert result.exit_code != 0
    assert (measured / "probe.json").read_text() == "old"


def test_nothing_is_measured_for_a_place_that_is_not_there(measured: Path) -> None:
    result = CliRunner().invoke(app, ["probe", "--out", "missing/probe.json"])
    assert result.exit_code == 2
    assert "no folder missing" in result.output


@pytest.mark.parametrize(("text", "seconds"), [("60", 60), ("60s", 60), ("1.5m", 90), ("2 min", 120)])
def test_a_budget_is_read(text: str, seconds: float) -> None:
    assert read_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "0s", "soon", "5 hours", "-3"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no time: write it as 60s or 2m"):
        read_budget(text)
