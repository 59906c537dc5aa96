"""Every alarm: one contract that all of them keep, and the smallest run that raises each.

A run is two ranks with steps of 1 ms: a backward from 300 to 500 µs with gradients and buckets as given, and an update.
"""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from advisor.alarms import ALARMS
from advisor.alarms.reduced_bytes_mismatch import find_left_out
from advisor.observation import observe_rank
from advisor.schema import Alarm, AlarmCode, DDPConfig, DeviceInfo, ParameterInfo, RunManifest
from advisor.verdict import Analysis
from tests.job_builders import build_config
from tests.trace_builders import RankTrace, build_analysis

NUM_STEPS = 3


@dataclass(frozen=True)
class Micro:
    """One micro-step: elements of its gradients and of its buckets, and of the loss's input."""

    gradients: tuple[int, ...] = (3000, 5000)
    buckets: tuple[int, ...] = (8000,)
    loss: int | None = None
    clears: bool = False
    norm: bool = False


def record_rank(rank: int, micro_steps: tuple[Micro, ...], *, world_size: int = 2, updates: int = 1) -> RankTrace:
    trace = RankTrace(rank=rank, world_size=world_size)
    for number in range(NUM_STEPS):
        start = number * 10_000.0
        trace.step(3 + number, start, start + 10_000)
        for place, micro in enumerate(micro_steps):
            write_micro_step(trace, start + 1_000 * place, micro)
        for update in range(updates):
            trace.optimizer(start + 9_000 + 100 * update, start + 9_050 + 100 * update)
    return trace


def write_micro_step(trace: RankTrace, start: float, micro: Micro) -> None:
    if micro.clears:
        trace.add("user_annotation", "Optimizer.zero_grad#SGD.zero_grad", start, start + 10)
    trace.forward(start + 20, start + 200)
    if micro.loss is not None:
        trace.add(
            "cpu_op", "aten::mse_loss", start + 210, start + 215, args={"Input Dims": [[micro.loss], [micro.loss]]}
        )
    if micro.norm:
        trace.gloo(start + 220, start + 221, start + 230, 1, kind="all_reduce")
    trace.node(start + 300, start + 310)
    for place, elements in enumerate(micro.gradients):
        trace.gradient(start + 320 + 20 * place, start + 330 + 20 * place, elements)
    for place, elements in enumerate(micro.buckets):
        launch = start + 320 + 20 * len(micro.gradients) - 11 + place
        trace.gloo(launch, launch + 2, start + 600, elements, worker=place % 2)
    trace.copy_back(start + 600, start + 610)


def build_manifest(**changes: Any) -> RunManifest:
    parameters = tuple(
        ParameterInfo(name=f"p{place}", shape=(elements,), dtype="float32", num_bytes=4 * elements)
        for place, elements in enumerate((5000, 3000))
    )
    devices = tuple(DeviceInfo(rank=rank, host="node", device="cpu", device_type="cpu", num_cores=8) for rank in (0, 1))
    values = {
        "tool_version": "0", "created": "", "workload": "test", "ddp": build_config(backend="gloo"),
        "parameters": parameters, "initial_buckets": (), "buckets": (), "ready_order": (), "devices": devices,
    }  # fmt: skip
    return RunManifest(**(values | changes))


def analyze_ranks(*ranks: RankTrace, manifest: RunManifest | None = None) -> Analysis:
    return build_analysis([observe_rank(rank.read()) for rank in ranks], manifest)


def raise_alarms(analysis: Analysis) -> tuple[Alarm, ...]:
    return tuple(alarm for check in ALARMS if (alarm := check(analysis)) is not None)


def analyze_micro_steps(
    *micro_steps: Micro, other: tuple[Micro, ...] | None = None, updates: int = 1, manifest: RunManifest | None = None
) -> Analysis:
    """Two ranks; `other` is what rank 1 does, where it is something else."""
    ranks = (micro_steps, micro_steps if other is None else other)
    traces = [record_rank(rank, micro, updates=updates) for rank, micro in enumerate(ranks)]
    return analyze_ranks(*traces, manifest=manifest)


