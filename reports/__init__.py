"""A Report as something to read.

    render_terminal(report, console)   prints it, verdict first
    render_estimate(estimate, console) prints a job that exists only as a sketch
    render_forecast(forecast, console) prints a job on other numbers of ranks
    render_sweep(report, console)      prints only what was measured beside what was predicted
    render_diagnosis(diagnosis, console)  prints how good recordings are
    render_html(report)                the same with charts, as one self-contained document
    write_html(report, path)           that document as a file, whole or not at all

The Streamlit page is `app.py`; `reports.serve` starts it.
Nothing is imported before it is used: plotly and jinja2 cost more than the whole command line.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reports.diagnosis import render_diagnosis
    from reports.estimate import render_estimate
    from reports.forecast import render_forecast
    from reports.html_report import render_html, write_html
    from reports.terminal import render_sweep, render_terminal

__all__ = [
    "render_diagnosis",
    "render_estimate",
    "render_forecast",
    "render_html",
    "render_sweep",
    "render_terminal",
    "write_html",
]

_HOMES = {
    "render_diagnosis": "reports.diagnosis",
    "render_estimate": "reports.estimate",
    "render_forecast": "reports.forecast",
    "render_html": "reports.html_report",
    "render_sweep": "reports.terminal",
    "render_terminal": "reports.terminal",
    "write_html": "reports.html_report",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
