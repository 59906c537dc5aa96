"""The first page: what is wrong, the verdict, what it rests on, and what to change."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from advisor.schema import Evidence, Recommendation, Report
from reports import forecast, holistic, waterfall
from reports.charts import (
    bucket_timeline,
    communication_fit,
    legend_html,
    prediction_vs_measurement,
    step_time_bar,
    step_waterfall,
)
from reports.communication import HEADER, explain_models, tabulate_models
from reports.sentences import (
    VERDICT_TITLES,
    headline_numbers,
    say_baseline,
    say_ceiling,
    say_evidence,
    say_predicted_change,
    say_saving,
    say_silence,
    say_sweep,
)
from reports.summary import describe_changes, describe_equally_good, describe_run, summarize_buckets, typical_step
from reports.text import (
    escape_markdown,
    format_bytes,
    format_change,
    format_estimate_ns,
    visible,
    visible_code,
)

ALL_RANKS: Final = "the slowest"


def render(report: Report) -> None:
    """Shows the report: alarms, verdict, baseline, step, buckets, recommendations, notes, sweep, forecast and HTA."""
    _show_alarms(report)
    _show_verdict(report)
    _show_baseline(report)
    _show_waterfall(report)
    _show_step(report)
    _show_buckets(report)
    _show_communication(report)
    _show_recommendations(report)
    _show_notes(report)
    _show_sweep(report)
    _show_forecast(report)
    _show_holistic(report)


def _show_verdict(report: Report) -> None:
    st.caption(escape_markdown(report.source))
    st.title(VERDICT_TITLES[report.verdict.code], anchor=False)
    st.markdown(escape_markdown(f"{report.verdict.message} {say_ceiling(report)}"))
    numbers = headline_numbers(report)
    for column, (name, value, explanation) in zip(st.columns(len(numbers) or 1), numbers, strict=False):
        tile = column.container(border=True)
        tile.metric(name, value)
        tile.caption(explanation)
    if report.verdict.evidence:
        with st.expander("How this was decided"):
            _show_evidence(report.verdict.evidence)
    st.caption(escape_markdown(" · ".join(f"{name} {value}" for name, value in describe_run(report))))


def _show_baseline(report: Report) -> None:
    _head("Baseline: replay against measurement")
    trusted = report.baseline is not None and report.baseline.trusted
    (st.success if trusted else st.error)(escape_markdown(say_baseline(report)))


def _show_waterfall(report: Report) -> None:
    if report.today is None or not report.today.waterfall:
        return
    _head(waterfall.TITLE)
    _draw(step_waterfall(report.today), "waterfall")
    st.caption(escape_markdown(waterfall.CAPTION))


def _show_step(report: Report) -> None:
    if report.steps:
        _head("Where the step goes")
        _draw(step_time_bar(report), "step_time")


def _show_buckets(report: Report) -> None:
    if not report.buckets:
        return
    _head("Buckets")
    ranks = sorted({bucket.rank for bucket in report.buckets})
    steps = sorted({bucket.step for bucket in report.buckets})
    typical = typical_step(report)
    left, right, _ = st.columns([1, 1, 2])
    rank = left.selectbox(
        "Rank", [None, *ranks], format_func=lambda rank: ALL_RANKS if rank is None else f"rank {rank}"
    )
    step = right.selectbox(
        "Step",
        steps,
        index=steps.index(typical) if typical in steps else 0,
        format_func=lambda step: f"{step} (typical)" if step == typical else f"{step}",
    )
    _draw(bucket_timeline(report, rank, step), "buckets")
    _table(
        {
            "bucket": row.bucket,
            "bytes": format_bytes(row.num_bytes),
            "dtype": visible(row.dtype),
            "ready": _milliseconds(row.ready_ns),
            "launch": _milliseconds(row.launch_ns),
            "start": _milliseconds(row.start_ns),
            "end": _milliseconds(row.end_ns),
            "queue": _milliseconds(row.queue_wait_ns),
            "peers": _milliseconds(row.peer_wait_ns),
            "transfer": _milliseconds(row.transfer_ns),
            "exposed": _milliseconds(row.exposed_ns),
            "blocking": _milliseconds(row.blocking_ns),
        }
        for row in summarize_buckets(report)
    )
    st.caption("ms since the step's start; the median over the steps of each rank, then the largest of the ranks")


def _show_communication(report: Report) -> None:
    if any(model.samples and model.segments for model in report.comm_models):
        _head("Communication")
        _draw(communication_fit(report), "communication")
        st.dataframe([dict(zip(HEADER, row, strict=True)) for row in tabulate_models(report)], hide_index=True)
        for message in explain_models(report):
            st.caption(escape_markdown(message))


def _show_recommendations(report: Report) -> None:
    _head("Recommendation" if len(report.recommendations) < 2 else "Recommendations")
    silence = say_silence(report)
    if silence:
        st.markdown(escape_markdown(silence))
    for recommendation in report.recommendations:
        _show_card(report, recommendation)
    if report.next_measurement:
        st.markdown(escape_markdown(report.next_measurement))


def _show_card(report: Report, recommendation: Recommendation) -> None:
    with st.container(border=True):
        st.markdown(f"**{escape_markdown(recommendation.title)}** · {recommendation.status}")
        for name, today, proposed in describe_changes(recommendation, report.config):
            before = f"{escape_markdown(today)} → " if today else ""
            st.markdown(f"{escape_markdown(name)}: {before}**{escape_markdown(proposed)}**")
        says, saving, unit = say_saving(recommendation)
        said = f"{says} **{escape_markdown(saving)}** {unit}. " if says else ""
        st.markdown(f"{said}{escape_markdown(recommendation.message)}")
        for line in describe_equally_good(recommendation):
            st.caption(escape_markdown(line))
        _show_evidence(recommendation.evidence)
        for caveat in recommendation.caveats:
            st.markdown(f"- {escape_markdown(caveat)}")
        if recommendation.code:
            for tab, code in zip(
                st.tabs([escape_markdown(framework) for framework in recommendation.code]),
                recommendation.code.values(),
                strict=True,
            ):
                tab.code(visible_code(code), language="python")
        if recommendation.sources:
            st.caption(escape_markdown(f"Sources: {'; '.join(recommendation.sources)}"))


def _show_alarms(report: Report) -> None:
    if report.alarms:
        _head("Alarms")
    for alarm in report.alarms:
        show = st.error if alarm.severity == "error" else st.warning
        show(f"{escape_markdown(alarm.message)}\n\n**{escape_markdown(alarm.fix)}**")
        if alarm.code_fix:
            st.code(visible_code(alarm.code_fix), language="python")
        _show_evidence(alarm.evidence)


def _show_notes(report: Report) -> None:
    if report.notes:
        _head("Notes on the data")
    for note in report.notes:
        file = f" ({note.file})" if note.file else ""
        st.markdown(f"- {escape_markdown(note.message + file)}")


def _show_sweep(report: Report) -> None:
    if report.sweep is None:
        return
    _head("Prediction beside measurement")
    _draw(prediction_vs_measurement(report), "sweep")
    _table(
        {
            "arm": visible(arm.name),
            "predicted": format_estimate_ns(arm.predicted_ns),
            "predicted change": say_predicted_change(report.sweep, arm),
            "measured": format_estimate_ns(arm.step_ns),
            "measured change": "" if arm.outcome == "reference" else format_change(arm.ratio),
            "steps": arm.num_steps,
            "outcome": arm.outcome,
            "message": visible(arm.message),
        }
        for arm in report.sweep.arms
    )
    st.caption(escape_markdown(say_sweep(report.sweep)))


def _show_forecast(report: Report) -> None:
    if report.forecast is None:
        return
    _head(forecast.TITLE)
    rows = forecast.list_rows(report.forecast)
    st.dataframe(pd.DataFrame(rows, columns=list(forecast.HEADER)), hide_index=True)
    st.caption(escape_markdown(forecast.say_assumptions(report.forecast)))


def _show_holistic(report: Report) -> None:
    answers = report.holistic
    if answers is None:
        return
    if answers.ranks:
        _head(holistic.TITLE)
        for sentence in holistic.say_disagreements(answers):
            st.warning(escape_markdown(sentence))
        _show_holistic_table(holistic.summarize(answers))
        for table in holistic.tabulate(answers):
            with st.expander(table.title):
                _show_holistic_table(table)
        st.caption(escape_markdown(f"{holistic.say_agreement(answers)} {holistic.say_scope(answers)}"))
    for message in answers.messages:
        st.caption(escape_markdown(message))


def _show_holistic_table(table: holistic.HolisticTable) -> None:
    st.dataframe(pd.DataFrame(table.rows, columns=list(table.header)), hide_index=True)


def _head(title: str) -> None:
    st.subheader(title, anchor=False)


def _show_evidence(items: tuple[Evidence, ...]) -> None:
    if items:
        rows = [tuple(map(visible, say_evidence(item))) for item in items]
        st.dataframe(pd.DataFrame(rows, columns=["what decides", "value", "threshold"]), hide_index=True)


def _draw(figure: go.Figure, key: str) -> None:
    st.html(str(legend_html(figure)))
    st.plotly_chart(figure, key=key, config={"displaylogo": False})


def _table(rows: Iterable[dict[str, Any]]) -> None:
    table = pd.DataFrame(rows)
    decimals = {name: st.column_config.NumberColumn(format="%.2f") for name in table.select_dtypes("float").columns}
    st.dataframe(table, hide_index=True, column_config=decimals)


def _milliseconds(nanoseconds: float | None) -> float:
    return math.nan if nanoseconds is None else nanoseconds / 1e6