SILENT = Micro(buckets=())
SOUND = Micro()

RAISED: dict[AlarmCode, dict[str, Any]] = {
    "no_communication": {"micro_steps": (Micro(gradients=(), buckets=()),)},
    "unsynced_last_micro_batch": {"micro_steps": (SILENT, SILENT)},
    "reduced_bytes_mismatch": {"micro_steps": (Micro(buckets=(5000,)),)},
    "zero_grad_inside_accumulation": {"micro_steps": (SILENT, Micro(clears=True))},
    "redundant_synchronization": {"micro_steps": (SOUND, SOUND)},
    "partial_synchronization": {"micro_steps": (Micro(buckets=(3000,)), Micro(buckets=(3000, 5000)))},
    "bucket_plan_differs": {"micro_steps": (SOUND,), "other": (Micro(buckets=(3000, 5000)),)},
    "collective_count_differs": {"micro_steps": (SOUND,), "other": (Micro(norm=True),)},
    "uneven_loss_weighting": {"micro_steps": (Micro(loss=20),), "other": (Micro(loss=60),)},
    "harmful_environment": {
        "micro_steps": (SOUND,),
        "manifest": build_manifest(environment={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}),
    },
    "cap_unit_suspect": {
        "micro_steps": (SOUND,),
        "manifest": build_manifest(ddp=build_config(backend="gloo", bucket_cap_mb=12e6)),
    },
}
"""The smallest run that raises each."""


@cache
def analysis_of(code: AlarmCode) -> Analysis:
    settings = dict(RAISED[code])
    return analyze_micro_steps(*settings.pop("micro_steps"), **settings)


def raised(code: AlarmCode) -> tuple[Analysis, Alarm]:
    analysis = analysis_of(code)
    return analysis, next(alarm for alarm in raise_alarms(analysis) if alarm.code == code)


def lose_steps(analysis: Analysis) -> Analysis:
    """What is left of a run whose files were cut before any step ended."""
    nothing: dict[str, Any] = dict.fromkeys(("steps", "step_activities", "exchanges", "updates", "collectives"), ())
    ranks = tuple(dataclasses.replace(rank, **nothing) for rank in analysis.run.ranks)
    run = dataclasses.replace(analysis.run, ranks=ranks)
    return dataclasses.replace(analysis, steps=(), buckets=(), run=run)


@cache
def sound_codes() -> set[AlarmCode]:
    accumulating = analyze_micro_steps(SILENT, SILENT, SOUND, manifest=build_manifest())
    return codes(analyze_micro_steps(SOUND)) | codes(accumulating)


def codes(analysis: Analysis) -> set[AlarmCode]:
    return {alarm.code for alarm in raise_alarms(analysis)}


# ------------------------------------------------------------------------------------------------------ the contract


def test_every_alarm_is_listed_in_the_schema_and_here() -> None:
    names = {check.__module__.rpartition(".")[2] for check in ALARMS}
    files = {path.stem for path in Path("advisor/alarms").glob("[a-z]*.py")}
    assert names == files == set(RAISED) == set(get_args(AlarmCode))


