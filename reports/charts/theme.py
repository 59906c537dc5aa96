"""What all figures share: font, axes, hover."""

from __future__ import annotations

import html
from typing import Any, Final

import plotly.graph_objects as go

from reports.palette import GRID, NEUTRAL
from reports.text import visible

FONT: Final = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif'
CONFIG: Final[dict[str, Any]] = {"displaylogo": False, "responsive": True, "displayModeBar": False}
"""How plotly.js should behave around a figure."""

_AXIS: Final[dict[str, Any]] = {
    "gridcolor": GRID,
    "zeroline": False,
    "automargin": True,
    "ticks": "",
    "title": {"standoff": 10, "font": {"size": 12, "color": NEUTRAL}},
    "tickfont": {"size": 12, "color": NEUTRAL},
}


def style(figure: go.Figure, height: int) -> go.Figure:
    """Gives `figure` the look that all of them share, and returns it."""
    figure.update_xaxes(**_AXIS)
    figure.update_yaxes(**_AXIS)
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 8, "r": 16, "t": 8, "b": 8},
        font={"family": FONT, "size": 12, "color": NEUTRAL},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        hoverlabel={"font": {"family": FONT, "size": 12}, "align": "left", "namelength": -1},
        showlegend=False,
    )
    return figure


def plain(name: object) -> str:
    """A name as plotly should draw it: its pseudo-HTML (`<b>`, `<a href>`) spelled out instead of obeyed."""
    return html.escape(visible(name), quote=False)
