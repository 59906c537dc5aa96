"""Paths in, a `Run` out: which files count, how they are opened, and one sentence for every way in which that fails."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from advisor.errors import InputError
from advisor.readers.run import read_run
from advisor.readers.sources import find_sources, guess_rank
from tests.trace_builders import RankTrace


def write_rank(folder: Path, rank: int, name: str | None = None, *, world_size: int = 2) -> Path:
    trace = RankTrace(rank, world_size)
    trace.operator("aten::mm", 0, 10)
    path = folder / (name or f"rank{rank}.pt.trace.json")
    text = trace.to_json()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.pt.trace.json.gz", 3),
        ("baseline-220ff-rank6-chrome-trace.json.gz", 6),
        ("sampled_rank-1.json.gz", 1),
        ("Rank_12.json", 12),
        ("trace0.json", 0),
        ("worker0_step_12.json", None),
        ("nccl_data.json.gz", None),
    ],
)
def test_the_rank_that_a_name_suggests(name: str, rank: int | None) -> None:
    assert guess_rank(name) == rank


def test_a_folder_gives_its_traces_in_order_and_nothing_else(tmp_path: Path) -> None:
    for name in ("rank1.json.gz", "rank0.json", "manifest.json", "report.json", "probe.json", "report.html"):
        (tmp_path / name).touch()
    assert [source.path.name for source in find_sources([tmp_path])] == ["rank0.json", "rank1.json.gz"]


def test_plain_and_compressed_ranks_are_one_run_by_rank(tmp_path: Path) -> None:
    second, first = write_rank(tmp_path, 1, "a.json.gz"), write_rank(tmp_path, 0, "b.json")
    seen: list[tuple[int, int, str]] = []
    run = read_run([second, first], on_progress=lambda *progress: seen.append(progress))
    assert [(trace.rank, trace.file) for trace in run.traces] == [(0, str(first)), (1, str(second))]
    assert seen == [(0, 2, "a.json.gz"), (1, 2, "b.json"), (2, 2, "read")]
    assert run.notes == ()
    assert run.manifest is None


def test_missing_ranks_are_noted_with_what_they_cost(tmp_path: Path) -> None:
    (note,) = read_run([write_rank(tmp_path, 3, world_size=16)]).notes
    assert note.message.startswith("15 of 16 ranks are missing (0, 1, 2, 4, 5, 6, 7, 8, …): waiting for peers")


def test_two_files_of_one_rank_are_refused(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, "morning.json")
    write_rank(tmp_path, 0, "evening.json")
    with pytest.raises(InputError, match=r"evening\.json are both rank 0: give the traces of one run"):
        read_run([tmp_path])


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("rank0.json", b"", "is not a Kineto trace in JSON"),
        ("rank0.json", b"{", "is not a Kineto trace in JSON"),
        ("rank0.json", b"Traceback (most recent call last):", "is not a Kineto trace in JSON"),
        ("rank0.json", b'{"traceEvents": [{"name": "\xff\xfe"}]}', "is not a Kineto trace in JSON"),
        ("rank0.json", b'{"title": "a package"}', "is JSON but no Kineto trace"),
        ("rank0.json", b"42", "is not a Kineto trace in JSON"),
        ("rank0.json", b"[]", "holds no timed events"),
        ("rank0.json", b'{"traceEvents": []}', "holds no timed events"),
        ("rank0.json.gz", gzip.compress(b'{"traceEvents": []}')[:-9], "is not a whole gzip file"),
        ("rank0.json.gz", b"\x1f\x8b", "is not a whole gzip file"),
        ("rank0.json.gz", b"\x1f\x8b\x08\x00garbage that is no gzip", "is not a whole gzip file"),
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


def test_what_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere does not exist: give a run folder"):
        read_run([tmp_path / "nowhere"])
    with pytest.raises(InputError, match=r"holds no trace \(\*\.json or \*\.json\.gz\)"):
        read_run([tmp_path])


def test_a_trace_that_tells_no_rank_asks_for_one(tmp_path: Path) -> None:
    event = b'[{"ph": "X", "name": "aten::mm", "ts": 1, "dur": 2}]'
    (tmp_path / "ref.json").write_bytes(event)
    with pytest.raises(InputError, match=r"ref\.json tells no rank.*rename it to rank<number>\.json"):
        read_run([tmp_path])
    (tmp_path / "ref.json").rename(tmp_path / "rank5.json")
    assert [trace.rank for trace in read_run([tmp_path]).traces] == [5]