@pytest.mark.parametrize("code", RAISED)
class TestContract:
    def test_it_is_raised_by_its_own_mistake(self, code: AlarmCode) -> None:
        assert code in codes(analysis_of(code))

    def test_it_is_silent_on_one_rank(self, code: AlarmCode) -> None:
        micro_steps, manifest = RAISED[code]["micro_steps"], RAISED[code].get("manifest")
        assert code not in codes(analyze_ranks(record_rank(0, micro_steps, world_size=1), manifest=manifest))

    def test_it_is_silent_on_sound_runs(self, code: AlarmCode) -> None:
        assert code not in sound_codes()

    def test_it_says_what_is_wrong_and_what_to_do_in_a_sentence_each(self, code: AlarmCode) -> None:
        _, alarm = raised(code)
        for sentence in (alarm.message, alarm.fix):
            assert sentence.endswith(".")
            assert ". " not in sentence
            assert sentence[0].isupper() or sentence[0].isdigit() or "_" in sentence.split()[0]

    def test_it_names_ranks_and_steps_of_the_run(self, code: AlarmCode) -> None:
        analysis, alarm = raised(code)
        assert alarm.ranks
        assert alarm.steps
        assert set(alarm.ranks) <= {step.rank for step in analysis.steps}
        assert set(alarm.steps) <= {step.step for step in analysis.steps}

    def test_its_figures_point_at_rows_of_the_report(self, code: AlarmCode) -> None:
        analysis, alarm = raised(code)
        assert alarm.evidence
        for evidence in alarm.evidence:
            if evidence.table == "config":
                continue
            assert evidence.table in ("steps", "buckets")
            assert evidence.rows
            table = getattr(analysis, evidence.table)
            assert {table[row].step for row in evidence.rows} <= set(alarm.steps)

    def test_it_says_nothing_of_steps_that_were_all_lost(self, code: AlarmCode) -> None:
        """Only what a manifest tells is still known."""
        found = raise_alarms(lose_steps(analysis_of(code)))
        told = {"harmful_environment", "cap_unit_suspect"} & {code}
        assert {alarm.code for alarm in found} == told
        assert all(evidence.value for alarm in found for evidence in alarm.evidence)

    def test_it_leaves_what_it_reads_unchanged(self, code: AlarmCode) -> None:
        analysis = analysis_of(code)
        before = copy.deepcopy(analysis)
        assert raise_alarms(analysis) == raise_alarms(analysis)
        for now, then in zip(analysis.run.ranks, before.run.ranks, strict=True):
            assert (now.updates, now.collectives, now.steps) == (then.updates, then.collectives, then.steps)
        assert (analysis.steps, analysis.buckets) == (before.steps, before.buckets)
        assert analysis.run.manifest == before.run.manifest


# ------------------------------------------------------------------------------------------- each of them more closely


def test_a_silent_last_micro_batch_says_more_than_no_communication() -> None:
    assert codes(analysis_of("unsynced_last_micro_batch")) == {"unsynced_last_micro_batch"}


def test_noop_hooks_are_meant_to_exchange_nothing() -> None:
    manifest = build_manifest(ddp=build_config(backend="gloo", comm_hook="noop"))
    assert codes(analyze_micro_steps(SILENT, SILENT, manifest=manifest)) <= {"no_communication"}


def test_collectives_that_were_launched_and_not_recorded_are_no_silent_backward() -> None:
    """As on GPUs without `ProfilerActivity.CUDA`: the host's launches are there, and no kernel."""
    ranks = [record_rank(rank, (SILENT,)) for rank in (0, 1)]
    for rank in ranks:
        for number in range(NUM_STEPS):
            rank.operator("c10d::allreduce_", number * 10_000.0 + 340, number * 10_000.0 + 345)
    assert codes(analyze_ranks(*ranks)) == {"no_communication"}


@pytest.mark.parametrize("launch", [700.0, 9_020.0, 9_500.0])
def test_gradients_may_be_reduced_by_hand_before_in_or_after_the_optimizer(launch: float) -> None:
    ranks = [record_rank(rank, (SILENT,)) for rank in (0, 1)]
    for rank in ranks:
        for number in range(NUM_STEPS):
            start = number * 10_000.0 + launch
            rank.gloo(start, start + 2, start + 100, 8000)
    assert codes(analyze_ranks(*ranks)) == set()


def test_sync_batch_norm_neither_synchronises_gradients_nor_is_redundant() -> None:
    for last, found in ((SILENT, {"unsynced_last_micro_batch"}), (SOUND, set())):
        ranks = [record_rank(rank, (SILENT, last)) for rank in (0, 1)]
        for rank in ranks:
            for start in (number * 10_000.0 + micro for number in range(NUM_STEPS) for micro in (0, 1_000)):
                rank.node(start + 311, start + 319, "SyncBatchNormBackward")
                rank.gloo(start + 313, start + 315, start + 318, 128)
        assert codes(analyze_ranks(*ranks)) == found


