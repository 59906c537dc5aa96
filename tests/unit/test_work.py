from __future__ import annotations

import numpy as np
import pytest

from advisor.work import find_work
from tests.trace_builders import RankTrace

EPOCH_US = 1_711_964_646_416_788


def mm(trace: RankTrace, start: float, end: float, *, name: str = "aten::mm") -> None:
    trace.add("cpu_op", name, start, end, args={"Input Dims": [[8, 8], [8, 8]]})


@pytest.mark.parametrize("clock_us", [0, EPOCH_US])
def test_operators_that_ran_wholly_with_or_without_communication_are_found(clock_us: int) -> None:
    trace = RankTrace(clock_us=clock_us)
    trace.step(2, 0, 1000)
    trace.gloo(5, 100, 500, 64)
    mm(trace, 10, 99, name="aten::linear")  # holds another one
    mm(trace, 20, 60)
    mm(trace, 90, 130)  # beside communication for 3/4 of its time
    mm(trace, 200, 300)
    mm(trace, 310, 329)  # too short to tell
    trace.operator("aten::relu", 400, 450)  # of unknown shapes
    mm(trace, 990, 1020)  # not within the step
    table = find_work(trace.lay_out())
    assert table["name"].tolist() == ["aten::mm", "aten::mm"]
    assert table["duration"].tolist() == [40_000, 100_000]
    assert table["overlapped"].tolist() == [False, True]
    assert table["step"].unique().tolist() == [0]


def test_steps_are_told_by_their_place_and_what_precedes_them_is_left_out() -> None:
    trace = RankTrace()
    mm(trace, 0, 50)
    for place in range(2):
        trace.step(4 + place, 100 * (place + 1), 100 * (place + 2))
        mm(trace, 100 * (place + 1) + 10, 100 * (place + 1) + 60)
    assert find_work(trace.lay_out())["step"].tolist() == [0, 1]


def test_without_steps_or_on_a_gpu_there_are_none() -> None:
    trace = RankTrace()
    mm(trace, 0, 50)
    trace.step(4, 10, 10)
    assert len(find_work(trace.lay_out())) == 0
    trace.step(5, 0, 100)
    assert len(find_work(trace.lay_out())) == 1
    trace.kernel(1, 2, 3)
    table = find_work(trace.lay_out())
    assert len(table) == 0
    assert table["overlapped"].dtype == np.bool_
