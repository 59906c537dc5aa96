"""The rows that every renderer shows, and the sentences they share."""

from __future__ import annotations

import msgspec
import pytest

from advisor.schema import Baseline, Evidence
from reports import sentences, summary
from reports.palette import PART_LABELS, PARTS, TEXT_ON_PART
from tests.builders import (
    GLOO_CONFIG,
    MS,
    a100_report,
    bucket_summary,
    estimate,
    estimate_ms,
    gloo_report,
    recommendation,
    step_summary,
    swept_report,
)


def test_the_median_step_is_the_one_in_the_middle() -> None:
    steps = [step_summary(step=i, forward=forward, blocking=2 * i) for i, forward in enumerate((10, 30, 20))]
    (rank,) = summary.summarize_ranks(gloo_report(steps=tuple(steps)))
    # durations 10, 32, 24: the step of 24
    assert (rank.step_ns, rank.parts_ns["forward"], rank.parts_ns["blocking"]) == (24 * MS, 20 * MS, 4 * MS)


def test_of_an_even_number_of_steps_the_two_in_the_middle_are_averaged() -> None:
    for rank in summary.summarize_ranks(gloo_report()):
        # 180, 181, 182, 184
        assert rank.step_ns == 181.5 * MS
        assert rank.parts_ns["blocking"] == 29.5 * MS
        assert rank.num_steps == 4


@pytest.mark.parametrize("report", [gloo_report(), a100_report()])
def test_the_parts_sum_to_the_step(report) -> None:
    for rank in summary.summarize_ranks(report):
        assert sum(rank.parts_ns.values()) == rank.step_ns


def test_every_part_has_a_colour_a_label_and_a_text_colour() -> None:
    assert list(PARTS) == list(PART_LABELS) == list(TEXT_ON_PART)


def test_the_slowest_ranks_are_kept_in_order_of_rank() -> None:
    steps = tuple(step_summary(rank=rank, forward=forward) for rank, forward in enumerate((10, 40, 20, 30)))
    ranks = summary.summarize_ranks(gloo_report(steps=steps))
    assert [rank.rank for rank in summary.slowest_ranks(ranks, 2)] == [1, 3]


def test_the_typical_step_is_the_median_of_the_slowest_rank() -> None:
    forward = {(0, 0): 10, (1, 0): 90, (0, 1): 50, (1, 1): 40, (0, 2): 20, (1, 2): 20}
    steps = tuple(step_summary(rank, step, forward=value) for (rank, step), value in forward.items())
    # slowest rank of each step: 90, 50, 20
    assert summary.typical_step(gloo_report(steps=steps)) == 1
    assert summary.typical_step(gloo_report(steps=())) is None


def test_a_bucket_row_is_the_median_over_steps_then_the_largest_of_the_ranks() -> None:
    spans = tuple(
        bucket_summary(rank=rank, step=step, blocking_ms=blocking, peer_wait_ns=None, ready_host_ms=step)
        for rank, row in enumerate(((1, 2, 9), (3, 4, 5)))
        for step, blocking in enumerate(row)
    )
    (row,) = summary.summarize_buckets(gloo_report(buckets=spans))
    assert row.blocking_ns == 4 * MS  # medians 2 and 4
    assert row.ready_ns == 1 * MS
    assert row.peer_wait_ns is None


def test_ready_on_the_device_counts_where_it_is_known() -> None:
    assert summary.ready_ns(bucket_summary(ready_host_ms=1, ready_device_ms=2)) == 2 * MS
    assert summary.ready_ns(bucket_summary(ready_host_ms=1)) == 1 * MS


def test_changes_show_todays_value_where_it_is_known() -> None:
    report = gloo_report()
    assert summary.describe_changes(report.recommendations[0], report.config) == (("bucket_cap_mb", "unset", "8 MiB"),)
    assert summary.describe_changes(report.recommendations[0], None) == (("bucket_cap_mb", "", "8 MiB"),)
    assert summary.describe_equally_good(report.recommendations[0]) == (
        "bucket_cap_mb: 6 MiB to 10 MiB are equally good",
    )


def test_the_run_is_described_by_what_is_known() -> None:
    assert ("workload", "gpt (small)") in summary.describe_run(gloo_report())
    assert not any(name == "workload" for name, _ in summary.describe_run(a100_report()))


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({}, {}),
        ({"caps_first_bucket": False}, {}),
        (
            {"find_unused_parameters": True, "static_graph": True},
            {"find_unused_parameters": "on", "static_graph": "on"},
        ),
        ({"forward_sync_buffers": False}, {"forward_sync_buffers": "off"}),
    ],
)
def test_the_header_names_the_switches_that_are_not_as_usual(changes: dict[str, bool], shown: dict[str, str]) -> None:
    usual = summary.describe_run(gloo_report())
    told = summary.describe_run(gloo_report(config=msgspec.structs.replace(GLOO_CONFIG, **changes)))
    assert dict(set(told) - set(usual)) == shown


def test_a_setting_that_nothing_tells_is_marked_as_assumed() -> None:
    facts = dict(summary.describe_run(gloo_report(assumed_settings=("comm_hook",))))
    assert facts["comm_hook"] == "none (assumed)"
    assert "assumed" not in facts["bucket_cap_mb"]


