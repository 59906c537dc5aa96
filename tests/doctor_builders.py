"""Small recordings for doctor, whole but for one thing, and what it finds in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from advisor.doctor.diagnosis import diagnose
from advisor.schema import FindingCode, RunDiagnosis
from tests.trace_builders import RankTrace

STEPS = range(3, 11)
LENGTH = 100
"""Of a step, in µs."""
Change = Callable[[RankTrace, int, int], None]


def lay_step(trace: RankTrace, number: int, zero: int) -> None:
    """One step on CPU: two gradients of 64 elements, one bucket each."""
    trace.step(number, zero, zero + LENGTH)
    trace.forward(zero + 5, zero + 20)
    trace.gradient(zero + 30, zero + 35, 64)
    trace.gloo(zero + 33, zero + 36, zero + 45, 64)
    trace.gradient(zero + 40, zero + 45, 64)
    trace.gloo(zero + 43, zero + 47, zero + 60, 64)
    trace.copy_back(zero + 61, zero + 62)
    trace.optimizer(zero + 70, zero + 90)


def lay_gpu_step(trace: RankTrace, number: int, zero: int) -> None:
    """The same on a GPU that follows the host at once."""
    trace.step(number, zero, zero + LENGTH)
    trace.forward(zero + 5, zero + 20)
    for start in (30, 40):
        trace.gradient(zero + start, zero + start + 5, 64)
        trace.kernel(zero + start, zero + start + 1, zero + start + 4)
        trace.nccl(zero + start + 3, zero + start + 5, zero + start + 12, 64)
    trace.copy_back(zero + 61, zero + 62)
    trace.optimizer(zero + 70, zero + 90)


def build_rank(rank: int = 0, lay: Change = lay_step, steps: range = STEPS, **fields: Any) -> RankTrace:
    trace = RankTrace(rank, **fields)
    for place, number in enumerate(steps):
        lay(trace, number, LENGTH * place)
    return trace


def write(folder: Path, *ranks: RankTrace, **document: Any) -> Path:
    folder.mkdir(exist_ok=True)
    for trace in ranks:
        process = 4000 + trace.rank
        for event in trace.events:
            event["pid"] = process if event["pid"] == 4000 else event["pid"]
        (folder / f"rank{trace.rank}.json").write_bytes(trace.to_json(record_shapes=1, schemaVersion=1, **document))
    return folder


def write_both(folder: Path, lay: Change = lay_step, **fields: Any) -> Path:
    return write(folder, *(build_rank(rank, lay, **fields) for rank in range(2)))


def look_at(*paths: Path, **options: Any) -> RunDiagnosis:
    (run,) = diagnose(paths, **options).runs
    return run


def codes(run: RunDiagnosis) -> list[FindingCode]:
    return [finding.code for finding in run.findings]


def figures(run: RunDiagnosis, code: FindingCode) -> dict[str, float]:
    (finding,) = [finding for finding in run.findings if finding.code == code]
    return {evidence.name: evidence.value for evidence in finding.evidence}
