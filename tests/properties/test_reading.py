"""Whatever becomes of a file: a trace, or one sentence that says why there is none."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mutations import damaged_traces
from tests.outcomes import judge_analysis, judge_reading


@settings(max_examples=300)
@given(damaged_traces())
def test_a_damaged_trace_is_read_or_refused_in_one_sentence(text: bytes) -> None:
    judge_reading(text)


@settings(max_examples=10)
@given(damaged_traces(), st.booleans())
def test_a_run_with_a_damaged_trace_has_a_report_or_one_sentence_says_why_not(text: bytes, alone: bool) -> None:
    with TemporaryDirectory() as folder:
        judge_analysis(text, Path(folder), alone=alone)
