"""The whole analysis on a real ResNet-50 trace: a slow host, so communication is exposed and blocks nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.pipeline import analyze
from advisor.schema import Report

BUCKET_ELEMENTS = [2_049_000, 7_875_584, 6_563_840, 6_637_568, 2_431_040]
RESNET50_PARAMETERS = 25_557_032


@pytest.fixture(scope="module")
def report(trace_corpus: Path) -> Report:
    return analyze([trace_corpus / "a100-resnet50-ddp-rank0of2"], holistic=False)


def test_the_five_buckets_of_every_step_hold_the_models_parameters(report: Report) -> None:
    for step in (4, 5, 6):
        assert [b.num_elements for b in report.buckets if b.step == step] == BUCKET_ELEMENTS
    assert sum(BUCKET_ELEMENTS) == RESNET50_PARAMETERS


def test_the_buffer_broadcasts_are_no_buckets(report: Report) -> None:
    buffers = [c for c in report.collectives if c.role == "buffer"]
    assert {c.num_elements for c in buffers} == {53_120, 53}
    assert {c.kind for c in buffers} == {"broadcast"}
    assert [c.count_per_step for c in buffers] == [1.0, 1.0]


def test_the_unions_agree_to_the_nanosecond(report: Report) -> None:
    (rank,) = report.ranks
    assert (rank.communication_ns, rank.compute_ns, rank.overlap_ns) == (46_876_493, 115_655_847, 7_317_025)


def test_the_host_is_what_holds_it_back_and_no_cap_is_advised(report: Report) -> None:
    assert report.verdict.code == "host_bound"
    assert [step.blocking_ns for step in report.steps] == [0, 0, 0]
    assert not any("bucket_cap" in advice.rule for advice in report.recommendations)


def test_views_instead_of_copies_are_the_change_that_is_proposed(report: Report) -> None:
    """161 copies back: 8.8 ms inside their own calls, 16.8 ms from the first to the last, on a host that is late."""
    views, host = report.recommendations
    assert views.change == {"gradient_as_bucket_view": True}
    assert views.saving_ns is not None
    assert views.acts_on_ns is not None
    assert 8.5e6 < views.saving_ns.low < 9.0e6
    assert views.saving_ns.low < views.saving_ns.value < views.saving_ns.high == views.acts_on_ns
    assert 16.5e6 < views.saving_ns.high < 17.6e6
    assert host.change == {}
    assert host.saving_ns is None


def test_replay_reproduces_the_step(report: Report) -> None:
    assert report.baseline is not None
    assert report.baseline.trusted


def test_the_copies_out_of_the_buckets_are_noticed(report: Report) -> None:
    assert [step.num_copies_back for step in report.steps] == [161] * 3
    assert all(16.5e6 < step.copy_back_ns < 17.6e6 for step in report.steps)


def test_what_blocks_nothing_leaves_the_step_as_it_is(report: Report) -> None:
    ceiling = report.verdict.observed_ceiling_ns
    assert ceiling is not None
    assert ceiling.value == sorted(step.duration_ns for step in report.steps)[1]
