"""Every figure shows the numbers of the report and nothing else."""

from __future__ import annotations

import re

import pytest

from reports.charts import (
    bucket_timeline,
    communication_fit,
    legend_html,
    prediction_vs_measurement,
    step_time_bar,
)
from reports.charts.buckets import split_running
from reports.palette import BLOCKING, EXPOSED, HIDDEN, PARTS
from tests.builders import (
    MIB,
    MS,
    a100_report,
    bucket_summary,
    gloo_report,
    hostile_report,
    step_summary,
    swept_report,
)

CHARTS = [step_time_bar, bucket_timeline, communication_fit, prediction_vs_measurement]


def trace(figure, name: str, row: int = 0):
    return [t for t in figure.data if t.name == name][row]


def test_the_bars_of_a_rank_sum_to_its_step() -> None:
    figure = step_time_bar(gloo_report())
    assert [t.marker.color for t in figure.data] == list(PARTS.values())
    assert list(trace(figure, "blocking communication").x) == [29.5, 29.5]
    assert list(trace(figure, "forward").x) == [50, 49]
    for rank in range(2):
        assert sum(t.x[rank] for t in figure.data) == 181.5
    assert figure.layout.xaxis.title.text == "time in the median step, ms"


def test_a_step_without_length_is_drawn() -> None:
    assert list(trace(step_time_bar(gloo_report(steps=(step_summary(),))), "forward").x) == [0]


def test_only_as_many_ranks_are_drawn_as_can_be_read() -> None:
    steps = tuple(step_summary(rank=rank, forward=rank + 1) for rank in range(100))
    figure = step_time_bar(gloo_report(steps=steps))
    assert list(figure.data[0].y) == [f"rank {rank}" for rank in range(68, 100)]


def test_the_timeline_shows_the_typical_step_of_each_rank() -> None:
    figure = bucket_timeline(gloo_report())
    for row in range(2):
        hidden, blocking = trace(figure, "running, hidden", row), trace(figure, "running, blocking", row)
        assert list(hidden.y) == ["bucket 0 · 1 MiB", *(f"bucket {bucket} · 25 MiB" for bucket in range(1, 5))]
        assert list(hidden.base) == [60, 80, 102, 124, 146]
        assert list(hidden.x) == [2, 22, 22, 16, 0]
        # step 1 is the typical one, with 1 ms of jitter in bucket 4
        assert list(blocking.x) == [0, 0, 0, 6, 23]
        assert list(blocking.base) == [62, 102, 124, 140, 146]
        assert list(trace(figure, "ready", row).x) == [60, 80, 100, 120, 140]
        assert list(trace(figure, "ready, not running yet", row).x) == [2, 4, 6]
    assert "29.0 ms blocking" in " ".join(note.text for note in figure.layout.annotations)


def test_one_rank_and_one_step_can_be_chosen() -> None:
    figure = bucket_timeline(gloo_report(), rank=1, step=3)
    assert len([t for t in figure.data if t.name == "running, blocking"]) == 1
    assert list(trace(figure, "running, blocking").x) == [0, 0, 0, 6, 26]
    assert "(26,214,400 bytes)" in trace(figure, "ready").hovertext[1]


def test_what_is_unknown_is_left_out_of_the_timeline() -> None:
    unknown = {"ready_host_ns": None, "launch_ns": None, "peer_wait_ns": None, "transfer_ns": None}
    figure = bucket_timeline(gloo_report(steps=(step_summary(forward=200),), buckets=(bucket_summary(**unknown),)))
    assert len(trace(figure, "ready").x) == len(trace(figure, "launched").x) == 0
    assert "waited for peers: –" in trace(figure, "running, hidden").hovertext[0]


def test_exposed_is_not_blocking() -> None:
    figure = bucket_timeline(a100_report())
    assert list(trace(figure, "running, exposed").x) == pytest.approx([1] * 5)
    assert list(trace(figure, "running, blocking").x) == [0] * 5


@pytest.mark.parametrize(
    ("exposed_ms", "blocking_ms", "borders_ms"),
    [
        (8, 5, (110, 122, 125, 130)),
        (0, 0, (110, 130, 130, 130)),
        (5, 8, (110, 122, 122, 130)),  # blocking beyond the exposed part
        (50, 50, (110, 110, 110, 130)),  # blocking while it queued
    ],
)
def test_the_parts_of_a_bar_fill_it(exposed_ms: int, blocking_ms: int, borders_ms: tuple[int, ...]) -> None:
    span = bucket_summary(exposed_ms=exposed_ms, blocking_ms=blocking_ms)
    assert split_running(span) == tuple(border * MS for border in borders_ms)


def test_the_fit_goes_through_what_the_model_predicts() -> None:
    report = gloo_report()
    figure = communication_fit(report)
    samples = trace(figure, "measured, all_reduce, float32, 2 ranks")
    assert sorted(zip(samples.x, samples.y, strict=True)) == sorted(
        (sample.num_bytes, sample.transfer_ns / 1e6) for sample in report.comm_models[0].samples
    )
    line = trace(figure, "fit, all_reduce, float32, 2 ranks")
    assert (line.x[0], line.y[0]) == pytest.approx((MIB, 1 + MIB / 1e6))
    assert (line.x[-1], line.y[-1]) == pytest.approx((25 * MIB, 1 + 25 * MIB / 1e6))
    beyond = trace(figure, "extrapolated")
    assert beyond.line.dash == "dash"
    assert beyond.x[-1] == pytest.approx(100 * MIB)
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"


def test_prediction_stands_beside_measurement() -> None:
    figure = prediction_vs_measurement(swept_report())
    predicted, measured = trace(figure, "predicted"), trace(figure, "measured")
    assert list(predicted.x) == [180, 180, 167, 190]
    assert list(measured.x) == [180, 181, 168, 192]
    assert list(measured.error_x.array) == pytest.approx([1.5] * 4)
    assert list(trace(figure, "failed").y) == ["powersgd:2"]
    (floor,) = figure.layout.shapes
    assert (floor.x0, floor.x1) == pytest.approx((180 * (1 - 0.0056), 180 * (1 + 0.0056)))
    assert list(figure.layout.yaxis.categoryarray) == [arm.name for arm in swept_report().sweep.arms]


@pytest.mark.parametrize("chart", CHARTS)
def test_a_report_without_the_data_gives_an_empty_figure(chart) -> None:
    figure = chart(gloo_report(steps=(), buckets=(), comm_models=(), recommendations=()))
    assert all(not t.x for t in figure.data)


@pytest.mark.parametrize("chart", CHARTS)
def test_names_cannot_mark_up_a_figure(chart) -> None:
    figure = chart(hostile_report("<b>&\x1b"))
    drawn = figure.to_json()
    assert "\\u001b" not in drawn
    assert not re.search(r"all_reduce<b>|powersgd:2<b>", drawn.encode().decode("unicode_escape"))


def test_the_legend_names_each_colour_once() -> None:
    legend = legend_html(bucket_timeline(gloo_report()))
    for colour in (HIDDEN, EXPOSED, BLOCKING):
        assert legend.count(colour) == 1
    assert legend.count("<li") == 6
    assert "failed" not in legend_html(prediction_vs_measurement(swept_report()))
