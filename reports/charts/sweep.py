"""The sweep: what was predicted beside what was measured, and the noise both are judged by."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from advisor.schema import Estimate, Report, Sweep, SweepArm
from reports.charts.theme import plain, style
from reports.palette import MEASURED, NEUTRAL, PREDICTED
from reports.text import format_estimate_ns


def prediction_vs_measurement(report: Report) -> go.Figure:
    """Step time of every arm in ms: predicted and measured with their 95 % intervals, over the noise floor.

    Args:
        report: The report; `sweep` is read.

    Returns:
        Two traces, predicted and measured, with an arm a line in the order of the sweep, and a note on the lines of
        arms that failed; the band around the reference arm's measured step is the noise floor.
    """
    figure = go.Figure()
    arms = report.sweep.arms if report.sweep is not None else ()
    predicted = [(arm, arm.predicted_ns) for arm in arms if arm.predicted_ns is not None]
    measured = [(arm, arm.step_ns) for arm in arms if arm.step_ns is not None]
    if report.sweep is not None:
        _draw_noise_floor(figure, report.sweep)
    _draw(
        figure, "predicted", predicted, {"symbol": "diamond-open", "size": 11, "color": PREDICTED, "line": {"width": 2}}
    )
    _draw(figure, "measured", measured, {"symbol": "circle", "size": 10, "color": MEASURED})
    lowest, highest = _range_ms([time for _, time in predicted + measured])
    _note_failures(figure, [arm for arm in arms if arm.step_ns is None], lowest)
    figure.update_layout(scattermode="group", scattergap=0.6)
    figure.update_xaxes(title_text="step time, ms", range=[lowest, highest])
    names = [plain(arm.name) for arm in arms]
    figure.update_yaxes(type="category", categoryarray=names, range=[len(names) - 0.5, -0.5])
    return style(figure, height=130 + 44 * len(arms))


def _draw(figure: go.Figure, name: str, points: Sequence[tuple[SweepArm, Estimate]], marker: dict[str, object]) -> None:
    figure.add_scatter(
        name=name,
        mode="markers",
        orientation="h",
        marker=marker,
        y=[plain(arm.name) for arm, _ in points],
        x=[time.value / 1e6 for _, time in points],
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [(time.high - time.value) / 1e6 for _, time in points],
            "arrayminus": [(time.value - time.low) / 1e6 for _, time in points],
            "thickness": 1.5,
            "width": 4,
        },
        hovertext=[
            f"<b>{plain(arm.name)}</b><br>{name} {format_estimate_ns(time)}, {time.basis}" for arm, time in points
        ],
        hoverinfo="text",
    )


def _draw_noise_floor(figure: go.Figure, sweep: Sweep) -> None:
    reference = next((arm.step_ns for arm in sweep.arms if arm.outcome == "reference"), None)
    if reference is None:
        return
    figure.add_vrect(
        x0=reference.value * (1 - sweep.noise_floor_fraction) / 1e6,
        x1=reference.value * (1 + sweep.noise_floor_fraction) / 1e6,
        fillcolor=NEUTRAL,
        opacity=0.18,
        line_width=0,
        layer="below",
        annotation={"text": "noise floor", "font": {"size": 11, "color": NEUTRAL}},
        annotation_position="bottom right",
        exclude_empty_subplots=False,
    )


def _note_failures(figure: go.Figure, failed: Sequence[SweepArm], at_ms: float) -> None:
    figure.add_scatter(
        name="failed",
        showlegend=False,
        mode="text",
        orientation="h",
        x=[at_ms] * len(failed),
        y=[plain(arm.name) for arm in failed],
        text=["  not measured"] * len(failed),
        textposition="middle right",
        hovertext=[plain(arm.message or "not measured") for arm in failed],
        hoverinfo="text",
    )


def _range_ms(times: Sequence[Estimate]) -> tuple[float, float]:
    """From just below the lowest to just above the highest interval, so that small differences can be seen."""
    if not times:
        return 0.0, 1.0
    low, high = min(time.low for time in times) / 1e6, max(time.high for time in times) / 1e6
    margin = 0.08 * (high - low) or 0.05 * high
    return low - margin, high + margin
