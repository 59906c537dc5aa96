"""`ddp-advisor probe` around its measurement, which is replaced by a ladder in the hand."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from advisor.cli import app
from advisor.cli.probe import read_budget, read_collectives
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
    for text in ("collectives on 2 ranks, gloo", "all_reduce", "200", "GB/s", "1.25 ×", "float16 not measured"):
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


def test_a_probe_that_measured_nothing_is_none(measured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = msgspec.structs.replace(LADDER, points=())
    monkeypatch.setattr(launch, "probe_run", lambda request, on_progress: nothing)
    result = CliRunner().invoke(app, ["probe", "--budget", "0.01s"])
    assert result.exit_code == 2
    assert result.output == (
        "error: Nothing could be measured within --budget '0.01s': give it more time, such as 60s.\n"
    )
    assert list(measured.iterdir()) == []


def test_a_device_is_no_place_for_a_probe(measured: Path) -> None:
    """A rename onto it would put a file in its place."""
    result = CliRunner().invoke(app, ["probe", "--out", "/dev/null"])
    assert result.exit_code == 2
    assert result.output == (
        "error: The probe cannot be written to /dev/null, which is no file: choose another with --out.\n"
    )
    assert Path("/dev/null").is_char_device()


def test_nothing_is_measured_where_nothing_can_be_written(measured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    result = CliRunner().invoke(app, ["probe"])
    assert result.exit_code == 2
    assert result.output == (
        "error: The probe cannot be written to probe.json (No space left on device): choose another place with --out.\n"
    )
    assert list(measured.iterdir()) == []


def test_a_disk_that_fills_up_meanwhile_costs_the_file_but_not_the_table(
    measured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(file: Path, data: bytes) -> int:
        file.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))

    (measured / "probe.json").write_text("old")
    monkeypatch.setattr(Path, "write_bytes", fill)
    result = CliRunner().invoke(app, ["probe"])
    assert result.exit_code == 2
    assert "collectives on 2 ranks" in result.stdout
    assert "No space left on device" in result.stderr
    assert [path.name for path in measured.iterdir()] == ["probe.json"]
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


@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        (["all_reduce"], ("all_reduce",)),
        (["broadcast,all-gather"], ("broadcast", "all_gather")),
        (["ReduceScatter", "allreduce, broadcast", "broadcast"], ("reduce_scatter", "all_reduce", "broadcast")),
    ],
)
def test_collectives_are_read_in_their_order(words: list[str], kinds: tuple[str, ...]) -> None:
    assert read_collectives(words) == kinds


@pytest.mark.parametrize("word", ["", "reduce", "all_to_all", "broadcast,"])
def test_a_collective_that_is_not_timed_is_refused_before_any_process_starts(measured: Path, word: str) -> None:
    result = CliRunner().invoke(app, ["probe", "--collective", word])
    assert result.exit_code == 2
    assert result.output.endswith(
        "is not timed by the probe: choose of all_reduce, broadcast, all_gather, reduce_scatter.\n"
    )
    assert list(measured.iterdir()) == []
