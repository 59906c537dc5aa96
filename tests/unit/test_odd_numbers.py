"""Numbers that no field can mean, in the place of every number of a trace: it is read, or one sentence says why not."""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from advisor.readers.loose import read_count, read_rank
from advisor.readers.ranks import guess_rank
from tests.mutations import record_small_trace
from tests.outcomes import judge_analysis, judge_reading

NUMBER = re.compile(rb'"([\w ]+)": ?\[*(?P<number>-?\d[\d.]*)')
ODD = {
    "longer than Python converts": b"9" * 5000,
    "more than 64 bits hold": b"1" + b"0" * 20,
    "the most that 64 bits hold": b"9223372036854775807",
    "more ranks than there are": b"1000000000000000",
    "negative": b"-7",
    "a superscript": b'"\xc2\xb2"',
    "infinite": b"1e999",
}


def list_places(text: bytes) -> list[tuple[int, int]]:
    """Where the first number of each field is, and that in the name of a step."""
    found = {match[1]: match.span("number") for match in reversed([*NUMBER.finditer(text)])}
    step = re.search(rb"ProfilerStep#(\d+)", text)
    assert step is not None
    return [*found.values(), step.span(1)]


def put_everywhere(number: bytes, kind: str) -> list[bytes]:
    """The trace once for each of its places."""
    text = record_small_trace(kind)
    places = list_places(text)
    assert len(places) >= 10
    return [text[:start] + number + text[end:] for start, end in places]


@pytest.mark.parametrize("number", ODD.values(), ids=ODD.keys())
@pytest.mark.parametrize("kind", ["gloo", "nccl"])
def test_a_trace_with_an_odd_number_is_read_or_refused(kind: str, number: bytes) -> None:
    for damaged in put_everywhere(number, kind):
        judge_reading(damaged)


@pytest.mark.parametrize("name", ["longer than Python converts", "more ranks than there are"])
def test_a_run_with_an_odd_number_has_a_report_or_one_sentence_says_why_not(name: str) -> None:
    with TemporaryDirectory() as folder:
        for damaged in put_everywhere(ODD[name], "nccl"):
            judge_analysis(damaged, Path(folder), alone=False)


@pytest.mark.parametrize(
    ("value", "count"),
    [(7, 7), ("7", 7), (0, 0), (-1, None), (True, None), ("²", None), (2**63, None), ("9" * 5000, None), (None, None)],
)
def test_a_count_is_a_number_that_64_bits_hold(value: object, count: int | None) -> None:
    assert read_count(value) == count


@pytest.mark.parametrize(("value", "rank"), [("7", 7), (1_000_000, 1_000_000), (1_000_001, None), (10**15, None)])
def test_a_rank_is_one_that_a_job_can_have(value: object, rank: int | None) -> None:
    """Missing ranks are counted up to the last one, which would not end."""
    assert read_rank(value) == rank


def test_steps_between_far_numbers_are_not_missing() -> None:
    text = record_small_trace("nccl").replace(b"ProfilerStep#2", b"ProfilerStep#900000000000000000")
    assert judge_reading(text[:-300]) == "read with notes"


def test_a_number_in_a_file_name_may_be_long() -> None:
    assert guess_rank(f"rank{'9' * 99}.json") is None
