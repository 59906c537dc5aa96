"""The life of every bucket in one step: ready, launched, running, exposed, blocking."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from advisor.schema import BucketSummary, Report, StepSummary
from reports.charts.theme import style
from reports.palette import BLOCKING, EXPOSED, HIDDEN, NEUTRAL, PARTS, WAITING
from reports.summary import ready_ns, slowest_ranks, summarize_ranks, typical_step
from reports.text import format_bytes, format_ns

MAX_RANKS = 4
"""How many ranks one figure can hold; the slowest are kept."""

Stretch = tuple[BucketSummary, int, int]
"""A bucket with the start and end of a stretch of its line, in ns since the step's start."""


def bucket_timeline(report: Report, rank: int | None = None, step: int | None = None) -> go.Figure:
    """When each bucket of one step was ready, launched and running, and how much of that was exposed or blocked.

    The exposed and the blocking part are drawn at the end of the bar, where they nearly always lie; their lengths
    are exact, as far as they fit into it.

    Args:
        report: The report; `steps` and `buckets` are read.
        rank: The rank to show; None for the slowest ranks, at most four.
        step: The step to show; None for the typical one.

    Returns:
        A row for each rank, with x in ms since the step's start and a line for each bucket, the first launched on top.
    """
    step = typical_step(report) if step is None else step
    ranks = [rank] if rank is not None else [shown.rank for shown in slowest_ranks(summarize_ranks(report), MAX_RANKS)]
    spans_of = {
        shown: sorted((b for b in report.buckets if b.rank == shown and b.step == step), key=lambda b: b.bucket)
        for shown in ranks
    }
    step_of = {s.rank: s for s in report.steps if s.step == step and s.rank in spans_of}
    num_rows = max(1, len(ranks))
    num_lines = [max(1, len(spans)) for spans in spans_of.values()] or [1]
    figure = make_subplots(
        rows=num_rows, cols=1, shared_xaxes=True, row_heights=num_lines, vertical_spacing=0.08 / num_rows
    )
    for row, (shown, spans) in enumerate(spans_of.items(), start=1):
        _draw_buckets(figure, row, spans)
        _draw_step(figure, row, shown, step_of.get(shown))
    figure.update_layout(barmode="overlay")
    figure.update_xaxes(title_text="time since the step's start, ms", row=num_rows, col=1)
    if step_of:
        figure.update_xaxes(range=[0, max(s.duration_ns for s in step_of.values()) / 1e6 * 1.02])
    return style(figure, height=100 + 34 * sum(num_lines) + 50 * num_rows)


def split_running(span: BucketSummary) -> tuple[int, int, int, int]:
    """The four borders of a bucket's bar in ns: start, start of its exposed part, of its blocking part, end."""
    blocking_from = max(span.start_ns, span.end_ns - span.blocking_ns)
    exposed_from = min(blocking_from, max(span.start_ns, span.end_ns - span.exposed_ns))
    return span.start_ns, exposed_from, blocking_from, span.end_ns


