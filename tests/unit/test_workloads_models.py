from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from advisor.errors import UsageError
from advisor.schema import DDPConfig
from tests.gloo_pair import GlooPair
from workloads.factories import build_job
from workloads.job import WORKLOADS, JobContext, JobSpec
from workloads.place import Place
from workloads.train import Training

CPU = torch.device("cpu")
OPTIONS = {"straggler": {"delay_ms": "1"}}
VARIANTS = [
    (precision, checkpointed) for precision in ("float32", "bf16", "autocast", "amp") for checkpointed in (0, 1)
]
NAMES = [workload.name for workload in WORKLOADS]


def config_for(name: str, wrapper: str, **change: Any) -> DDPConfig:
    is_moe = name == "moe-unused"
    return DDPConfig(world_size=2, backend="gloo", wrapper=wrapper, find_unused_parameters=is_moe, **change)  # type: ignore[arg-type]


def train(spec: JobSpec, config: DDPConfig, num_steps: int = 3) -> list[float]:
    """The losses of this rank."""
    place = Place(dist.get_rank(), dist.get_world_size(), CPU, "gloo")
    training = Training(build_job(JobContext(spec, place.rank, place.world_size, CPU)), config, place)
    return [training.step().item() for _ in range(num_steps)]


def train_variants(name: str) -> dict[tuple[str, int], list[list[float]]]:
    """The losses of every precision, with and without checkpointing, under torch's wrapper and ours."""
    return {
        (precision, checkpointed): [
            train(
                JobSpec(
                    workload=name,
                    preset="tiny",
                    precision=precision,  # type: ignore[arg-type]
                    activation_checkpointing=bool(checkpointed),
                    options=OPTIONS.get(name, {}),
                ),
                config_for(name, wrapper),
            )
            for wrapper in ("torch", "bucketed")
        ]
        for precision, checkpointed in VARIANTS
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_workload_trains_alike_under_both_wrappers_in_every_precision(gloo_pair: GlooPair, name: str) -> None:
    for losses in gloo_pair.run(train_variants, name):
        for (precision, checkpointed), (torchs, ours) in losses.items():
            assert ours == pytest.approx(torchs, rel=1e-6), (precision, checkpointed)
            # Only the first one: a gradient scaler skips steps until its scale fits.
            assert torchs[0] == pytest.approx(losses["float32", 0][0][0], rel=0.01), (precision, checkpointed)
            if checkpointed:
                assert torchs == pytest.approx(losses[precision, 0][0], rel=1e-6)


def train_compiled(name: str, config: DDPConfig) -> list[float]:
    """With dynamo but without the slow code generation behind it."""
    compile_module = nn.Module.compile
    with mock.patch.object(nn.Module, "compile", lambda module: compile_module(module, backend="eager")):
        return train(JobSpec(workload=name, preset="tiny", compile=True), config)


@pytest.mark.parametrize("wrapper", ["torch", "bucketed"])
def test_a_compiled_model_trains_as_before(gloo_pair: GlooPair, wrapper: str) -> None:
    plain = gloo_pair.run(train, JobSpec(workload="mlp", preset="tiny"), config_for("mlp", wrapper))
    compiled = gloo_pair.run(train_compiled, "mlp", config_for("mlp", wrapper))
    assert compiled[0] == pytest.approx(plain[0], rel=1e-5)


@pytest.mark.parametrize(
    ("spec", "change", "sentence"),
    [
        (JobSpec(workload="mlp", preset="tiny", compile=True), {"bucket_cap_mb": 0.5}, "torch.compile cuts the graph"),
        (JobSpec(workload="moe-unused", preset="tiny"), {}, "set find_unused_parameters"),
        (JobSpec(workload="straggler", preset="tiny", options={"rank": "2"}), {}, "There is no rank 2 to slow down"),
    ],
)
def test_a_pair_that_cannot_work_is_one_sentence(
    gloo_pair: GlooPair, spec: JobSpec, change: dict[str, Any], sentence: str
) -> None:
    config = DDPConfig(world_size=2, backend="gloo", wrapper="torch", **change)
    for message in gloo_pair.run(refuse, spec, config):
        assert sentence in message


def refuse(spec: JobSpec, config: DDPConfig) -> str:
    """The sentence with which training is refused."""
    with pytest.raises(UsageError) as caught:
        train(spec, config)
    return str(caught.value)


def count_unused(spec: JobSpec) -> list[set[str]]:
    """The parameters without a gradient in this rank's first two batches."""
    job = build_job(JobContext(spec, dist.get_rank(), 2, CPU))
    unused = []
    for micro_step in range(2):
        assert callable(job.batches)
        torch.autograd.backward(job.loss(job.model, job.batches(dist.get_rank(), micro_step)))
        unused.append({name for name, parameter in job.model.named_parameters() if parameter.grad is None})
        job.model.zero_grad(set_to_none=True)
    return unused


def test_experts_without_a_gradient_differ_by_step_and_rank(gloo_pair: GlooPair) -> None:
    (first, second), (first_on_1, _) = gloo_pair.run(count_unused, JobSpec(workload="moe-unused", preset="tiny"))
    assert {name.split(".")[1] for name in first} == {"2", "3"}
    assert {name.split(".")[1] for name in second} == {"0", "3"}
    assert {name.split(".")[1] for name in first_on_1} == {"0", "1"}