def test_a_model_that_is_sharded_in_part_keeps_gradients_for_itself() -> None:
    ranks = [record_on_gpu(rank, (True,)) for rank in (0, 1)]
    for rank in ranks:
        for start in (number * 10_000.0 for number in range(NUM_STEPS)):
            rank.gradient(start + 340, start + 350, 1000)
    assert codes(analyze_ranks(*ranks)) == {"reduced_bytes_mismatch"}
    for rank in ranks:
        args = {"Collective name": "all_to_allv", "In msg nelems": 64, "dtype": "Float", "Process Group Name": "0"}
        rank.kernel(100, 29_000, 29_100, "ncclDevKernel_SendRecv", args=args)
    assert codes(analyze_ranks(*ranks)) == set()


def record_on_gpu(rank: int, launches: tuple[bool, ...], group: str = "0") -> RankTrace:
    """Micro-steps whose kernels run long after the host has left them; `launches` says which ones reduce."""
    trace = RankTrace(rank=rank, backend="nccl")
    for number in range(NUM_STEPS):
        start = number * 10_000.0
        trace.step(3 + number, start, start + 10_000)
        for place, reduces in enumerate(launches):
            begin = start + 1_000 * place
            trace.forward(begin + 20, begin + 200)
            trace.node(begin + 300, begin + 310)
            trace.gradient(begin + 320, begin + 330, 8000)
            trace.kernel(begin + 322, begin + 30_000, begin + 30_100)
            if reduces:
                trace.nccl(begin + 324, begin + 30_100, begin + 30_200, 8000, group=group)
        trace.optimizer(start + 9_000, start + 9_050)
    return trace


@pytest.mark.parametrize(
    ("launches", "found"),
    [
        ((False, True), set()),
        ((True, True), {"redundant_synchronization"}),
        ((False, False), {"unsynced_last_micro_batch"}),
        ((True, False), {"unsynced_last_micro_batch"}),
    ],
)
def test_kernels_belong_to_the_micro_step_that_launched_them(launches: tuple[bool, ...], found: set[AlarmCode]) -> None:
    assert codes(analyze_ranks(*(record_on_gpu(rank, launches) for rank in (0, 1)))) == found


def test_counts_of_kernels_that_do_not_tell_their_group_are_not_compared() -> None:
    for group, found in (("", False), ("0", True)):
        ranks = [record_on_gpu(rank, launches, group) for rank, launches in enumerate(((False, True), (True, True)))]
        assert ("collective_count_differs" in codes(analyze_ranks(*ranks))) == found


@pytest.mark.parametrize(
    ("gradients", "buckets", "left_out"),
    [
        ((4, 3, 2, 5), (6, 5), (1,)),
        ((4, 3, 2, 5), (7, 5), (2,)),
        ((4, 3, 2, 5), (4, 5), (1, 2)),
        ((4, 4), (4,), (1,)),
        ((4, 3, 2, 5), (8, 5), ()),
        ((2, 2, 2), (3,), ()),
    ],
)
def test_the_gradients_that_no_bucket_carries_are_found(
    gradients: tuple[int, ...], buckets: tuple[int, ...], left_out: tuple[int, ...]
) -> None:
    found = find_left_out(gradients, buckets)
    assert sum(gradients[i] for i in found) == sum(gradients[i] for i in left_out)
    assert bool(found) == bool(left_out)


def test_buckets_that_a_hook_compressed_are_no_mismatch() -> None:
    """Factors of 500 elements, or 7000 of 8000 in buckets that no gradients make."""
    assert codes(analyze_micro_steps(Micro(buckets=(500,)))) == set()
    assert codes(analyze_micro_steps(Micro(buckets=(3500, 3500)))) == set()
    manifest = build_manifest(ddp=build_config(backend="gloo", comm_hook="powersgd:2"))
    assert codes(analyze_micro_steps(Micro(buckets=(5000,)), manifest=manifest)) == set()


