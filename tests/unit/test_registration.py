from __future__ import annotations

from msgspec.structs import replace

from advisor.registration import register_gradients
from advisor.replay import bucket_gradients, plan_backward
from advisor.schema import ParameterInfo, RunManifest
from tests.job_builders import MS, build_config, build_job

MIB = 2**20


def manifest(sizes: list[int], ready_order: tuple[int, ...]) -> RunManifest:
    parameters = tuple(
        ParameterInfo(name=f"p{n}", shape=(size // 4,), dtype="float32", num_bytes=size) for n, size in enumerate(sizes)
    )
    return RunManifest(
        tool_version="", created="", workload="", ddp=build_config(), parameters=parameters, initial_buckets=(),
        buckets=(), ready_order=ready_order,
    )  # fmt: skip


def test_a_manifest_tells_the_registration_order() -> None:
    """Parameters of 4, 8 and 12 bytes are ready as 2, 0, 1, so the gradients of 12, 4 and 8 were registered 1, 2, 0."""
    job = build_job([(1, 12), (2, 4), (3, 8)], backward_ms=3)
    told = manifest([4, 8, 12], (2, 0, 1))
    assert register_gradients(job.profile, told).registered == (1, 2, 0)


def test_a_manifest_of_other_gradients_tells_nothing() -> None:
    job = build_job([(1, 12), (2, 4), (3, 8)], backward_ms=3)
    for told in (None, manifest([4, 8, 12], (2, 0)), manifest([4, 8, 12], (0, 1, 2)), manifest([4, 8, 12], (2, 0, 7))):
        assert register_gradients(job.profile, told) == job.profile


def test_without_a_rebuild_buckets_wait_for_their_last_gradient_in_registration_order() -> None:
    """Registered in the order in which they are ready, 1 MiB each, two a bucket: the last two are launched first.

    Both buckets are launched at 4 ms, with a mark of 4 gradients behind them; a static graph is rebuilt, at 2 and 4 ms.
    """
    job = build_job([(1, MIB), (2, MIB), (3, MIB), (4, MIB)], backward_ms=4)
    job = type(job)(replace(job.profile, registered=(0, 1, 2, 3)), job.calibration, job.model)
    config = build_config(find_unused_parameters=True, bucket_cap_mb=2.0)
    assert bucket_gradients(job.profile, config) == [[2, 3], [0, 1]]
    plan = plan_backward(job, config)
    assert list(plan.work) == [4 * MS, 4 * MS, 4 * MS]
    assert list(plan.sizes) == [2 * MIB, 2 * MIB, 16]
    static = plan_backward(job, replace(config, static_graph=True))
    assert (list(static.work), list(static.sizes)) == ([2 * MS, 4 * MS], [2 * MIB, 2 * MIB])


def test_without_a_manifest_the_last_gradient_is_taken_for_the_first_registered_one() -> None:
    """1, 2 and 3 MiB are ready in this order; from the last one on they fill 3 | 2 + 1, which are launched reversed."""
    job = build_job([(1, MIB), (2, 2 * MIB), (3, 3 * MIB)], backward_ms=3)
    config = build_config(find_unused_parameters=True, bucket_cap_mb=3.0)
    assert bucket_gradients(job.profile, config) == [[1, 0], [2]]
