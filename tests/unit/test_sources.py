"""Paths in, sources out: which files count, what is said about each of them, and how every failure is told."""

from __future__ import annotations

import gzip
import io
import os
import sys
from pathlib import Path

import pytest

from advisor.errors import InputError
from advisor.readers.display import list_names, show_name
from advisor.readers.heads import HEAD_BYTES, read_head
from advisor.readers.run import read_run
from advisor.readers.sources import find_sources
from tests.trace_builders import RankTrace
from tests.trace_files import make_rankless_trace, make_trace, pack_tar, write_file, write_ranks


def find_names(*paths: str | Path) -> list[str]:
    return sorted(source.name for source in find_sources(paths).sources)


class Pipe(io.TextIOWrapper):
    """Standard input with these bytes in it."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))


# ----------------------------------------------------------------------------------------------------- what counts


def test_a_folder_gives_the_traces_below_it_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_ranks(Path("run"))
    write_file(Path("run/later/rank0.json.gz"), make_trace(start=99))
    for name in ("manifest.json", "report.json", "probe.json", "report.html", ".hidden.json", "__MACOSX/._rank0.json"):
        file = Path("run") / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(make_trace())
    found = find_sources(["run"])
    assert [source.name for source in found.sources] == ["run/rank0.json", "run/rank1.json", "run/later/rank0.json.gz"]
    assert found.manifests.keys() == {"run"}
    assert (found.strays, found.failures) == ([], [])


@pytest.mark.parametrize("suffix", [".json", ".json.gz", ".json.zst"])
def test_every_packing_is_read(tmp_path: Path, suffix: str) -> None:
    write_ranks(tmp_path, name="rank{}" + suffix)
    assert [len(trace.events) for trace in read_run([tmp_path]).traces] == [2, 2]


def test_the_content_counts_where_a_person_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rank0.trace"
    path.write_bytes(gzip.compress(make_trace()))
    assert find_names(path) == [str(path)]
    with pytest.raises(InputError, match="holds no trace"):
        find_sources([tmp_path])


def test_a_pattern_is_matched_here_too(tmp_path: Path) -> None:
    write_ranks(tmp_path / "a")
    write_ranks(tmp_path / "b")
    assert find_names(tmp_path / "*" / "rank1.json") == [f"{tmp_path}/a/rank1.json", f"{tmp_path}/b/rank1.json"]
    assert find_names(tmp_path / "**" / "rank0*") == [f"{tmp_path}/a/rank0.json", f"{tmp_path}/b/rank0.json"]
    assert len(find_names(tmp_path / "?")) == 4


def test_a_name_that_looks_like_a_pattern_is_a_name_first(tmp_path: Path) -> None:
    path = write_file(tmp_path / "rank[0].json", make_trace())
    assert find_names(path) == [str(path)]


def test_a_file_reached_twice_is_one(tmp_path: Path) -> None:
    path = write_file(tmp_path / "rank0.json", make_trace())
    (tmp_path / "zlatest.json").symlink_to(path)
    assert find_names(tmp_path, path, f"{tmp_path}/*.json") == [str(path)]


def test_standard_input_may_hold_anything_that_a_file_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Pipe(gzip.compress(make_trace(1))))
    (source,) = find_sources(["-"]).sources
    assert (source.name, source.rank) == ("standard input", 1)
    monkeypatch.setattr(sys, "stdin", Pipe(pack_tar({"rank0.json": make_trace(0), "rank1.json": make_trace(1)})))
    assert [trace.file for trace in read_run(["-"]).traces] == [
        "standard input/rank0.json",
        "standard input/rank1.json",
    ]


def test_an_empty_pipe_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Pipe(b""))
    with pytest.raises(InputError, match="Standard input is empty: pipe a trace into `ddp-advisor analyze -`"):
        find_sources(["-"])


# ---------------------------------------------------------------------------------------------------- what is said


def test_the_head_tells_whose_trace_it_is() -> None:
    head = read_head(make_trace(3, world_size=8, process=77, start=1_000))
    assert (head.is_trace, head.rank, head.world_size, head.process, head.first_ns) == (True, 3, 8, "77", 1_000_000)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le"])
def test_the_head_is_read_in_any_encoding(encoding: str) -> None:
    head = read_head(make_trace(3).decode().encode(encoding))
    assert (head.is_trace, head.rank) == (True, 3)


def test_nested_groups_do_not_hide_the_rank() -> None:
    info = b'{"distributedInfo": {"backend": "nccl", "pg_config": [{"ranks": [0, 1]}], "rank": "5"}, "traceEvents": ['
    assert read_head(info).rank == 5


def test_a_list_of_groups_may_be_longer_than_the_head() -> None:
    groups = b'[{"ranks": [' + b"0, " * HEAD_BYTES
    info = b'{"distributedInfo": {"backend": "nccl", "rank": 5, "world_size": 4096, "pg_config": ' + groups
    head = read_head(info[:HEAD_BYTES])
    assert (head.is_trace, head.rank, head.world_size) == (True, 5, 4096)


@pytest.mark.parametrize(
    "info",
    [b"[1]", b'{"rank": -1}', b'{"rank": null}', b'{"rank": "x"}', b'{"pg_config": [{"rank": 1', b"{" * HEAD_BYTES],
)
def test_what_is_no_rank_is_none(info: bytes) -> None:
    head = read_head(b'{"distributedInfo": ' + info)
    assert (head.is_trace, head.rank) == (True, None)


def test_other_json_is_a_stray(tmp_path: Path) -> None:
    write_ranks(tmp_path)
    write_file(tmp_path / "package.json", b'{"name": "a package"}')
    write_file(tmp_path / "empty.json", b"")
    assert [Path(stray.name).name for stray in find_sources([tmp_path]).strays] == ["empty.json", "package.json"]
    assert read_run([tmp_path]).notes[0].message == (
        f"{tmp_path}/empty.json, {tmp_path}/package.json are no traces and are left out."
    )


# --------------------------------------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("rank0.json", b"", "is not a Kineto trace in JSON"),
        ("rank0.json", b"{", "is not a Kineto trace in JSON"),
        ("rank0.json", b"Traceback (most recent call last):", "is not a Kineto trace in JSON"),
        ("rank0.json", b'{"title": "a package"}', "is JSON but no Kineto trace"),
        ("rank0.json", b"42", "is not a Kineto trace in JSON"),
        ("rank0.json", b"[]", "holds no timed events"),
        ("rank0.json", b'{"traceEvents": []}', "holds no timed events"),
        ("rank0.json.gz", gzip.compress(b'{"traceEvents": [{}]}', mtime=0)[:-9], "is damaged (it ends too early)"),
        ("rank0.json.gz", b"\x1f\x8b", "is damaged (it ends too early)"),
        ("rank0.json.gz", b"\x1f\x8b\x08\x00garbage that is no gzip", "is damaged (Error"),
    ],
)
def test_a_file_that_is_no_trace_is_one_sentence(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as failure:
        read_run([tmp_path])
    message = str(failure.value)
    assert message.startswith(f"{path} {sentence}")
    assert message.endswith(".")
    assert "\n" not in message


def test_a_cut_off_file_is_read_up_to_there(tmp_path: Path) -> None:
    trace = RankTrace(world_size=1)
    for start in range(0, 5000, 10):
        trace.operator("aten::mm", start, start + 5)
    whole = gzip.compress(trace.to_json())
    (tmp_path / "rank0.json.gz").write_bytes(whole[: len(whole) // 2])
    run = read_run([tmp_path])
    assert 100 < len(run.traces[0].events) < 500
    assert run.notes[0].message == (
        f"{tmp_path}/rank0.json.gz is damaged (it ends too early): only what comes before is used."
    )
    assert run.traces[0].notes[0] in run.notes


def test_what_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere does not exist: give a run folder"):
        find_sources([tmp_path / "nowhere"])
    with pytest.raises(InputError, match=r"holds no trace \(\*\.json, \*\.json\.gz, \*\.json\.zst, \*\.zip or"):
        find_sources([tmp_path])
    with pytest.raises(InputError, match=r"A path is empty: give a run folder"):
        find_sources([""])
    (tmp_path / "rank0.json").symlink_to("gone")
    with pytest.raises(InputError, match=r"rank0\.json is a link that leads nowhere"):
        find_sources([tmp_path / "rank0.json"])


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank0.json")
    sentence = r"rank0\.json is a pipe, not a file: send what it gives into `ddp-advisor analyze -`"
    with pytest.raises(InputError, match=sentence):
        find_sources([tmp_path / "rank0.json"])
    with pytest.raises(InputError, match=sentence):
        find_sources([tmp_path])


def test_a_device_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="/dev/zero is a device or socket, not a file"):
        find_sources(["/dev/zero"])


def test_a_forbidden_file_does_not_hide_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_ranks(tmp_path)
    open_file = Path.open

    def forbid(path: Path, *mode: str) -> object:
        if path.name == "rank1.json":
            raise PermissionError(13, "Permission denied")
        return open_file(path, *mode)

    monkeypatch.setattr(Path, "open", forbid)
    found = find_sources([tmp_path])
    assert [source.rank for source in found.sources] == [0]
    (failure,) = found.failures
    assert failure == (f"{tmp_path}/rank1.json cannot be read (Permission denied): check the path and who may read it.")


def test_perfettos_own_format_is_named_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "rank0.pftrace").write_bytes(b"\x0a\x11\x12")
    sentence = r"rank0\.pftrace is a Perfetto trace, which is not read yet: export JSON with prof\.export_chrome_trace"
    with pytest.raises(InputError, match=sentence):
        find_sources([tmp_path])
    with pytest.raises(InputError, match=sentence):
        find_sources([tmp_path / "rank0.pftrace"])
    write_file(tmp_path / "rank1.json", make_trace(1))
    assert len(find_sources([tmp_path]).failures) == 1


def test_names_cannot_move_the_cursor(tmp_path: Path) -> None:
    assert show_name("rank0.json") == "rank0.json"
    assert show_name("a\x1b[2Jb\n\u202e\udcff.json") == r"a\x1b[2Jb\n\u202e\xff.json"
    write_file(tmp_path / "rank0\x1b[31m\udcff.json", make_rankless_trace())
    (trace,) = read_run([tmp_path]).traces
    assert trace.file == rf"{tmp_path}/rank0\x1b[31m\xff.json"


def test_long_lists_are_cut() -> None:
    assert list_names(["a", "b", "c"]) == "a, b, c"
    assert list_names(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
