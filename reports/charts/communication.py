"""How long a collective of a given size takes: what was measured and the line through it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from advisor.schema import CommModel, CommSample, Report, SampleSource
from reports.charts.theme import plain, style
from reports.palette import BLOCKING, EXPOSED, MEASURED, NEUTRAL
from reports.text import format_bytes, format_estimate_ns, format_ns, format_rate

MAX_SAMPLES = 1000
"""Points drawn for each model; of more, evenly spaced ones by size are kept."""

_LINE_POINTS = 60
_LINES = (BLOCKING, NEUTRAL, EXPOSED)
_SYMBOLS = ("circle", "square", "diamond", "cross", "triangle-up")
MEASURED_BY: dict[SampleSource, str] = {
    "trace": "measured",
    "probe": "measured by the probe",
    "nccl_tests": "measured by nccl-tests",
}
"""What the samples of each source are called; those from outside of the job have open marks."""


def communication_fit(report: Report) -> go.Figure:
    """Transfer time over bytes on logarithmic axes: the samples, the fitted line and its 95 % band.

    Args:
        report: The report; `comm_models` is read.

    Returns:
        For each model the band, the line (dashed where extrapolated), its kinks and the samples by source, y in ms.
    """
    figure = go.Figure()
    models = [model for model in report.comm_models if model.samples and model.segments]
    for index, model in enumerate(models):
        name = _name(model)
        sizes = [sample.num_bytes for sample in model.samples]
        within = _spread(min(sizes), max(sizes))
        beyond = _spread(max(sizes), 4 * max(sizes))
        colour = _LINES[index % len(_LINES)]
        _draw_band(figure, model, within + beyond[1:], name)
        _draw_line(figure, model, within, {"name": f"fit, {name}", "line": {"color": colour, "width": 2}})
        _draw_line(
            figure,
            model,
            beyond,
            {"name": "extrapolated", "showlegend": False, "line": {"color": colour, "width": 2, "dash": "dash"}},
        )
        _draw_kinks(figure, model, colour, name)
        for source, words in MEASURED_BY.items():
            samples = _thin([sample for sample in model.samples if sample.source == source])
            if samples:
                symbol = _SYMBOLS[index % len(_SYMBOLS)] + "-open" * (source != "trace")
                _draw_samples(figure, samples, symbol, f"{words}, {name}")
    every_size = [sample.num_bytes for model in models for sample in model.samples if sample.num_bytes > 0]
    ticks = _byte_ticks(every_size)
    figure.update_xaxes(
        type="log",
        title_text="bytes of one collective",
        tickvals=ticks,
        ticktext=[format_bytes(tick) for tick in ticks],
    )
    figure.update_yaxes(type="log", title_text="transfer without waiting for peers, ms", dtick="D2", tickformat="~g")
    return style(figure, height=380)


def _draw_samples(figure: go.Figure, samples: Sequence[CommSample], symbol: str, name: str) -> None:
    figure.add_scatter(
        name=name,
        mode="markers",
        x=[sample.num_bytes for sample in samples],
        y=[sample.transfer_ns / 1e6 for sample in samples],
        marker={"color": MEASURED, "size": 8, "opacity": 0.85, "symbol": symbol, "line": {"width": 0}},
        hovertext=[
            f"<b>{format_bytes(s.num_bytes)}</b><br>transfer {format_ns(s.transfer_ns)}, "
            f"{'step' if s.source == 'trace' else 'visit'} {s.step}"
            for s in samples
        ],
        hoverinfo="text",
    )


def _draw_kinks(figure: go.Figure, model: CommModel, colour: str, name: str) -> None:
    """A mark on the line wherever its slope changes."""
    if not model.kinks_bytes:
        return
    rates = [format_rate(segment.beta_ns_per_byte) for segment in model.segments]
    figure.add_scatter(
        name=f"kink, {name}",
        mode="markers",
        x=list(model.kinks_bytes),
        y=[model.predict(kink).value / 1e6 for kink in model.kinks_bytes],
        marker={"color": colour, "size": 16, "symbol": "line-ns-open", "line": {"width": 2}},
        hovertext=[
            f"<b>kink at {format_bytes(kink)}</b><br>{before} below, {after} above"
            for kink, before, after in zip(model.kinks_bytes, rates, rates[1:], strict=False)
        ],
        hoverinfo="text",
    )


def _draw_line(figure: go.Figure, model: CommModel, sizes: Sequence[float], look: dict[str, object]) -> None:
    times = [model.predict(size) for size in sizes]
    figure.add_scatter(
        mode="lines",
        x=list(sizes),
        y=[time.value / 1e6 for time in times],
        hovertext=[
            f"<b>{format_bytes(round(size))}</b><br>{time.basis} {format_estimate_ns(time)}"
            for size, time in zip(sizes, times, strict=True)
        ],
        hoverinfo="text",
        **look,
    )


def _draw_band(figure: go.Figure, model: CommModel, sizes: Sequence[float], name: str) -> None:
    times = [model.predict(size) for size in sizes]
    lowest = min(time.value for time in times) / 1e3
    figure.add_scatter(
        name=f"95 % interval, {name}",
        showlegend=False,
        x=[*sizes, *reversed(sizes)],
        y=[time.high / 1e6 for time in times] + [max(time.low, lowest) / 1e6 for time in reversed(times)],
        fill="toself",
        fillcolor="rgba(213, 94, 0, 0.13)",
        line={"width": 0},
        hoverinfo="skip",
    )


def _name(model: CommModel) -> str:
    return plain(f"{model.kind}, {model.dtype}, {model.world_size} ranks")


def _spread(low: float, high: float) -> list[float]:
    """Sizes from `low` to `high`, evenly spaced on a logarithmic axis."""
    low = max(low, 1.0)
    ratio = max(high, low) / low
    return [low * ratio ** (index / (_LINE_POINTS - 1)) for index in range(_LINE_POINTS)]


def _thin(samples: Sequence[CommSample]) -> list[CommSample]:
    by_size = sorted(samples, key=lambda sample: (sample.num_bytes, sample.transfer_ns))
    return by_size[:: max(1, math.ceil(len(by_size) / MAX_SAMPLES))]


def _byte_ticks(sizes: Sequence[int]) -> list[int]:
    """Powers of two that span the sizes, at most seven of them."""
    if not sizes:
        return []
    first, last = math.floor(math.log2(min(sizes))), math.ceil(math.log2(4 * max(sizes)))
    return [2**power for power in range(first, last + 1, max(1, math.ceil((last - first) / 6)))]
