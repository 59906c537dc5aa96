"""The section "Beside HolisticTraceAnalysis" in the terminal, the HTML report and the page."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from plotly.offline import get_plotlyjs
from rich.console import Console

from advisor.schema import (
    CriticalPath,
    DeviceTime,
    Holistic,
    HolisticRank,
    KernelTime,
    KindTime,
    OverlapCheck,
    Report,
    StreamIdle,
    StreamQueue,
    write_json,
)
from reports import holistic, render_html, render_terminal
from tests.builders import MS, a100_report

APP = Path(__file__).parents[2] / "app.py"
LONG = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>"
EVIL = "<img src=x onerror=alert(1)>\x1b[2J"
ABSENT = "HolisticTraceAnalysis is not installed: pip install 'ddp-advisor[hta]'"


def answer(rank: int = 0, hta_fraction: float | None = 0.1561, name: str = LONG, misread: tuple[str, ...] = ()):
    """A span of 200 ms: idle 60 %, computation 30 %, other 10 %."""
    return HolisticRank(
        rank=rank,
        num_kernels=1234,
        num_recorded_kernels=1234 + 10 * rank,
        overlap=OverlapCheck(
            ours_fraction=0.15609, hta_fraction=hta_fraction, tolerance_fraction=0.5e-4, misread=misread
        ),
        device_time=DeviceTime(span_ns=200 * MS, idle_ns=120 * MS, computation_ns=60 * MS, other_ns=20 * MS),
        idle=(StreamIdle(stream=7, host_wait_ns=100 * MS, kernel_wait_ns=4 * MS, other_ns=16 * MS),),
        queues=(StreamQueue(stream=7, mean_length=-0.02, median_length=0.0, max_length=19),),
        kinds=(KindTime(kinds=("computation", "communication"), total_ns=8 * MS),),
        kernels=(
            KernelTime(
                name=name, kind="computation", num_calls=3, total_ns=6 * MS, mean_ns=2.0 * MS, min_ns=MS,
                max_ns=3 * MS, stddev_ns=1.0 * MS,
            ),
        ),
        critical_path=CriticalPath(
            step=5, host_ns=MS, computation_ns=2 * MS, communication_ns=3 * MS, launch_ns=4 * MS, gap_ns=5 * MS
        ),
    )  # fmt: skip


def report(*ranks: HolisticRank, messages: tuple[str, ...] = ()) -> Report:
    answers = Holistic(messages=messages, hta_version="0.5.0", ranks=ranks, elapsed_ns=1500 * MS)
    return msgspec.structs.replace(a100_report(), holistic=answers)


def printed(shown: Report) -> str:
    console = Console(file=io.StringIO(), width=160, color_system=None)
    render_terminal(shown, console)
    return console.file.getvalue()


def html(shown: Report) -> str:
    return render_html(shown).replace(get_plotlyjs(), "")


def test_agreement_is_one_line_and_a_table() -> None:
    text = printed(report(answer(0), answer(1)))
    assert "Both see the same overlap of communication with computation on 2 of 2 ranks" in text
    assert "HolisticTraceAnalysis 0.5.0 on the kernels launched in the recording" in " ".join(text.split())
    assert "asking it took 1.50 s" in " ".join(text.split())
    (line,) = [" ".join(line.split()) for line in text.splitlines() if "1244" in line]
    assert line == "1 1234 of 1244 15.61 % 15.61 % 200 ms 60 % 30 % 10 %"
    assert "!" not in text[text.index(holistic.TITLE) :]


def test_a_disagreement_is_a_warning_that_names_the_kernels() -> None:
    shown = report(answer(0), answer(1, hta_fraction=None, misread=("rcclA", "rcclB", "rcclC", "rcclD")))
    expected = (
        "Rank 1: 15.61 % of the communication has computation beside it, but HolisticTraceAnalysis sees no "
        "communication. It takes rcclA, rcclB, rcclC and 1 more for something else."
    )
    assert holistic.say_disagreements(shown.holistic) == (expected,)
    assert "! Rank 1: 15.61 %" in printed(shown)
    assert "on 1 of 2 ranks" in printed(shown)
    assert expected in html(shown)


def test_a_disagreement_without_a_reason_asks_for_the_trace() -> None:
    (sentence,) = holistic.say_disagreements(report(answer(hta_fraction=0.2)).holistic)
    assert sentence.endswith("but HolisticTraceAnalysis says 20.00 %. Please report this trace.")
    assert "Both see" not in printed(report(answer(hta_fraction=0.2)))


def test_a_difference_within_the_rounding_is_agreement() -> None:
    assert not report(answer(hta_fraction=0.15605)).holistic.disagreements
    assert report(answer(hta_fraction=0.1560)).holistic.disagreements


@pytest.mark.parametrize("render", [printed, html])
def test_where_it_is_absent_one_line_says_so(render) -> None:
    text = render(report(messages=(ABSENT,)))
    assert text.replace("&#39;", "'").count(ABSENT) == 1
    assert holistic.TITLE not in text


@pytest.mark.parametrize("render", [printed, html])
def test_a_report_without_it_does_not_mention_it(render) -> None:
    assert "Holistic" not in render(a100_report())


def test_html_has_every_table() -> None:
    text = html(report(answer()))
    for title in ("Idle time and queue of each stream", "Running at the same time", "Longest kernels", "Critical path"):
        assert f"<summary>{title}" in text
    assert "<td>100.00</td><td>4.00</td><td>16.00</td><td>0.0</td><td>19</td>" in text
    assert "computation + communication" in text
    assert LONG[: holistic.LONGEST_NAME - 1] + "…" in text.replace("&lt;", "<").replace("&gt;", ">")


def test_names_of_kernels_are_seen_and_not_obeyed() -> None:
    hostile = report(answer(name=EVIL), answer(1, hta_fraction=None, misread=(EVIL,)))
    assert "<img src=x" not in html(hostile)
    assert "\x1b" not in html(hostile) + printed(hostile)
    assert r"\x1b[2J" in printed(hostile)


def test_the_page_shows_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    testing = pytest.importorskip("streamlit.testing.v1", reason="the page needs the extra `app` (streamlit)")
    write_json(report(answer(), answer(1, hta_fraction=None, misread=(EVIL,))), tmp_path / "report.json")
    monkeypatch.setattr("sys.argv", [str(APP), str(tmp_path)])
    page = testing.AppTest.from_file(str(APP), default_timeout=60).run()
    assert not page.exception
    assert holistic.TITLE in [head.value for head in page.subheader]
    assert any("HolisticTraceAnalysis sees no communication" in warning.value for warning in page.warning)
    summary = next(table.value for table in page.dataframe if "HTA's" in table.value)
    assert summary["idle"].tolist() == ["60 %", "60 %"]
