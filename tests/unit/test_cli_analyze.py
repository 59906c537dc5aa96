"""What `ddp-advisor analyze` and `report` write and print; the analysis itself is replaced by a report in the hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from advisor import pipeline
from advisor.cli import app
from advisor.cli.analyze import read_ranks
from advisor.readers import run_files
from advisor.schema import Alarm, Report
from tests.builders import gloo_report

ALARM = Alarm(
    code="no_communication", severity="error", message="m", fix="f", ranks=(0,), steps=(), evidence=()
)  # fmt: skip
Analyze = Callable[..., Result]


@pytest.fixture
def analyze(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Analyze:
    """Runs the command in an empty folder beside the traces `bert/`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bert").mkdir()

    def run(*arguments: str, report: Report | None = None) -> Result:
        def analyze_nothing(run: Any, **options: Any) -> Report:
            return report or gloo_report()

        monkeypatch.setattr(run_files, "find_run", lambda paths, ranks: None)
        monkeypatch.setattr(pipeline, "analyze_run", analyze_nothing)
        return CliRunner().invoke(app, ["analyze", "bert", *arguments])

    return run


def test_foreign_traces_are_not_written_beside(analyze: Analyze, tmp_path: Path) -> None:
    result = analyze()
    assert result.exit_code == 0, result.output
    assert list((tmp_path / "bert").iterdir()) == []
    (run,) = (tmp_path / "runs").iterdir()
    assert sorted(file.name for file in run.iterdir()) == ["report.html", "report.json"]
    assert f"runs/{run.name}/report.html" in result.stdout
    assert f"ddp-advisor report runs/{run.name} --serve" in result.stdout


def test_a_run_folder_gets_its_report(analyze: Analyze, tmp_path: Path) -> None:
    (tmp_path / "bert" / "manifest.json").touch()
    assert analyze().exit_code == 0
    assert sorted(file.name for file in (tmp_path / "bert").iterdir()) == [
        "manifest.json",
        "report.html",
        "report.json",
    ]


def test_json_is_the_report_and_nothing_else(analyze: Analyze, tmp_path: Path) -> None:
    result = analyze("--json", "--out", "here")
    assert msgspec.json.decode(result.stdout, type=Report) == gloo_report()
    assert result.stdout.encode() == (tmp_path / "here" / "report.json").read_bytes()
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("alarms", "exit_code", "sentence"),
    [
        ((), 0, ""),
        ((msgspec.structs.replace(ALARM, severity="warning"),), 0, ""),
        ((ALARM,), 1, "error: The run has 1 error alarm(s): no_communication.\n"),
    ],
)
def test_strict_says_no_to_an_error_alarm(
    analyze: Analyze, alarms: tuple[Alarm, ...], exit_code: int, sentence: str
) -> None:
    result = analyze("--strict", "--out", "here", report=gloo_report(alarms=alarms))
    assert (result.exit_code, result.stderr) == (exit_code, sentence)
    assert Path("here/report.json").exists()
    assert analyze("--out", "here", report=gloo_report(alarms=alarms)).exit_code == 0


def test_a_full_disk_leaves_the_old_report_and_no_traceback(analyze: Analyze, monkeypatch: pytest.MonkeyPatch) -> None:
    assert analyze("--out", "here").exit_code == 0
    before = {file.name: file.read_bytes() for file in Path("here").iterdir()}

    def fill_the_disk(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fill_the_disk)
    result = analyze("--out", "here", report=gloo_report(source="another"))
    assert result.exit_code == 2
    assert result.stderr == (
        "error: The report cannot be written into here (No space left on device): choose another folder with --out.\n"
    )
    assert {file.name: file.read_bytes() for file in Path("here").iterdir()} == before


@pytest.mark.parametrize(("text", "ranks"), [("0,1", [0, 1]), ("0-3", [0, 1, 2, 3]), (" 7, 2-3", [7, 2, 3]), ("", [])])
def test_ranks_are_numbers_and_spans(text: str, ranks: list[int]) -> None:
    assert read_ranks(text) == ranks


@pytest.mark.parametrize("text", ["one", "1-", "-1", "0..3", "0;1"])
def test_what_is_no_rank_is_one_sentence(analyze: Analyze, text: str) -> None:
    result = analyze(f"--ranks={text}")
    assert result.exit_code == 2
    assert result.stderr == f"error: --ranks '{text}' is no list of ranks: write it as 0,1,2 or 0-7.\n"


def test_a_report_is_shown_again(analyze: Analyze) -> None:
    shown = analyze("--out", "here").stdout
    for place in ("here", "here/report.json"):
        result = CliRunner().invoke(app, ["report", place])
        assert result.exit_code == 0
        assert shown.startswith(result.stdout.rstrip())


def test_a_folder_without_a_report_says_how_to_get_one(analyze: Analyze) -> None:
    result = CliRunner().invoke(app, ["report", "bert"])
    assert result.exit_code == 2
    assert result.stderr == "error: bert holds no report.json: run `ddp-advisor analyze bert` first.\n"
