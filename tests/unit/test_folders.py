"""Walking a folder: links end, what is forbidden is named, and a disk is no folder of traces."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from advisor.errors import InputError
from advisor.readers import folders
from advisor.readers.folders import match_paths, walk_folder


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def walk(folder: Path) -> list[str]:
    def is_json(name: str) -> bool:
        return name.endswith(".json")

    return [str(path.relative_to(folder)) for path in walk_folder(folder, is_json, on_failure=pytest.fail)]


def test_files_come_before_sub_folders_and_in_name_order(tmp_path: Path) -> None:
    touch(tmp_path, "b/2.json", "b/deep/er/3.json", "a/1.json", "z.json", "y.json", "a/notes.txt", ".cache/4.json")
    assert walk(tmp_path) == ["y.json", "z.json", "a/1.json", "b/2.json", "b/deep/er/3.json"]


def test_a_loop_of_links_ends(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.json")
    (tmp_path / "a" / "again").symlink_to(tmp_path)
    (tmp_path / "a" / "self").symlink_to("self")
    assert walk(tmp_path) == ["a/1.json"]


def test_a_linked_folder_is_entered(tmp_path: Path) -> None:
    touch(tmp_path, "elsewhere/1.json", "run/2.json")
    (tmp_path / "run" / "more").symlink_to(tmp_path / "elsewhere")
    assert walk(tmp_path / "run") == ["2.json", "more/1.json"]


def test_a_forbidden_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "open/1.json", "shut/2.json")
    scan = os.scandir

    def forbid(folder: Path) -> object:
        if folder.name == "shut":
            raise PermissionError(13, "Permission denied")
        return scan(folder)

    monkeypatch.setattr(os, "scandir", forbid)
    failures: list[str] = []
    assert [path.name for path in walk_folder(tmp_path, lambda _: True, failures.append)] == ["1.json"]
    assert failures == [f"{tmp_path}/shut cannot be read (Permission denied): check the path and who may read it."]
    with pytest.raises(InputError, match="shut cannot be read"):
        walk(tmp_path / "shut")


def test_a_whole_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "MOST_FILES", 2)
    touch(tmp_path, "1.json", "2.json", "3.txt")
    with pytest.raises(InputError, match="holds more than 2 files: give the folder of one run"):
        walk(tmp_path)


def test_only_a_pattern_is_matched(tmp_path: Path) -> None:
    touch(tmp_path, "1.json", "2.json", "a/3.json")
    assert [path.name for path in match_paths(f"{tmp_path}/**/*.json")] == ["1.json", "2.json", "3.json"]
    assert match_paths(f"{tmp_path}/1.json") == []
