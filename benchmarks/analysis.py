"""How long the analysis takes once traces are read: eight ranks, five steps, a hundred thousand events a rank.

It is one thread's work, so processor time tells it on a busy machine too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from advisor.observation import RunObservation, observe_rank
from advisor.readers.chrome import read_chrome_trace
from advisor.report import build_report
from advisor.statistics import median_estimate
from advisor.tables import Trace
from benchmarks.accuracy import BACKENDS
from benchmarks.result import Measurement, write_result
from tests.simulated_schedule import Scenario
from tests.simulator import simulate

NUM_RANKS, NUM_STEPS, NUM_EVENTS = 8, 5, 100_000
EVENTS_A_PIECE = {"nccl": 3, "gloo": 1}
NUM_SAMPLES = 5


def run() -> None:
    """Analyses the same traces several times."""
    load_before = os.getloadavg()[0]
    measurements = []
    for backend in BACKENDS:
        scenario = Scenario(
            backend=backend,
            num_ranks=NUM_RANKS,
            num_steps=NUM_STEPS,
            gradients=tuple((0.5 * (n + 1), 100_000) for n in range(160)),
            buckets=(16,) * 10,
            backward_ms=82.0,
            forward_ms=400.0,
            segments=((0, 100.0, 1.0),),
            late_rank=3,
            late_ms=20.0,
            noise=0.02,
            num_pieces=NUM_EVENTS // NUM_STEPS // EVENTS_A_PIECE[backend],
        )
        traces = [read_chrome_trace(data, f"rank{n}.json") for n, data in enumerate(simulate(scenario).traces)]
        seconds = [_analyse(traces) for _ in range(NUM_SAMPLES)]
        events = min(len(trace.events) for trace in traces)
        name = f"{backend}: {NUM_RANKS} ranks, {NUM_STEPS} steps, {events} events a rank or more; processor time"
        measurements.append(
            Measurement(name=name, unit="s", estimate=median_estimate(seconds), num_samples=NUM_SAMPLES)
        )
    write_result("analysis", load_before, ("ddp-advisor", "numpy", "pandas", "scipy"), measurements)


def _analyse(traces: Sequence[Trace]) -> float:
    started = time.process_time()
    observed = tuple(observe_rank(trace) for trace in traces)
    build_report(RunObservation("benchmark", observed, None, ()))
    return time.process_time() - started
