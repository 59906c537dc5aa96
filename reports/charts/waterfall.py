"""From a naive step to the measured one: a bar for what each mechanism adds or saves."""

from __future__ import annotations

import plotly.graph_objects as go

from advisor.schema import Prediction
from reports.charts.theme import style
from reports.palette import BLOCKING, HIDDEN, MEASURED, NEUTRAL
from reports.text import format_ns
from reports.waterfall import MEASURED_STEP, WaterfallLine, list_lines

MARGIN = 0.25
"""Of the range of all bars, left free on either side for their labels."""


def step_waterfall(prediction: Prediction) -> go.Figure:
    """The naive and the measured step as points, and between them a floating bar in ms for each mechanism.

    The axis starts near the shortest step, not at zero: points have no length that this could belie.
    """
    naive, *lines = list_lines(prediction)
    figure = go.Figure()
    for name, colour, sign in (("adds time", BLOCKING, 1), ("saves time", HIDDEN, -1)):
        chosen = [line for line in lines if line.change_ns * sign > 0]
        figure.add_bar(
            name=name,
            orientation="h",
            y=[line.name for line in chosen],
            base=[min(line.before_ns, line.after_ns) / 1e6 for line in chosen],
            x=[abs(line.change_ns) / 1e6 for line in chosen],
            marker={"color": colour, "line": {"width": 0}},
            text=[_sign(line) for line in chosen],
            textposition="outside",
            textfont={"color": NEUTRAL},
            cliponaxis=False,
            hovertext=[
                f"<b>{line.name}</b><br>{_sign(line)} ms<br>{format_ns(line.before_ns)} to {format_ns(line.after_ns)}"
                for line in chosen
            ],
            hoverinfo="text",
        )
    ends = {naive.name: naive.after_ns, MEASURED_STEP: (lines or [naive])[-1].after_ns}
    figure.add_scatter(
        name="step",
        mode="markers+text",
        x=[end / 1e6 for end in ends.values()],
        y=list(ends),
        marker={"color": MEASURED, "symbol": "diamond", "size": 11},
        text=[format_ns(end) for end in ends.values()],
        textposition="middle right",
        textfont={"color": NEUTRAL},
        cliponaxis=False,
        hoverinfo="skip",
    )
    levels = [end / 1e6 for line in lines or [naive] for end in (line.before_ns or line.after_ns, line.after_ns)]
    room = max(MARGIN * (max(levels) - min(levels)), 0.01 * max(levels))
    figure.update_layout(barmode="overlay", bargap=0.35)
    figure.update_xaxes(title_text="step so far, ms", range=[max(0.0, min(levels) - room), max(levels) + room])
    names = [naive.name, *(line.name for line in lines), MEASURED_STEP]
    figure.update_yaxes(categoryorder="array", categoryarray=names, autorange="reversed", showgrid=False)
    return style(figure, height=90 + 30 * len(names))


def _sign(line: WaterfallLine) -> str:
    return f"{'+' if line.change_ns > 0 else '−'}{abs(line.change_ns) / 1e6:.2f}"
