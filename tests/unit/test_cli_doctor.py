"""What `ddp-advisor doctor` prints, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import msgspec
import pytest
from typer.testing import CliRunner, Result

from advisor.cli import app
from advisor.doctor.recipe import write_recipe
from advisor.schema import PUBLISHED, Diagnosis
from tests.trace_files import write_ranks

README = Path(__file__).parent.parent.parent / "README.md"


def doctor(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["doctor", *map(str, arguments)])


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two ranks without communication, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    return write_ranks(Path("traces"))


def test_an_unusable_recording_fails_after_it_was_shown(traces: Path) -> None:
    result = doctor(traces)
    assert result.exit_code == 1
    assert "not one collective was recorded" in result.stdout
    assert result.stderr == "error: The recording is unusable: traces.\n"
    assert sorted(path.name for path in traces.parent.iterdir()) == ["traces"]


def test_of_several_runs_the_unusable_ones_are_counted(traces: Path) -> None:
    write_ranks(Path("more/a"))
    write_ranks(Path("more/b"), process=9000)
    assert doctor("more").stderr == "error: 2 of 2 runs are unusable: more/a, more/b.\n"


def test_json_is_the_published_struct_and_nothing_else(traces: Path) -> None:
    result = doctor(traces, "--json")
    assert result.exit_code == 1
    diagnosis = msgspec.json.decode(result.stdout, type=Diagnosis)
    assert (diagnosis.quality, len(diagnosis.runs[0].ranks)) == ("unusable", 2)
    jsonschema.validate(json.loads(result.stdout), msgspec.json.schema(PUBLISHED["diagnosis"]))


def test_an_empty_folder_is_explained_and_a_missing_one_is_bad_use(traces: Path) -> None:
    Path("empty").mkdir()
    assert doctor("empty").exit_code == 1
    assert "prof.step()" in doctor("empty").stdout
    missing = doctor("missing")
    assert (missing.exit_code, missing.stdout) == (2, "")
    assert missing.stderr.startswith("error: missing does not exist")


def test_ranks_can_be_given(traces: Path) -> None:
    result = doctor(traces, "--ranks", "0")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: --ranks has 1 ranks but 0 files tell none")


def test_the_readme_shows_the_same_lines() -> None:
    assert write_recipe(uses_gpu=True) in README.read_text()
