"""How well the analysis finds what is known: simulated runs with a late rank, on clocks that differ and drift."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from advisor.collectives import MatchedCollective, match_collectives
from advisor.comm_model import collect_transfers, fit_comm_models
from advisor.observation import RankObservation, observe_rank
from advisor.readers.chrome import read_chrome_trace
from advisor.schedule import build_schedules
from advisor.schema import Estimate
from advisor.stragglers import find_straggler, find_waiting
from benchmarks.result import Measurement, write_result
from tests.simulated_schedule import Scenario
from tests.simulator import Simulation, draw_ladder, draw_scenario, simulate

NUM_RUNS = 100
BACKENDS: tuple[Literal["nccl", "gloo"], ...] = ("nccl", "gloo")


@dataclass(frozen=True)
class Errors:
    """One simulated run with a late rank."""

    straggler_found: bool
    phase_found: bool
    blocking: float
    """Sum of what each bucket's blocking is off, over the sum of what blocks."""
    cost: float
    """How far off it is what the late rank costs, beside the same run in which it is not late; relative."""


def measure_errors(scenario: Scenario) -> Errors:
    """Simulates a scenario, analyses its traces and compares the two."""
    observations, matched, truth = _analyse(scenario)
    waiting = find_waiting(observations, matched)
    straggler = find_straggler(observations, waiting)
    cost_ns = truth.end_ns - simulate(replace(scenario, late_ms=0.0)).end_ns
    blame_ns = sum(waiting.list_blame_ns(scenario.late_rank or 0))
    seen = {
        (b.rank, b.step, b.bucket): b.blocking_ns for s in build_schedules(observations, matched) for b in s.buckets
    }
    true = {(b.rank, b.step, b.bucket): b.blocking_ns for b in truth.buckets}
    assert seen.keys() == true.keys()
    return Errors(
        straggler_found=straggler is not None and straggler.rank == scenario.late_rank,
        phase_found=straggler is not None and straggler.phase == scenario.late_phase,
        blocking=sum(abs(seen[key] - true[key]) for key in true) / max(1.0, sum(true.values())),
        cost=blame_ns / max(1.0, cost_ns) - 1,
    )


@dataclass(frozen=True)
class FitErrors:
    """Relative errors of one fit to a link that is known."""

    alpha: float
    beta: float
    kinks_found: bool
    """Whether the fit has as many kinks as the link, each within a factor of two, one step of the ladder."""


def measure_fit(scenario: Scenario) -> FitErrors:
    """Fits a simulated link; judged are the latency, the slope of large messages, and the kinks."""
    observations, matched, _ = _analyse(scenario)
    (fit,) = fit_comm_models(collect_transfers(matched, observations), scenario.num_ranks, scenario.backend)
    alpha_us, beta = scenario.segments[0][1], scenario.segments[-1][2]
    kinks = [start for start, _, _ in scenario.segments[1:]]
    found = [segment.from_bytes for segment in fit.model.segments[1:]]
    return FitErrors(
        alpha=fit.model.segments[0].alpha_ns.value / (1000 * alpha_us) - 1,
        beta=fit.model.segments[-1].beta_ns_per_byte.value / beta - 1,
        kinks_found=len(found) == len(kinks)
        and all(kink / 2 <= ours <= 2 * kink for kink, ours in zip(kinks, found, strict=True)),
    )


def _analyse(scenario: Scenario) -> tuple[list[RankObservation], list[MatchedCollective], Simulation]:
    truth = simulate(scenario)
    observations = [observe_rank(read_chrome_trace(data, f"rank{n}.json")) for n, data in enumerate(truth.traces)]
    matched = match_collectives([observation.collectives for observation in observations], scenario.num_ranks)
    return observations, matched, truth


def run() -> None:
    """Measures a fixed set of runs."""
    load_before = os.getloadavg()[0]
    measurements = []
    for backend in BACKENDS:
        with ProcessPoolExecutor() as pool:
            runs = [draw_scenario(seed, backend) for seed in range(NUM_RUNS)]
            errors = list(pool.map(measure_errors, runs))
            fits = list(pool.map(measure_fit, [draw_ladder(seed, backend) for seed in range(NUM_RUNS)]))
            ladders = [draw_ladder(seed, backend, has_kink=True) for seed in range(NUM_RUNS)]
            bent = list(pool.map(measure_fit, ladders))
        measurements += [
            _count(f"{backend}: runs in which the straggler is named", [e.straggler_found for e in errors]),
            _count(f"{backend}: runs in which its phase is named", [e.phase_found for e in errors]),
            _summarize(f"{backend}: error of the buckets' blocking", [e.blocking for e in errors]),
            _summarize(f"{backend}: error of what the late rank costs", [abs(e.cost) for e in errors]),
            _summarize(f"{backend}: error of alpha", [abs(fit.alpha) for fit in fits]),
            _summarize(f"{backend}: error of beta", [abs(fit.beta) for fit in fits]),
            _count(f"{backend}: fits without a kink that is not there", [fit.kinks_found for fit in fits]),
            _summarize(f"{backend}: error of alpha below a kink", [abs(fit.alpha) for fit in bent]),
            _summarize(f"{backend}: error of beta above a kink", [abs(fit.beta) for fit in bent]),
            _count(f"{backend}: fits in which a kink is found within one step", [fit.kinks_found for fit in bent]),
        ]
    write_result("accuracy", load_before, ("ddp-advisor", "numpy", "pandas", "scipy"), measurements)


def _count(name: str, found: Sequence[bool]) -> Measurement:
    share = float(np.mean(found))
    return _measure(name, "of 1", (share, share, share), len(found))


def _summarize(name: str, errors: Sequence[float]) -> Measurement:
    """The median, with the range that holds 95 % of the runs."""
    low, middle, high = np.quantile(errors, [0.025, 0.5, 0.975])
    return _measure(name, "relative", (float(middle), float(low), float(high)), len(errors))


def _measure(name: str, unit: str, values: tuple[float, float, float], num_samples: int) -> Measurement:
    value, low, high = values
    estimate = Estimate(value=value, low=low, high=high, basis="measured")
    return Measurement(name=name, unit=unit, estimate=estimate, num_samples=num_samples)
