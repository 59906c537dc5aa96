from __future__ import annotations

import io

import pytest
from rich.console import Console

from advisor.schema import Interference, Report, Straggler
from reports import render_html, render_terminal
from reports.waiting import say_interference, tabulate_waiting
from tests.builders import a100_report, estimate, estimate_ms, gloo_report, rank_summary


def build_report(num_ranks: int = 3) -> Report:
    """Rank r waits for 20 ms but rank 1, which costs the others 20; the others cost 0."""
    ranks = tuple(
        rank_summary(
            rank,
            wait_ns=estimate_ms(0 if rank == 1 else 20),
            blame_ns=estimate_ms(20 if rank == 1 else 0),
            clock_offset_ns=-5_000_000 * rank,
            clock_residual_ns=3_000 if rank else None,
        )
        for rank in range(num_ranks)
    )
    straggler = Straggler(
        rank=1, num_steps=4, last_fraction=1, delay_ns=estimate_ms(20), step_fraction=0.1, phase="forward",
        phase_excess_ns=20_000_000,
    )  # fmt: skip
    return gloo_report(ranks=ranks, straggler=straggler)


def interference(low: float, high: float) -> Interference:
    middle = estimate((low + high) / 2, (high - low) / 2, "measured")
    return Interference(slowdown=middle, tax_ns=estimate_ms(3, 1), num_executions=9, compared_fraction=0.5)


def test_every_rank_says_how_long_it_waits_and_what_it_costs() -> None:
    assert tabulate_waiting(build_report()).rows == (
        ("0", "20.00", "0", "", "reference"),
        ("1", "0", "20.00", "forward", "−5.00 ms ± 3.00 µs"),
        ("2", "20.00", "0", "", "−10.0 ms ± 3.00 µs"),
    )
    # Who waits for it may have the longer phase in the table of phases, which waiting is part of.
    assert tabulate_waiting(build_report()).caption.endswith("told without waiting, which the phases above hold")


def test_of_many_ranks_those_that_cost_most_are_kept() -> None:
    table = tabulate_waiting(build_report(100))
    assert [row[0] for row in table.rows] == ["0", "1", "2", "3", "4", "5", "6", "7"]
    assert table.caption.endswith("the 8 of 100 ranks that cost most")


def test_nobody_who_met_no_other_rank_is_shown() -> None:
    assert tabulate_waiting(a100_report()).rows == ()


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (None, "cannot be known here"),
        (interference(0.9, 1.1), "not measurably slower"),
        (interference(1.1, 1.3), "runs 20 % longer beside communication, an overlap tax of 3.0 ms [2.0, 4.0] a step"),
    ],
)
def test_the_overlap_tax_is_told_with_its_interval_or_why_it_is_not_known(
    found: Interference | None, said: str
) -> None:
    report = gloo_report(interference=found)
    assert said in say_interference(report)
    console = Console(file=io.StringIO(), width=120, color_system=None)
    render_terminal(report, console)
    assert said[:20] in console.file.getvalue()  # type: ignore[attr-defined]
    assert said in render_html(report)


def test_without_overlap_there_is_nothing_to_tell() -> None:
    assert say_interference(gloo_report(steps=())) == ""


def test_the_page_shows_the_ranks() -> None:
    assert 'id="waiting"' in render_html(build_report())
    assert 'id="waiting"' not in render_html(a100_report())
