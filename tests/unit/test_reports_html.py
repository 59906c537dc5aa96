"""The HTML report is one file, needs no network, and no name can add to it."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from plotly.offline import get_plotlyjs

from advisor.schema import Alarm, Report
from reports import render_html, write_html
from tests.builders import a100_report, gloo_report, hostile_report, swept_report

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>{{7*7}}\x1b'\""


class Elements(HTMLParser):
    """The start tags of a document in order, and its text outside of script and style."""

    VOID = frozenset({"meta", "br", "img", "link"})

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.text += data


def without_plotly(report: Report) -> str:
    return render_html(report).replace(get_plotlyjs(), "")


@pytest.mark.parametrize("report", [gloo_report(), swept_report(), a100_report()])
def test_nothing_is_loaded_from_elsewhere(report: Report) -> None:
    document = render_html(report)
    assert document.count(get_plotlyjs()) == 1
    assert "default-src 'none'" in document
    rest = document.replace(get_plotlyjs(), "")
    assert not re.search(r"https?:|//\w|@import|<link|<iframe|\bsrc=", rest)


def test_every_element_is_closed_and_the_order_is_the_terminal_s() -> None:
    document = without_plotly(swept_report())
    elements = Elements(document)
    assert elements.open == []
    sections = re.findall(r'<section class="[^"]*" id="(\w+)"', document)
    assert sections == ["verdict", "baseline", "step", "buckets", "communication", "recommendations", "notes", "sweep"]


def test_hostile_names_add_no_element_and_are_shown_as_text() -> None:
    clean, hostile = Elements(without_plotly(swept_report())), Elements(without_plotly(hostile_report(EVIL)))
    assert hostile.tags == clean.tags
    assert "<script>alert(1)</script>" in hostile.text
    assert "{{7*7}}" in hostile.text
    assert r"\x1b" in hostile.text
    assert "\x1b" not in hostile.text


def test_the_numbers_are_the_report_s() -> None:
    text = Elements(without_plotly(swept_report())).text
    for shown in ("29.50", "23.50", "182 ms", "14 ms [10, 18]", "168.0 ms [166.5, 169.5]", "1.00 GB/s [0.95, 1.05]"):
        assert shown in text


def test_only_charts_with_data_are_drawn() -> None:
    document = without_plotly(a100_report())
    assert set(re.findall(r'id="(chart-\w+)"', document)) == {"chart-step_time", "chart-buckets"}


def test_alarms_come_first_with_what_to_do() -> None:
    alarm = Alarm(
        code="no_communication", severity="error", message="Nobody speaks.", fix="Wrap it.", ranks=(0,), steps=(2,),
        evidence=(), code_fix="ddp = wrap(model)\nddp(x)",
    )  # fmt: skip
    document = without_plotly(msgspec.structs.replace(gloo_report(), alarms=(alarm,)))
    shown = ("Nobody speaks.", "Wrap it.", "<pre><code>ddp = wrap(model)\nddp(x)</code></pre>", 'id="verdict"')
    places = [document.index(text) for text in shown]
    assert places == sorted(places)
    assert Elements(document).open == []


def test_a_nearly_empty_report_is_a_whole_page() -> None:
    empty = gloo_report(steps=(), buckets=(), comm_models=(), recommendations=(), notes=(), baseline=None, config=None)
    assert Elements(without_plotly(empty)).open == []


def test_the_file_is_written_whole(tmp_path: Path) -> None:
    write_html(gloo_report(), tmp_path / "report.html")
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == render_html(gloo_report())


def test_importing_reports_loads_neither_plotly_nor_streamlit() -> None:
    heavy = {"plotly", "jinja2", "streamlit", "pandas"}
    code = f"import reports, sys; reports.render_terminal; print({heavy} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_the_public_surface_is_frozen() -> None:
    import reports

    assert reports.__all__ == [
        "render_diagnosis",
        "render_estimate",
        "render_forecast",
        "render_html",
        "render_sweep",
        "render_terminal",
        "write_html",
    ]
    with pytest.raises(AttributeError):
        _ = reports.render_nothing
