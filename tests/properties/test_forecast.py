"""More ranks with the same work for each are never forecast faster."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.forecast import forecast_ranks
from advisor.replay import Job
from advisor.schema import Estimate
from tests.job_builders import MS, build_comm_model, build_config, build_job


def fitted(value: float) -> Estimate:
    return Estimate(value=value, low=0.8 * value, high=1.2 * value, basis="fitted")


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 500)), min_size=1, max_size=8),
    st.floats(0, 50),
    st.floats(1, 3),
    st.sampled_from([1, 2]),
    st.sampled_from(["gloo", "nccl"]),
)
def test_fewer_ranks_are_never_forecast_slower(
    gradients: list[tuple[int, int]], alpha_ns: float, slowdown: float, concurrency: int, backend: str
) -> None:
    """With the same work for each rank fewer of them send fewer bytes in fewer messages."""
    job = build_job(
        [(ready / MS, size) for ready, size in sorted(gradients)],
        backward_ms=1000 / MS,
        concurrency=concurrency,
        compute_slowdown=fitted(slowdown),
        communication_slowdown=fitted(slowdown),
    )
    job = Job(job.profile, job.calibration, build_comm_model(alpha_ns, 1))
    rows = forecast_ranks(job, build_config(backend=backend, bucket_cap_mb=0.0), [1, 2, 3, 64]).rows
    for few, many in pairwise(rows):
        assert few.step_ns.value <= many.step_ns.value + 1e-6
        assert few.step_ns.low <= many.step_ns.low + 1e-6
        assert few.step_ns.high <= many.step_ns.high + 1e-6
