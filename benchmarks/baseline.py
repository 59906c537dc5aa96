"""How well replay reproduces the step that it was calibrated on: every workload under both wrappers, and real GPU runs.

Target: an error within the limit that the report states, max(10 %, three times the noise floor of the measured step).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from advisor.pipeline import analyze
from advisor.schema import Baseline, Estimate
from benchmarks.result import Count, Measurement, write_result

WORKLOADS: dict[str, tuple[str, ...]] = {
    "mlp": (),
    "gpt": (),
    "resnet": (),
    "wide-embedding": (),
    "tied-embedding": (),
    "moe-unused": ("--find-unused-parameters",),
    "straggler": (),
}
"""By name, the options without which they do not train."""
WRAPPERS = ("torch", "bucketed")
CORPUS = Path(os.environ.get("ADVISOR_TRACE_CORPUS", Path(__file__).resolve().parents[2] / "shared" / "traces"))
REAL_RUNS = ("a100-resnet50-ddp-rank0of2", "mi300-resnet-ddp-rank0of8")
PATIENCE_S = 300


def run() -> None:
    """Records and analyses every run once."""
    load_before = os.getloadavg()[0]
    baselines: dict[str, Baseline | None] = {}
    with tempfile.TemporaryDirectory() as folder:
        for workload in WORKLOADS:
            for wrapper in WRAPPERS:
                recorded = Path(folder) / f"{workload}-{wrapper}"
                record(workload, wrapper, recorded)
                baselines[f"{workload}, {wrapper}"] = analyze([recorded], holistic=False).baseline
    for name in REAL_RUNS:
        if (CORPUS / name).is_dir():
            baselines[name] = analyze([CORPUS / name], holistic=False).baseline
    known = {name: baseline for name, baseline in baselines.items() if baseline is not None}
    rows = [row for name, baseline in known.items() for row in describe(name, baseline)]
    counts = [
        Count(name="runs", count=len(baselines)),
        Count(name="replayed", count=len(known)),
        Count(name="within the limit", count=sum(baseline.trusted for baseline in known.values())),
    ]
    write_result("baseline", load_before, ("ddp-advisor", "torch", "numpy"), rows, counts)


def record(workload: str, wrapper: str, folder: Path) -> None:
    """Trains a workload on two gloo ranks under the profiler, as a person would."""
    command = ["run", workload, "--nproc", "2", "--device", "cpu", "--wrapper", wrapper, "--out", f"{folder}"]
    subprocess.run(
        [sys.executable, "-m", "advisor", *command, *WORKLOADS[workload]],
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=PATIENCE_S,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def describe(name: str, baseline: Baseline) -> list[Measurement]:
    """The error with the interval of the replayed step, and the limit it is held to."""
    measured = baseline.measured_ns.value
    value, low, high = (
        bound / measured - 1
        for bound in (baseline.replayed_ns.value, baseline.replayed_ns.low, baseline.replayed_ns.high)
    )
    limit = baseline.limit_fraction
    return [
        _measure(f"{name}: replayed / measured - 1", Estimate(value=value, low=low, high=high, basis="fitted")),
        _measure(f"{name}: limit", Estimate(value=limit, low=limit, high=limit, basis="measured")),
        _measure(f"{name}: measured step", _in_ms(baseline.measured_ns), "ms"),
    ]


def _in_ms(time_ns: Estimate) -> Estimate:
    value, low, high = (bound / 1e6 for bound in (time_ns.value, time_ns.low, time_ns.high))
    return Estimate(value=value, low=low, high=high, basis=time_ns.basis)


def _measure(name: str, estimate: Estimate, unit: str = "of the step") -> Measurement:
    return Measurement(name=name, unit=unit, estimate=estimate, num_samples=1)
