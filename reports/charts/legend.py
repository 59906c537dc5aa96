"""The legend of a figure as a line of text, which wraps on a narrow screen as plotly's own cannot."""

from __future__ import annotations

from typing import Any, Final

import plotly.graph_objects as go
from markupsafe import Markup

_SYMBOLS: Final = {
    "diamond": "◆",
    "diamond-open": "◇",
    "line-ns-open": "┃",
    "square": "■",
    "triangle-up": "▲",
    "cross": "✚",
    "circle-open": "○",
    "square-open": "□",
    "triangle-up-open": "△",
}

_LIST_STYLE: Final = (
    "list-style: none; display: flex; flex-wrap: wrap; gap: 2px 18px; margin: 0 0 4px; padding: 0; font-size: 0.85rem"
)
_MARK_STYLE: Final = "font-size: 1.25em; line-height: 1"


def legend_html(figure: go.Figure) -> Markup:
    """An HTML list with a coloured mark and a name for each kind of trace in `figure`."""
    entries = Markup("").join(
        Markup('<li style="margin: 0"><span style="{}; color: {}">{}</span> {}</li>').format(
            _MARK_STYLE, *_mark(trace), Markup(trace.name)
        )
        for trace in figure.data
        if trace.name and trace.showlegend is not False
    )
    return Markup('<ul style="{}">{}</ul>').format(_LIST_STYLE, entries)


def _mark(trace: Any) -> tuple[str, str]:
    """The colour of a trace and a character that looks like its marks."""
    if trace.type == "bar":
        return trace.marker.color, "■"
    if trace.mode == "lines":
        return trace.line.color, "━"
    return trace.marker.color, _SYMBOLS.get(trace.marker.symbol, "●")
