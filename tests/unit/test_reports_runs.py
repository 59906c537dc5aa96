"""Runs are found newest first, and a report that cannot be read is told in one sentence."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from advisor.errors import InputError, SchemaVersionError, UsageError
from advisor.schema import read_report, write_json
from reports import runs, serve
from tests.builders import gloo_report


def write_run(folder: Path, written_at: int = 0) -> Path:
    folder.mkdir(parents=True)
    write_json(gloo_report(), folder / "report.json")
    os.utime(folder / "report.json", (written_at, written_at))
    return folder


def test_runs_are_listed_newest_first(tmp_path: Path) -> None:
    old, new = write_run(tmp_path / "a", 100), write_run(tmp_path / "b", 200)
    (tmp_path / "no-report").mkdir()
    assert runs.find_runs(tmp_path) == (new, old)
    assert runs.find_runs(tmp_path / "missing") == ()


def test_a_report_is_opened_from_its_folder_or_itself(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    assert read_report(run) == read_report(run / "report.json") == gloo_report()


@pytest.mark.parametrize(
    ("content", "error", "sentence"),
    [
        (None, InputError, "holds no report.json"),
        (b"{", InputError, "is not a Report"),
        (b"\xff\xfe", InputError, "is not a Report"),
        (b"{}", InputError, "is not a Report"),
        (b'{"schema_version": 999}', SchemaVersionError, "upgrade ddp-advisor"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(
    tmp_path: Path, content: bytes | None, error: type[Exception], sentence: str
) -> None:
    if content is not None:
        (tmp_path / "report.json").write_bytes(content)
    with pytest.raises(error, match=sentence):
        read_report(tmp_path)


def test_the_page_is_served_here_only_and_tells_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda name: object())
    command = serve.streamlit_command(Path("runs/one"))
    assert command[:4] == [sys.executable, "-m", "streamlit", "run"]
    assert Path(command[4]).name == "app.py"
    assert Path(command[4]).exists()
    assert command[command.index("--browser.gatherUsageStats") + 1] == "false"
    assert command[command.index("--server.address") + 1] == "localhost"
    assert command[-2:] == ["--", "runs/one"]


def test_without_streamlit_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="ddp-advisor\\[app\\]"):
        serve.streamlit_command(Path("runs/one"))
