"""Ranks in one archive: few passes through it, however many they are and in whatever order they lie."""

from __future__ import annotations

import gzip
import io
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from advisor.doctor.diagnosis import diagnose
from advisor.readers import streams
from advisor.readers.archives import Member, OpenArchives
from advisor.readers.batches import open_archives, order_ranks, split_ranks
from advisor.readers.heads import HEAD_BYTES
from advisor.readers.locations import LocalFile, StandardInput
from advisor.readers.run import read_rank, read_ranks, read_run
from advisor.readers.run_files import RankFiles, find_run
from tests.trace_files import make_trace, pack_tar, pack_zip, write_ranks

NUM_RANKS = 20
SHUFFLED = [rank * 17 % NUM_RANKS for rank in range(NUM_RANKS)]
PADDING = b" " * 2 * HEAD_BYTES
PACKED = pack_tar({f"rank{rank}.json": make_trace(rank, world_size=NUM_RANKS) + PADDING for rank in SHUFFLED})
LOOK = HEAD_BYTES / len(PACKED)
"""What finding out that a file is an archive costs, in passes."""

Count = Callable[[], int]


@pytest.fixture
def shuffled(tmp_path: Path) -> Path:
    """A compressed tar in which ranks lie in the order of `SHUFFLED`."""
    path = tmp_path / "run.tar.gz"
    path.write_bytes(gzip.compress(PACKED))
    return path


@pytest.fixture
def count_passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """How many times all of `PACKED` has been decompressed."""
    read_gzip = streams._read_gzip
    sizes: list[int] = []

    def read_counted(raw: streams.Stored) -> Iterator[bytes]:
        for chunk in read_gzip(raw):
            sizes.append(len(chunk))
            yield chunk

    monkeypatch.setattr(streams, "_read_gzip", read_counted)
    return lambda: sum(sizes) / len(PACKED)


def list_ranks(batches: Sequence[Sequence[RankFiles]]) -> list[list[int]]:
    return [[files.rank for files in batch] for batch in batches]


# ------------------------------------------------------------------------------------------------------- the plan


def test_the_ranks_of_an_archive_go_as_they_lie(tmp_path: Path) -> None:
    path = tmp_path / "run.tar"
    path.write_bytes(pack_tar({f"rank{rank}.json": make_trace(rank, world_size=4) for rank in (2, 0, 3, 1)}))
    ranks = find_run([path]).ranks
    assert list_ranks(split_ranks(ranks, most_passes=2)) == [[2, 0], [3, 1]]
    assert list_ranks(split_ranks(ranks)) == [[2], [0], [3], [1]]
    assert list_ranks([order_ranks(ranks)]) == [[2, 0, 3, 1]]


def test_files_and_several_archives_are_apart(tmp_path: Path) -> None:
    write_ranks(tmp_path / "run", 2)
    for name, held in (("a.tar", (5, 2)), ("b.zip", (4, 3))):
        pack = pack_zip if name == "b.zip" else pack_tar
        (tmp_path / "run" / name).write_bytes(pack({f"rank{rank}.json": make_trace(rank) for rank in held}))
    ranks = find_run([tmp_path / "run"]).ranks
    assert list_ranks(split_ranks(ranks, most_passes=1)) == [[0], [1], [5, 2], [4, 3]]


# ------------------------------------------------------------------------------------------- what is decompressed


def test_one_process_reads_a_shuffled_archive_in_one_pass_after_the_one_that_found_it(
    shuffled: Path, count_passes: Callable[[], float]
) -> None:
    run = find_run([shuffled])
    assert 1 <= count_passes() < 1.1 + LOOK
    ranks, notes = read_ranks(run, lambda trace: trace.rank)
    assert ranks == list(range(NUM_RANKS))
    assert notes == ()
    assert 1.9 < count_passes() < 2.1 + LOOK


