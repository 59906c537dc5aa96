"""Do the communication model's intervals hold what they promise? Fits on samples of a known line, two thousand times.

Every run draws a latency, a slope and for a ladder a kink, then samples with 5 % of normal noise. It asks how often the
95 % intervals hold the truth, how far estimates are off, and whether the kink lies within one step of the ladder.
Beside the latency of a profile stands what the samples themselves allow: the most likely line, where the noise is known
and that there is no kink and nothing else to find.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from advisor.comm_model import Transfer, fit_comm_model
from advisor.schema import CommModel, Estimate, broken_line
from benchmarks.result import Measurement, write_result

NUM_RUNS = 2000
NOISE = 0.05
KEY = ("0", "all_reduce", "float32")
KIB, MIB = 2**10, 2**20
NUM_SCORINGS = 20
LADDER = tuple(KIB * 2**power for power in range(17))


@dataclass(frozen=True)
class Truth:
    """The line that the samples are drawn from; the kink is 0 where there is none."""

    alpha_ns: float
    betas_ns_per_byte: tuple[float, ...]
    kink_bytes: int = 0

    def time_ns(self, num_bytes: float) -> float:
        """Without noise."""
        kinks = (self.kink_bytes,) if self.kink_bytes else ()
        return broken_line(self.alpha_ns, self.betas_ns_per_byte, kinks)(num_bytes)


@dataclass(frozen=True)
class Outcome:
    """What one fit got right: by quantity whether its interval holds the truth, and the relative error."""

    covered: dict[str, bool]
    errors: dict[str, float]
    kinks_found: bool
    least_latency_error: float | None
    """Of the most likely line; None where there is a kink."""


def draw_profile(random: np.random.Generator) -> tuple[Truth, list[Transfer]]:
    """A profile: six bucket sizes in twelve steps, one line."""
    truth = Truth(float(random.uniform(1e5, 1e6)), (float(random.uniform(0.3, 3)),))
    sizes = (MIB // 4, MIB // 2, MIB, 4 * MIB, 12 * MIB, 25 * MIB)
    return truth, sample(truth, sizes, 12, random)


def draw_ladder(random: np.random.Generator) -> tuple[Truth, list[Transfer]]:
    """A probe's ladder: seventeen sizes, six visits each, and a slope that changes by a factor of 2 to 4."""
    alpha, beta = float(random.uniform(5e4, 3e5)), float(random.uniform(0.5, 2))
    factor = float(random.uniform(2, 4)) ** int(random.choice([-1, 1]))
    truth = Truth(alpha, (beta, beta * factor), int(random.choice(LADDER[10:14])))
    return truth, sample(truth, LADDER, 6, random)


def sample(truth: Truth, sizes: tuple[int, ...], num_steps: int, random: np.random.Generator) -> list[Transfer]:
    """Each size once a step, with noise."""
    return [
        Transfer(KEY, step, size, truth.time_ns(size) * float(random.normal(1, NOISE)), 0.0, True)
        for step in range(num_steps)
        for size in sizes
    ]


def find_most_likely_line(truth: Truth, transfers: Sequence[Transfer]) -> tuple[float, float]:
    """Latency and slope by maximum likelihood, given the form of the noise and its size.

    Scoring from the truth on; a sample of mean m with a standard deviation of 5 % of m tells (1 / 0.05² + 2) / m².

    **Source**: Fisher, On the mathematical foundations of theoretical statistics (1922).
    """
    design = np.array([[1.0, transfer.num_bytes] for transfer in transfers])
    times = np.array([transfer.exclusive_ns for transfer in transfers])
    line = np.array([truth.alpha_ns, truth.betas_ns_per_byte[0]])
    for _ in range(NUM_SCORINGS):
        mean = design @ line
        error = (times / mean - 1) / NOISE
        score = design.T @ ((error / NOISE + error**2 - 1) / mean)
        information = design.T @ (design * ((1 / NOISE**2 + 2) / mean**2)[:, None])
        line = line + np.linalg.solve(information, score)
    return float(line[0]), float(line[1])


