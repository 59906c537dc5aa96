"""Settings tried beside today's: replayed under the same draws, and compared for the same samples.

With K micro-steps an optimizer step has K / K₀ times the samples of today's, so it is compared after division by that.

    today 100 ms with one micro-step, 330 ms with four: 100 - 330 / 4 = 17.5 ms are saved
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from advisor.replay import (
    Job,
    Scenario,
    blocking_ns,
    bucket_gradients,
    draw_scenarios,
    free_communication,
    hides_gradients,
    predict,
    replay_scenarios,
    step_ns,
)
from advisor.rules.guards import Guard, Version, apply_change, find_guard, find_torch_version
from advisor.schema import DDPConfig, Estimate, Evidence, GradientReady, Prediction
from advisor.statistics import tie_fraction
from advisor.verdict import Analysis

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Trial:
    """One setting and its step under every scenario, in ns; the central scenario first."""

    config: DDPConfig
    num_buckets: int
    steps_ns: Floats
    blocking_ns: float
    """Under the central scenario."""


@dataclass(frozen=True, eq=False)
class Bench:
    """Today's setting, and what it takes to try others beside it."""

    job: Job
    config: DDPConfig
    scenarios: tuple[Scenario, ...]
    indifference_ns: float
    """Settings closer than this are the same."""
    torch: Version | None

    def try_config(self, config: DDPConfig, *, central: bool = False) -> Trial:
        """Replays a setting under every scenario, or under the central one alone."""
        scenarios = self.scenarios[: 1 if central else None]
        runs = replay_scenarios(self.job, config, scenarios)
        steps = np.array([step_ns(self.job, config, run) for run in runs])
        return Trial(config, len(bucket_gradients(self.job.profile, config)), steps, blocking_ns(self.job, runs[0]))

    def try_change(self, change: Mapping[str, Any]) -> Trial:
        """Replays today's setting with a change."""
        return self.try_config(apply_change(self.config, change))

    def predict(self, config: DDPConfig) -> Prediction:
        """The prediction that belongs to a trial."""
        return predict(self.job, config, self.scenarios)

    def find_guard(self, change: Mapping[str, Any]) -> Guard | None:
        """What stands in the way of a change."""
        return find_guard(self.config, change, self.torch)

    @cached_property
    def today(self) -> Trial:
        """Today's setting."""
        return self.try_config(self.config)

    @cached_property
    def ceiling_ns(self) -> float:
        """Today's step without communication, its launches and its copies."""
        free = dataclasses.replace(free_communication(self.scenarios[0]), copy_out_ns_per_byte=0.0, launch_ns=0.0)
        (run,) = replay_scenarios(self.job, self.config, [free])
        return step_ns(self.job, self.config, run)

    @property
    def communication_ns(self) -> float:
        """All that communication costs today's step: what blocks it, what it slows down, launches and copies."""
        return float(self.today.steps_ns[0]) - self.ceiling_ns

    def with_gradients(self, gradients: Sequence[GradientReady]) -> Bench:
        """A bench for the same job with other gradients, whose shapes nobody knows."""
        profile = replace(self.job.profile, shapes=())
        slowest = replace(profile.slowest, gradients=tuple(gradients))
        return dataclasses.replace(self, job=dataclasses.replace(self.job, profile=replace(profile, slowest=slowest)))

    def matters(self, saving: Estimate) -> bool:
        """Whether a saving is certain, and larger than what settings may differ by and still be the same."""
        return saving.low > 0 and saving.value > self.indifference_ns


@lru_cache(maxsize=1)
def open_bench(analysis: Analysis) -> Bench | None:
    """A bench for settings of DDP.

    None where nothing can be replayed, a hook hides the gradients, one rank is alone, or a rank's trace is missing:
    what looks like transfer may then be waiting, which no setting shortens. All rules share the bench of an analysis,
    and what was tried on it.
    """
    job, config, baseline = analysis.job, analysis.config, analysis.baseline
    if job is None or config is None or baseline is None or config.world_size < 2 or not job.model.complete:
        return None
    if hides_gradients(job):
        return None
    return build_bench(
        job,
        config,
        indifference_ns=tie_fraction(baseline.noise_floor_fraction) * baseline.replayed_ns.value,
        torch=find_torch_version(analysis.run.manifest),
    )


def build_bench(job: Job, config: DDPConfig, *, indifference_ns: float = 0.0, torch: Version | None = None) -> Bench:
    """A bench from its parts."""
    return Bench(job, config, tuple(draw_scenarios(job)), indifference_ns, torch)


def measure_saving(before: Trial, after: Trial) -> Estimate:
    """What `after` saves of `before`'s step for the same samples, in ns; paired, so only what differs is uncertain."""
    samples = after.config.accumulation_steps / before.config.accumulation_steps
    return summarize(before.steps_ns - after.steps_ns / samples)


def show_steps(before: Trial, after: Trial, rows: tuple[int, ...]) -> tuple[Evidence, ...]:
    """Both replayed steps as evidence, for today's samples each."""
    samples = after.config.accumulation_steps / before.config.accumulation_steps
    times = {"step today, replayed": before.steps_ns[0], "step with the change": after.steps_ns[0] / samples}
    return tuple(
        Evidence(name=name, value=float(ns) / 1e6, unit="ms", table="steps", rows=rows) for name, ns in times.items()
    )


def summarize(draws: Floats) -> Estimate:
    """The central value, which comes first, with the 95 % interval of all."""
    low, high = np.quantile(draws, [0.025, 0.975])
    value = float(draws[0])
    return Estimate(value=value, low=min(value, float(low)), high=max(value, float(high)), basis="fitted")


def rank_by_regret(trials: Sequence[Trial]) -> list[Trial]:
    """The trials by their p95 regret: how much worse than the best one they are in all but the worst scenarios."""
    best = np.min([trial.steps_ns for trial in trials], axis=0)
    return sorted(trials, key=lambda trial: float(np.quantile(trial.steps_ns - best, 0.95)))