def _draw_buckets(figure: go.Figure, row: int, spans: Sequence[BucketSummary]) -> None:
    borders = [(span, *split_running(span)) for span in spans]
    waiting = [(s, ready, s.start_ns) for s in spans if (ready := ready_ns(s)) is not None and ready < s.start_ns]
    bars: tuple[tuple[str, str, float, list[Stretch]], ...] = (
        ("ready, not running yet", WAITING, 0.12, waiting),
        ("running, hidden", HIDDEN, 0.62, [(s, start, exposed) for s, start, exposed, _, _ in borders]),
        ("running, exposed", EXPOSED, 0.62, [(s, exposed, blocking) for s, _, exposed, blocking, _ in borders]),
        ("running, blocking", BLOCKING, 0.62, [(s, blocking, end) for s, _, _, blocking, end in borders]),
    )
    for name, colour, width, stretches in bars:
        figure.add_bar(
            orientation="h",
            base=[start / 1e6 for _, start, _ in stretches],
            x=[(end - start) / 1e6 for _, start, end in stretches],
            width=width,
            marker={"color": colour, "line": {"width": 0}},
            **_on_lines(row, name, [span for span, _, _ in stretches]),
        )
    marks = (
        ("ready", "diamond", 9, [(span, at) for span in spans if (at := ready_ns(span)) is not None]),
        ("launched", "line-ns-open", 14, [(span, span.launch_ns) for span in spans if span.launch_ns is not None]),
    )
    for name, symbol, size, points in marks:
        figure.add_scatter(
            mode="markers",
            x=[at / 1e6 for _, at in points],
            marker={"symbol": symbol, "size": size, "color": NEUTRAL, "line": {"width": 2, "color": NEUTRAL}},
            **_on_lines(row, name, [span for span, _ in points]),
        )
    lines = [_name_line(span) for span in spans]
    figure.update_yaxes(
        type="category", categoryarray=lines, range=[len(lines) - 0.5, -1.2], showgrid=False, row=row, col=1
    )


def _on_lines(row: int, name: str, spans: Sequence[BucketSummary]) -> dict[str, object]:
    """What every trace of a row shares: its subplot, its legend entry, the lines it lies on and what hovering says."""
    return {
        "name": name,
        "legendgroup": name,
        "showlegend": row == 1,
        "y": [_name_line(span) for span in spans],
        "hovertext": [_describe(span) for span in spans],
        "hoverinfo": "text",
        "row": row,
        "col": 1,
    }


def _draw_step(figure: go.Figure, row: int, rank: int, step: StepSummary | None) -> None:
    """Names the rank in the empty line above its buckets, marks its step's end and shades its backward if known."""
    axes = {"row": row, "col": 1, "exclude_empty_subplots": False}
    title = f"<b>rank {rank}</b>"
    if step is not None:
        title += f"   step {step.step}: {format_ns(step.duration_ns)}, {format_ns(step.blocking_ns)} blocking"
        figure.add_vline(x=step.duration_ns / 1e6, line={"color": NEUTRAL, "width": 1, "dash": "dot"}, **axes)
    if step is not None and step.backward_start_ns is not None and step.backward_end_ns is not None:
        figure.add_vrect(
            x0=step.backward_start_ns / 1e6,
            x1=step.backward_end_ns / 1e6,
            fillcolor=PARTS["backward"],
            opacity=0.12,
            line_width=0,
            layer="below",
            annotation={"text": "backward", "font": {"size": 11, "color": NEUTRAL}},
            annotation_position="bottom left",
            **axes,
        )
    axis = "" if row == 1 else f"{row}"
    figure.add_annotation(
        text=title,
        xref=f"x{axis} domain",
        yref=f"y{axis} domain",
        x=0,
        y=1,
        xanchor="left",
        yanchor="top",
        showarrow=False,
        font={"size": 12, "color": NEUTRAL},
    )


def _name_line(span: BucketSummary) -> str:
    return f"bucket {span.bucket} · {format_bytes(span.num_bytes)}"


def _describe(span: BucketSummary) -> str:
    times = {
        "ready": ready_ns(span),
        "launched": span.launch_ns,
        "running from": span.start_ns,
        "running to": span.end_ns,
        "waited in the queue": span.queue_wait_ns,
        "waited for peers": span.peer_wait_ns,
        "transfer": span.transfer_ns,
        "exposed": span.exposed_ns,
        "blocking": span.blocking_ns,
    }
    size = f"{format_bytes(span.num_bytes)} ({span.num_bytes:,} bytes)" if span.num_bytes >= 0 else "bytes unknown"
    return "<br>".join(
        [
            f"<b>bucket {span.bucket}</b>, rank {span.rank}, step {span.step}",
            size,
            *(f"{name}: {format_ns(value)}" for name, value in times.items()),
        ]
    )
