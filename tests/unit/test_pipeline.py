"""From two ranks' traces to a report, on a run whose every number is known.

A step of 60 ms: data 1, forward 10, backward 20, 0.4 ms of copying back the first bucket, 2.8 ms of waiting for the
last one, 1.2 ms of copying it back, optimizer 2. Four gradients of 1 MiB are ready at 5, 10, 15 and 20 ms; by DDP's
default the first one fills a bucket and the others a second one. An all-reduce takes 0.2 ms + 1 ms/MiB and neither
slows computation nor is slowed.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from advisor import pipeline
from advisor.errors import InputError, UsageError
from advisor.schema import Report, read_json, write_json
from tests.trace_builders import RankTrace

MIB = 2**20
ELEMENTS = MIB // 4
FIRST_STEP, NUM_STEPS = 3, 4
STEP_MS = 60.0


def record_rank(rank: int, *, late_ms: float = 0.0) -> RankTrace:
    """One rank; a late one computes longer in backward, and its peer waits for it."""
    trace = RankTrace(rank=rank)
    for n in range(NUM_STEPS):
        start = (n * STEP_MS) * 1000.0
        trace.step(FIRST_STEP + n, start, start + STEP_MS * 1000)
        trace.forward(start + 1_000, start + 11_000)
        trace.operator("aten::mm", start + 1_000, start + 11_000)
        begin = start + 11_000
        own_late = late_ms * 1000 if rank == 1 else 0.0
        for k in range(4):
            done = begin + 5_000 * (k + 1) + own_late * (k == 3)
            trace.node(begin + 5_000 * k, done - 100)
            trace.gradient(done - 100, done, ELEMENTS)
            if k == 0:
                trace.gloo(done - 1, done, done + 1_200, ELEMENTS)
            elif k == 3:
                end = begin + 20_000 + late_ms * 1000 + 3_200
                trace.gloo(done - 1, done, end, 3 * ELEMENTS, worker=1)
        trace.copy_back(end - 3_200, end - 2_800)
        for k in range(3):
            trace.copy_back(end + 400 * k, end + 400 * (k + 1))
        trace.optimizer(start + 57_000, start + 59_000)
    return trace


def write_run(folder: Path, **changes: float) -> Path:
    folder.mkdir()
    for rank in (0, 1):
        (folder / f"rank{rank}.json").write_bytes(record_rank(rank, **changes).to_json())
    return folder


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return pipeline.analyze([write_run(tmp_path_factory.mktemp("runs") / "run")])


def test_the_parts_of_the_step_are_those_that_were_recorded(report: Report) -> None:
    row = report.steps[0]
    parts_ms = [
        part / 1e6
        for part in (row.data_ns, row.forward_ns, row.backward_ns, row.blocking_ns, row.optimizer_ns, row.other_ns)
    ]
    assert parts_ms == [1.0, 10.0, 21.6, 2.8, 2.0, 22.6]
    assert {step.step for step in report.steps} == {3, 4, 5, 6}
    assert {step.duration_ns for step in report.steps} == {60_000_000}


def test_the_buckets_are_found_with_their_times(report: Report) -> None:
    first, second = report.buckets[:2]
    assert (first.num_bytes, second.num_bytes) == (MIB, 3 * MIB)
    assert (first.start_ns, first.end_ns, first.blocking_ns) == (16_000_000, 17_200_000, 0)
    assert (second.start_ns, second.end_ns, second.blocking_ns) == (31_000_000, 34_200_000, 2_800_000)
    assert (first.peer_wait_ns, first.transfer_ns) == (0, 1_200_000)


def test_the_communication_model_is_the_one_that_was_put_in(report: Report) -> None:
    segment = report.comm_models[0].segments[0]
    assert segment.beta_ns_per_byte.value == pytest.approx(1e6 / MIB, rel=0.02)
    assert segment.alpha_ns.value == pytest.approx(200_000, rel=0.1)


def test_replay_reproduces_the_step(report: Report) -> None:
    assert report.baseline is not None
    assert report.baseline.measured_ns.value == 60_000_000
    assert abs(report.baseline.error_fraction) < 0.005


def test_the_forecast_begins_with_todays_own_prediction(report: Report) -> None:
    assert report.forecast is not None
    assert report.config is not None
    assert [row.world_size for row in report.forecast.rows] == [2, 4, 8, 16]
    assert report.forecast.rows[0].step_ns == pipeline.what_if(report, report.config).step_ns


def test_the_setting_is_read_off_the_buckets(report: Report) -> None:
    """1 and 3 MiB: no uniform cap gives these, DDP's default does."""
    assert report.config is not None
    assert report.config.bucket_cap_mb is None
    assert report.config.wrapper == "torch"
    assert report.config.backend == "gloo"
    assert report.config.world_size == 2


def test_the_verdict_and_its_ceiling(report: Report) -> None:
    """2.8 of 60 ms block, nearly all of it bytes; without communication the step would take 57.2 ms."""
    assert report.verdict.code == "bandwidth_bound"
    assert report.verdict.ceiling_ns is not None
    assert report.verdict.ceiling_ns.value / 1e6 == pytest.approx(57.2, rel=0.001)


