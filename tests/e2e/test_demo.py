"""The whole job with everything real, at the smallest size: two ranks train, are analysed, advised and measured."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from advisor.schema import read_report
from tests.e2e.conftest import ddp_advisor

DemoRun = tuple[Path, str]


def test_the_run_folder_is_complete(demo: DemoRun) -> None:
    run, _ = demo
    assert sorted(file.name for file in run.iterdir()) == [
        "manifest.json",
        "rank0.pt.trace.json.gz",
        "rank1.pt.trace.json.gz",
        "report.html",
        "report.json",
        "sweep.sqlite",
    ]


def test_the_report_holds_the_prediction_beside_the_measurement(demo: DemoRun) -> None:
    report = read_report(demo[0])
    assert report.sweep is not None
    today, again, *candidates = report.sweep.arms
    assert today.outcome == "reference"
    assert again.config == today.config == report.config
    assert len(candidates) == 1
    assert candidates[0].config != today.config
    assert candidates[0].predicted_ns is not None
    assert candidates[0].step_ns is not None
    assert {arm.num_steps for arm in report.sweep.arms} == {report.sweep.num_blocks * report.sweep.steps_per_block}
    assert report.sweep.noise_floor_fraction > 0


def test_it_prints_the_answer_and_where_to_read_on(demo: DemoRun) -> None:
    _, printed = demo
    in_order = ["Baseline", "Buckets", "Recommendation", "Prediction beside measurement", "noise floor", "report.html"]
    assert re.search(".*".join(in_order), printed, re.DOTALL), printed
    assert "ddp-advisor report run --serve" in printed


def test_the_html_needs_nothing_from_outside(demo: DemoRun) -> None:
    html = (demo[0] / "report.html").read_text()
    loaded = re.findall(r"""<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=["']?([^"'\s>]+)""", html)
    assert [address for address in loaded if not address.startswith("data:")] == []


def test_analyzing_again_gives_the_same_answer(demo: DemoRun, tmp_path: Path) -> None:
    copy = shutil.copytree(demo[0], tmp_path / "run")
    done = ddp_advisor("analyze", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, again = read_report(demo[0]), read_report(copy)
    assert again.steps == first.steps
    assert again.verdict == first.verdict
    assert list(tmp_path.iterdir()) == [copy]


def test_the_report_is_shown_again(demo: DemoRun) -> None:
    done = ddp_advisor("report", ".", cwd=demo[0])
    assert done.returncode == 0
    assert "Prediction beside measurement" in done.stdout
