"""The waterfall in the terminal, in the chart and in the HTML report: 200 ms, + 12, - 40, + 10, - 0.5, so 181.5."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from reports import render_html, render_terminal
from reports.charts import step_waterfall
from reports.waterfall import CAPTION, TITLE, list_rows, render_waterfall
from tests.builders import gloo_report, today


def test_each_line_adds_to_the_step_so_far_and_what_changes_nothing_is_left_out() -> None:
    assert list_rows(today()) == [
        ("one after the other", "", "200.00"),
        ("waiting for the slowest rank", "+12.00", "212.00"),
        ("hidden beside backward", "−40.00", "172.00"),
        ("copying out", "+10.00", "182.00"),
        ("not explained", "−0.50", "181.50"),
        ("measured", "", "181.50"),
    ]


def test_bars_float_between_the_step_before_and_after() -> None:
    adds, hides, steps = step_waterfall(today()).data
    assert list(zip(adds.y, adds.base, adds.x, strict=True)) == [
        ("waiting for the slowest rank", 200, 12),
        ("copying out", 172, 10),
    ]
    assert list(zip(hides.y, hides.base, hides.x, strict=True)) == [
        ("hidden beside backward", 172, 40),
        ("not explained", 181.5, 0.5),
    ]
    assert list(zip(steps.y, steps.x, strict=True)) == [("one after the other", 200), ("measured", 181.5)]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    render_waterfall(today(), console)
    assert max(len(line) for line in console.file.getvalue().splitlines()) <= width  # type: ignore[attr-defined]


def test_a_report_shows_it_where_the_step_was_replayed() -> None:
    console = Console(file=io.StringIO(), width=300, color_system=None)
    report = gloo_report(today=today())
    render_terminal(report, console)
    for document in (console.file.getvalue(), render_html(report)):  # type: ignore[attr-defined]
        assert TITLE in document
        assert CAPTION in document
        assert "−40.00" in document
    assert TITLE not in render_html(gloo_report())
