"""Where the step goes: one stacked bar for each rank."""

from __future__ import annotations

import plotly.graph_objects as go

from advisor.schema import Report
from reports.charts.theme import style
from reports.palette import PART_LABELS, PARTS, TEXT_ON_PART
from reports.summary import slowest_ranks, summarize_ranks
from reports.text import format_fraction, format_ns

MAX_RANKS = 32
"""More bars than this cannot be read; the slowest ranks are kept."""


def step_time_bar(report: Report) -> go.Figure:
    """The median step of each rank in ms, as its parts: data, forward, backward, blocking, optimizer, other.

    Args:
        report: The report; `steps` is read.

    Returns:
        One horizontal bar trace for each part, whose lengths on a rank sum to that rank's median step.
    """
    ranks = slowest_ranks(summarize_ranks(report), MAX_RANKS)
    figure = go.Figure()
    for part, colour in PARTS.items():
        figure.add_bar(
            name=PART_LABELS[part],
            orientation="h",
            y=[f"rank {rank.rank}" for rank in ranks],
            x=[rank.parts_ns[part] / 1e6 for rank in ranks],
            marker={"color": colour, "line": {"width": 0}},
            texttemplate="%{x:.1f}",
            textposition="inside",
            insidetextanchor="middle",
            insidetextfont={"color": TEXT_ON_PART[part]},
            textangle=0,
            hovertext=[
                f"<b>{PART_LABELS[part]}</b><br>{format_ns(rank.parts_ns[part])}"
                f" of {format_ns(rank.step_ns)} ({format_fraction(rank.parts_ns[part] / max(1, rank.step_ns))})"
                f"<br>rank {rank.rank}, median of {rank.num_steps} steps"
                for rank in ranks
            ],
            hoverinfo="text",
        )
    figure.update_layout(barmode="stack", bargap=0.35, uniformtext={"minsize": 10, "mode": "hide"})
    figure.update_xaxes(
        title_text="time in the median step, ms",
        range=[0, max((rank.step_ns for rank in ranks), default=1e6) / 1e6 * 1.005],
    )
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return style(figure, height=130 + 40 * len(ranks))
