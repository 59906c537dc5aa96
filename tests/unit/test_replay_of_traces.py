"""From simulated traces through schedule, model and calibration to the replayed step: without noise the measured one.

The limit leaves room for what few sizes tell of the link, which no calibration knows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from advisor.pipeline import analyze
from tests.simulated_schedule import Scenario
from tests.simulator import draw_ladder, draw_scenario, simulate


@pytest.mark.parametrize("draw", [draw_scenario, draw_ladder])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_the_profiled_setting_is_replayed_from_its_traces(
    tmp_path: Path, draw: Callable[[int, str], Scenario], backend: str, seed: int
) -> None:
    scenario = replace(draw(seed, backend), noise=0.0, jitter_us=0.0)
    for rank, trace in enumerate(simulate(scenario).traces):
        (tmp_path / f"rank{rank}.json").write_bytes(trace)
    baseline = analyze([tmp_path], holistic=False).baseline
    assert baseline is not None
    assert abs(baseline.error_fraction) < 0.015