def test_a_what_if_needs_the_report_alone(report: Report, tmp_path: Path) -> None:
    """One bucket: 4.2 ms of waiting instead of 2.8."""
    write_json(report, tmp_path / "report.json")
    again = read_json(Report, tmp_path / "report.json")
    assert again == report
    assert again.config is not None
    one = pipeline.what_if(again, msgspec.structs.replace(again.config, bucket_cap_mb=100.0))
    assert len(one.buckets) == 1
    assert one.blocking_ns.value / 1e6 == pytest.approx(4.2, rel=0.02)
    assert one.step_ns.value / 1e6 == pytest.approx(61.4, rel=0.001)


def test_a_late_rank_is_named(tmp_path: Path) -> None:
    """Rank 1's last gradient is 12 ms late: rank 0 waits, rank 1 has the short all-reduce and is the straggler."""
    report = pipeline.analyze([write_run(tmp_path / "run", late_ms=12.0)])
    assert report.verdict.code == "straggler"
    assert report.verdict.message.startswith("Rank 1 ")
    lateness = {rank.rank: rank.mean_lateness_ns for rank in report.ranks}
    assert lateness == {0: 0.0, 1: 6_000_000.0}
    assert [advice.rule for advice in report.recommendations] == ["straggler"]


def test_todays_setting_is_predicted_alike_in_the_report_and_from_it(report: Report) -> None:
    assert report.config is not None
    assert pipeline.what_if(report, report.config) == report.today


def test_the_waterfall_leads_from_a_naive_step_to_the_measured_one(report: Report) -> None:
    """34 ms of computation and 1.2 + 3.2 ms of transfer, of which 1.2 ms are hidden; 0.4 ms a MiB are copied out."""
    assert report.today is not None
    assert report.baseline is not None
    terms = {term.name: term.value_ns / 1e6 for term in report.today.waterfall}
    assert sum(terms.values()) == pytest.approx(report.baseline.measured_ns.value / 1e6)
    assert terms["hidden beside backward"] == pytest.approx(-1.2, abs=0.05)
    assert terms["copying out"] == pytest.approx(1.2, abs=0.05)
    assert abs(terms["not explained"]) < 0.1


def test_a_hook_of_unknown_cost_is_not_predicted(report: Report) -> None:
    assert report.config is not None
    with pytest.raises(UsageError, match="'quantized' costs cannot be predicted"):
        pipeline.what_if(report, msgspec.structs.replace(report.config, comm_hook="quantized"))
    halved = pipeline.what_if(report, msgspec.structs.replace(report.config, comm_hook="bf16"))
    assert report.today is not None
    assert len(halved.buckets) == len(report.today.buckets)


def test_powersgd_is_predicted_where_shapes_are_known_and_its_computation_is_named(report: Report) -> None:
    """Gradients without rows and columns travel as they are: what changes is the computation, which may be nothing."""
    assert report.config is not None
    assert report.today is not None
    compressed = msgspec.structs.replace(report.config, comm_hook="powersgd:2")
    prediction = pipeline.what_if(report, compressed)
    assert prediction.step_ns.basis == "extrapolated"
    assert prediction.step_ns.low < 1.02 * report.today.step_ns.value < prediction.step_ns.value
    assert "powersgd:2" in prediction.assumed[0]
    assert not report.today.assumed
    assert report.step_profile is not None
    unsized = msgspec.structs.replace(report.step_profile, sizes_known=False, shapes=())
    with pytest.raises(UsageError, match="record_shapes=True"):
        pipeline.what_if(msgspec.structs.replace(report, step_profile=unsized), compressed)
    old = msgspec.structs.replace(report.step_profile, shapes=())
    with pytest.raises(UsageError, match="analyze the traces again"):
        pipeline.what_if(msgspec.structs.replace(report, step_profile=old), compressed)


def test_what_if_says_when_a_report_cannot_predict(report: Report) -> None:
    blind = msgspec.structs.replace(report, step_profile=None)
    assert report.config is not None
    with pytest.raises(UsageError, match="cannot predict"):
        pipeline.what_if(blind, report.config)


def test_no_collective_at_all_is_an_alarm(tmp_path: Path) -> None:
    for rank in (0, 1):
        trace = RankTrace(rank=rank)
        trace.step(3, 0, 1000)
        trace.forward(100, 500)
        trace.node(500, 900)
        (tmp_path / f"rank{rank}.json").write_bytes(trace.to_json())
    report = pipeline.analyze([tmp_path])
    assert [alarm.code for alarm in report.alarms] == ["no_communication"]
    assert report.verdict.code == "unknown"


SETTINGS, COSTS = {"comm_hook", "bucket_cap_mb"}, {"two collectives", "a hook that casts"}


