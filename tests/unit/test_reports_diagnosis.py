"""A diagnosis on a terminal: what is wrong in its order, lines that can be pasted, and no name that acts."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from advisor.schema import Diagnosis, Evidence, Finding, FindingSeverity, QualityNote, RecordedRank, RunDiagnosis
from reports import render_diagnosis
from reports.diagnosis import MAX_RANKS, format_version

RECIPE = "with profile(\n    record_shapes=True,\n) as prof:\n    ...\n"


def recorded_rank(rank: int = 0, **overrides: object) -> RecordedRank:
    fields: dict[str, object] = {
        "rank": rank, "files": (f"traces/run/rank{rank}.pt.trace.json.gz",), "packing": "gzip", "num_bytes": 5 * 2**20,
        "num_events": 66639, "num_kept_events": 60000, "world_size": 2, "backend": "nccl", "host": "host",
        "device_type": "cuda", "devices": ("NVIDIA H200",) * 8,
        "versions": {"schemaVersion": "1", "cuda_runtime_version": "12060", "nccl_version": "2.28.9"},
        "record_shapes": True, "with_stack": None, "profile_memory": None, "clock_ns": 1, "step_source": "profiler",
        "steps": (3, 4, 5, 6, 7), "num_used_steps": 5, "num_collectives": 20, "num_sized_collectives": 20, **overrides,
    }  # fmt: skip
    return RecordedRank(**fields)


def finding(severity: FindingSeverity = "warning", **overrides: object) -> Finding:
    fields: dict[str, object] = {
        "code": "no_shapes", "severity": severity, "message": "No shapes were recorded.", "cost": "Nothing is split.",
        "fix": "Record with record_shapes=True.", "ranks": (0, 1),
        "evidence": (Evidence(name="gradients", value=8, unit=""),), **overrides,
    }  # fmt: skip
    return Finding(**fields)


def run_diagnosis(**overrides: object) -> RunDiagnosis:
    fields: dict[str, object] = {
        "source": "traces/run", "quality": "usable", "world_size": 2, "ranks": (recorded_rank(0), recorded_rank(1)),
        "missing_ranks": (), "findings": (finding(),), "recipe": RECIPE, **overrides,
    }  # fmt: skip
    return RunDiagnosis(**fields)


def diagnosis(*runs: RunDiagnosis, **overrides: object) -> Diagnosis:
    runs = runs or (run_diagnosis(),)
    fields: dict[str, object] = {"tool_version": "1", "source": "traces", "quality": runs[0].quality, **overrides}
    return Diagnosis(runs=runs, **fields)


def printed(what: Diagnosis, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    render_diagnosis(what, console)
    return console.file.getvalue()


def test_the_order_is_quality_files_findings_left_out_notes_lines_to_paste() -> None:
    run = run_diagnosis(left_out=("rank2.json is empty.",), notes=(QualityNote(message="It was mended."),))
    text = printed(diagnosis(run, left_out=("notes.json is no trace.",)))
    parts = [
        "Usable", "with one limit", "2 of 2 ranks · nccl · NVIDIA H200 · CUDA 12.6 · NCCL 2.28.9 · trace schema 1",
        "traces/run", "rank0.pt.trace.json.gz", "! No shapes were recorded.", "costs", "fix", "left out: rank2.json",
        "· It was mended.", "left out: notes.json", "To record better", RECIPE,
    ]  # fmt: skip
    places = [text.find(part) for part in parts]
    assert places == sorted(places)
    assert places[0] >= 0


@pytest.mark.parametrize("width", [80, 120])
def test_every_figure_is_there_and_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = printed(diagnosis(), width).splitlines()
    assert max(map(len, lines)) <= width
    rows = [line.split() for line in lines]
    row = next(row for row in rows if row[:1] == ["1"])
    assert row[-6:] == ["5", "MiB", "66639", "3–7", "20", "20"]


@pytest.mark.parametrize("width", [40, 80])
def test_lines_to_paste_are_never_broken(width: int) -> None:
    long = 'on_trace_ready=tensorboard_trace_handler("traces", worker_name="a name that is longer than any terminal")\n'
    assert long in printed(diagnosis(run_diagnosis(recipe=long)), width)


def test_the_same_lines_are_printed_once() -> None:
    assert printed(diagnosis(run_diagnosis(), run_diagnosis())).count(RECIPE) == 1


def test_ranks_are_named_where_not_all_are_concerned() -> None:
    assert "(ranks" not in printed(diagnosis())
    assert "No shapes were recorded. (ranks 1)" in printed(diagnosis(run_diagnosis(findings=(finding(ranks=(1,)),))))


def test_of_many_ranks_some_are_shown_and_it_is_said() -> None:
    text = printed(diagnosis(run_diagnosis(ranks=tuple(map(recorded_rank, range(40))))))
    assert f"the first {MAX_RANKS} of 40 ranks" in text
    assert "rank16" not in text


def test_nothing_at_all_still_prints() -> None:
    run = run_diagnosis(quality="unusable", world_size=None, ranks=(), findings=(finding("error", ranks=()),))
    assert "Unusable" in printed(diagnosis(run))


def test_control_characters_and_markup_in_names_are_shown_not_obeyed() -> None:
    evil = "\x1b[2J[red]\r\n\x9b"
    rank = recorded_rank(files=(evil,), backend=evil, devices=(evil,), versions={"nccl_version": evil})
    run = run_diagnosis(
        source=evil, ranks=(rank,), left_out=(evil,), notes=(QualityNote(message=evil, file=evil),),
        findings=(finding(message=evil, cost=evil, fix=evil),),
    )  # fmt: skip
    text = printed(diagnosis(run, source=evil, left_out=(evil,)), 300)
    assert not {character for character in text if ord(character) < 32 or 127 <= ord(character) < 160} - {"\n"}
    assert r"\x1b[2J[red]\r\n\x9b" in text


def test_colours_say_nothing_that_words_do_not() -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system="standard")
    render_diagnosis(diagnosis(), console)
    assert "\x1b[" in console.file.getvalue()
    plain = Console(file=io.StringIO(), width=120, force_terminal=True, color_system="standard", no_color=True)
    render_diagnosis(diagnosis(), plain)
    assert "\x1b[3" not in plain.file.getvalue()


@pytest.mark.parametrize(
    ("number", "unit", "minor", "spoken"),
    [("12060", 1000, 10, "12.6"), ("11080", 1000, 10, "11.8"), ("60443483", 10**7, 10**5, "6.4"), ("x", 1000, 10, "x")],
)
def test_version_numbers_are_spoken(number: str, unit: int, minor: int, spoken: str) -> None:
    assert format_version(number, unit, minor) == spoken


def test_it_survives_its_own_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(diagnosis()), type=Diagnosis) == diagnosis()
