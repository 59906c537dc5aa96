"""One run out of many files: runs separated, ranks settled, windows in order, and everything odd said in a note."""

from __future__ import annotations

import gzip
import pickle
import shutil
from pathlib import Path

import pytest

from advisor.errors import InputError, UsageError
from advisor.readers.batches import open_archives
from advisor.readers.run import read_rank, read_run
from advisor.readers.run_files import FAR_APART_NS, find_run
from tests.trace_files import make_rankless_trace, make_trace, write_file, write_ranks


def list_files(folder: Path, *ranks: int) -> list[list[str]]:
    """Names by rank."""
    run = find_run([folder], ranks)
    return [[source.name.removeprefix(f"{folder}/") for source in files.sources] for files in run.ranks]


def refuse(*paths: str | Path) -> str:
    with pytest.raises(InputError) as failure:
        find_run(paths)
    return str(failure.value)


# ------------------------------------------------------------------------------------------------- several runs


def test_runs_are_told_apart_by_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_ranks(Path("traces/a"), process=100)
    write_ranks(Path("traces/my runs"), process=200)
    assert refuse("traces") == (
        "traces holds 2 runs: traces/a with 2 ranks, traces/my runs with 2 ranks; "
        "analyze one of them, such as `ddp-advisor analyze traces/a`."
    )
    assert len(find_run(["traces/my runs"]).ranks) == 2


def test_runs_are_told_apart_by_an_inner_folder(tmp_path: Path) -> None:
    for node in (0, 1):
        for run in (0, 1):
            for rank in (2 * node, 2 * node + 1):
                text = make_trace(rank, world_size=4, process=1000 * run + rank)
                write_file(tmp_path / f"node{node}" / f"run{run}" / f"rank{rank}.json", text)
    assert "holds 2 runs: " in refuse(tmp_path)
    assert [files.rank for files in find_run([f"{tmp_path}/node*/run1"]).ranks] == [0, 1, 2, 3]


