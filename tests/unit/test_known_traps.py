"""Four mistakes that other tools make on two ranks' traces, each a run whose right answer is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.pipeline import analyze
from advisor.schema import Estimate, Report
from reports.text import format_rate
from tests.trace_builders import RankTrace

STEP_US = 10_000
ELEMENTS = (250_000, 125_000)


def write(folder: Path, name: str, trace: RankTrace) -> None:
    (folder / f"{name}.json").write_bytes(trace.to_json())


def record(
    rank: int, numbers: range = range(3, 7), *, clock_us: int = 0, skip: tuple[int, int] | None = None
) -> RankTrace:
    """Steps of 10 ms with two buckets of 1 and 0.5 MB that take 1 µs a kB; `skip` leaves one out: (step, bucket)."""
    trace = RankTrace(rank, clock_us=clock_us)
    for number in numbers:
        zero = STEP_US * number
        trace.step(number, zero, zero + STEP_US)
        trace.forward(zero + 100, zero + 1100)
        for bucket, elements in enumerate(ELEMENTS):
            start = zero + 2000 + 2000 * bucket
            trace.gradient(start - 900, start, elements)
            if (number, bucket) != skip:
                trace.gloo(start - 1, start, start + elements // 250, elements)
        trace.copy_back(zero + 5000, zero + 5010)
        trace.optimizer(zero + 8000, zero + 9000)
    return trace


def analyze_ranks(folder: Path, *ranks: RankTrace) -> Report:
    folder.mkdir()
    for trace in ranks:
        write(folder, f"rank{trace.rank}", trace)
    return analyze([folder])


def waits(report: Report) -> set[int | None]:
    return {step.wait_ns for step in report.steps}


@pytest.fixture
def clean(tmp_path: Path) -> Report:
    return analyze_ranks(tmp_path / "clean", record(0), record(1))


def test_a_gigabyte_is_1e9_bytes(clean: Report) -> None:
    (megabyte,) = (c for c in clean.collectives if c.num_bytes == 10**6)
    assert megabyte.transfer_ns is not None
    assert megabyte.transfer_ns.value == 10**6  # 1 MB in 1 ms
    per_byte = megabyte.transfer_ns.value / megabyte.num_bytes
    assert format_rate(Estimate(value=per_byte, low=per_byte, high=per_byte, basis="measured")).startswith("1.000 GB/s")


@pytest.mark.parametrize("clock_us", [5000, 5_000_000])
def test_a_clock_that_is_off_makes_no_skew(tmp_path: Path, clean: Report, clock_us: int) -> None:
    report = analyze_ranks(tmp_path / "run", record(0), record(1, clock_us=clock_us))
    assert waits(report) == waits(clean) == {0}
    assert report.straggler is None
    assert [rank.clock_offset_ns for rank in report.ranks] == [0, 1000 * clock_us]
    assert [rank.mean_lateness_ns for rank in report.ranks] == [0, 0]


@pytest.mark.parametrize("skip", [(4, 0), (4, 1), (5, 0), (6, 1)])
def test_a_collective_that_one_rank_lacks_shifts_nothing(tmp_path: Path, skip: tuple[int, int]) -> None:
    report = analyze_ranks(tmp_path / "run", record(0), record(1, skip=skip))
    assert waits(report) == {0}
    assert [rank.mean_lateness_ns for rank in report.ranks] == [0, 0]
    assert {bucket.transfer_ns for bucket in report.buckets} <= {1_000_000, 500_000, None}


def test_every_file_of_a_rank_is_read(tmp_path: Path) -> None:
    for rank in (0, 1):
        for part, numbers in enumerate((range(3, 6), range(11, 14))):
            write(tmp_path, f"rank{rank}.{part}", record(rank, numbers))
    report = analyze([tmp_path])
    assert sorted({step.step for step in report.steps}) == [3, 4, 5, 11, 12, 13]
    assert waits(report) == {0}
