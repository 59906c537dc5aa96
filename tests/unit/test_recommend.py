"""Which advice is given: merged where changes go together, ranked by risk and saving, silent where silence is right.

Known cases are small jobs whose answer is known; C9 and C11 are those of the sketches, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.estimate import build_job as build_sketch
from advisor.next_measurement import suggest_measurement
from advisor.recommend import MOST_RECOMMENDATIONS, recommend
from advisor.rules import EXCHANGE, RULES
from advisor.rules.bench import measure_saving, open_bench
from advisor.rules.guards import find_guard
from advisor.rules.memory import estimate_memory_bytes
from advisor.schema import DDPConfig, Estimate, JobSketch, Recommendation, Verdict, VerdictCode
from advisor.verdict import Analysis
from tests.advice_builders import Shown, build_advice_analysis
from tests.job_builders import MB, MS, build_config, build_job, exactly
from tests.unit.test_bucket_cap import even_job
from tests.unit.test_verdict import build_straggler


def verdict(code: VerdictCode) -> Verdict:
    return Verdict(code=code, message="", evidence=(), ceiling_ns=None)


def advise(analysis: Analysis, code: VerdictCode = "bandwidth_bound") -> list[Recommendation]:
    return list(recommend(analysis, verdict(code)))


def rules(advice: list[Recommendation]) -> list[str]:
    return [each.rule for each in advice]


# ------------------------------------------------------------------------------------------------ together, in order


def test_changes_without_risk_become_one_and_what_they_save_is_replayed_together() -> None:
    """A smaller cap leaves less at the end, and views need no copies back."""
    job = even_job(copy_out_ns_per_byte=exactly(0.05))
    analysis = build_advice_analysis(job, build_config(bucket_cap_mb=100.0), Shown(copy_back_ns=2_500_000), torch="2.8")
    first = advise(analysis)[0]
    assert first.rule == "bucket_cap + gradient_as_bucket_view"
    assert first.change.keys() == {"bucket_cap_mb", "gradient_as_bucket_view"}
    bench = open_bench(analysis)
    assert bench is not None
    together = measure_saving(bench.today, bench.try_change(first.change))
    assert first.saving_ns == together
    alone = [measure_saving(bench.today, bench.try_change({name: first.change[name]})).value for name in first.change]
    assert max(alone) < together.value < sum(alone) + 1


def test_the_least_risk_comes_first_and_there_are_three_at_most() -> None:
    job = build_job([(10 * (k + 1), 20 * MB) for k in range(4)], backward_ms=40)
    advice = advise(build_advice_analysis(job, build_config(bucket_cap_mb=100.0)))
    assert len(advice) <= MOST_RECOMMENDATIONS
    assert rules(advice)[-2:] == ["sixteen_bit_hook", "accumulation"]
    assert "saved together with the first advice" in {evidence.name for evidence in advice[-1].evidence}


def test_no_saving_exceeds_what_it_acts_on() -> None:
    job = build_job([(10 * (k + 1), 20 * MB) for k in range(4)], backward_ms=40)
    for advice in advise(build_advice_analysis(job, build_config(bucket_cap_mb=100.0))):
        assert advice.saving_ns is not None
        assert advice.acts_on_ns is not None
        assert advice.saving_ns.high <= advice.acts_on_ns


def test_every_change_shows_the_memory_it_needs() -> None:
    """Gradients of 50 MB: with Adam 16 bytes a parameter, and 4 more for buckets, which views save."""
    job = even_job()
    config = build_config()
    assert estimate_memory_bytes(job.profile, config) == 5 * 50 * MB
    assert estimate_memory_bytes(job.profile, replace(config, gradient_as_bucket_view=True)) == 4 * 50 * MB
    assert estimate_memory_bytes(job.profile, replace(config, comm_hook="powersgd:2")) == 6 * 50 * MB
    (advice, *_) = advise(build_advice_analysis(job, build_config(bucket_cap_mb=100.0)))
    assert any(evidence.name.startswith("memory of a rank") for evidence in advice.evidence)


# -------------------------------------------------------------------------------------------------------- silence


def test_there_is_no_advice_while_replay_misses_the_step() -> None:
    analysis = build_advice_analysis(even_job(), build_config(bucket_cap_mb=100.0))
    assert analysis.baseline is not None
    missed = replace(analysis.baseline, error_fraction=0.11)
    assert advise(dataclasses.replace(analysis, baseline=missed)) == []


@pytest.mark.parametrize("code", ["not_ddp", "single_rank", "unknown"])
def test_there_is_no_advice_without_ddp(code: VerdictCode) -> None:
    assert advise(build_advice_analysis(even_job(), build_config(bucket_cap_mb=100.0)), code) == []
    assert not any(code in rule.verdicts for rule in RULES)


def test_a_straggler_is_named_and_nothing_else_is_said(code: VerdictCode = "straggler") -> None:
    """C4, even where replay misses the step."""
    analysis = build_advice_analysis(even_job(), build_config(bucket_cap_mb=100.0), straggler=build_straggler())
    (advice,) = advise(dataclasses.replace(analysis, baseline=None), code)
    assert (advice.rule, advice.change) == ("straggler", {})
    assert "rank 1" in advice.title
    assert "in backward" in advice.title


def test_a_host_that_is_late_gets_no_advice_on_buckets() -> None:
    shown = Shown(copies_alone_ns=9 * MS, copy_back_ns=17 * MS, host_bound_ns=40 * MS)
    job = even_job()
    on_gpu = dataclasses.replace(job, profile=replace(job.profile, device_type="cuda"))
    advice = advise(build_advice_analysis(on_gpu, build_config(bucket_cap_mb=100.0), shown), "host_bound")
    assert rules(advice) == ["gradient_as_bucket_view", "batched_grad_copy", "host_bound"]


def test_nothing_is_said_of_settings_as_good_as_the_best() -> None:
    """C8: 0.4 MiB is within the noise of the best cap, and 0.1 ms of communication is left."""
    assert advise(build_advice_analysis(even_job(), build_config(bucket_cap_mb=0.4)), "balanced") == []


def test_one_large_gradient_that_is_ready_last_is_named_and_no_cap_is_advised() -> None:
    """C5: a tied embedding of 4.1 MB; six small layers could go 0.4 ms earlier, which nobody would notice in 27 ms."""
    gradients = [(2 + k / 10, 66_000) for k in range(6)] + [(3, 4_096_000)]
    analysis = build_advice_analysis(
        build_job(gradients, backward_ms=3, around_ms=(0, 20, 0)), build_config(bucket_cap_mb=1.0)
    )
    advice = advise(analysis)
    assert advice[0].rule == "indivisible_tail"
    assert "Untie it, shard it over the ranks, or send it in 16 bits." in advice[0].message
    assert not any(BUCKET_FIELDS & each.change.keys() for each in advice)


BUCKET_FIELDS = {"bucket_cap_mb", "bucket_cap_mb_list"}


def test_a_search_that_finds_nothing_is_to_be_turned_off_and_promises_little() -> None:
    """C3: all 16 parameters got gradients in every step."""
    job = build_job([(k + 1, 262_656) for k in range(16)], backward_ms=16, beta_ns_per_byte=0.1)
    config = build_config(bucket_cap_mb=2.0, find_unused_parameters=True, backend="gloo")
    (advice,) = advise(build_advice_analysis(job, config, Shown(used=16, mark=16)), "compute_bound")
    assert advice.change == {"find_unused_parameters": False}
    assert "no measurable effect by itself" in advice.message
    assert "if no branch of the model depends on its data" in advice.message
    assert advise(build_advice_analysis(job, config, Shown(used=15, mark=16)), "compute_bound") == []


def test_broadcasts_of_buffers_are_forward_traffic_and_no_bucket() -> None:
    """C6: 2 ms of a step of 20 ms."""
    analysis = build_advice_analysis(build_job([(20, MB)], backward_ms=20), build_config(), Shown(buffers_ns=2 * MS))
    (advice,) = advise(analysis, "compute_bound")
    assert advice.change == {"forward_sync_buffers": False}
    assert advice.saving_ns is not None
    assert advice.saving_ns.value == 2 * MS
    assert "no bucket that a cap could change" in advice.message
    assert "if running statistics may differ by rank" in advice.message


def test_where_bandwidth_is_everything_half_the_bytes_come_first_and_buckets_do_nothing() -> None:
    """C9: 400 MB at 1 GB/s, forward 60, backward 120, optimizer 10 ms: 470; bf16 270; four micro-steps 252.5 each."""
    sketch = JobSketch(
        layer_parameters=(1_000_000,) * 100,
        forward_ns=60 * MS,
        backward_ns=120 * MS,
        optimizer_ns=10 * MS,
        bandwidth_bytes_per_s=1e9,
    )
    advice = advise(build_advice_analysis(build_sketch(sketch, 2), build_config(bucket_cap_mb=4.0)))
    assert rules(advice) == ["sixteen_bit_hook", "accumulation"]
    hook, depth = advice
    assert hook.change == {"comm_hook": "bf16"}
    assert hook.saving_ns is not None
    assert hook.saving_ns.value / MS == pytest.approx(200, abs=2)
    assert depth.change == {"accumulation_steps": 4}
    assert depth.saving_ns is not None
    assert depth.saving_ns.value / MS == pytest.approx(470 - 252.5, abs=2)


def test_a_queue_is_no_matter_of_the_last_bucket() -> None:
    """C11: ready at 2, 4, 6, 8 ms, 3 ms each: 6 ms block, and half the bytes leave 1.5."""
    job = build_job([(2 * (k + 1), 3 * MB) for k in range(4)], backward_ms=8)
    advice = advise(build_advice_analysis(job, build_config(bucket_cap_mb=1.0)))
    assert advice[0].change == {"comm_hook": "bf16"}
    assert advice[0].saving_ns is not None
    assert advice[0].saving_ns.value / MS == pytest.approx(4.5)


# --------------------------------------------------------------------------------------------------------- guards


GLOO = {"backend": "gloo"}


@pytest.mark.parametrize(
    ("today", "change", "torch", "outcome"),
    [
        ({}, {"bucket_cap_mb_list": (1.0, 4.0)}, (2, 12), None),
        ({}, {"bucket_cap_mb_list": (1.0, 4.0)}, (2, 11), "fails"),
        ({}, {"bucket_cap_mb_list": (1.0, 4.0)}, None, "fails"),
        ({"find_unused_parameters": True}, {"bucket_cap_mb_list": (1.0,)}, (2, 13), "has no effect"),
        ({}, {"batched_grad_copy": True}, (2, 11), "fails"),
        (GLOO, {"comm_hook": "bf16"}, (2, 13), "fails"),
        (GLOO, {"comm_hook": "fp16"}, (2, 13), None),
        (GLOO, {"comm_hook": "powersgd:2"}, (2, 13), "hangs"),  # C19
        ({"backend": "unknown"}, {"comm_hook": "powersgd:2"}, (2, 13), "hangs"),
        ({}, {"comm_hook": "powersgd:2"}, (2, 13), None),
        ({}, {"comm_hook": "noop"}, (2, 13), "has no effect"),
        ({"accumulation_steps": 4}, {"static_graph": True}, (2, 13), "asserts"),  # C18
        ({"static_graph": True}, {"accumulation_steps": 4}, (2, 13), "asserts"),
        ({}, {"static_graph": True}, (2, 13), None),
    ],
)
def test_what_hangs_or_fails_is_never_let_through(
    today: Mapping[str, Any], change: Mapping[str, Any], torch: tuple[int, int] | None, outcome: str | None
) -> None:
    guard = find_guard(build_config(**today), change, torch)
    assert (guard.outcome if guard else None) == outcome


@pytest.mark.parametrize("backend", ["gloo", "unknown"])
def test_no_rule_proposes_what_a_backend_cannot_do(backend: str) -> None:
    """400 MB at 1 GB/s, of which nothing could be hidden."""
    job = build_job([(10, 200 * MB), (20, 200 * MB)], backward_ms=20)
    config = build_config(bucket_cap_mb=1.0, backend=backend)
    hooks = {advice.change.get("comm_hook") for advice in advise(build_advice_analysis(job, config))}
    assert hooks <= {None, "fp16"}


def test_a_static_graph_gets_no_micro_steps() -> None:
    job = build_job([(10, 200 * MB), (20, 200 * MB)], backward_ms=20)
    config = build_config(bucket_cap_mb=1.0, static_graph=True)
    assert "accumulation" not in rules(advise(build_advice_analysis(job, config)))


# ------------------------------------------------------------------------------------------------- what to measure


def test_the_next_measurement_is_the_advice_or_a_second_size() -> None:
    analysis = build_advice_analysis(even_job(), build_config(bucket_cap_mb=100.0), torch="2.8")
    advice = recommend(analysis, verdict("bandwidth_bound"))
    assert suggest_measurement(analysis, verdict("bandwidth_bound"), advice).startswith("Measure bucket_cap_mb ")
    assert analysis.job is not None
    unknown = dataclasses.replace(analysis.job, model=replace(analysis.job.model, latency_known=False))
    said = suggest_measurement(dataclasses.replace(analysis, job=unknown), verdict("balanced"), advice)
    assert said.startswith("Profile bucket_cap_mb 12 MiB next")  # 48 MiB in one bucket
    assert suggest_measurement(analysis, verdict("host_bound"), ()) == ""


def test_the_cap_to_measure_never_promises_more_than_free_communication() -> None:
    """One bucket of 50 MB blocks 5.06 of 20.06 ms, though its pace may be three times as slow; noise may hide them."""
    job = even_job()
    (segment,) = job.model.segments
    vague = replace(segment, beta_ns_per_byte=Estimate(value=0.1, low=0.05, high=0.3, basis="fitted"))
    job = dataclasses.replace(job, model=replace(job.model, segments=(vague,)))
    analysis = build_advice_analysis(job, build_config(bucket_cap_mb=100.0))
    assert "up to 5.1 ms a step" in suggest_measurement(analysis, verdict("bandwidth_bound"), ())
    assert analysis.baseline is not None
    loud = dataclasses.replace(analysis, baseline=replace(analysis.baseline, noise_floor_fraction=0.15))
    assert suggest_measurement(loud, verdict("bandwidth_bound"), ()) == ""


def test_every_field_that_may_change_belongs_to_ddp() -> None:
    from advisor.rules.guards import GUARDS

    assert set(DDPConfig.__struct_fields__) >= GUARDS.keys()
    assert {"bandwidth_bound", "latency_bound", "balanced"} == EXCHANGE
