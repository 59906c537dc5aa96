"""One "today" in every report: the ceiling's share, what-ifs, the forecast and the replayed step agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from advisor.errors import UsageError
from advisor.pipeline import analyze, what_if
from advisor.schema import Report, read_json
from reports.sentences import say_baseline, say_ceiling
from reports.text import format_fraction, format_ns

EXAMPLES = Path(__file__).resolve().parents[2] / "reports" / "examples"
REPLAYED = ("a100-resnet50-ddp-rank0of2", "mi300-resnet-ddp-rank0of8", "sampled-2of128rank", "v100-dlrm-ddp-8rank")
NOT_REPLAYED = (
    "cpu-gloo-legacy-1rank",
    "h100-nanogpt-8rank",
    "rtx4090-allreduce-2rank-nosteps",
    "v100-torchrec-ddp-straggler-4rank",
)


@pytest.fixture(scope="module", params=(*REPLAYED, *(file.parent.name for file in EXAMPLES.glob("*/report.json"))))
def report(request: pytest.FixtureRequest) -> Report:
    example = EXAMPLES / request.param / "report.json"
    if example.exists():
        return read_json(Report, example)
    return analyze([request.getfixturevalue("trace_corpus") / request.param], holistic=False)


def test_the_ceilings_share_is_what_the_hook_that_sends_nothing_saves(report: Report) -> None:
    assert report.config is not None
    today = what_if(report, report.config).step_ns.value
    free = what_if(report, replace(report.config, comm_hook="noop")).step_ns.value
    said = say_ceiling(report)
    share = re.search(r"[\d.]+ %(?= less)", said)
    if share is None:
        assert "as long as it does now" in said
        assert 1 - free / today < 0.001
    else:
        assert share.group() == format_fraction(1 - free / today)


def test_the_replayed_step_is_todays_or_the_correction_between_them_is_named(report: Report) -> None:
    assert report.config is not None
    assert report.baseline is not None
    assert report.calibration is not None
    today = what_if(report, report.config).step_ns
    assert report.today is not None
    assert report.today.step_ns == today
    if report.forecast is not None:
        assert report.forecast.rows[0].step_ns == today
    residual = report.calibration.baseline_residual_fraction.value
    assert today.value == pytest.approx(report.baseline.replayed_ns.value * (1 + residual))
    if residual:
        assert f"today's {format_ns(today.value)} (the replayed step, corrected by" in say_ceiling(report)


def test_the_noise_of_one_step_alone_is_unknown(trace_corpus: Path) -> None:
    report = analyze([trace_corpus / "v100-dlrm-ddp-8rank"], holistic=False)
    assert len({step.step for step in report.steps}) == 1
    assert report.baseline is not None
    assert report.baseline.noise_floor_fraction is None
    assert "noise floor –" in say_baseline(report)
    assert report.calibration is not None
    residual = report.calibration.baseline_residual_fraction
    assert residual.low < residual.value == residual.high == 0


@pytest.mark.parametrize("name", NOT_REPLAYED)
def test_without_a_replay_there_is_no_ceiling_and_no_what_if(name: str, trace_corpus: Path) -> None:
    report = analyze([trace_corpus / name], holistic=False)
    assert say_ceiling(report) == ""
    if report.config is not None:
        with pytest.raises(UsageError, match="cannot predict"):
            what_if(report, report.config)


def test_on_a_late_gpu_nothing_blocks_and_what_cannot_be_evaluated_is_refused(trace_corpus: Path) -> None:
    """The A100's late host hides its last bucket: none of it blocks, as none did in the trace."""
    report = analyze([trace_corpus / "a100-resnet50-ddp-rank0of2"], holistic=False)
    assert report.today is not None
    assert report.today.blocking_ns.value == 0
    assert report.config is not None
    for changes, said in (
        ({"bucket_cap_mb": 0.001}, "merged but not split"),
        ({"gradient_as_bucket_view": True}, "not replayed"),
        ({"world_size": 64}, "forecast"),
        ({"accumulation_steps": 0}, "cannot be meant"),
    ):
        with pytest.raises(UsageError, match=said):
            what_if(report, replace(report.config, **changes))
