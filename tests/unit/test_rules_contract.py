"""Every rule: one contract that all of them keep, and the smallest job for which each speaks."""

from __future__ import annotations

import dataclasses
import re
from importlib import import_module
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

import advisor.rules
from advisor.recommend import recommend
from advisor.replay import Job
from advisor.rules import RULES, Rule
from advisor.rules.guards import GUARDS, find_guard, find_torch_version
from advisor.rules.words import say_ms
from advisor.schema import Estimate, Ladder, LadderPoint, Recommendation, Verdict
from advisor.verdict import Analysis
from tests.advice_builders import Shown, build_advice_analysis
from tests.job_builders import MB, MS, build_config, build_job, exactly
from tests.unit.test_bucket_cap import even_job
from tests.unit.test_verdict import build_straggler

TABLES = {"steps", "buckets", "collectives", "ranks"}


def on_gpu(job: Job, **profile: object) -> Job:
    return dataclasses.replace(job, profile=replace(job.profile, device_type="cuda", **profile))


def late_job() -> Job:
    """Four gradients of 20 MB at 1 ns a byte in a backward of 40 ms, and an optimizer of 5 ms."""
    return build_job([(10 * (k + 1), 20 * MB) for k in range(4)], backward_ms=40, around_ms=(0, 20, 5))


