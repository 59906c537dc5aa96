from __future__ import annotations

from pathlib import Path

from advisor.schema import DDPConfig, Estimate
from workloads.interleave import MIN_ROUNDS
from workloads.job import JobSpec
from workloads.requests import Arm, SweepRequest
from workloads.sweep import measure_arms, summarise


def test_arms_are_measured_in_turns(tmp_path: Path) -> None:
    predicted = Estimate(value=1e6, low=9e5, high=2e6, basis="fitted")
    arms = (
        Arm(name="today", config=DDPConfig(world_size=2, backend="gloo", wrapper="torch")),
        Arm(
            name="small buckets",
            config=DDPConfig(world_size=2, backend="gloo", wrapper="bucketed", bucket_cap_mb=0.01),
            predicted_ns=predicted,
        ),
    )
    reports: list[tuple[int, int, str]] = []
    request = SweepRequest(
        job=JobSpec(workload="mlp", preset="tiny"),
        arms=arms,
        database=str(tmp_path / "sweep.sqlite"),
        budget_s=1.0,
        device="cpu",
    )
    measured = measure_arms(request, lambda *report: reports.append(report))
    assert [arm.name for arm in measured] == ["today", "today (again)", "small buckets"]
    assert all(len(block) == 4 for arm in measured for block in arm.blocks.values())
    sweep = summarise(tmp_path / "sweep.sqlite")
    assert sweep.num_blocks >= MIN_ROUNDS
    assert sweep.arms[0].outcome == "reference"
    assert sweep.arms[2].predicted_ns == predicted
    assert any(text == "measuring small buckets" for _, _, text in reports)
