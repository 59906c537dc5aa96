"""The forecast in the terminal and in the HTML report: today's ranks marked, bands and assumptions beside them."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from advisor.schema import Forecast
from reports import render_forecast, render_html, render_terminal
from tests.builders import gloo_report, two_to_sixteen_ranks


def printed(of: Forecast, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    render_forecast(of, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_today_is_marked_and_the_others_carry_bands() -> None:
    rows = [" ".join(line.split()) for line in printed(two_to_sixteen_ranks()).splitlines()]
    assert "2 (today) 180.0 ms [177.0, 183.0] 28.0 ms 100 %" in rows
    assert "16 240 ms [220, 260] 88 ms [68, 108] 75 % [69, 81]" in rows


@pytest.mark.parametrize(
    ("compute", "batch"), [("constant", "every rank keeps its batch"), ("divided", "the ranks share today's batch")]
)
def test_what_is_assumed_is_said(compute: str, batch: str) -> None:
    assert f"Extrapolated: {batch}, and links between all ranks" in printed(two_to_sixteen_ranks(compute=compute), 300)


@pytest.mark.parametrize("width", [80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(len(line) for line in printed(two_to_sixteen_ranks(), width).splitlines()) <= width


def test_a_report_shows_its_forecast_in_every_form() -> None:
    console = Console(file=io.StringIO(), width=120, color_system=None)
    report = gloo_report(forecast=two_to_sixteen_ranks())
    render_terminal(report, console)
    for document in (console.file.getvalue(), render_html(report)):  # type: ignore[attr-defined]
        assert "On other numbers of ranks" in document
        assert "240 ms [220, 260]" in document
        assert "The bands span a ring and a tree." in document
    assert "On other numbers of ranks" not in render_html(gloo_report())
