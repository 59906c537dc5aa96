"""The same job on other numbers of ranks."""

from __future__ import annotations

from typing import Literal

from advisor.schema.base import Estimate, Struct

ComputeScaling = Literal["constant", "divided"]
"""Whether a rank keeps its own batch, or the ranks share one global batch."""


class ForecastRow(Struct, frozen=True, kw_only=True):
    """One number of ranks; times per optimizer step."""

    world_size: int
    step_ns: Estimate
    blocking_ns: Estimate
    efficiency_fraction: Estimate
    """Samples per second and rank over those of the profiled run."""


class Forecast(Struct, frozen=True, kw_only=True):
    """What `ddp-advisor forecast --json` prints, and a table of the report."""

    profiled_world_size: int
    compute: ComputeScaling
    rows: tuple[ForecastRow, ...]
