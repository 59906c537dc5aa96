"""`ddp-advisor forecast` on an analyzed run, and one sentence where nothing can be forecast."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from advisor.cli import app
from advisor.pipeline import what_if
from advisor.schema import Forecast, read_report, write_json
from tests.builders import gloo_report

EXAMPLE = Path(__file__).parents[2] / "reports" / "examples" / "gpt-2-ranks"


def test_a_real_report_is_forecast() -> None:
    result = CliRunner().invoke(app, ["forecast", str(EXAMPLE), "--ranks", "2,16"], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    starts = [line.split()[:2] for line in result.stdout.splitlines() if line.strip()]
    assert ["2", "(today)"] in starts
    assert any(start[0] == "16" for start in starts)


def test_todays_ranks_are_the_what_if_of_todays_setting() -> None:
    result = CliRunner().invoke(app, ["forecast", str(EXAMPLE), "--ranks", "2", "--json"])
    row = msgspec.json.decode(result.stdout, type=Forecast).rows[0]
    report = read_report(EXAMPLE)
    assert report.config is not None
    assert row.step_ns == what_if(report, report.config).step_ns


@pytest.mark.parametrize(
    ("ranks", "sentence"),
    [("8,x", "--ranks '8,x' is no list of numbers: write it as 8,16,64."), ("0", "0 ranks cannot be forecast")],
)
def test_ranks_that_cannot_be_meant_are_refused(ranks: str, sentence: str) -> None:
    result = CliRunner().invoke(app, ["forecast", str(EXAMPLE), "--ranks", ranks])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert sentence in result.stderr


def test_a_report_that_replay_cannot_use_is_refused(tmp_path: Path) -> None:
    write_json(gloo_report(), tmp_path / "report.json")
    result = CliRunner().invoke(app, ["forecast", str(tmp_path), "--ranks", "8"])
    assert result.exit_code == 2
    assert "cannot be forecast: its buckets or transfers are unknown" in result.stderr


def test_a_report_that_replay_misses_is_refused(tmp_path: Path) -> None:
    report = read_report(EXAMPLE)
    assert report.baseline is not None
    missed = msgspec.structs.replace(report, baseline=msgspec.structs.replace(report.baseline, error_fraction=0.5))
    write_json(missed, tmp_path / "report.json")
    result = CliRunner().invoke(app, ["forecast", str(tmp_path), "--ranks", "8"])
    assert result.exit_code == 2
    assert "cannot be forecast: replay does not reproduce its step closely enough." in result.stderr
