"""The teaching estimate: cases that can be done in the head, to the digits in which they are told."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from advisor.errors import UsageError
from advisor.estimate import estimate_job, find_best_configs
from advisor.schema import DDPConfig, JobSketch, SettingEstimate
from tests.job_builders import MB, MS

GB = 1_000_000_000


def sketch(layer_bytes: list[int], **changes: object) -> JobSketch:
    fields: dict[str, object] = {"backward_ns": 0, "bandwidth_bytes_per_s": 1 * GB, **changes}
    return JobSketch(layer_parameters=tuple(size // 4 for size in layer_bytes), **fields)  # type: ignore[arg-type]


def setting(job: JobSketch, **changes: object) -> SettingEstimate:
    fields: dict[str, object] = {"world_size": 2, "backend": "unknown", "wrapper": "torch", **changes}
    return estimate_job(job, [("asked", DDPConfig(**fields))]).settings[0]  # type: ignore[arg-type]


def cap(num_bytes: float) -> float:
    """In MiB, as DDP takes it; exact, for it is a division by a power of two."""
    return num_bytes / 2**20


def test_four_buckets_queue_on_one_channel() -> None:
    """Ready at 2, 4, 6, 8 ms and 3 ms each: the last ends at 14, 6 ms late although one takes 3 (C11)."""
    queued = setting(sketch([3 * MB] * 4, backward_ns=8 * MS), bucket_cap_mb=cap(3 * MB))
    spans = queued.prediction.buckets
    assert [span.ready_ns / MS for span in spans] == [2, 4, 6, 8]
    assert [span.end_ns / MS for span in spans] == [5, 8, 11, 14]
    assert queued.prediction.exposed_ns.value == 6 * MS
    assert queued.communication_ns == 12 * MS


UNIFORM = {"backward_ns": 15 * MS, "latency_ns": 60_000, "bandwidth_bytes_per_s": 10 * GB}


@pytest.mark.parametrize(("bucket_mb", "exposed_ms"), [(25, 2.56), (5, 0.56), (1, 0.16), (0.25, 2.08)])
def test_the_exposed_tail_is_u_shaped_in_the_bucket_size(bucket_mb: float, exposed_ms: float) -> None:
    """50 MB in 200 layers over 15 ms, 60 µs and 100 µs/MB: too large waits, too small pays latency (C8)."""
    asked = setting(sketch([MB // 4] * 200, **UNIFORM), bucket_cap_mb=cap(bucket_mb * MB))
    assert asked.prediction.exposed_ns.value / MS == pytest.approx(exposed_ms, abs=0.005)


def test_the_best_uniform_buckets_are_where_sending_keeps_up_with_backward() -> None:
    """60 + 100 s µs a bucket of s MB, one every 300 s µs: about 0.30 MB, whose own 0.09 ms stay (C8)."""

    def expose(num: int) -> float:
        layers = [50 * MB // num // 4 * 4] * num
        return setting(sketch(layers, **UNIFORM), bucket_cap_mb=0.0).prediction.exposed_ns.value

    best = min(range(100, 250), key=expose)
    assert 50 / best == pytest.approx(0.30, abs=0.005)
    assert expose(best) / MS == pytest.approx(0.09, abs=0.005)


@pytest.mark.parametrize(
    ("comm_hook", "accumulation_steps", "per_micro_step_ms"),
    [("none", 1, 470), ("bf16", 1, 270), ("none", 4, 252.5), ("bf16", 4, 202.5)],
)
def test_bytes_and_accumulation_bound_a_step(comm_hook: str, accumulation_steps: int, per_micro_step_ms: float) -> None:
    """400 MB of float32 over 1 GB/s, forward 60, backward 120, optimizer 10 ms (C9)."""
    job = sketch([4 * MB] * 100, forward_ns=60 * MS, backward_ns=120 * MS, optimizer_ns=10 * MS)
    asked = setting(job, comm_hook=comm_hook, accumulation_steps=accumulation_steps)
    assert asked.communication_ns / MS == pytest.approx(400 if comm_hook == "none" else 200)
    assert asked.bound_ns / MS / accumulation_steps == pytest.approx(per_micro_step_ms)
    assert asked.prediction.step_ns.value >= asked.bound_ns


def test_64_ranks_can_hide_14_gb_in_theory_but_not_the_last_bucket() -> None:
    """14 GB of bfloat16 at 50 GB/s a card and 0.8 s of backward: 27.6 GB in 0.55 s (C12)."""
    layers = (87_500_000,) * 80
    job = JobSketch(layer_parameters=layers, dtype="bfloat16", backward_ns=800 * MS, bandwidth_bytes_per_s=50 * GB)
    asked = setting(job, world_size=64)
    assert asked.traffic_bytes / GB == pytest.approx(27.6, abs=0.05)
    assert asked.communication_ns / 1e9 == pytest.approx(0.55, abs=0.005)
    assert asked.bound_ns == 800 * MS
    assert asked.prediction.exposed_ns.value == pytest.approx(551.25 * MS / 80)


def test_the_largest_sketch_is_counted_without_overflow() -> None:
    """1e14 parameters in two layers over 1e14 ns: ready half way and at the end."""
    job = JobSketch(layer_parameters=(5 * 10**13,) * 2, backward_ns=10**14, bandwidth_bytes_per_s=1e15)
    assert [span.ready_ns for span in setting(job, bucket_cap_mb=0.0).prediction.buckets] == [5 * 10**13, 10**14]


@pytest.mark.parametrize(("world_size", "sent_gb"), [(8, 7.0), (16, 1.875 * 4), (1, 0.0)])
def test_more_ranks_do_not_shrink_what_each_one_sends(world_size: int, sent_gb: float) -> None:
    """4 GB of float32: 2 · 7/8 · 4 = 7 GB on 8 ranks, a factor of 1.875 on 16 (C13)."""
    assert setting(sketch([4 * GB]), world_size=world_size).traffic_bytes / GB == sent_gb


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_adam_keeps_16_bytes_a_parameter_on_every_rank(dtype: str) -> None:
    """1e9 parameters: 16 GB before activations, in float32 as in mixed precision (C22)."""
    job = JobSketch(layer_parameters=(10**9,), dtype=dtype, backward_ns=0, bandwidth_bytes_per_s=GB)
    for world_size in (1, 64):
        config = DDPConfig(world_size=world_size, backend="unknown", wrapper="torch")
        memory = estimate_job(job, [("", config)]).memory
        assert memory.weights_bytes + memory.gradients_bytes + memory.optimizer_bytes == 16 * GB
        assert memory.buckets_bytes == memory.gradients_bytes


@pytest.mark.parametrize(("backward_ms", "steps_ms"), [(100, [132, 108, 102]), (40, [84, 69, 65.25])])
def test_deep_models_hide_more(backward_ms: int, steps_ms: list[float]) -> None:
    """64 ms of communication in 2, 8 and 32 layers: the step approaches max(computation, communication) (C23)."""
    models = [sketch([64 * MB // num] * num, backward_ns=backward_ms * MS) for num in (2, 8, 32)]
    predictions = [setting(model, bucket_cap_mb=0.0).prediction for model in models]
    assert [prediction.step_ns.value / MS for prediction in predictions] == pytest.approx(steps_ms)
    assert [prediction.exposed_ns.value / MS + backward_ms for prediction in predictions] == pytest.approx(steps_ms)


@pytest.mark.parametrize("concurrency", [1, 2])
def test_the_best_settings_beat_every_cap_that_was_asked_for(concurrency: int) -> None:
    job = sketch([2 * MB, 1 * MB, 8 * MB, 1 * MB, 1 * MB, 3 * MB] * 3, concurrency=concurrency, **UNIFORM)
    config = DDPConfig(world_size=2, backend="unknown", wrapper="torch")
    best_cap, best_list = find_best_configs(job, config)
    asked = [replace(config, bucket_cap_mb=size) for size in (None, 0.0, 1.0, 2.0, 5.0, 10.0, 25.0)]
    answer = estimate_job(job, [("", one) for one in (*asked, best_cap, best_list)])
    steps = [one.prediction.step_ns.value for one in answer.settings]
    assert steps[-1] <= steps[-2] <= min(steps[:-2])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"layer_parameters": ()}, "A sketch of 0 layers cannot be drawn"),
        ({"layer_parameters": (1,) * 1001}, "A sketch of 1001 layers cannot be drawn"),
        ({"layer_parameters": (4, 0)}, "give every layer at least one parameter"),
        ({"backward_ns": -1}, "A time below zero"),
        ({"bandwidth_bytes_per_s": 0.0}, "give a bandwidth above zero"),
        ({"layer_parameters": (10**20,)}, "1e\\+20 parameters cannot be meant"),
        ({"backward_ns": 10**18}, "A step of more than eleven days"),
        ({"bandwidth_bytes_per_s": 1e-9}, "A step of more than eleven days"),
        ({"dtype": "int8"}, "The dtype 'int8' is not known: choose one of float32"),
    ],
)
def test_a_sketch_that_cannot_be_meant_is_refused(changes: dict[str, object], sentence: str) -> None:
    job = replace(sketch([4]), **changes)
    with pytest.raises(UsageError, match=sentence):
        setting(job)
