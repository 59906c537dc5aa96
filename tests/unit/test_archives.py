"""Zip and tar archives: read in memory, and refused where they are a trap."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import pytest
import zstandard

from advisor.errors import InputError
from advisor.readers import archives
from advisor.readers.run import read_run
from advisor.readers.sources import find_sources
from tests.trace_files import make_trace, pack_tar, pack_zip

RANKS = {"run/rank0.json": make_trace(0), "run/rank1.json.gz": gzip.compress(make_trace(1))}
PACKED = {
    "run.zip": pack_zip(RANKS),
    "run.tar": pack_tar(RANKS),
    "run.tar.gz": gzip.compress(pack_tar(RANKS)),
    "run.tgz": gzip.compress(pack_tar(RANKS)),
    "run.tar.zst": zstandard.ZstdCompressor().compress(pack_tar(RANKS)),
}


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("name", PACKED)
def test_an_archive_is_a_folder(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, PACKED[name])
    files = [f"{path}/run/rank0.json", f"{path}/run/rank1.json.gz"]
    assert [trace.file for trace in read_run([path]).traces] == files
    assert [trace.file for trace in read_run([tmp_path]).traces] == files
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_a_path_may_go_on_inside(tmp_path: Path) -> None:
    path = write(tmp_path / "both.zip", pack_zip({"a/rank0.json": make_trace(0), "b/rank0.json": make_trace(0)}))
    for inside in ("a", "a/rank0.json", "a/rank*"):
        assert [source.name for source in find_sources([path / inside]).sources] == [f"{path}/a/rank0.json"]
    with pytest.raises(InputError, match=r"both\.zip/c holds no trace"):
        find_sources([path / "c"])


def test_the_manifest_inside_is_found(tmp_path: Path) -> None:
    path = write(tmp_path / "run.tar", pack_tar({"./gpt/manifest.json": b"{}", "./gpt/rank0.json": make_trace(0)}))
    assert find_sources([path]).manifests.keys() == {f"{path}/./gpt"}


def test_what_a_mac_adds_is_left_out(tmp_path: Path) -> None:
    files = {"rank0.json": make_trace(), "__MACOSX/._rank0.json": b"\x00\x05\x16\x07", ".git/rank1.json": make_trace(1)}
    path = write(tmp_path / "run.zip", pack_zip(files))
    found = find_sources([path])
    assert [source.name for source in found.sources] == [f"{path}/rank0.json"]
    assert found.strays == []


def test_names_inside_lead_nowhere(tmp_path: Path) -> None:
    files = {"../../rank0.json": make_trace(0), "/etc/rank1.json": make_trace(1)}
    path = write(tmp_path / "run.tar", pack_tar(files))
    assert [trace.file for trace in read_run([path]).traces] == [f"{path}/../../rank0.json", f"{path}//etc/rank1.json"]
    assert [file.name for file in tmp_path.iterdir()] == ["run.tar"]


def test_links_inside_are_not_followed(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        link = tarfile.TarInfo("rank0.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(InputError, match="holds no trace"):
        find_sources([write(tmp_path / "run.tar", packed.getvalue())])


@pytest.mark.parametrize("inner", ["inner.zip", "inner.tar.gz", "rank0.json", "rank0.json.gz"])
def test_an_archive_inside_an_archive_is_not_opened(tmp_path: Path, inner: str) -> None:
    stored = PACKED["run.tar.gz" if inner.endswith("gz") else "run.zip"]
    path = write(tmp_path / "outer.zip", pack_zip({inner: stored}))
    with pytest.raises(InputError, match=r"outer\.zip/.*unpack the outer one first"):
        find_sources([path])


def test_a_bomb_is_refused_by_what_it_claims_and_by_what_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "FREE_BYTES", 2**16)
    monkeypatch.setattr("advisor.readers.streams.FREE_BYTES", 2**16)
    with pytest.raises(InputError, match=r"bomb\.zip expands to more than 250 times its size"):
        find_sources([write(tmp_path / "bomb.zip", pack_zip({"rank0.json": bytes(2**20)}))])
    with pytest.raises(InputError, match=r"bomb\.tar\.gz expands to more than 250 times its size"):
        find_sources([write(tmp_path / "bomb.tar.gz", gzip.compress(pack_tar({"rank0.json": bytes(2**20)})))])


def test_a_member_cannot_be_larger_than_it_claims(tmp_path: Path) -> None:
    trace = make_trace()
    stored = bytearray(pack_zip({"rank0.json": trace}))
    directory = stored.rindex(b"PK\x01\x02")
    stored[directory + 24 : directory + 28] = (20).to_bytes(4, "little")
    with pytest.raises(InputError, match=r"rank0\.json"):
        read_run([write(tmp_path / "run.zip", bytes(stored))])


def test_nonsense_in_a_directory_is_damage(tmp_path: Path) -> None:
    stored = bytearray(pack_zip({"rank0.json": make_trace()}))
    stored[stored.index(b"PK\x01\x02") + 45] = 0xFF  # where the member begins
    with pytest.raises(InputError, match=r"run\.zip is damaged \(.*\): copy it again"):
        find_sources([write(tmp_path / "run.zip", bytes(stored))])


def test_too_many_members_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST_MEMBERS", 1)
    crowded = RANKS | {"run/notes.txt": b""}
    for name, data in (("run.zip", pack_zip(crowded)), ("run.tar", pack_tar(crowded))):
        with pytest.raises(InputError, match=f"{name} holds more than 1 files"):
            find_sources([write(tmp_path / name, data)])


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("run.zip", PACKED["run.zip"][:-30], "is damaged (File is not a zip file): copy it again"),
        ("run.tar", PACKED["run.tar"][:600], "is damaged (unexpected end of data): copy it again"),
        ("model.zip", pack_zip({"archive/data.pkl": b"\x80\x02}q"}), "holds no trace"),
        (
            "rank0.json.gz.zip",
            pack_zip({"rank0.json": b"\x80\x04\x95"}),
            "rank0.json is a Python pickle, which is never",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path: Path, name: str, data: bytes, sentence: str) -> None:
    path = write(tmp_path / name, data)
    with pytest.raises(InputError) as failure:
        read_run([path])
    assert str(failure.value).startswith(str(path))
    assert sentence in str(failure.value)


def test_a_locked_archive_is_one_sentence(tmp_path: Path) -> None:
    stored = bytearray(pack_zip({"rank0.json": make_trace()}))
    stored[stored.index(b"PK\x01\x02") + 8] |= 1
    stored[6] |= 1
    with pytest.raises(InputError, match=r"run\.zip/rank0\.json is encrypted: unpack the archive yourself"):
        find_sources([write(tmp_path / "run.zip", bytes(stored))])


def test_an_unknown_method_is_one_sentence(tmp_path: Path) -> None:
    stored = bytearray(pack_zip({"rank0.json": make_trace()}))
    for start in (stored.index(b"PK\x01\x02") + 10, 8):
        stored[start : start + 2] = (99).to_bytes(2, "little")
    with pytest.raises(InputError, match=r"rank0\.json is packed by a method that is not read: zip it with deflate"):
        find_sources([write(tmp_path / "run.zip", bytes(stored))])


def test_members_before_the_damage_are_read(tmp_path: Path) -> None:
    whole = pack_tar({"rank0.json": make_trace(0), "rank1.json": make_trace(1)})
    path = write(tmp_path / "run.tar.gz", gzip.compress(whole[: whole.index(b"rank1.json") + 100]))
    run = read_run([path])
    assert [trace.rank for trace in run.traces] == [0]
    assert run.notes[-1].message.startswith("1 of 2 ranks are missing (1)")


def test_a_whole_run_folder_can_be_mailed(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "gpt.zip", "w") as archive:
        archive.writestr("gpt/report.json", b"{}")
        archive.writestr("gpt/report.html", b"<html>")
        archive.writestr("gpt/manifest.json", b'{"schema_version": 999}')
        archive.writestr("gpt/rank0.json", make_trace(0))
    with pytest.raises(InputError, match=r"gpt\.zip/gpt/manifest\.json has schema version 999"):
        read_run([tmp_path])
