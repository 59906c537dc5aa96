"""Who waits for whom, and what communication costs the computation beside it."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.schema import RankSummary, Report
from reports.text import format_estimate_ns, format_fraction, format_ms, format_ns

MAX_ROWS = 8
HEADER = ("rank", "waits", "costs others", "longer in", "clock off by")


@dataclass(frozen=True)
class WaitingTable:
    """Ranks that met others; no rows where nobody knows."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str


def tabulate_waiting(report: Report) -> WaitingTable:
    """A row for each rank that met others, times in ms in the median step."""
    known = [rank for rank in report.ranks if rank.wait_ns is not None and rank.blame_ns is not None]
    costly = sorted(known, key=lambda rank: (-_value(rank), rank.rank))[:MAX_ROWS]
    rows = tuple(_tabulate_rank(report, rank) for rank in sorted(costly, key=lambda rank: rank.rank))
    kept = f"; the {len(rows)} of {len(known)} ranks that cost most" if len(rows) < len(known) else ""
    caption = (
        "ms in the median step; what a rank costs others is how long they wait for it alone; what it takes longer in "
        f"is told without waiting, which the phases above hold{kept}"
    )
    return WaitingTable(HEADER, rows, caption)


def say_interference(report: Report) -> str:
    """The overlap tax, or why it is not known; empty where nothing was computed beside communication."""
    if not any(step.overlap_ns for step in report.steps):
        return ""
    found = report.interference
    if found is None:
        return (
            "How much communication slows the computation beside it down cannot be known here: too little of the same "
            "work ran both beside communication and without any."
        )
    compared = f"compared on {format_fraction(found.compared_fraction)} of the computation beside communication"
    if found.slowdown.low <= 1:
        return f"Computation is not measurably slower beside communication ({compared})."
    slower = format_fraction(found.slowdown.value - 1)
    return (
        f"Computation runs {slower} longer beside communication, an overlap tax of "
        f"{format_estimate_ns(found.tax_ns)} a step ({compared})."
    )


def _value(rank: RankSummary) -> float:
    return rank.blame_ns.value if rank.blame_ns else 0.0


def _tabulate_rank(report: Report, rank: RankSummary) -> tuple[str, ...]:
    straggler = report.straggler if report.straggler and report.straggler.rank == rank.rank else None
    return (
        f"{rank.rank}",
        format_ms(rank.wait_ns.value if rank.wait_ns else None),
        format_ms(_value(rank)),
        straggler.phase.replace("_", " ") if straggler and straggler.phase else "",
        _say_clock(rank),
    )


def _say_clock(rank: RankSummary) -> str:
    if not rank.clock_offset_ns and rank.clock_residual_ns is None:
        return "reference"
    offset = "0" if not rank.clock_offset_ns else format_ns(rank.clock_offset_ns)
    return f"{offset} ± {format_ns(rank.clock_residual_ns)}".replace("-", "−")
