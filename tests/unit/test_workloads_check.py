from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import torch.distributed as dist
from torch import nn

from advisor.schema import DDPConfig, read_json
from tests.gloo_pair import GlooPair
from workloads.check import check_job
from workloads.exchange import Reporter
from workloads.job import WORKLOADS, Job, JobContext, JobSpec
from workloads.place import Place
from workloads.requests import CheckRequest, CheckResults

CONFIG = DDPConfig(world_size=2, backend="gloo", wrapper="torch")
THIS_FILE = Path(__file__)
SAMPLES, UPDATE, REPLICAS, BYTES = range(4)


def run_checks(request: CheckRequest) -> None:
    place = Place(dist.get_rank(), dist.get_world_size(), torch.device("cpu"), "gloo")
    check_job(request, place, Reporter(Path(request.out).parent, place.rank))


def check(pair: GlooPair, out: Path, job: JobSpec, **change: Any) -> list[str]:
    """The reasons of the checks that say no, by their place; empty for those that say yes."""
    config = msgspec.structs.replace(CONFIG, **change)
    pair.run(run_checks, CheckRequest(job=job, config=config, out=str(out / "results.json")))
    results = read_json(CheckResults, out / "results.json").results
    assert len(results) == 4
    return ["" if result.passed else result.message for result in results]


def build_regression(context: JobContext, **change: Any) -> Job:
    fields: dict[str, Any] = {
        "model": nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1)),
        "loss": lambda model, batch: model(batch).square().mean(),
        "batches": lambda rank, micro_step: context.randn(8, 4, keys=(rank, micro_step)),
        "optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
        **change,
    }
    return Job(**fields)


def good(context: JobContext) -> Job:
    return build_regression(context)


def uneven(context: JobContext) -> Job:
    def batches(rank: int, micro_step: int) -> torch.Tensor:
        return context.randn(2 + 4 * rank + micro_step, 4, keys=(rank, micro_step))

    return build_regression(context, batches=batches, weight=len)


def same_samples(context: JobContext) -> Job:
    return build_regression(context, batches=lambda rank, micro_step: context.randn(8, 4, keys=(micro_step,)))


def around_the_wrapper(context: JobContext) -> Job:
    return build_regression(context, loss=lambda model, batch: model.module(batch).square().mean())


class OwnDecay(torch.optim.SGD):
    """Shrinks the weights on rank 1 only."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, lr=0.1, momentum=0.9)

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        super().step()
        if dist.get_rank() == 1:
            with torch.no_grad():
                self.param_groups[0]["params"][0].mul_(0.5)


def own_decay(context: JobContext) -> Job:
    return build_regression(context, optimizer=OwnDecay)


def unfrozen(context: JobContext) -> Job:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    model[0].weight.requires_grad_(False)

    def loss(wrapped: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        result = wrapped(batch).square().mean()
        wrapped.module[0].weight.requires_grad_(True)  # type: ignore[index, union-attr]
        return result

    return build_regression(context, model=model, loss=loss)


def spec(factory: Callable[[JobContext], Job]) -> JobSpec:
    return JobSpec(workload=f"{THIS_FILE}:{factory.__name__}", preset="tiny")


@pytest.mark.parametrize("change", [{}, {"accumulation_steps": 2}, {"wrapper": "bucketed", "static_graph": True}])
@pytest.mark.parametrize("factory", [good, uneven])
def test_a_sound_job_passes(
    gloo_pair: GlooPair, tmp_path: Path, factory: Callable[[JobContext], Job], change: dict[str, Any]
) -> None:
    assert check(gloo_pair, tmp_path, spec(factory), **change) == [""] * 4


@pytest.mark.parametrize("name", [workload.name for workload in WORKLOADS])
def test_every_reference_job_is_sound(gloo_pair: GlooPair, tmp_path: Path, name: str) -> None:
    options = {"delay_ms": "1"} if name == "straggler" else {}
    job = JobSpec(workload=name, preset="tiny", options=options)
    assert check(gloo_pair, tmp_path, job, find_unused_parameters=name == "moe-unused") == [""] * 4


@pytest.mark.parametrize("precision", ["bf16", "autocast", "amp"])
def test_precision_does_not_make_a_sound_job_unsound(gloo_pair: GlooPair, tmp_path: Path, precision: str) -> None:
    job = JobSpec(workload="gpt", preset="tiny", precision=precision, activation_checkpointing=True)  # type: ignore[arg-type]
    assert check(gloo_pair, tmp_path, job, wrapper="bucketed") == [""] * 4


@pytest.mark.parametrize(
    ("factory", "failing", "sentence"),
    [
        (same_samples, SAMPLES, "Ranks 0 and 1 both read the batch of micro-step 0: give each rank its own share"),
        (around_the_wrapper, UPDATE, "is not that of all ranks' batches together"),
        (around_the_wrapper, REPLICAS, "differs between rank 0 and rank 1"),
        (around_the_wrapper, BYTES, "A step averages 0 bytes, and 100 bytes are trainable"),
        (own_decay, REPLICAS, "After 2 steps 0.weight differs between rank 0 and rank 1"),
        (unfrozen, BYTES, "A step averages 36 bytes, and 100 bytes are trainable"),
    ],
)
def test_an_unsound_job_is_told_why(
    gloo_pair: GlooPair, tmp_path: Path, factory: Callable[[JobContext], Job], failing: int, sentence: str
) -> None:
    assert sentence in check(gloo_pair, tmp_path, spec(factory))[failing]


def test_a_hook_that_averages_nothing_fails_where_it_should(gloo_pair: GlooPair, tmp_path: Path) -> None:
    messages = check(gloo_pair, tmp_path, spec(good), comm_hook="noop")
    assert [bool(message) for message in messages] == [False, True, True, False]