def test_the_ceiling_is_the_most_that_can_be_saved() -> None:
    # 152 of 180 replayed, or of the 179 ms that predictions start from
    exact = msgspec.structs.replace(gloo_report().calibration, baseline_residual_fraction=estimate(0))
    assert sentences.say_ceiling(gloo_report(calibration=exact)) == (
        "With free communication the step would take 152.0 ms [149.0, 155.0], 16 % less: "
        "no comm hook can save more, and a bucket size only by fewer launches."
    )
    assert sentences.say_ceiling(gloo_report()) == (
        "With free communication the step would take 152.0 ms [149.0, 155.0], 15 % less than today's 179 ms "
        "(the replayed step, corrected by −0.8 %): "
        "no comm hook can save more, and a bucket size only by fewer launches."
    )
    assert "as long as it does now" in sentences.say_ceiling(a100_report())


def test_the_baseline_names_error_and_limit() -> None:
    assert sentences.say_baseline(gloo_report()).startswith(
        "Replay reproduces the measured step within 0.83 % (limit 10 %, noise floor 1 %)"
    )
    bad = Baseline(
        measured_ns=estimate_ms(180),
        replayed_ns=estimate_ms(150),
        error_fraction=-0.17,
        noise_floor_fraction=0.01,
        limit_fraction=0.1,
    )
    assert "misses the measured step by 17 %" in sentences.say_baseline(gloo_report(baseline=bad))
    assert "not replayed" in sentences.say_baseline(gloo_report(baseline=None))


def test_silence_has_a_reason() -> None:
    assert sentences.say_silence(gloo_report()) == ""
    assert "the device waits for the host" in sentences.say_silence(a100_report())
    assert "could not be replayed" in sentences.say_silence(gloo_report(recommendations=(), baseline=None))
    quiet = gloo_report(recommendations=())
    assert "beyond the noise" in sentences.say_silence(quiet)
    wrong = msgspec.structs.replace(quiet.baseline, error_fraction=0.5)
    assert "more than the limit" in sentences.say_silence(gloo_report(recommendations=(), baseline=wrong))


def test_the_sweep_tells_how_it_was_measured() -> None:
    said = sentences.say_sweep(swept_report().sweep)
    assert "0.56 % (noise floor)" in said
    assert "12 interleaved blocks of 4 steps" in said
    assert "3f2a3f2a3f2a" in said
    assert "compare the changes" in said


def test_a_predicted_change_is_told_beside_the_measured_one() -> None:
    """180 ms today, 167 and 190 predicted: 7.2 % less and 5.6 % more; none where nothing was predicted."""
    sweep = swept_report().sweep
    said = [sentences.say_predicted_change(sweep, arm) for arm in sweep.arms]
    assert said == ["", "+0.0 %", "−7.2 %", "+5.6 %", ""]


def test_headline_numbers_are_the_report_s() -> None:
    assert sentences.headline_numbers(gloo_report(recommendations=(recommendation(),))) == (
        ("Step", "182 ms", "median"),
        ("Blocking", "16 %", "of the step, median"),
        ("Ceiling", "152 ms", "if communication were free"),
        ("Saving", "14.0 ms", "a step, predicted"),
    )
    assert sentences.headline_numbers(gloo_report(steps=(), recommendations=()))[0][0] == "Ceiling"


def test_without_buckets_nobody_knows_what_blocks() -> None:
    assert all(name != "Blocking" for name, *_ in sentences.headline_numbers(gloo_report(buckets=())))
    rank = summary.summarize_ranks(gloo_report(buckets=()))[0]
    assert rank.known_ns("blocking") is None
    assert rank.known_ns("backward") == rank.parts_ns["backward"]
    assert summary.summarize_ranks(gloo_report())[0].known_ns("blocking") is not None


@pytest.mark.parametrize(
    ("value", "interval", "said"),
    [
        (0.0995, None, ("9.95 % of the step", "10 %")),  # rounds to its threshold, which it does not reach
        (0.101, None, ("10.1 % of the step", "10 %")),
        (0.1, None, ("10 % of the step", "10 %")),
        (0.14, None, ("14 % of the step", "10 %")),
        (0.24, (0.0, 0.5), ("24 % [0, 50] of the step", "10 %")),
        (None, None, ("–", "10 %")),
    ],
)
def test_a_share_can_be_told_from_its_threshold_and_an_unknown_one_from_zero(
    value: float | None, interval: tuple[float, float] | None, said: tuple[str, str]
) -> None:
    low, high = interval or (None, None)
    evidence = Evidence(name="data", value=value, low=low, high=high, unit="of the step", threshold=0.1)
    assert sentences.say_evidence(evidence) == ("data", *said)


def test_a_saving_is_told_with_its_interval_or_by_the_most_that_it_can_be() -> None:
    assert sentences.say_saving(recommendation()) == ("Saves", "14 ms [10, 18]", "a step (fitted)")
    unsure = recommendation(saving_ns=estimate_ms(2, 4))
    assert sentences.say_saving(unsure)[0] == "No measurable effect is certain:"
    outside = recommendation(saving_ns=None, acts_on_ns=73e6, change={}, code={})
    assert sentences.say_saving(outside) == ("Saves at most", "73.0 ms", "a step")
    assert sentences.say_saving(recommendation(saving_ns=None)) == ("", "", "")


def test_the_headline_saving_is_the_first_that_is_a_number() -> None:
    outside = recommendation(saving_ns=None, acts_on_ns=73e6, change={}, code={})
    numbers = sentences.headline_numbers(gloo_report(recommendations=(outside, recommendation())))
    assert numbers[-1][:2] == ("Saving", "14.0 ms")
    assert all(name != "Saving" for name, *_ in sentences.headline_numbers(gloo_report(recommendations=(outside,))))