def test_workers_share_few_passes(shuffled: Path, count_passes: Callable[[], float]) -> None:
    run = find_run([shuffled])
    with ThreadPoolExecutor(2) as executor:
        ranks, notes = read_ranks(run, lambda trace: trace.rank, executor=executor)
    assert (ranks, notes) == (list(range(NUM_RANKS)), ())
    # One pass finds them; then ten batches of two ranks are each read as far as they reach: 0.1 + 0.2 + … + 1.
    assert 6.4 < count_passes() < 6.6 + LOOK


def test_a_pipe_that_workers_cannot_open_is_read_here_in_one_pass(
    shuffled: Path, count_passes: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    class FarAway(ThreadPoolExecutor):
        """Its workers get what processes would get."""

        def map(self, function: Any, *items: Any, **_: Any) -> Iterator[Any]:
            return map(function, *(pickle.loads(pickle.dumps(each)) for each in items))

    monkeypatch.setattr("advisor.readers.paths.read_standard_input", lambda: StandardInput(shuffled.read_bytes()))
    executor: Executor = FarAway(1)
    ranks, notes = read_ranks(find_run(["-"]), lambda trace: trace.rank, executor=executor)
    executor.shutdown()
    assert ranks == list(range(NUM_RANKS))
    assert notes[0].message.startswith(f"Workers could not open the files of {NUM_RANKS} of")
    assert count_passes() < 2.1 + LOOK


def test_doctor_reads_a_shuffled_archive_in_one_pass_too(shuffled: Path, count_passes: Callable[[], float]) -> None:
    (run,) = diagnose([shuffled]).runs
    assert [rank.rank for rank in run.ranks] == list(range(NUM_RANKS))
    assert count_passes() < 2.1 + LOOK


# ----------------------------------------------------------------------------------------------- opened members


def test_any_order_reads_the_same(shuffled: Path) -> None:
    ranks = find_run([shuffled]).ranks
    with open_archives(ranks) as archives:
        assert [read_rank(files, archives)[0].rank for files in ranks] == list(range(NUM_RANKS))


@pytest.mark.parametrize("pack", [pack_tar, pack_zip])
def test_an_archive_is_closed_after_its_last_member(tmp_path: Path, pack: Callable[[dict[str, bytes]], bytes]) -> None:
    files: list[io.BufferedReader] = []

    class Watched(LocalFile):
        def open(self) -> io.BufferedReader:
            files.append(self.path.open("rb"))
            return files[-1]

    places = [Watched(tmp_path / name) for name in ("first", "second")]
    for place in places:
        place.path.write_bytes(pack({"a": b"1", "b": b"2", "c": b"3"}))
    members = [Member(place, at, "abc"[at]) for place in places for at in (0, 2)]
    with closing(OpenArchives(members)) as archives:
        read = [archives.open(member).read() for member in members[:2]]
        assert not all(file.closed for file in files)
        read.append(archives.open(members[2]).read())
        assert [file.closed for file in files].count(False) == 1
        read.append(archives.open(members[3]).read())
    assert read == [b"1", b"3", b"1", b"3"]
    assert all(file.closed for file in files)


def test_a_member_that_is_gone_is_missed(tmp_path: Path) -> None:
    path = tmp_path / "run.tar"
    path.write_bytes(pack_tar({"rank0.json": make_trace()}))
    gone = Member(LocalFile(path), 1, "rank1.json")
    with closing(OpenArchives([gone])) as archives, pytest.raises(FileNotFoundError, match=r"run\.tar/rank1\.json"):
        archives.open(gone)


def test_a_run_is_the_same_packed_or_not(shuffled: Path, tmp_path: Path) -> None:
    folder = write_ranks(tmp_path / "run", NUM_RANKS)
    packed, plain = read_run([shuffled]), read_run([folder])
    assert [trace.rank for trace in packed.traces] == [trace.rank for trace in plain.traces]
    assert packed.notes == plain.notes
