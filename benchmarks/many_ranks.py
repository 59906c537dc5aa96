"""A thousand small ranks through `ddp-advisor analyze`: time and memory, with one process and with two.

The memory of all processes is the most that they held at one moment, as seen twenty times a second; pages that they
share are counted for each.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from advisor.schema import Estimate
from benchmarks.result import Measurement, write_result
from tests.simulated_schedule import Scenario
from tests.simulator import simulate

NUM_RANKS = 1000
WORKERS = (1, 2)
PAUSE_S = 0.05
SCENARIO = Scenario(
    backend="nccl",
    num_ranks=NUM_RANKS,
    num_steps=3,
    gradients=tuple((2.0 * (n + 1), 250_000) for n in range(12)),
    buckets=(4, 4, 4),
    backward_ms=24.0,
    segments=((0, 100.0, 1.0),),
    late_rank=3,
    late_ms=5.0,
    noise=0.02,
)


@dataclass(frozen=True)
class Usage:
    """What one command took."""

    elapsed_s: float
    parent_mib: float
    all_mib: float
    report_mib: float
    html_mib: float


def run() -> None:
    """Analyses the same thousand ranks with one process and with two."""
    load_before = os.getloadavg()[0]
    measurements = []
    with tempfile.TemporaryDirectory() as folder:
        traces, out = Path(folder) / "traces", Path(folder) / "out"
        traces.mkdir()
        for rank, text in enumerate(simulate(SCENARIO).traces):
            (traces / f"rank{rank}.json").write_bytes(text)
        for workers in WORKERS:
            used = _watch(("analyze", str(traces), "--workers", str(workers), "--out", str(out)), out)
            name = f"{NUM_RANKS} ranks, --workers {workers}"
            measurements += [
                _measure(f"{name}: time", "s", used.elapsed_s),
                _measure(f"{name}: peak memory of the parent", "MiB", used.parent_mib),
                _measure(f"{name}: peak memory of all processes", "MiB", used.all_mib),
            ]
    measurements += [
        _measure(f"{NUM_RANKS} ranks: report.json", "MiB", used.report_mib),
        _measure(f"{NUM_RANKS} ranks: report.html", "MiB", used.html_mib),
    ]
    write_result("many_ranks", load_before, ("ddp-advisor", "numpy", "pandas"), measurements)


def _watch(arguments: tuple[str, ...], out: Path) -> Usage:
    started = time.perf_counter()
    command = subprocess.Popen([sys.executable, "-m", "advisor", *arguments], stdout=subprocess.DEVNULL)
    parent, together = 0, 0
    while command.poll() is None:
        own, others = _read_memory(command.pid)
        parent, together = max(parent, own), max(together, own + others)
        time.sleep(PAUSE_S)
    elapsed_s = time.perf_counter() - started
    if command.returncode:
        raise RuntimeError(f"ddp-advisor {' '.join(arguments)} ended with {command.returncode}")
    sizes = [(out / name).stat().st_size / 2**20 for name in ("report.json", "report.html")]
    return Usage(elapsed_s, parent / 2**20, together / 2**20, *sizes)


def _read_memory(pid: int) -> tuple[int, int]:
    """Resident bytes of a process, and of all that it started."""
    try:
        process = psutil.Process(pid)
        return process.memory_info().rss, sum(child.memory_info().rss for child in process.children(recursive=True))
    except psutil.NoSuchProcess:
        return 0, 0


def _measure(name: str, unit: str, value: float) -> Measurement:
    once = Estimate(value=value, low=value, high=value, basis="measured")
    return Measurement(name=name, unit=unit, estimate=once, num_samples=1)
