"""The section "On other numbers of ranks": its rows and what they assume, for every renderer alike."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from advisor.schema import Forecast
from reports.text import format_estimate_ns, format_share

TITLE = "On other numbers of ranks"
HEADER = ("ranks", "step", "blocking", "efficiency")


def list_rows(forecast: Forecast) -> list[tuple[str, ...]]:
    """One row for each number of ranks, today's marked."""
    return [
        (
            f"{row.world_size} (today)" if row.world_size == forecast.profiled_world_size else f"{row.world_size}",
            format_estimate_ns(row.step_ns),
            format_estimate_ns(row.blocking_ns),
            format_share(row.efficiency_fraction),
        )
        for row in forecast.rows
    ]


def say_assumptions(forecast: Forecast) -> str:
    """Under which conditions the rows hold."""
    batch = "every rank keeps its batch" if forecast.compute == "constant" else "the ranks share today's batch"
    return (
        f"Extrapolated: {batch}, and links between all ranks are as fast as today's; across hosts they seldom are. "
        "The bands span a ring and a tree. Efficiency: samples per second and rank, today's being 100 %."
    )


def render_forecast(forecast: Forecast, console: Console) -> None:
    """Prints the table and what it assumes."""
    console.print()
    console.print(Text(TITLE, "bold underline"))
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for column in HEADER:
        table.add_column(column, justify="right")
    for row in list_rows(forecast):
        table.add_row(*row)
    console.print(table)
    console.print(Text(say_assumptions(forecast), "dim"))
