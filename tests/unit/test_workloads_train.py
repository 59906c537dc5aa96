from __future__ import annotations

from dataclasses import replace
from functools import partial

import msgspec
import pytest
import torch
from torch import nn

from advisor.errors import UsageError
from advisor.schema import DDPConfig, RunManifest
from tests.gloo_pair import GlooPair
from workloads.factories import build_job
from workloads.job import Job, JobContext, JobSpec
from workloads.manifest import RunLabel, build_manifest, read_config
from workloads.place import Place
from workloads.train import Training, iterate_batches
from workloads.wrap import constructor_arguments

BASE = DDPConfig(world_size=2, backend="gloo", wrapper="torch")


class OldDDP(nn.Module):
    """The arguments of an older torch."""

    def __init__(self, module: nn.Module, broadcast_buffers: bool = True, bucket_cap_mb: float | None = None) -> None:
        super().__init__()


def test_only_what_differs_from_the_defaults_is_passed_on() -> None:
    assert constructor_arguments(BASE, OldDDP) == {}
    config = msgspec.structs.replace(BASE, bucket_cap_mb=4.0, comm_hook="fp16", accumulation_steps=8)
    assert constructor_arguments(config, OldDDP) == {"bucket_cap_mb": 4.0}


def test_an_older_torch_gets_the_older_name() -> None:
    config = msgspec.structs.replace(BASE, forward_sync_buffers=False)
    assert constructor_arguments(config, OldDDP) == {"broadcast_buffers": False}


def test_what_an_older_torch_lacks_is_one_sentence() -> None:
    config = msgspec.structs.replace(BASE, bucket_cap_mb_list=(1.0, 4.0))
    with pytest.raises(UsageError, match=r"OldDDP of torch .* has no argument bucket_cap_mb_list"):
        constructor_arguments(config, OldDDP)


def job_with(batches: object) -> Job:
    return Job(nn.Linear(1, 1), lambda model, batch: model(batch).sum(), batches, torch.optim.SGD)  # type: ignore[arg-type]


def test_a_list_of_batches_starts_anew() -> None:
    batches = iterate_batches(job_with([1, 2]), rank=0)
    assert [next(batches) for _ in range(5)] == [1, 2, 1, 2, 1]


def test_a_function_of_batches_is_asked_by_rank_and_micro_step() -> None:
    batches = iterate_batches(job_with(lambda rank, micro_step: (rank, micro_step)), rank=1)
    assert [next(batches) for _ in range(2)] == [(1, 0), (1, 1)]


def test_batches_that_are_used_up_are_one_sentence() -> None:
    batches = iterate_batches(job_with(iter([1])), rank=0)
    assert next(batches) == 1
    with pytest.raises(UsageError, match="batches are used up"):
        next(batches)


def train_linear(config: DDPConfig, num_steps: int) -> list[float]:
    """Weights after training on the samples 0, 1, 2, …, dealt out to ranks and micro-steps in turn."""
    num_micro_steps = config.accumulation_steps

    def batches(rank: int, micro_step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(micro_step // num_micro_steps)
        samples = torch.randn(config.world_size * num_micro_steps, 4, generator=generator)
        place = rank * num_micro_steps + micro_step % num_micro_steps
        return samples[place : place + 1]

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = partial(torch.optim.SGD, lr=0.1)
    job = Job(model, lambda model, batch: model(batch).square().mean(), batches, optimizer)
    if config.world_size == 1:
        every = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(num_steps):
            for place in range(num_micro_steps):
                torch.autograd.backward(job.loss(model, batches(0, step * num_micro_steps + place)) / num_micro_steps)
            every.step()
            every.zero_grad()
    else:
        training = Training(job, config, Place(torch.distributed.get_rank(), 2, torch.device("cpu"), "gloo"))
        for _ in range(num_steps):
            training.step()
    return nn.utils.parameters_to_vector(model.parameters()).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("wrapper", ["torch", "bucketed"])
@pytest.mark.parametrize("change", [{}, {"static_graph": True}, {"accumulation_steps": 1}])
def test_accumulation_on_two_ranks_equals_one_process(
    gloo_pair: GlooPair, wrapper: str, change: dict[str, object]
) -> None:
    config = msgspec.structs.replace(BASE, wrapper=wrapper, **{"accumulation_steps": 3, **change})
    alone = msgspec.structs.replace(config, world_size=1, accumulation_steps=2 * config.accumulation_steps)
    expected = train_linear(alone, num_steps=3)
    for weights in gloo_pair.run(train_linear, config, num_steps=3):
        assert weights == pytest.approx(expected, abs=1e-6)


def describe_mlp(config: DDPConfig) -> tuple[RunManifest, DDPConfig]:
    """The manifest after three steps, and the settings as the wrapped model remembers them."""
    rank = torch.distributed.get_rank()
    context = JobContext(JobSpec(workload="mlp", preset="tiny"), rank, 2, torch.device("cpu"))
    job = build_job(context)
    training = Training(replace(job), config, Place(rank, 2, torch.device("cpu"), "gloo"))
    for _ in range(3):
        training.step()
    return build_manifest(training.model, config, [], RunLabel("mlp")), read_config(training.model)


@pytest.mark.parametrize(
    "change", [{"bucket_cap_mb": 0.03125}, {"find_unused_parameters": True}, {"bucket_cap_mb": None}]
)
def test_both_wrappers_tell_the_same_buckets_and_settings(gloo_pair: GlooPair, change: dict[str, object]) -> None:
    torch_config = msgspec.structs.replace(BASE, **change)
    our_config = msgspec.structs.replace(torch_config, wrapper="bucketed")
    (theirs, their_settings), _ = gloo_pair.run(describe_mlp, torch_config)
    (ours, our_settings), _ = gloo_pair.run(describe_mlp, our_config)
    assert (ours.buckets, ours.initial_buckets, ours.parameters) == (
        theirs.buckets,
        theirs.initial_buckets,
        theirs.parameters,
    )
    assert (their_settings, our_settings) == (torch_config, our_config)


def test_the_manifest_names_the_buckets_members(gloo_pair: GlooPair) -> None:
    # Four layers of 64 * 64 + 64 float32, 16640 bytes each; a cap of 32 KiB takes two.
    (manifest, _), _ = gloo_pair.run(describe_mlp, msgspec.structs.replace(BASE, bucket_cap_mb=0.03125))
    assert [bucket.num_bytes for bucket in manifest.initial_buckets] == [4 * 16640]
    assert [bucket.num_bytes for bucket in manifest.buckets] == [2 * 16640, 2 * 16640]
    assert set(manifest.buckets[0].parameter_indices) == {4, 5, 6, 7}
    assert [parameter.bucket for parameter in manifest.parameters] == [1, 1, 1, 1, 0, 0, 0, 0]
    assert manifest.parameters[0].name == "layers.0.weight"
    assert manifest.ready_order[0] in (6, 7)
