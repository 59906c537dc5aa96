"""What doctor finds in the files of small recordings, and across them."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pytest

from advisor.doctor.diagnosis import diagnose
from advisor.errors import InputError, UsageError
from tests.doctor_builders import (
    build_rank,
    codes,
    figures,
    look_at,
    write,
    write_both,
)
from tests.trace_files import make_rankless_trace, pack_zip


def test_an_empty_folder_speaks_of_step(tmp_path: Path) -> None:
    run = look_at(tmp_path)
    assert (run.quality, codes(run), run.ranks) == ("unusable", ["no_trace"], ())
    assert "prof.step()" in run.findings[0].fix
    assert "ProfilerActivity.CUDA" in run.recipe


def test_a_path_that_is_not_there_is_bad_use(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        diagnose([tmp_path / "missing"])


def test_other_json_alone_is_no_trace_and_named(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text('{"name": "x"}')
    diagnosis = diagnose([tmp_path])
    assert codes(diagnosis.runs[0]) == ["no_trace"]
    assert ["package.json is JSON but no Kineto trace" in sentence for sentence in diagnosis.left_out] == [True]


def test_a_trace_that_does_not_begin_like_one_is_read_all_the_same(tmp_path: Path) -> None:
    padding = json.dumps("x" * 2**18).encode()
    (tmp_path / "rank0.json").write_bytes(b'{"padding": ' + padding + b"," + build_rank().to_json()[1:])
    run = look_at(tmp_path)
    assert (len(run.ranks), codes(run)[0]) == (1, "missing_ranks")


def test_a_file_that_cannot_be_read_is_named_and_does_not_stop_the_others(tmp_path: Path) -> None:
    write(tmp_path, build_rank())
    (tmp_path / "rank1.json").write_bytes(b'{"distributedInfo": {"rank": 1, "world_size": 2}, "traceEvents": []}')
    run = look_at(tmp_path)
    assert (run.quality, codes(run)) == ("usable", ["unreadable_files", "missing_ranks"])
    assert ["rank1.json holds no timed events" in sentence for sentence in run.left_out] == [True]
    assert figures(run, "unreadable_files") == {"unreadable": 1}


def test_a_file_that_cannot_even_be_opened_is_named_too(tmp_path: Path) -> None:
    write_both(tmp_path)
    (tmp_path / "rank2.json.gz").write_bytes(b"\x1f\x8bnot gzip at all")
    (tmp_path / "rank3.pftrace").touch()
    diagnosis = diagnose([tmp_path])
    assert [run.quality for run in diagnosis.runs] == ["good"]
    assert ["rank2" in sentence or "rank3" in sentence for sentence in diagnosis.left_out] == [True, True]


def test_only_unreadable_files_are_unusable(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_bytes(b'{"traceEvents": []}')
    run = look_at(tmp_path)
    assert (run.quality, codes(run), len(run.left_out)) == ("unusable", ["unreadable_files"], 1)


@pytest.mark.parametrize("separator", [b"", b"\n"])
def test_two_ranks_in_one_file_are_refused_with_advice(tmp_path: Path, separator: bytes) -> None:
    first, second = (build_rank(rank).to_json() for rank in range(2))
    (tmp_path / "trace.json").write_bytes(first + separator + second)
    run = look_at(tmp_path)
    assert (run.quality, codes(run)) == ("unusable", ["mixed_ranks"])
    assert figures(run, "mixed_ranks") == {"with several recordings": 1}
    assert "give every rank a file of its own" in run.left_out[0]


def test_a_missing_rank_limits_what_can_be_said(tmp_path: Path) -> None:
    run = look_at(write(tmp_path, build_rank(0, world_size=4), build_rank(2, world_size=4)))
    assert (run.quality, codes(run), run.missing_ranks) == ("usable", ["missing_ranks"], (1, 3))
    assert figures(run, "missing_ranks") == {"missing": 2, "world size": 4}


@pytest.mark.parametrize(
    ("name", "is_shared"),
    [("trace.json", True), ("rank1.json", False), ("host_4000.1698955063520869240.pt.trace.json", False)],
)
def test_a_lone_file_without_a_rank_in_its_name_may_have_been_overwritten(
    tmp_path: Path, name: str, is_shared: bool
) -> None:
    (tmp_path / name).write_bytes(build_rank(1).to_json())
    assert codes(look_at(tmp_path)) == ["missing_ranks"] + ["shared_path"] * is_shared


def test_files_that_tell_no_rank_are_numbered_and_it_is_said(tmp_path: Path) -> None:
    for name, process in (("a.json", 1), ("b.json", 2)):
        (tmp_path / name).write_bytes(make_rankless_trace(process))
    run = look_at(tmp_path)
    assert [rank.rank for rank in run.ranks] == [0, 1]
    assert {"unknown_ranks", "unknown_world_size"} <= set(codes(run))
    assert figures(run, "unknown_ranks") == {"without a rank": 2}
    told = look_at(tmp_path, ranks=[1, 0])
    assert [rank.files[0][-6:] for rank in told.ranks] == ["b.json", "a.json"]
    assert "unknown_ranks" not in codes(told)
    with pytest.raises(UsageError):
        diagnose([tmp_path], ranks=[0])


def test_a_file_without_distributed_info_counts_as_a_run_of_one(tmp_path: Path) -> None:
    document = json.loads(build_rank().to_json())
    del document["distributedInfo"]
    (tmp_path / "rank0.json").write_text(json.dumps(document))
    run = look_at(tmp_path)
    assert (run.quality, codes(run), run.world_size) == ("unusable", ["unknown_world_size"], None)
    document["traceEvents"] = [{**event, "pid": 4001} for event in document["traceEvents"]]
    (tmp_path / "rank1.json").write_text(json.dumps(document))
    assert (look_at(tmp_path).quality, codes(look_at(tmp_path))) == ("good", ["unknown_world_size"])


def test_one_rank_has_nothing_to_exchange(tmp_path: Path) -> None:
    run = look_at(write(tmp_path, build_rank(world_size=1)))
    assert (run.quality, codes(run)) == ("unusable", ["single_rank"])


def test_a_file_that_is_cut_off_loses_steps(tmp_path: Path) -> None:
    write_both(tmp_path)
    text = (tmp_path / "rank1.json").read_bytes()
    (tmp_path / "rank1.json").write_bytes(text[: len(text) * 3 // 4])
    run = look_at(tmp_path)
    assert (run.quality, codes(run)[0], run.findings[0].ranks) == ("usable", "damaged_files", (1,))
    assert (
        figures(run, "damaged_files")["steps left out, at most"]
        == len(run.ranks[1].steps) - run.ranks[1].num_used_steps
    )


def test_stacks_are_only_worth_a_word_where_they_are_many(tmp_path: Path) -> None:
    traces = [build_rank(rank) for rank in range(2)]
    assert codes(look_at(write(tmp_path, *traces, with_stack=1))) == []
    num_events = len(traces[0].events)
    for trace in traces:
        for number in range(3 * num_events):
            trace.add("python_function", f"model.py({number}): forward", number, number + 1)
    run = look_at(write(tmp_path, *traces, with_stack=1))
    assert (run.quality, codes(run)) == ("good", ["stacks"])
    assert figures(run, "stacks")["events that are not read"] == pytest.approx(0.75)


def test_everything_that_analyze_reads_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {f"rank{rank}.json": build_rank(rank).to_json() for rank in range(2)}
    archive = tmp_path / "run.zip"
    archive.write_bytes(pack_zip(texts))
    assert [rank.rank for rank in look_at(archive).ranks] == [0, 1]
    (tmp_path / "rank0.json.gz").write_bytes(gzip.compress(texts["rank0.json"]))
    assert look_at(tmp_path / "rank*.json.gz").ranks[0].packing == "gzip"
    pipe = io.TextIOWrapper(io.BytesIO(texts["rank1.json"]))
    monkeypatch.setattr("sys.stdin", pipe)
    piped = look_at(Path("-"))
    assert (piped.ranks[0].rank, codes(piped)) == (1, ["missing_ranks"])


def test_several_runs_are_told_apart_and_each_has_its_own_verdict(tmp_path: Path) -> None:
    write_both(tmp_path / "a")
    write(tmp_path / "b", build_rank(world_size=1))
    diagnosis = diagnose([tmp_path])
    assert [(run.source, run.quality) for run in diagnosis.runs] == [
        (f"{tmp_path.as_posix()}/a", "good"),
        (f"{tmp_path.as_posix()}/b", "unusable"),
    ]
    assert diagnosis.quality == "unusable"


def test_a_manifest_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (write_both(tmp_path) / "manifest.json").write_text("{}")
    diagnosis = diagnose([tmp_path])
    assert diagnosis.runs[0].quality == "good"
    assert ["manifest.json is not a RunManifest" in sentence for sentence in diagnosis.left_out] == [True]


def test_progress_goes_by_file(tmp_path: Path) -> None:
    told: list[tuple[int, int, str]] = []
    diagnose([write_both(tmp_path)], on_progress=lambda *what: told.append(what))
    assert told == [(0, 2, "rank0.json"), (1, 2, "rank1.json")]
