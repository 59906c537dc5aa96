"""The section "From a naive step to the measured one": its lines, for every renderer alike."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from advisor.schema import Prediction
from reports.text import format_ms

TITLE: Final = "From a naive step to the measured one"
HEADER: Final = ("", "adds, ms", "step, ms")
CAPTION: Final = (
    "Naive: all computation of a mean rank, then each all-reduce with its latency and bytes, nothing hidden. Each line "
    "adds one mechanism to the replay; what replay does not explain comes last."
)
MEASURED_STEP: Final = "measured"
SMALLEST_NS: Final = 5_000
"""Less than half of the last digit shown."""


@dataclass(frozen=True)
class WaterfallLine:
    """What one mechanism changes: the step with it and without it."""

    name: str
    before_ns: float
    after_ns: float

    @property
    def change_ns(self) -> float:
        """Positive where it makes the step longer."""
        return self.after_ns - self.before_ns


def list_lines(prediction: Prediction) -> list[WaterfallLine]:
    """The naive step (from zero), then every mechanism that changes it visibly; empty without a waterfall."""
    levels = list(accumulate((term.value_ns for term in prediction.waterfall), initial=0.0))
    return [
        WaterfallLine(term.name, before, after)
        for term, before, after in zip(prediction.waterfall, levels, levels[1:], strict=False)
        if abs(after - before) >= SMALLEST_NS
    ]


def list_rows(prediction: Prediction) -> list[tuple[str, str, str]]:
    """(name, what it adds, the step so far), the measured step last; times in ms."""
    lines = list_lines(prediction)
    rows = [(line.name, _sign(line) if line.before_ns else "", format_ms(line.after_ns)) for line in lines]
    return [*rows, (MEASURED_STEP, "", format_ms(lines[-1].after_ns))] if lines else []


def render_waterfall(prediction: Prediction | None, console: Console) -> None:
    """Prints the lines; nothing where there are none."""
    rows = list_rows(prediction) if prediction else []
    if not rows:
        return
    console.print()
    console.print(Text(TITLE, "bold underline"))
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column(HEADER[0])
    for column in HEADER[1:]:
        table.add_column(column, justify="right")
    for row in rows[:-1]:
        table.add_row(*row)
    table.add_row(*rows[-1], style="bold")
    console.print(table)
    console.print(Text(CAPTION, "dim"))


def _sign(line: WaterfallLine) -> str:
    return f"{'+' if line.change_ns > 0 else '−'}{format_ms(abs(line.change_ns))}"
