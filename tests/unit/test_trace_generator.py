from __future__ import annotations

import gzip
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest

from advisor.readers.damage import list_steps
from advisor.readers.run import read_run
from benchmarks.trace_generator import generate_run
from tests.trace_builders import RankTrace


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """One rank of two: steps 3 and 4, with a kernel and a collective in each."""
    trace = RankTrace(backend="nccl", clock_us=5_000)
    for number in (3, 4):
        at = 10_000 * number
        trace.step(number, at, at + 9_000)
        trace.operator("aten::mm", at + 100, at + 200)
        trace.kernel(at + 150, at + 300, at + 4_000)
        trace.nccl(at + 500, at + 4_100, at + 8_000, 64, sequence=number)
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "rank0.json").write_bytes(trace.to_json())
    return folder


def generate(source: Path, name: str, *, compress: bool = False) -> list[Path]:
    num_bytes = 3 * (source / "rank0.json").stat().st_size
    return generate_run(source, source.parent / name, num_ranks=2, num_bytes=num_bytes, compress=compress)


def find_kernels(events: pd.DataFrame) -> pd.DataFrame:
    return events[events["category"] == "kernel"]


def test_a_rank_repeats_its_steps_one_after_the_other(source: Path) -> None:
    traces = read_run(generate(source, "run")).traces
    assert [(trace.rank, trace.world_size, trace.notes) for trace in traces] == [(0, 2, ()), (1, 2, ())]
    for trace in traces:
        steps = list_steps(trace.events)
        assert [number for number, _, _ in steps] == [3, 4, 5, 6, 7, 8]
        assert all(end <= start for (_, _, end), (_, start, _) in pairwise(steps))
        assert find_kernels(trace.events)["correlation"].is_unique
        assert sorted(trace.events["sequence"].unique()) == [-1, 3, 4, 5, 6, 7, 8]


def test_durations_differ_but_what_was_inside_stays_inside(source: Path) -> None:
    for trace in read_run(generate(source, "run")).traces:
        events = trace.events
        assert find_kernels(events).eval("end_ns - start_ns").nunique() > 6
        inside = events[events["name"].isin(["aten::mm", "cudaLaunchKernel"])]
        for start, end in zip(inside["start_ns"], inside["end_ns"], strict=True):
            assert any(begin <= start and end <= stop for _, begin, stop in list_steps(events))


def test_the_same_arguments_give_the_same_text_compressed_or_not(source: Path) -> None:
    once, again, packed = (generate(source, name, compress=name == "packed") for name in ("once", "again", "packed"))
    for plain, same, compressed in zip(once, again, packed, strict=True):
        assert plain.read_bytes() == same.read_bytes() == gzip.decompress(compressed.read_bytes())
    assert once[0].read_bytes() != once[1].read_bytes()
