from __future__ import annotations

from advisor.contents import describe_contents
from advisor.schema import BucketInfo, ParameterInfo, RunManifest
from tests.job_builders import build_config
from tests.trace_builders import RankTrace, lay_out


def record(*buckets: int) -> RankTrace:
    """Gradients of 100, 50, 20 and 5 elements; `buckets` are the elements of the all-reduces."""
    trace = RankTrace()
    trace.step(2, 0, 1000)
    trace.forward(0, 100)
    for k, elements in enumerate((100, 50, 20, 5)):
        trace.gradient(200 + 50 * k, 250 + 50 * k, elements)
    for k, elements in enumerate(buckets):
        trace.gloo(397 + k, 401 + 50 * k, 450 + 50 * k, elements)
    trace.copy_back(600, 610)
    return trace


def manifest(*sizes: int) -> RunManifest:
    names = ("first.weight", "first.bias", "last.weight", "last.bias")
    parameters = tuple(
        ParameterInfo(name=name, shape=(size,), dtype="float32", num_bytes=4 * size)
        for name, size in zip(names, (5, 20, 50, 100), strict=True)
    )
    members = ((3,), (2, 1, 0)) if len(sizes) == 2 else ((3, 2, 1, 0),)
    buckets = tuple(
        BucketInfo(index=index, num_bytes=4 * size, dtype="float32", parameter_indices=own)
        for index, (size, own) in enumerate(zip(sizes, members, strict=True))
    )
    return RunManifest(
        tool_version="", created="", workload="mlp", ddp=build_config(), parameters=parameters,
        initial_buckets=buckets, buckets=buckets, ready_order=(3, 2, 1, 0),
    )  # fmt: skip


def test_gradients_fill_one_bucket_after_the_other() -> None:
    held = describe_contents(lay_out(record(100, 75)).schedules, None)
    assert [(b.bucket, b.num_bytes, b.num_gradients, b.parameters) for b in held] == [(0, 400, 1, ()), (1, 300, 3, ())]


def test_a_manifest_names_the_parameters() -> None:
    held = describe_contents(lay_out(record(100, 75)).schedules, manifest(100, 75))
    assert [b.parameters for b in held] == [("last.bias",), ("last.weight", "first.bias", "first.weight")]


def test_a_manifest_of_other_buckets_is_not_believed() -> None:
    held = describe_contents(lay_out(record(100, 75)).schedules, manifest(175))
    assert [b.parameters for b in held] == [(), ()]


def test_what_does_not_fit_is_not_told() -> None:
    assert describe_contents(lay_out(record(75, 100)).schedules, None) == ()  # filled in another order
    assert describe_contents(lay_out(record(100, 70)).schedules, None) == ()
    assert describe_contents([], None) == ()