def test_a_folder_for_each_rank_is_one_run(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_file(tmp_path / f"rank{rank}" / "trace.json", make_trace(rank))
    assert list_files(tmp_path) == [["rank0/trace.json"], ["rank1/trace.json"]]


def test_runs_are_told_apart_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_ranks(Path("traces"), name="base-rank{}.json", process=100)
    write_ranks(Path("traces"), name="fast-rank{}.json.gz", process=200)
    sentence = refuse("traces")
    assert "traces/base-rank* with 2 ranks, traces/fast-rank* with 2 ranks" in sentence
    assert sentence.endswith("`ddp-advisor analyze 'traces/base-rank*'`.")
    assert len(find_run(["traces/fast-rank*"]).ranks) == 2


def test_runs_are_told_apart_by_time_where_names_say_nothing(tmp_path: Path) -> None:
    for run, process in enumerate((21, 58)):
        for rank in (0, 1):
            clock = 1698955063_000000000 + run * 10**12 + rank
            text = make_trace(rank, process=process + rank)
            write_file(tmp_path / f"host_{process + rank}.{clock}.pt.trace.json", text)
    assert f"holds 2 runs: {tmp_path}/host_2* with 2 ranks, {tmp_path}/host_5* with 2 ranks" in refuse(tmp_path)


def test_runs_without_a_name_of_their_own_have_to_be_moved(tmp_path: Path) -> None:
    for process, name in ((7, "x1"), (8, "y2"), (9, "x3"), (6, "y4")):
        rank = 0 if name[0] == "x" else 1
        write_file(tmp_path / f"{name}.json", make_trace(rank, process=process, start=process * 10))
    assert "; move the files of each into a folder of its own and analyze one." in refuse(tmp_path)


def test_runs_of_different_sizes_are_different_runs(tmp_path: Path) -> None:
    write_file(tmp_path / "a.json", make_trace(0, world_size=2))
    write_file(tmp_path / "b.json", make_trace(1, world_size=8))
    assert "holds 2 runs" in refuse(tmp_path)


def test_a_manifest_marks_a_run(tmp_path: Path) -> None:
    for run, rank in (("a", 0), ("b", 1)):
        write_file(tmp_path / run / f"rank{rank}.json", make_trace(rank))
        (tmp_path / run / "manifest.json").write_text("{}")
    assert "holds 2 runs" in refuse(tmp_path)
    assert f"{tmp_path}/a/manifest.json is not a RunManifest" in refuse(tmp_path / "a")
    assert f"{tmp_path}/a/manifest.json is not a RunManifest" in refuse(tmp_path / "a" / "rank0.json")


def test_many_runs_are_not_all_listed(tmp_path: Path) -> None:
    for run in range(9):
        write_ranks(tmp_path / f"run{run}", process=100 * run)
    assert "run5 with 2 ranks and 3 more; analyze one" in refuse(tmp_path)


# ------------------------------------------------------------------------------------------------ several files


@pytest.mark.parametrize("name", ["step{step}/rank{rank}.json", "rank{rank}_step{step}.json"])
def test_windows_of_one_process_are_one_run(tmp_path: Path, name: str) -> None:
    for rank in (0, 1):
        for step in (20, 3):
            text = make_trace(rank, start=100 * step, step=step)
            write_file(tmp_path / name.format(step=step, rank=rank), text)
    assert list_files(tmp_path) == [[name.format(step=step, rank=rank) for step in (3, 20)] for rank in (0, 1)]
    run = read_run([tmp_path])
    assert [len(trace.events) for trace in run.traces] == [4, 4]
    assert run.notes[0].message == (
        "Each rank has 2 files, recorded one after the other: they are read as one recording."
    )


def test_two_runs_in_the_same_process_number_are_noticed_when_read(tmp_path: Path) -> None:
    write_file(tmp_path / "a" / "rank0.json", make_trace(0, process=1, start=10))
    write_file(tmp_path / "b" / "rank0.json", make_trace(0, process=1, start=1000))
    with pytest.raises(InputError, match=r"are both rank 0 and both hold step 3: they are of different runs"):
        read_run([tmp_path])


def test_a_trace_and_its_compressed_copy_are_one(tmp_path: Path) -> None:
    path = write_file(tmp_path / "rank0.json", make_trace(0, world_size=1))
    (tmp_path / "rank0.json.gz").write_bytes(gzip.compress(path.read_bytes()))
    run = read_run([tmp_path])
    assert [trace.file for trace in run.traces] == [str(path)]
    assert [note.message for note in run.notes] == [f"{path}.gz repeats {path} and is left out."]


def test_one_unreadable_rank_does_not_stop_the_others(tmp_path: Path) -> None:
    write_ranks(tmp_path)
    (tmp_path / "rank1.json").write_bytes(make_trace(1).replace(b'"ph": "X"', b'"ph": "B"'))
    run = read_run([tmp_path])
    assert [trace.rank for trace in run.traces] == [0]
    assert run.notes[0].message.startswith(f"Left out: {tmp_path}/rank1.json holds no timed events")
    assert run.notes[1].message.startswith("1 of 2 ranks are missing (1)")


def test_only_a_few_failures_are_told_in_full(tmp_path: Path) -> None:
    write_ranks(tmp_path)
    for number in range(6):
        (tmp_path / f"{number}.pftrace").touch()
    notes = [note.message for note in find_run([tmp_path]).notes]
    assert len(notes) == 5
    assert notes[-1] == "2 more files could not be read."


def test_ranks_recorded_at_different_times_are_pointed_out(tmp_path: Path) -> None:
    write_file(tmp_path / "rank0.json", make_trace(0))
    write_file(tmp_path / "rank1.json", make_trace(1, start=FAR_APART_NS // 1000 + 1000))
    (note,) = find_run([tmp_path]).notes
    assert note.message.startswith("Ranks 0 and 1 were recorded 10 minutes apart")


# -------------------------------------------------------------------------------------------------------- ranks


def test_the_file_knows_its_rank_better_than_its_name(tmp_path: Path) -> None:
    write_file(tmp_path / "rank0.json", make_trace(1))
    write_file(tmp_path / "rank1.json", make_trace(0))
    assert list_files(tmp_path) == [["rank1.json"], ["rank0.json"]]


def test_the_name_tells_the_rank_where_the_file_does_not(tmp_path: Path) -> None:
    write_file(tmp_path / "worker1.json", make_rankless_trace(101))
    write_file(tmp_path / "worker0.json", make_rankless_trace(100))
    assert list_files(tmp_path) == [["worker0.json"], ["worker1.json"]]


def test_files_that_tell_no_rank_ask_for_it(tmp_path: Path) -> None:
    for name in ("blue", "alien"):
        write_file(tmp_path / f"{name}.json", make_rankless_trace(ord(name[0])))
    assert refuse(tmp_path) == (
        f"{tmp_path}/alien.json, {tmp_path}/blue.json tell no rank, neither inside nor by name: rename to "
        "rank<number>.json, leave out what is no rank's trace, or give --ranks in the order of the names."
    )
    assert list_files(tmp_path, 1, 0) == [["blue.json"], ["alien.json"]]
    assert [trace.rank for trace in read_run([tmp_path], ranks=[5, 3]).traces] == [3, 5]


@pytest.mark.parametrize("ranks", [(0,), (0, 1, 2), (0, -1)])
def test_ranks_that_do_not_fit_are_refused(tmp_path: Path, ranks: tuple[int, ...]) -> None:
    for name in ("a", "b"):
        write_file(tmp_path / f"{name}.json", make_rankless_trace(ord(name)))
    with pytest.raises(UsageError, match=rf"--ranks has {len(ranks)} ranks but 2 files tell none \(.*a\.json, "):
        find_run([tmp_path], ranks)


def test_ranks_are_not_asked_for_where_they_are_known(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--ranks has 2 ranks but 0 files tell none: "):
        find_run([write_ranks(tmp_path)], [0, 1])


def test_a_lone_file_is_rank_0(tmp_path: Path) -> None:
    path = write_file(tmp_path / "ref.json", make_rankless_trace())
    run = read_run([path])
    assert [trace.rank for trace in run.traces] == [0]
    assert [note.message for note in run.notes] == [f"{path} tells no rank and is taken for rank 0."]


def test_missing_ranks_are_noted_with_what_they_cost(tmp_path: Path) -> None:
    (note,) = read_run([write_file(tmp_path / "rank3.json", make_trace(3, world_size=16))]).notes
    assert note.message.startswith("15 of 16 ranks are missing (0, 1, 2, 4, 5, 6, 7, 8, …): waiting for peers")


# -------------------------------------------------------------------------------------------------- what is read


def test_progress_goes_by_rank(tmp_path: Path) -> None:
    write_ranks(tmp_path)
    seen: list[tuple[int, int, str]] = []
    read_run([tmp_path], on_progress=lambda *progress: seen.append(progress))
    assert seen == [(0, 2, "rank0.json"), (1, 2, "rank1.json"), (2, 2, "read")]


def test_a_rank_can_be_read_in_another_process(tmp_path: Path) -> None:
    write_ranks(tmp_path / "run")
    shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path / "run")
    for place in ("run", "packed.zip"):
        files = pickle.loads(pickle.dumps(find_run([tmp_path / place]).ranks[1]))
        with open_archives([files]) as archives:
            assert read_rank(files, archives)[0].rank == 1


def test_many_paths_are_named_in_short(tmp_path: Path) -> None:
    write_ranks(tmp_path, 5)
    paths = [tmp_path / f"rank{rank}.json" for rank in range(5)]
    assert read_run(paths).source == f"{paths[0]}, {paths[1]}, {paths[2]} and 2 more"
