from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.comm_model import exclusive_time
from advisor.intervals import build_intervals, total

SPANS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(1, 20)).map(lambda span: (span[0], span[0] + span[1])),
    min_size=1,
    max_size=6,
)


@given(SPANS)
def test_exclusive_times_share_the_busy_time_out(spans: list[tuple[int, int]]) -> None:
    busy = total(build_intervals([start for start, _ in spans], [end for _, end in spans]))
    shares = [exclusive_time(start, end, spans) for start, end in spans]
    if min(shares) > 1:  # no sample is shorter than a nanosecond
        assert sum(shares) == pytest.approx(busy)
    assert all(share <= end - start for share, (start, end) in zip(shares, spans, strict=True))
