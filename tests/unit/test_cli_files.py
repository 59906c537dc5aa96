"""Where an analysis writes: into a run folder, beside no foreign trace, and whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.cli._again import spell_command
from advisor.cli._files import choose_folder
from advisor.errors import UsageError


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _make(*files: str) -> None:
    for file in map(Path, files):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()


def test_a_run_folder_is_written_into() -> None:
    _make("runs/gpt/manifest.json")
    assert choose_folder([Path("runs/gpt")], None) == Path("runs/gpt")


def test_foreign_traces_get_a_folder_named_after_theirs() -> None:
    _make("mail/bert/rank0.json", "mail/bert/rank1.json")
    folder = choose_folder([Path("mail/bert")], None)
    assert folder.parent == Path("runs")
    assert folder.name.startswith("bert-")
    assert not folder.exists()


def test_the_same_traces_come_back_to_the_same_folder() -> None:
    _make("bert/rank0.json", "bert/rank1.json", "other/bert/rank0.json")
    both = choose_folder([Path("bert/rank0.json"), Path("bert/rank1.json")], None)
    assert choose_folder([Path("other/../bert/rank1.json"), Path("bert/rank0.json")], None) == both
    assert both.name.startswith("bert-")
    assert choose_folder([Path("other/bert")], None) != choose_folder([Path("bert")], None)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("s3://bucket/runs/gpt/", "gpt"),
        ("https://host/gpt.tar.gz?signature=secret/../..", "gpt"),
        ("memory://", "traces"),
        ("-", "stdin"),
        ("mail/bert/rank*.json", "bert"),
        ("mail/a\x1b[31m\udcff/rank0.json", "a_31m_"),
    ],
)
def test_traces_from_anywhere_get_a_folder_here(path: str, name: str) -> None:
    folder = choose_folder([path], None)
    assert folder.parent == Path("runs")
    assert folder.name.rpartition("-")[0] == name
    assert choose_folder([path], None) == folder


def test_out_wins() -> None:
    _make("runs/gpt/manifest.json")
    assert choose_folder([Path("runs/gpt")], Path("here")) == Path("here")


def test_a_file_is_no_folder_to_write_into() -> None:
    _make("taken")
    for out in ("taken", "taken/below"):
        with pytest.raises(UsageError, match=f"cannot be written into {out}: choose a writable folder with --out"):
            choose_folder([Path()], Path(out))


@pytest.mark.parametrize(
    ("started_as", "on_path", "program"),
    [
        (".venv/bin/ddp-advisor", False, ".venv/bin/ddp-advisor"),
        (".venv/bin/ddp-advisor", True, "ddp-advisor"),
        ("advisor/__main__.py", False, "ddp-advisor"),
    ],
)
def test_the_next_command_can_be_typed_as_it_is_printed(
    started_as: str, on_path: bool, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [started_as])
    monkeypatch.setattr("shutil.which", lambda name: "/bin/ddp-advisor" if on_path else None)
    assert spell_command("report", Path("runs/my run"), "--serve") == f"{program} report 'runs/my run' --serve"
