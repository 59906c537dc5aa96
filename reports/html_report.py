"""A Report as one HTML file that needs nothing else: styles, charts and plotly.js are inside, no network is used."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import plotly.io
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from advisor.schema import Report
from reports import communication, forecast, holistic, sentences, summary, text, waiting, waterfall
from reports.charts import (
    bucket_timeline,
    communication_fit,
    legend_html,
    prediction_vs_measurement,
    step_time_bar,
    step_waterfall,
)
from reports.charts.theme import CONFIG
from reports.palette import PART_LABELS, PARTS


def render_html(report: Report) -> str:
    """The report as a whole HTML document: the terminal's order, with charts; light or dark as the reader prefers.

    Names from traces are escaped, and a content security policy forbids the document to load anything.
    """
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            report=report,
            sentences=sentences,
            communication=communication,
            holistic=holistic,
            waiting=waiting,
            waterfall=waterfall,
            forecast=forecast,
            ranks=summary.summarize_ranks(report),
            buckets=summary.summarize_buckets(report),
            run=summary.describe_run(report),
            part_labels=PART_LABELS,
            parts=PARTS,
            charts=_draw_charts(report),
            plotlyjs=Markup(get_plotlyjs()),
        )
    )


def write_html(report: Report, path: Path) -> None:
    """Writes `render_html(report)` to `path`, whole or not at all (through a temporary file beside it)."""
    temporary = path.with_name(path.name + ".partial")
    temporary.write_text(render_html(report), encoding="utf-8")
    temporary.replace(path)


def _draw_charts(report: Report) -> dict[str, Markup]:
    """The charts there is data for, as HTML fragments by name."""
    charts: dict[str, Markup] = {}
    if report.steps:
        charts["step_time"] = _embed("step_time", step_time_bar(report))
    if report.today is not None and report.today.waterfall:
        charts["waterfall"] = _embed("waterfall", step_waterfall(report.today))
    if report.buckets:
        charts["buckets"] = _embed("buckets", bucket_timeline(report))
    if any(model.samples and model.segments for model in report.comm_models):
        charts["communication"] = _embed("communication", communication_fit(report))
    if report.sweep is not None:
        charts["sweep"] = _embed("sweep", prediction_vs_measurement(report))
    return charts


def _embed(name: str, figure: go.Figure) -> Markup:
    # plotly writes its JSON with <, > and / as escapes, so no name in it can end the script element
    drawn = plotly.io.to_html(figure, config=CONFIG, include_plotlyjs=False, full_html=False, div_id=f"chart-{name}")
    return legend_html(figure) + Markup(drawn)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_show,
    )
    environment.filters |= {
        "ns": text.format_ns,
        "ms": text.format_ms,
        "bytes": text.format_bytes,
        "fraction": text.format_fraction,
        "estimate": text.format_estimate_ns,
        "rate": text.format_rate,
        "change": text.format_change,
        "code": lambda code: Markup(escape(text.visible_code(code))),
        "changes": summary.describe_changes,
        "equally_good": summary.describe_equally_good,
    }
    return environment


def _show(value: Any) -> Any:
    """Every value the template prints, unless it is HTML already, with control characters spelled out."""
    return value if isinstance(value, Markup) else text.visible(value)
