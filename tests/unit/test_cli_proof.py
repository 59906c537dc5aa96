"""Which settings are measured, and what a measurement makes of an advice."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

from advisor.cli.demo import say_outcome
from advisor.cli.proof import attach_sweep, choose_arms, judge
from advisor.pipeline import what_if
from advisor.rules.guards import apply_change
from advisor.schema import Estimate, GradientReady, RankProfile, Report, StepProfile, Sweep, SweepArm
from tests.builders import GLOO_CONFIG, MIB, gloo_report, recommendation, swept_report

MS = 1_000_000
ADVISED = msgspec.structs.replace(GLOO_CONFIG, bucket_cap_mb=8.0)


def _estimate(value: float, low: float, high: float) -> Estimate:
    return Estimate(value=value, low=low, high=high, basis="measured")


def _arm(outcome: Any, config: Any = ADVISED, ratio: tuple[float, float, float] | None = (1, 0.99, 1.01)) -> SweepArm:
    return SweepArm(
        name="bucket_cap_mb 8 MiB" if config is ADVISED else "today",
        config=config,
        predicted_ns=_estimate(100 * MS, 98 * MS, 102 * MS),
        step_ns=None if ratio is None else _estimate(*(100 * MS * part for part in ratio)),
        ratio=None if ratio is None else _estimate(*ratio),
        num_steps=40,
        outcome=outcome,
    )


REFERENCE = _arm("reference", GLOO_CONFIG)


def _advice(least: float, most: float) -> Any:
    saving = Estimate(value=(least + most) / 2 * MS, low=least * MS, high=most * MS, basis="fitted")
    return recommendation(saving_ns=saving, change={"bucket_cap_mb": 8.0})


@pytest.mark.parametrize(
    ("outcome", "ratio", "promised_ms", "status"),
    [
        ("faster", (0.90, 0.88, 0.92), (8, 12), "confirmed"),
        ("slower", (1.05, 1.03, 1.07), (8, 12), "refuted"),
        ("tie", (0.99, 0.97, 1.01), (8, 12), "refuted"),  # at most 3 % saved where at least 8 % were promised
        ("tie", (0.99, 0.97, 1.01), (1, 3), "undecided"),
        ("failed", None, (8, 12), "predicted"),
    ],
)
def test_an_advice_is_judged_by_its_measurement(
    outcome: str, ratio: Any, promised_ms: tuple[float, float], status: str
) -> None:
    assert judge(_advice(*promised_ms), _arm(outcome, ratio=ratio), REFERENCE) == status


def _sweep(*arms: SweepArm) -> Sweep:
    return Sweep(
        arms=arms, noise_floor_fraction=0.01, tie_fraction=0.02, num_blocks=8, steps_per_block=4, predictions_sha256="0"
    )


def test_the_sweep_is_attached_and_only_the_measured_advice_is_judged() -> None:
    other = recommendation(change={"comm_hook": "fp16"})
    report = gloo_report(recommendations=(_advice(8, 12), other))
    sweep = _sweep(REFERENCE, _arm("tie", GLOO_CONFIG), _arm("faster", ratio=(0.9, 0.88, 0.92)))
    attached = attach_sweep(report, sweep)
    assert attached.sweep == sweep
    assert [advice.status for advice in attached.recommendations] == ["confirmed", "predicted"]
    assert report.recommendations[0].status == "predicted", "the report that was given is left as it was"


def test_advice_outside_ddp_is_not_judged_by_the_double_of_today() -> None:
    report = gloo_report(recommendations=(recommendation(change={}),))
    attached = attach_sweep(report, _sweep(REFERENCE, _arm("tie", GLOO_CONFIG)))
    assert attached.recommendations[0].status == "predicted"


def test_a_change_touches_only_its_fields() -> None:
    assert apply_change(GLOO_CONFIG, _advice(1, 2).change) == ADVISED
    listed = apply_change(GLOO_CONFIG, {"bucket_cap_mb_list": [1.0, 25.0]})
    assert listed.bucket_cap_mb_list == (1.0, 25.0)


def _rank_profile(rank: int) -> RankProfile:
    """A backward of 100 ms with 20 gradients of 1 MiB, one every 5 ms, in a step of 150 ms."""
    return RankProfile(
        rank=rank,
        data_ns=0,
        forward_ns=40 * MS,
        backward_ns=100 * MS,
        optimizer_ns=10 * MS,
        other_ns=0,
        host_bound_fraction=0.0,
        gradients=tuple(
            GradientReady(
                index=i,
                num_bytes=MIB,
                dtype="float32",
                ready_host_ns=(i + 1) * 5 * MS,
                ready_device_ns=(i + 1) * 5 * MS,
            )
            for i in range(20)
        ),
    )


PROFILE = StepProfile(
    device_type="cpu",
    num_steps=4,
    num_micro_steps=1,
    sizes_known=True,
    ranks=(_rank_profile(0), _rank_profile(1)),
    slowest=_rank_profile(-1),
)


def test_the_first_advice_is_measured_beside_today() -> None:
    today, candidate = choose_arms(gloo_report(step_profile=PROFILE, recommendations=(_advice(8, 12),)))
    assert (today.name, today.config) == ("today", GLOO_CONFIG)
    assert (candidate.name, candidate.config) == ("bucket_cap_mb 8 MiB", ADVISED)
    assert today.predicted_ns is not None
    assert candidate.predicted_ns is not None
    assert candidate.predicted_ns.value < today.predicted_ns.value


def test_without_advice_the_shortest_predicted_step_is_measured() -> None:
    report = gloo_report(step_profile=PROFILE, recommendations=())
    candidate = choose_arms(report)[1]
    assert candidate.config.bucket_cap_mb is not None
    assert candidate.config == msgspec.structs.replace(GLOO_CONFIG, bucket_cap_mb=candidate.config.bucket_cap_mb)
    assert candidate.predicted_ns == what_if(report, candidate.config).step_ns
    eight = what_if(report, ADVISED).step_ns
    assert candidate.predicted_ns is not None
    assert candidate.predicted_ns.value <= eight.value


def test_nothing_is_measured_where_replay_cannot_predict() -> None:
    report = gloo_report(step_profile=None)
    assert choose_arms(report) == ()
    assert say_outcome(report) == "Replay knows no other setting for this run, so there was nothing to measure."


@pytest.mark.parametrize(
    ("outcome", "ratio", "status", "sentence"),
    [
        ("faster", 0.95, "confirmed", "measured -5.0 %, faster: the advice is confirmed."),
        ("tie", 0.99, "undecided", "measured -1.0 %, a tie with today's setting: the advice is undecided."),
    ],
)
def test_the_outcome_is_told_in_a_sentence(
    outcome: str, ratio: float, status: Literal["confirmed", "undecided"], sentence: str
) -> None:
    arm = _arm(outcome, ratio=(ratio, ratio - 0.02, ratio + 0.02))
    report = gloo_report(recommendations=(recommendation(status=status),), sweep=_sweep(REFERENCE, arm))
    assert say_outcome(report) == f"bucket_cap_mb 8 MiB: predicted +0.0 %, {sentence}"


def test_without_advice_the_outcome_says_why_it_was_measured() -> None:
    report: Report = gloo_report(recommendations=(), sweep=_sweep(REFERENCE, _arm("tie")))
    assert say_outcome(report).endswith("No change was advised; this one had the shortest predicted step.")


def test_an_arm_that_failed_is_said_to_have_failed() -> None:
    assert say_outcome(swept_report()) == "powersgd:2 could not be measured."
