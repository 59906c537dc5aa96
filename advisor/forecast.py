"""The same job on another number of ranks, replayed with the link's terms as they grow from P to Q ranks.

    beta · traffic_factor(Q) / traffic_factor(P)     each rank sends 2 (P - 1) / P of the bytes
    alpha · messages(Q) / messages(P)                2 (P - 1) messages in a ring, 2 log2 P in a tree
    kink · pieces(Q) / pieces(P)                     a message holds 1 / P of the bytes in a ring, all in a tree

Which algorithm runs is the backend's choice, so both are replayed, and the band spans both. gloo runs a ring; NCCL
takes what it thinks is faster, and its forecast is the tree's.

    from 2 to 8 ranks: 1 · beta becomes 1.75 · beta, alpha becomes 7 · alpha in a ring and 3 · alpha in a tree

The computation of a rank stays as it is (every rank keeps its batch), or is divided by Q / P (the ranks share a batch).
That the link between any two ranks is as fast as today's, and that none is slower than today's slowest, is assumed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from advisor.all_reduce import RING, TREE, Algorithm, traffic_factor
from advisor.errors import UsageError
from advisor.replay import Job, Scenario, blocking_ns, draw_scenarios, replay_scenarios, step_ns
from advisor.schema import Baseline, Basis, ComputeScaling, DDPConfig, Estimate, Forecast, ForecastRow

Floats = npt.NDArray[np.float64]

MOST_RANKS = 1_000_000


def find_obstacle(job: Job | None, config: DDPConfig | None, baseline: Baseline | None) -> str | None:
    """Why a run cannot be forecast, as the end of a sentence about it; None where it can be."""
    if job is None or config is None:
        return "its buckets or transfers are unknown"
    if config.world_size < 2:
        return "one rank exchanges nothing, so nothing is known of its link"
    if baseline is None or not baseline.trusted:
        return "replay does not reproduce its step closely enough"
    if not job.model.complete:
        return "the trace of a rank is missing, and waiting for it would count as transfer"
    if not job.model.latency_known:
        return "its buckets have too few sizes to tell latency, which grows with the ranks, from bandwidth"
    return None


def forecast_ranks(
    job: Job, config: DDPConfig, world_sizes: Sequence[int], compute: ComputeScaling = "constant"
) -> Forecast:
    """Forecasts the step on other numbers of ranks; on today's it is replay's own prediction, to the last bit.

    Args:
        job: Profile, calibration and communication model of the profiled run.
        config: The profiled setting, with today's number of ranks, at least two.
        world_sizes: The numbers of ranks to forecast.
        compute: `constant` where each rank keeps its batch, `divided` where the ranks share one.

    Raises:
        UsageError: A number of ranks cannot be meant.
    """
    today = config.world_size
    wrong = [size for size in world_sizes if not 0 < size <= MOST_RANKS]
    if wrong:
        raise UsageError(f"{wrong[0]} ranks cannot be forecast: give numbers from 1 to {MOST_RANKS}.")
    algorithms = (RING, TREE) if config.backend == "gloo" else (TREE, RING)
    return Forecast(
        profiled_world_size=today,
        compute=compute,
        rows=tuple(_forecast_row(job, config, world_size, compute, algorithms) for world_size in world_sizes),
    )


def _forecast_row(
    job: Job, config: DDPConfig, world_size: int, compute: ComputeScaling, algorithms: tuple[Algorithm, Algorithm]
) -> ForecastRow:
    """Replays both algorithms; the first one gives the values, both together the bands."""
    share = config.world_size / world_size if compute == "divided" else 1.0
    there = replace(config, world_size=world_size)
    scaled = divide_compute(job, share)
    today = draw_scenarios(job)
    today_ns = np.array([step_ns(job, config, run) for run in replay_scenarios(job, config, today)])
    steps, blockings = [], []
    for algorithm in algorithms:
        scenarios = [scale_link(scenario, config.world_size, world_size, algorithm) for scenario in today]
        runs = replay_scenarios(scaled, there, scenarios)
        steps.append(np.array([step_ns(scaled, there, run) for run in runs]))
        blockings.append(np.array([blocking_ns(scaled, run) for run in runs]))
    basis: Basis = "fitted" if world_size == config.world_size else "extrapolated"
    return ForecastRow(
        world_size=world_size,
        step_ns=_span(steps, basis),
        blocking_ns=_span(blockings, basis),
        efficiency_fraction=_span([share * today_ns / of_algorithm for of_algorithm in steps], basis),
    )


def scale_link(scenario: Scenario, today: int, world_size: int, algorithm: Algorithm) -> Scenario:
    """The scenario's alpha, betas and kinks on `world_size` ranks instead of `today`."""
    messages = algorithm.count_messages(world_size) / algorithm.count_messages(today)
    pieces = algorithm.count_pieces(world_size) / algorithm.count_pieces(today)
    traffic = traffic_factor(world_size) / traffic_factor(today)
    return dataclasses.replace(
        scenario,
        alpha_ns=scenario.alpha_ns * messages,
        beta_ns_per_byte=scenario.beta_ns_per_byte * traffic,
        kinks=tuple((kink * pieces, change * traffic) for kink, change in scenario.kinks),
    )


def divide_compute(job: Job, share: float) -> Job:
    """The job with `share` of the work that grows with the batch: loading data, forward and backward."""
    slowest = job.profile.slowest
    gradients = tuple(
        replace(
            gradient,
            ready_host_ns=round(gradient.ready_host_ns * share),
            ready_device_ns=round(gradient.ready_device_ns * share),
            idle_ns=round(gradient.idle_ns * share),
        )
        for gradient in slowest.gradients
    )
    less = replace(
        slowest,
        data_ns=round(slowest.data_ns * share),
        forward_ns=round(slowest.forward_ns * share),
        backward_ns=round(slowest.backward_ns * share),
        gradients=gradients,
    )
    return dataclasses.replace(job, profile=replace(job.profile, slowest=less))


def _span(draws: Sequence[Floats], basis: Basis) -> Estimate:
    """The first algorithm's central draw, and the 95 % interval that covers every algorithm's."""
    value = float(draws[0][0])
    lows, highs = zip(*(np.quantile(of_algorithm, [0.025, 0.975]) for of_algorithm in draws), strict=True)
    return Estimate(value=value, low=min(value, float(min(lows))), high=max(value, float(max(highs))), basis=basis)
