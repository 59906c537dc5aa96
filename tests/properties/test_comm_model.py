from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.comm_model import Transfer, fit_comm_model
from advisor.intervals import build_intervals, measure_exclusive_times, total

SPANS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(1, 20)).map(lambda span: (span[0], span[0] + span[1])),
    min_size=1,
    max_size=30,
)


@given(SPANS)
def test_exclusive_times_share_the_busy_time_out(spans: list[tuple[int, int]]) -> None:
    busy = total(build_intervals([start for start, _ in spans], [end for _, end in spans]))
    shares = measure_exclusive_times(spans)
    if min(shares) > 1:  # no sample is shorter than a nanosecond
        assert sum(shares) == pytest.approx(busy)
    assert all(share <= end - start + 1e-6 for share, (start, end) in zip(shares, spans, strict=True))


SIZES = st.lists(st.integers(1_000, 10**8), min_size=1, max_size=8, unique=True)


@st.composite
def measurements(draw: st.DrawFn) -> list[Transfer]:
    """Whatever a profile may hold: some sizes, some steps, times that need not lie on any line."""
    sizes = draw(SIZES)
    return [
        Transfer(("0", "all_reduce", "float32"), step, size, draw(st.floats(1e3, 1e9)), draw(st.floats(0, 1)), True)
        for step in range(draw(st.integers(1, 4)))
        for size in sizes
    ]


@settings(max_examples=25, deadline=None)
@given(measurements())
def test_whatever_was_measured_a_larger_message_takes_no_less_time(transfers: list[Transfer]) -> None:
    model = fit_comm_model(transfers, 2, "gloo").model
    estimates = [model.predict(10**power) for power in range(3, 10)]
    assert all(estimate.low <= estimate.value <= estimate.high for estimate in estimates)
    values = [estimate.value for estimate in estimates]
    assert all(after >= before * (1 - 1e-6) for before, after in pairwise(values))
    for segment in model.segments:
        assert segment.beta_ns_per_byte.low <= segment.beta_ns_per_byte.value <= segment.beta_ns_per_byte.high
        assert segment.beta_ns_per_byte.low >= 0
    assert all(draw.communication_slowdown >= 1 and draw.alpha_ns >= 0 for draw in model.draws)


@settings(max_examples=4, deadline=None)
@given(st.floats(5e4, 2e6), st.floats(0.1, 5))
def test_more_steps_leave_less_open(alpha_ns: float, beta: float) -> None:
    """Over several runs: of a single one a few lucky steps may agree by chance."""
    widths = {4: 0.0, 24: 0.0}
    for seed in range(8):
        random = np.random.default_rng(seed)
        transfers = [
            Transfer(("0", "all_reduce", "float32"), step, size, time_ns * float(random.normal(1, 0.05)), 0.0, True)
            for step in range(24)
            for size in (10**5, 10**6, 10**7)
            for time_ns in [alpha_ns + beta * size]
        ]
        for num_steps in widths:
            predicted = fit_comm_model(transfers[: 3 * num_steps], 2, "gloo").model.predict(10**6)
            widths[num_steps] += predicted.high - predicted.low
    assert widths[24] < widths[4]