def judge(truth: Truth, transfers: Sequence[Transfer], model: CommModel) -> Outcome:
    """Compares a fit with the truth: latency, slopes, and the times of a small, a middle and a large message."""
    pairs: dict[str, tuple[Estimate, float]] = {
        "latency": (model.segments[0].alpha_ns, truth.alpha_ns),
        "slope of large messages": (model.segments[-1].beta_ns_per_byte, truth.betas_ns_per_byte[-1]),
        "time of 1 MiB": (model.predict(MIB), truth.time_ns(MIB)),
        "time of 8 MiB": (model.predict(8 * MIB), truth.time_ns(8 * MIB)),
        "time of 50 MiB": (model.predict(50 * MIB), truth.time_ns(50 * MIB)),
    }
    true_kinks = (truth.kink_bytes,) if truth.kink_bytes else ()
    found = len(model.kinks_bytes) == len(true_kinks) and all(
        kink / 2 <= ours <= 2 * kink for kink, ours in zip(true_kinks, model.kinks_bytes, strict=True)
    )
    return Outcome(
        covered={name: estimate.low <= value <= estimate.high for name, (estimate, value) in pairs.items()},
        errors={name: estimate.value / value - 1 for name, (estimate, value) in pairs.items()},
        kinks_found=found,
        least_latency_error=(None if true_kinks else find_most_likely_line(truth, transfers)[0] / truth.alpha_ns - 1),
    )


Draw = Callable[[np.random.Generator], tuple[Truth, list[Transfer]]]
SITUATIONS: dict[str, Draw] = {"profile": draw_profile, "ladder": draw_ladder}


def repeat(draw: Draw, num_runs: int) -> list[Outcome]:
    """Fits `num_runs` draws with fixed seeds, as of an unknown backend, so that no known kink helps."""
    return [_fit_one(draw, seed) for seed in range(num_runs)]


def _fit_one(draw: Draw, seed: int) -> Outcome:
    truth, transfers = draw(np.random.default_rng(seed))
    return judge(truth, transfers, fit_comm_model(transfers, 2, "unknown").model)


def describe(name: str, hits: npt.NDArray[np.bool_]) -> Measurement:
    """A share of the runs with its 95 % interval (Wilson, 1927)."""
    num, mean, z = len(hits), float(hits.mean()), 1.96
    middle = (mean + z * z / (2 * num)) / (1 + z * z / num)
    half = z * np.sqrt(mean * (1 - mean) / num + z * z / (4 * num * num)) / (1 + z * z / num)
    estimate = Estimate(value=mean, low=float(middle - half), high=float(middle + half), basis="measured")
    return Measurement(name=name, unit="of the runs", estimate=estimate, num_samples=num)


def run() -> None:
    """Writes coverage, the median size of the errors, and how often kinks are found, by situation."""
    load_before = os.getloadavg()[0]
    measurements = []
    for situation, draw in SITUATIONS.items():
        with ProcessPoolExecutor() as pool:
            outcomes = list(pool.map(partial(_fit_one, draw), range(NUM_RUNS), chunksize=20))
        for name in outcomes[0].covered:
            covered = np.array([outcome.covered[name] for outcome in outcomes])
            small = np.array([abs(outcome.errors[name]) <= NOISE for outcome in outcomes])
            measurements += [
                describe(f"{situation}: interval holds the {name}", covered),
                describe(f"{situation}: {name} within 5 %", small),
            ]
        at_best = [o.least_latency_error for o in outcomes if o.least_latency_error is not None]
        if at_best:
            hits = np.abs(at_best) <= NOISE
            measurements.append(describe(f"{situation}: latency of the most likely line within 5 %", hits))
        found = np.array([outcome.kinks_found for outcome in outcomes])
        measurements.append(describe(f"{situation}: as many kinks as there are, each within one step", found))
    write_result("coverage", load_before, ("ddp-advisor", "numpy", "scipy"), measurements)
