"""What every benchmark leaves in `results/`: numbers with their noise, the machine, the versions and the command."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from advisor.schema import Estimate, Struct, read_json, write_json

RESULTS = Path(__file__).parent / "results"


class Measurement(Struct, frozen=True, kw_only=True):
    """One median with its 95 % interval."""

    name: str
    unit: str
    estimate: Estimate
    num_samples: int


class Count(Struct, frozen=True, kw_only=True):
    """How often something happened."""

    name: str
    count: int


class Result(Struct, frozen=True, kw_only=True):
    """One benchmark, on one machine."""

    benchmark: str
    command: str
    machine: str
    load_before: float
    """Running processes when it began, over one minute: above the number of cores the machine was not idle."""
    versions: dict[str, str]
    measurements: tuple[Measurement, ...]
    counts: tuple[Count, ...] = ()


def write_result(
    name: str,
    load_before: float,
    packages: tuple[str, ...],
    measurements: list[Measurement],
    counts: Sequence[Count] = (),
) -> None:
    """Prints the measurements and counts and writes them to `results/<name>.json`."""
    result = Result(
        benchmark=name,
        command=f"python -m benchmarks {name}",
        machine=f"{_read_processor()}, {os.cpu_count()} cores, {platform.system()}",
        load_before=round(load_before, 2),
        versions={"python": platform.python_version(), **{package: version(package) for package in packages}},
        measurements=tuple(measurements),
        counts=tuple(counts),
    )
    RESULTS.mkdir(exist_ok=True)
    write_json(result, RESULTS / f"{name}.json")
    for row in measurements:
        estimate = row.estimate
        print(f"{row.name}: {estimate.value:.3g} {row.unit} [{estimate.low:.3g}, {estimate.high:.3g}]")
    for each in counts:
        print(f"{each.name}: {each.count}")


def read_measurements(name: str) -> list[Measurement]:
    """What `results/<name>.json` holds; nothing where it is missing."""
    path = RESULTS / f"{name}.json"
    return list(read_json(Result, path).measurements) if path.exists() else []


def _read_processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
