"""Communication models of real traces: the reduce-scatter of eight H100s, fitted on transfers."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.pipeline import analyze

ELEMENTS = 38_633_472
SHORTEST_NS, LONGEST_NS = 223_000, 6_433_000
"""Over all samples of this size on all ranks: the longest is waiting."""


def test_the_reduce_scatter_of_h100_is_fitted_on_transfers(trace_corpus: Path) -> None:
    report = analyze([trace_corpus / "h100-nanogpt-8rank"], holistic=False)
    (model,) = [m for m in report.comm_models if (m.kind, m.dtype) == ("reduce_scatter", "bfloat16")]
    predicted = model.predict(2 * ELEMENTS)
    assert predicted.low <= SHORTEST_NS <= predicted.high
    assert predicted.value == pytest.approx(SHORTEST_NS, rel=0.15)
    assert predicted.high < LONGEST_NS / 10
    assert model.busbw_bytes_per_s is not None
    assert 200e9 < model.busbw_bytes_per_s.value < 450e9  # NVLink of an H100 carries 450 GB/s each way
