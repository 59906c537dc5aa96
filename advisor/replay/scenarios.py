"""All that replay takes for granted, as plain numbers: one central scenario, and draws of what is uncertain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from advisor.powersgd import find_cost
from advisor.schema import Basis, Calibration, CommDraw, CommModel, DDPConfig, Estimate, StepProfile

Floats = npt.NDArray[np.float64]

NUM_DRAWS = 64
NORMAL_95 = 1.96
LEAST_COMMUNICATION = (0.0, 1.0, 0.0)
LEAST = (1.0, 0.0, 0.0, 1.0)
"""No draw of alpha, the slow-down of communication and beta, nor of the slow-down of computation, copying, launching
and two in flight, goes below these, however wide its interval: overlap never speeds anything up."""


@dataclass(frozen=True)
class Job:
    """All that does not depend on the settings."""

    profile: StepProfile
    calibration: Calibration
    model: CommModel
    today: DDPConfig | None = None
    """The profiled setting, where it is known: what it costs already is part of the profile."""


@dataclass(frozen=True)
class Scenario:
    """One draw of everything uncertain, as plain numbers; ns and ns per byte."""

    alpha_ns: float
    beta_ns_per_byte: float
    compute_slowdown: float
    communication_slowdown: float
    copy_out_ns_per_byte: float
    launch_ns: float
    kinks: tuple[tuple[float, float], ...] = ()
    """Bytes from which on beta is larger, and by how much."""
    two_in_flight: float = 2.0
    """The time of two collectives at once over that of one: 2 where they share the link, 1 where they do not notice."""
    hook_ns_per_byte: Mapping[str, float] = field(default_factory=dict)
    """By hook, what its casts cost a byte of gradients, there and back; or what its compression does."""
    hook_ns_per_matrix: Mapping[str, float] = field(default_factory=dict)
    """By hook, what compression costs a matrix beside that."""

    def cost_hook(self, hook: str) -> tuple[float, float]:
        """What a hook computes for a byte of gradients and for a matrix, in ns."""
        return find_cost(self.hook_ns_per_byte, hook, 0.0), find_cost(self.hook_ns_per_matrix, hook, 0.0)

    def transfer_ns(self, num_bytes: Floats) -> Floats:
        """The times of collectives that have the link and the cores for themselves."""
        times = self.alpha_ns + self.beta_ns_per_byte * num_bytes
        for kink, change in self.kinks:
            times = times + change * np.maximum(num_bytes - kink, 0.0)
        return times


def free_communication(scenario: Scenario) -> Scenario:
    """The same machine with collectives that take no time."""
    return Scenario(0.0, 0.0, 1.0, 1.0, scenario.copy_out_ns_per_byte, scenario.launch_ns)


def draw_scenarios(job: Job) -> list[Scenario]:
    """The central scenario, then draws from the intervals; the same for every setting: differences are paired.

    Latency, slopes and slow-down of communication are drawn jointly, as the model's fit left them; the slow-down by
    itself where no fit told it.
    """
    model, calibration = job.model, job.calibration
    terms = (
        calibration.compute_slowdown,
        calibration.copy_out_ns_per_byte,
        calibration.launch_ns,
        calibration.two_in_flight,
    )
    hooks = (calibration.hook_ns_per_byte, calibration.hook_ns_per_matrix)
    central = CommDraw(
        alpha_ns=model.segments[0].alpha_ns.value,
        communication_slowdown=calibration.communication_slowdown.value,
        betas_ns_per_byte=tuple(segment.beta_ns_per_byte.value for segment in model.segments),
    )
    values = [{hook: term.value for hook, term in costs.items()} for costs in hooks]
    scenarios = [_build_scenario(central, model, [term.value for term in terms], values)]
    for place, row in enumerate(_draw_normals()):
        draw = model.draws[place] if model.draws else _draw_apart(job, row)
        others = [_shift(term, z, least) for term, z, least in zip(terms, row[3:], LEAST, strict=False)]
        drawn = [{hook: _shift(term, row[-1], 0.0) for hook, term in costs.items()} for costs in hooks]
        if calibration.communication_slowdown.basis == "extrapolated":
            slowdown = _shift(calibration.communication_slowdown, row[1], 1.0)
            draw = CommDraw(
                alpha_ns=draw.alpha_ns, communication_slowdown=slowdown, betas_ns_per_byte=draw.betas_ns_per_byte
            )
        scenarios.append(_build_scenario(draw, model, others, drawn))
    return scenarios


def _build_scenario(
    draw: CommDraw, model: CommModel, others: Sequence[float], hooks: Sequence[Mapping[str, float]]
) -> Scenario:
    compute_slowdown, copy_out_ns_per_byte, launch_ns, two_in_flight = others
    changes = [after - before for before, after in pairwise(draw.betas_ns_per_byte)]
    return Scenario(
        alpha_ns=draw.alpha_ns,
        beta_ns_per_byte=draw.betas_ns_per_byte[0],
        compute_slowdown=compute_slowdown,
        communication_slowdown=draw.communication_slowdown,
        copy_out_ns_per_byte=copy_out_ns_per_byte,
        launch_ns=launch_ns,
        kinks=tuple(zip(model.kinks_bytes, changes, strict=True)),
        two_in_flight=two_in_flight,
        hook_ns_per_byte=hooks[0],
        hook_ns_per_matrix=hooks[1],
    )


def _draw_apart(job: Job, row: Sequence[float]) -> CommDraw:
    """A draw for a model of an older report, which kept only the intervals of one segment."""
    segment = job.model.segments[0]
    terms = (segment.alpha_ns, job.calibration.communication_slowdown, segment.beta_ns_per_byte)
    alpha, slowdown, beta = (
        _shift(term, z, least) for term, z, least in zip(terms, row, LEAST_COMMUNICATION, strict=False)
    )
    return CommDraw(alpha_ns=alpha, communication_slowdown=slowdown, betas_ns_per_byte=(beta,))


@lru_cache(maxsize=1)
def _draw_normals() -> tuple[tuple[float, ...], ...]:
    values: Floats = np.random.default_rng(0).standard_normal((NUM_DRAWS, 8))
    return tuple(tuple(float(z) for z in row) for row in values)


def _shift(term: Estimate, z: float, least: float) -> float:
    side = term.high - term.value if z > 0 else term.value - term.low
    return max(min(least, term.value), term.value + z * side / NORMAL_95)


def summarize_draws(values: Sequence[float], basis: Basis = "fitted") -> Estimate:
    """The central value, which comes first, with the 95 % interval of all."""
    low, high = np.quantile(values, [0.025, 0.975])
    value = values[0]
    return Estimate(value=value, low=min(float(low), value), high=max(float(high), value), basis=basis)