def test_unused_parameters_are_reduced_and_no_mismatch() -> None:
    assert codes(analyze_micro_steps(Micro(gradients=(3000,)), manifest=build_manifest())) == set()


def test_parameters_that_are_sent_twice_are_told_where_the_manifest_knows_them() -> None:
    micro = Micro(buckets=(8000, 5000))
    assert codes(analyze_micro_steps(micro)) == set()
    (alarm,) = raise_alarms(analyze_micro_steps(micro, manifest=build_manifest()))
    assert (alarm.code, alarm.severity) == ("reduced_bytes_mismatch", "warning")


@pytest.mark.parametrize("code", ["redundant_synchronization", "partial_synchronization"])
def test_several_optimizers_may_need_several_backwards(code: AlarmCode) -> None:
    assert code not in codes(analyze_micro_steps(*RAISED[code]["micro_steps"], updates=2))


def test_backwards_of_different_modules_are_not_redundant() -> None:
    first, second = Micro(gradients=(3000,), buckets=(3000,)), Micro(gradients=(5000,), buckets=(5000,))
    assert codes(analyze_micro_steps(first, second)) == set()


def test_a_bucket_that_was_not_recorded_is_no_other_plan() -> None:
    whole, broken = Micro(buckets=(3000, 5000)), Micro(buckets=(3000,))
    assert "bucket_plan_differs" not in codes(analyze_micro_steps(whole, other=(broken,)))


def test_counts_that_are_exchanged_may_correct_the_weights() -> None:
    analysis = analyze_micro_steps(Micro(loss=20, norm=True), other=(Micro(loss=60, norm=True),))
    assert codes(analysis) == set()


@pytest.mark.parametrize(
    ("environment", "backend", "found"),
    [
        ({"TORCH_NCCL_ENABLE_TIMING": "1", "NCCL_DEBUG": "trace"}, "nccl", 2),
        ({"TORCH_NCCL_ENABLE_TIMING": "0", "NCCL_DEBUG": "INFO"}, "nccl", 0),
        ({"TORCH_NCCL_ENABLE_TIMING": "1", "NCCL_P2P_DISABLE": "1"}, "gloo", 0),
        ({"CUDA_LAUNCH_BLOCKING": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}, "nccl", 0),
        ({"OMP_NUM_THREADS": "4"}, "gloo", 0),
        ({"OMP_NUM_THREADS": "5"}, "gloo", 1),
        ({"OMP_NUM_THREADS": "4,2"}, "gloo", 0),
    ],
)
def test_variables_harm_where_they_do_something(environment: dict[str, str], backend: str, found: int) -> None:
    """Two ranks on a host of eight cores, without a GPU."""
    manifest = build_manifest(environment=environment, ddp=build_config(backend=backend))
    alarms = raise_alarms(analyze_micro_steps(SOUND, manifest=manifest))
    assert sum(len(alarm.evidence) for alarm in alarms) == found


@pytest.mark.parametrize(
    ("cap", "is_absurd"), [(25.0, False), (1000.0, False), (99_999.0, False), (26_214_400.0, True)]
)
def test_large_caps_are_common_and_absurd_ones_are_not(cap: float, is_absurd: bool) -> None:
    config: DDPConfig = build_config(backend="gloo", bucket_cap_mb=cap)
    analysis = analyze_micro_steps(SOUND, manifest=build_manifest(ddp=config))
    assert codes(analysis) == ({"cap_unit_suspect"} if is_absurd else set())
    by_list = msgspec.structs.replace(config, bucket_cap_mb=None, bucket_cap_mb_list=(1.0, cap))
    assert codes(analyze_micro_steps(SOUND, manifest=build_manifest(ddp=by_list))) == codes(analysis)