@pytest.mark.parametrize(
    ("shapes", "ddp", "assumed"),
    [(True, True, COSTS), (False, True, SETTINGS), (True, False, set()), (False, False, set())],
)
def test_only_what_the_answer_takes_for_granted_is_named(
    tmp_path: Path, shapes: bool, ddp: bool, assumed: set[str]
) -> None:
    """Costs where something is replayed, settings where nothing tells them, and neither outside of DDP."""
    for rank in (0, 1):
        trace = record_rank(rank)
        trace.events = [
            event if shapes else {**event, "args": {}}
            for event in trace.events
            if ddp or not re.search("DistributedDataParallel|AccumulateGrad|ddp", event["name"])
        ]
        (tmp_path / f"rank{rank}.json").write_bytes(trace.to_json())
    report = pipeline.analyze([tmp_path])
    said = " ".join(note.message for note in report.notes if note.message.startswith("Assumed"))
    words = {"comm_hook": "comm hook", "bucket_cap_mb": "bucket_cap_mb"}
    assert {what for what in SETTINGS | COSTS if words.get(what, what) in said} == assumed
    assert set(report.assumed_settings) == assumed & SETTINGS
    assert "no such hook ran" not in said


def test_two_files_of_one_rank_are_refused(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_bytes(record_rank(0).to_json(host_name=name))
    with pytest.raises(InputError, match="are both rank 0"):
        pipeline.analyze([tmp_path])


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_bytes(record_rank(0).to_json())
    report = pipeline.analyze([tmp_path])
    assert any("1 of 2 ranks are missing (1)" in note.message for note in report.notes)
    assert not report.recommendations


def test_a_broken_manifest_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (run / "manifest.json").write_text('{"schema_version": 1}')
    with pytest.raises(InputError, match=r"manifest\.json is not a RunManifest"):
        pipeline.analyze([run])


def test_buckets_that_no_cap_gives_are_kept_as_a_list(tmp_path: Path) -> None:
    """2 MiB and 2 MiB would need a cap of 2; 1 and 1 and 2 MiB need a list."""
    run = tmp_path / "run"
    run.mkdir()
    for rank in (0, 1):
        trace = RankTrace(rank=rank)
        for n in range(2):
            start = n * 60_000.0
            trace.step(3 + n, start, start + 60_000)
            trace.forward(start, start + 10_000)
            for k in range(4):
                done = start + 15_000 + 5_000 * k
                trace.gradient(done - 100, done, ELEMENTS)
                if k != 2:
                    trace.gloo(done - 1, done, done + 1_000, (2 if k == 3 else 1) * ELEMENTS)
            trace.copy_back(start + 31_000, start + 32_000)
        (run / f"rank{rank}.json").write_bytes(trace.to_json())
    config = pipeline.analyze([run]).config
    assert config is not None
    assert config.bucket_cap_mb_list == (1.0, 1.0, 2.0)


def test_what_blocks_is_told_apart_into_waiting_and_transfer(tmp_path: Path) -> None:
    """Rank 0 waits 5 ms for the last bucket of rank 1, and then 2.8 ms for its transfer, as rank 1 does."""
    report = pipeline.analyze([write_run(tmp_path / "run", late_ms=5)], holistic=False)
    told = {(step.rank, step.blocking_ns, step.blocking_wait_ns) for step in report.steps}
    assert told == {(0, 7_800_000, 5_000_000), (1, 2_800_000, 0)}
    (waited,) = (evidence for evidence in report.verdict.evidence if evidence.name == "blocked by late ranks")
    assert waited.value == pytest.approx(5 / 10.6)


def test_a_lone_file_that_exchanges_is_not_the_only_rank(tmp_path: Path) -> None:
    """As older profilers wrote it, without a word on how many ranks there are."""
    (tmp_path / "rank0.json").write_bytes(record_rank(0).to_json(distributedInfo={}))
    report = pipeline.analyze([tmp_path], holistic=False)
    assert report.verdict.code != "single_rank"
    assert "world_size" in report.assumed_settings
    assert {bucket.transfer_ns for bucket in report.buckets} == {None}
    assert any("no file says how many" in note.message for note in report.notes)


def test_a_rank_that_says_it_is_alone_is(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_bytes(record_rank(0).to_json(distributedInfo={"rank": 0, "world_size": 1}))
    assert pipeline.analyze([tmp_path], holistic=False).verdict.code == "single_rank"


def test_why_nothing_is_replayed_is_said_once_and_as_it_is(tmp_path: Path) -> None:
    for rank in (0, 1):
        trace = record_rank(rank)
        for event in trace.events:
            event.get("args", {}).pop("Input Dims", None)
        (tmp_path / f"rank{rank}.json").write_bytes(trace.to_json())
    report = pipeline.analyze([tmp_path], holistic=False)
    said = [note.message for note in report.notes if "shapes" in note.message]
    assert said == ["The buckets' bytes are unknown, so nothing can be replayed. Record with record_shapes=True."]


def test_files_cut_before_any_step_ended_raise_no_alarm(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    for file in folder.iterdir():
        text = file.read_bytes()
        file.write_bytes(text[: text.index(b"ProfilerStep") + 1000])
    report = pipeline.analyze([folder], holistic=False)
    assert report.steps == ()
    assert report.alarms == ()
    assert report.verdict.message.startswith("No step was recorded from its beginning to its end.")