def slow_link_ladder() -> Ladder:
    """A tenth of the job's time for each size."""
    sizes = (MB // 10, MB, 10 * MB, 40 * MB)
    return Ladder(
        world_size=2,
        backend="nccl",
        source="nccl_tests",
        points=tuple(
            LadderPoint(kind="all_reduce", dtype="float32", num_bytes=size, rounds_ns=((size // 10,),) * 8)
            for size in sizes
        ),
    )


def build_case(name: str) -> Analysis:
    """The smallest analysis for which a rule speaks."""
    config, late = build_config(bucket_cap_mb=100.0), late_job()
    searching = build_config(bucket_cap_mb=100.0, find_unused_parameters=True)
    backwards = replace(late.profile, registered=(0, 1, 2, 3))
    match name:
        case "bucket_cap":
            return build_advice_analysis(even_job(), config)
        case "first_bucket":
            gradients = [(4, 4 * MB), (6, 4 * MB), (14, 16 * MB), (16, 16 * MB), (17, 16 * MB), (19, 4 * MB)]
            return build_advice_analysis(build_job(gradients, backward_ms=19, alpha_ns=3 * MS), config)
        case "bucket_list":
            gradients = [(4, 2 * MB), (8, 8 * MB), (10, 4 * MB), (14, 16 * MB)]
            return build_advice_analysis(build_job(gradients, backward_ms=14, alpha_ns=MS), config)
        case "gradient_as_bucket_view":
            shown = Shown(copies_alone_ns=9 * MS, copy_back_ns=17 * MS, host_bound_ns=40 * MS)
            return build_advice_analysis(on_gpu(late), config, shown)
        case "batched_grad_copy":
            return build_advice_analysis(on_gpu(even_job()), config, Shown(host_bound_ns=8 * MS))
        case "parameter_order":
            job = dataclasses.replace(late, profile=backwards)
            return build_advice_analysis(job, replace(searching, bucket_cap_mb=20.0))
        case "indivisible_tail":
            return build_advice_analysis(build_job([(1, MB), (10, 40 * MB)], backward_ms=10), config)
        case "slow_link":
            return build_advice_analysis(late, config, ladders=[slow_link_ladder()])
        case "straggler":
            return build_advice_analysis(late, config, straggler=build_straggler())
        case "host_bound":
            return build_advice_analysis(on_gpu(late), config, Shown(host_bound_ns=60 * MS))
        case "input_bound":
            return build_advice_analysis(late, config, Shown(data_ns=40 * MS))
        case "find_unused_parameters":
            return build_advice_analysis(late, searching, Shown(used=4, mark=4))
        case "static_graph":
            job = dataclasses.replace(late, profile=backwards)
            return build_advice_analysis(job, replace(searching, bucket_cap_mb=20.0), Shown(used=4, mark=5))
        case "forward_sync_buffers":
            return build_advice_analysis(late, config, Shown(buffers_ns=10 * MS))
        case "channels":
            slowed = build_job([(5, 5 * MB), (40, MB)], backward_ms=40, compute_slowdown=exactly(1.5))  # type: ignore[arg-type]
            return build_advice_analysis(slowed, build_config(bucket_cap_mb=1.0))
        case "sixteen_bit_hook":
            return build_advice_analysis(late, config)
        case "accumulation":
            copied_in = {"copy_in_ns_per_byte": exactly(0.45), "baseline_residual_fraction": exactly(0.05)}
            calibration = replace(late.calibration, **copied_in)
            return build_advice_analysis(dataclasses.replace(late, calibration=calibration), config)
        case "powersgd":
            per_matrix = Estimate(value=MS, low=0, high=MS, basis="extrapolated")
            products = {"hook_ns_per_byte": {"powersgd": exactly(0.1)}, "hook_ns_per_matrix": {"powersgd": per_matrix}}
            job = build_job([(1, 20 * MB), (2, 20 * MB)], backward_ms=2, **products)
            matrices = replace(job.profile, shapes=((2000, 2500),) * 2)
            return build_advice_analysis(dataclasses.replace(job, profile=matrices), config)
    raise AssertionError(f"give {name} the smallest job for which it speaks")


@pytest.fixture(params=RULES, ids=lambda rule: rule.name)
def rule(request: pytest.FixtureRequest) -> Rule:
    found: Rule = request.param
    return found


def test_it_speaks_in_its_case_and_says_why_and_what_next(rule: Rule) -> None:
    advice = propose(rule)
    assert advice.rule == rule.name == import_module(f"advisor.rules.{rule.name}").RULE
    assert advice.title
    sentences = re.split(r"(?<=[.!?])\s+(?=[A-Z])", advice.message)
    assert len(sentences) == 2, sentences
    assert all(sentence.endswith(".") for sentence in sentences)
    assert advice.status == "predicted"


def test_it_cites_evidence_and_source(rule: Rule) -> None:
    advice, analysis = propose(rule), build_case(rule.name)
    assert advice.sources
    assert advice.caveats
    shown = [evidence for evidence in advice.evidence if evidence.table]
    assert shown
    assert {evidence.table for evidence in shown} <= TABLES
    rows = [row for evidence in shown if evidence.table == "steps" for row in evidence.rows]
    assert rows
    assert max(rows) < len(analysis.steps)


def test_it_saves_no_more_than_what_it_acts_on(rule: Rule) -> None:
    advice, analysis = propose(rule), build_case(rule.name)
    assert advice.acts_on_ns is not None
    assert 0 < advice.acts_on_ns <= max(step.duration_ns for step in analysis.steps)
    if advice.saving_ns is not None:
        assert advice.saving_ns.low <= advice.saving_ns.value <= advice.saving_ns.high
        assert advice.saving_ns.value <= advice.acts_on_ns * (1 + 1e-9)


def test_headline_text_and_table_tell_one_saving(rule: Rule) -> None:
    """The saving is what the shown steps differ by, and what the text says that replay predicts; also once ranked."""
    analysis = build_case(rule.name)
    verdicts = [Verdict(code=code, message="", evidence=(), ceiling_ns=None) for code in sorted(rule.verdicts)]
    advised = [propose(rule), *(advice for verdict in verdicts for advice in recommend(analysis, verdict))]
    for advice in advised:
        said = re.search(r"(?:predicts|expects) ([\d.]+ m?s) less", advice.message)
        shown = {evidence.name: evidence.value for evidence in advice.evidence}
        assert advice.saving_ns is not None or said is None
        if advice.saving_ns is None:
            continue
        assert advice.saving_ns.low <= advice.saving_ns.value <= advice.saving_ns.high
        if said:
            assert said.group(1) == say_ms(advice.saving_ns.value)
        if "step with the change" in shown:
            difference_ms = shown["step today, replayed"] - shown["step with the change"]
            assert difference_ms == pytest.approx(advice.saving_ns.value / MS)


def test_it_is_covered_by_the_guards_and_keeps_to_them(rule: Rule) -> None:
    advice, analysis = propose(rule), build_case(rule.name)
    assert advice.change.keys() <= GUARDS.keys()
    assert analysis.config is not None
    today = msgspec.to_builtins(analysis.config)
    assert all(today[name] != value for name, value in advice.change.items())
    if advice.change:
        assert find_guard(analysis.config, advice.change, find_torch_version(analysis.run.manifest)) is None


def test_it_is_silent_on_one_rank(rule: Rule) -> None:
    analysis = build_case(rule.name)
    assert analysis.config is not None
    alone = replace(analysis.config, world_size=1)
    assert rule.propose(dataclasses.replace(analysis, config=alone, world_size=1)) is None


def test_its_inputs_are_left_unchanged(rule: Rule) -> None:
    analysis = build_case(rule.name)
    before = snapshot(analysis)
    rule.propose(analysis)
    assert snapshot(analysis) == before


def test_every_module_of_a_rule_is_listed() -> None:
    shared = {"__init__", "bench", "caps", "guards", "memory", "usage", "words"}
    assert {file.stem for file in Path(advisor.rules.__path__[0]).glob("*.py")} - shared == {
        rule.name for rule in RULES
    }


def propose(rule: Rule) -> Recommendation:
    advice = rule.propose(build_case(rule.name))
    assert advice is not None, f"{rule.name} is silent in its own case"
    return advice


def snapshot(analysis: Analysis) -> bytes:
    job = analysis.job
    assert job is not None
    return msgspec.json.encode((analysis.steps, analysis.config, job.profile, job.calibration, job.model))


def test_powersgd_promises_nothing_for_sure() -> None:
    """A bucket of 40 MB is ready at 2 ms and ends at 42. PowerSGD sends 72 KB of it at 1 ns a byte, and computes 4 ms
    for its bytes and 2 ms for its matrices: 8.072 ms. But what it computes is assumed.
    """
    advice = propose(next(rule for rule in RULES if rule.name == "powersgd"))
    assert advice.saving_ns is not None
    assert advice.saving_ns.value / MS == pytest.approx(42 - 8.072)
    assert advice.saving_ns.low <= 0
    assert "powersgd:2" in advice.caveats[0]
