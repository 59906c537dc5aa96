"""Traces of other people's runs, and what a separate script with decimal arithmetic found in them, to the nanosecond.

Communication is kernels with `nccl` or `rccl` in their name, compute every other kernel; unions over the whole file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from advisor.alarms import ALARMS
from advisor.collectives import Collective, MatchedCollective, match_collectives
from advisor.exchange import StepExchange, classify_collective
from advisor.intervals import total
from advisor.observation import RankObservation, observe_rank
from advisor.readers.run import read_run
from advisor.tables import Run
from advisor.timeline import build_timeline
from tests.trace_builders import build_analysis

Read = Callable[[str], Run]
Observe = Callable[[str], list[RankObservation]]
"""A folder of the corpus to its run, or to what its ranks show."""

A100 = "a100-resnet50-ddp-rank0of2"
DLRM = "v100-dlrm-ddp-8rank"
H100 = "h100-nanogpt-8rank"
LEGACY = "cpu-gloo-legacy-1rank"
MI300 = "mi300-resnet-ddp-rank0of8"
RTX4090 = "rtx4090-allreduce-2rank-nosteps"
SAMPLED = "sampled-2of128rank"
TORCHREC = "v100-torchrec-ddp-straggler-4rank"

ALL_STEPS = 3
RESNET50_BUCKETS = [2049000, 7875584, 6563840, 6637568, 2431040]
"""Elements, in launch order."""


@pytest.fixture(scope="module")
def read(trace_corpus: Path) -> Read:
    return cache(lambda folder: read_run([trace_corpus / folder]))


@pytest.fixture(scope="module")
def observe(read: Read) -> Observe:
    return cache(lambda folder: [observe_rank(trace) for trace in read(folder).traces])


def match(ranks: list[RankObservation]) -> list[MatchedCollective]:
    return match_collectives([rank.collectives for rank in ranks], ranks[0].world_size or 0)


def duration_us(collective: Collective) -> float:
    return (collective.end_ns - collective.start_ns) / 1000


# ----------------------------------------------------------------------------------------------------- the table


@pytest.mark.parametrize(
    ("folder", "rank", "num_kernels", "communication_ns", "compute_ns", "overlap_ns"),
    [
        (A100, 0, 21, 46_876_493, 115_655_847, 7_317_025),
        (DLRM, 0, 8, 5_798_000, 1_034_000, 261_000),
        (TORCHREC, 0, 13, 3_073_067_000, 118_965_000, 36_693_000),
        (TORCHREC, 1, 13, 3_073_095_000, 122_076_000, 39_605_000),
        (TORCHREC, 2, 12, 36_693_000, 122_190_000, 4_975_000),
        (TORCHREC, 3, 13, 3_071_948_000, 122_074_000, 39_567_000),
        (MI300, 0, 17, 71_516_523, 25_739_303, 15_891_299),
        (H100, 0, 76, 48_340_162, 122_121_935, 7_684_051),
    ],
)
def test_unions_are_exact(
    observe: Observe, folder: str, rank: int, num_kernels: int, communication_ns: int, compute_ns: int, overlap_ns: int
) -> None:
    seen = observe(folder)[rank]
    assert seen.rank == rank
    assert seen.num_communication_events == num_kernels
    assert total(seen.communication) == communication_ns
    assert seen.activity.compute_ns == compute_ns
    assert seen.activity.overlap_ns == total(seen.overlap) == overlap_ns


@pytest.mark.parametrize("folder", [A100, DLRM, H100, MI300, RTX4090, SAMPLED, TORCHREC])
def test_the_phases_of_every_step_are_the_step(observe: Observe, folder: str) -> None:
    for rank in observe(folder):
        assert rank.steps
        for step in rank.steps:
            assert sum(span.end_ns - span.start_ns for span in step.spans) == step.end_ns - step.start_ns
            assert 0 <= step.host_bound_ns <= step.end_ns - step.start_ns
        for exchange in rank.exchanges:
            assert 0 <= exchange.blocking_ns <= exchange.step.sum_phase_ns("gradient_finish")


# ------------------------------------------------------------------------------------------- ResNet-50 on an A100


@pytest.fixture
def resnet50(observe: Observe) -> tuple[StepExchange, ...]:
    (rank,) = observe(A100)
    assert [step.number for step in rank.steps] == [4, 5, 6]
    return rank.exchanges


def test_resnet50_has_five_buckets_a_step(resnet50: tuple[StepExchange, ...]) -> None:
    assert len(resnet50) == ALL_STEPS
    for exchange in resnet50:
        collectives = [bucket.collective for bucket in exchange.buckets]
        assert [c.num_elements for c in collectives] == RESNET50_BUCKETS
        assert {(c.kind, c.dtype, c.phase, c.process_group) for c in collectives} == {
            ("all_reduce", "float32", "backward", "0")
        }
        assert sum(c.num_bytes for c in collectives) == 4 * 25_557_032
        assert (exchange.num_backwards, exchange.num_syncs, len(exchange.gradients)) == (1, 1, 161)
    durations = [duration_us(bucket.collective) for exchange in resnet50 for bucket in exchange.buckets]
    assert (min(durations), max(durations)) == (1689.577, 5993.392)


def test_resnet50_broadcasts_its_buffers_twice_a_step(observe: Observe) -> None:
    (rank,) = observe(A100)
    roles = Counter((classify_collective(c), c.num_elements, c.dtype) for c in rank.collectives)
    assert {key: number for key, number in roles.items() if key[0] != "bucket"} == {
        ("buffer", 53120, "float32"): ALL_STEPS,
        ("buffer", 53, "int64"): ALL_STEPS,
    }
    assert sum(roles.values()) == 7 * ALL_STEPS


def test_resnet50_exposes_its_communication_and_blocks_nothing(
    observe: Observe, resnet50: tuple[StepExchange, ...]
) -> None:
    (rank,) = observe(A100)
    hidden = rank.activity.overlap_ns / rank.activity.communication_ns
    assert 1 - hidden == pytest.approx(0.84391, abs=5e-6)
    assert [exchange.blocking_ns for exchange in resnet50] == [0, 0, 0]
    for exchange in resnet50:
        after_backward = exchange.buckets[-1].collective.end_ns - exchange.backward.end_ns
        assert 1_600_000 < after_backward < 2_200_000  # the last bucket ends
        assert 20_000_000 < exchange.host_tail_ns < 23_000_000  # and only then is anything launched
        assert 16_500_000 < exchange.step.sum_phase_ns("gradient_finish") < 17_500_000  # copying back, mostly
    assert all(step.host_bound_ns > 0.65 * (step.end_ns - step.start_ns) for step in rank.steps)


def test_resnet50_copies_every_gradient_back(read: Read) -> None:
    names = read(A100).traces[0].events["name"]
    assert (names == "torch.distributed.ddp.reducer::copy_bucket_to_grad").sum() == 161 * ALL_STEPS


# ----------------------------------------------------------------------------------------------------- ResNet, MI300


def test_on_mi300_steps_are_told_by_launches(observe: Observe, read: Read) -> None:
    (rank,) = observe(MI300)
    assert Counter(c.step for c in rank.collectives) == {None: 5, 15: 4, 16: 4, 17: 4}
    assert all(c.num_bytes == -1 for c in rank.collectives if c.step is None)
    device = build_timeline(read(MI300).traces[0]).device
    known = device[device["launch_ns"] >= 0]
    lag_ms = (known["start_ns"] - known["launch_ns"]) / 1e6
    assert 24 < np.median(lag_ms) < 30
    # Every step begins when the work before it is done, long after the host has left it.
    assert all(step.start_ns - step.host_end_ns > 0 for step in rank.steps)
    assert all(a.end_ns == b.start_ns for a, b in zip(rank.steps, rank.steps[1:], strict=False))


def test_on_mi300_the_second_bucket_waits_for_the_first_and_not_for_its_gradients(observe: Observe) -> None:
    for exchange in observe(MI300)[0].exchanges:
        first, second = exchange.buckets
        assert [bucket.collective.num_elements for bucket in exchange.buckets] == [2873320, 8816192]
        assert 18_000 < second.collective.start_ns - first.collective.end_ns < 22_000
        assert second.ready_device_ns is not None
        assert second.ready_device_ns < second.collective.start_ns - 1_000_000


# ------------------------------------------------------------------------------------------------------ DLRM, V100


def test_dlrms_ranks_end_together_after_starting_apart(observe: Observe) -> None:
    matched = match(observe(DLRM))
    assert [len(m.members) for m in matched] == [8] * 8
    starts = [[member.start_ns for member in m.members] for m in matched]
    ends = [[member.end_ns for member in m.members] for m in matched]
    assert all(1_000 <= max(end) - min(end) <= 7_000 for end in ends)
    skews_us = [(max(start) - min(start)) // 1000 for start in starts]
    assert skews_us[0] == 7624
    assert (min(skews_us[1:]), max(skews_us[1:])) == (125, 1101)
    for m, start, end in zip(matched, starts, ends, strict=True):
        assert 0 <= max(end) - max(start) - m.transfer_ns <= 3_000


def test_dlrms_sizes_come_from_the_annotations_around_the_launches(observe: Observe) -> None:
    for rank in observe(DLRM):
        assert [(c.kind, c.num_bytes) for c in rank.collectives if c.kind == "all_reduce"] == [
            ("all_reduce", 4 * elements) for elements in (394241, 112, 226960)
        ]
        assert Counter(c.kind for c in rank.collectives) == {"all_to_all": 5, "all_reduce": 3}
        assert [len(exchange.buckets) for exchange in rank.exchanges] == [3]


# ------------------------------------------------------------------------------------------------------- the others


def test_torchrecs_straggler_is_the_rank_that_never_waits(observe: Observe) -> None:
    ranks = observe(TORCHREC)
    assert [rank.rank for rank in ranks] == [0, 1, 2, 3]
    matched = match(ranks)
    assert Counter(len(m.members) for m in matched) == {4: 12, 3: 1}
    long = [m for m in matched if max(map(duration_us, m.members)) > 1_000_000]
    assert len(long) == 3
    for m in long:
        shortest = min(m.members, key=duration_us)
        assert shortest.rank == 2
        assert 12_000 < m.transfer_ns / 1000 < 12_200
        arrivals = {member.rank: member.start_ns - o for member, o in zip(m.members, m.offsets_ns, strict=True)}
        assert max(arrivals, key=lambda rank: arrivals[rank]) == 2
        assert arrivals[2] - max(at for rank, at in arrivals.items() if rank != 2) > 990_000_000


def test_nanogpt_is_no_ddp_and_all_its_collectives_match(observe: Observe) -> None:
    ranks = observe(H100)
    assert {rank.parallelism for rank in ranks} == {"hand_written"}
    assert not any(rank.exchanges for rank in ranks)
    durations = [duration_us(c) for rank in ranks for c in rank.collectives if c.num_elements == 38_633_472]
    assert (round(min(durations)), round(max(durations))) == (223, 6433)
    assert 276 <= median(durations) < 278
    assert {c.dtype for rank in ranks for c in rank.collectives if c.num_elements == 38_633_472} == {"bfloat16"}
    matched = match(ranks)
    assert [len(m.members) for m in matched] == [8] * 76
    for m in matched:  # also those launched before the window, whose sizes nobody knows
        ends = [member.end_ns - offset for member, offset in zip(m.members, m.offsets_ns, strict=True)]
        assert max(ends) - min(ends) < 200_000


def test_one_all_reduce_without_steps(observe: Observe) -> None:
    ranks = observe(RTX4090)
    assert [(rank.backend, rank.step_source, rank.parallelism) for rank in ranks] == [("nccl", "window", "unknown")] * 2
    (only,) = match(ranks)
    assert [(c.num_bytes, duration_us(c)) for c in only.members] == [(400, 7.424), (400, 11264.642)]
    assert only.complete
    assert only.transfer_ns == 7_424


def test_a_sample_of_a_large_job_says_what_is_missing(observe: Observe, read: Read) -> None:
    assert any(note.message.startswith("126 of 128 ranks are missing (2, 3,") for note in read(SAMPLED).notes)
    for rank in observe(SAMPLED):
        assert (rank.world_size, rank.parallelism, [step.number for step in rank.steps]) == (128, "ddp", [551, 552])
        assert all(c.num_bytes > 0 for c in rank.collectives)


def test_a_bare_array_of_2022_holds_gloos_collectives_without_sizes(trace_corpus: Path, tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes((trace_corpus / LEGACY / "ref.json").read_bytes())
    (trace,) = read_run([path]).traces
    rank = observe_rank(trace)
    assert (rank.backend, rank.device_type, rank.step_source, rank.parallelism) == ("gloo", "cpu", "window", "ddp")
    assert [(c.kind, duration_us(c), c.num_bytes) for c in rank.collectives] == [
        ("broadcast", 188, -1),
        ("all_reduce", 11717, -1),
    ]


# ---------------------------------------------------------------------------------------------------------- alarms


@pytest.mark.parametrize("folder", [A100, DLRM, H100, LEGACY, MI300, RTX4090, SAMPLED, TORCHREC])
def test_no_alarm_is_raised_on_runs_that_are_right(observe: Observe, folder: str) -> None:
    analysis = build_analysis(observe(folder))
    assert [alarm.code for check in ALARMS if (alarm := check(analysis)) is not None] == []


@pytest.mark.parametrize(("folder", "num_elements"), [(A100, 25_557_032), (DLRM, 394241 + 112 + 226960)])
def test_what_the_buckets_carry_is_what_the_alarms_compare(observe: Observe, folder: str, num_elements: int) -> None:
    for rank in observe(folder):
        assert {update.micro_steps[-1].num_reduced for update in rank.updates} == {num_elements}
        assert not any(update.ends_silent for update in rank.updates)
