from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from advisor.schema import DDPConfig
from tests.gloo_pair import GlooPair
from workloads.gradients import finish_step, loss_factors
from workloads.job import Job
from workloads.place import Place
from workloads.train import Training

CPU = torch.device("cpu")
TOKENS = ([1.0, 1.0], [3.0] * 6)
"""Rank 0 averages two tokens of gradient 1, rank 1 six tokens of gradient 3."""


def average_gradient(*, weighted: bool, num_micro_steps: int) -> float:
    """The averaged gradient of w in the loss mean(w · tokens), one step; all micro-steps of a rank are alike."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)

    def batches(rank: int, micro_step: int) -> torch.Tensor:
        return torch.tensor(TOKENS[rank]).unsqueeze(1)

    job = Job(
        model=model,
        loss=lambda wrapped, tokens: wrapped(tokens).mean(),
        batches=batches,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        weight=len if weighted else None,
    )
    config = DDPConfig(world_size=2, backend="gloo", wrapper="torch", accumulation_steps=num_micro_steps)
    Training(job, config, Place(dist.get_rank(), 2, CPU, "gloo")).step()
    return -model.weight.item()


@pytest.mark.parametrize("num_micro_steps", [1, 3])
def test_the_mean_of_means_is_not_the_token_mean(gloo_pair: GlooPair, num_micro_steps: int) -> None:
    unweighted = gloo_pair.run(average_gradient, weighted=False, num_micro_steps=num_micro_steps)
    weighted = gloo_pair.run(average_gradient, weighted=True, num_micro_steps=num_micro_steps)
    assert unweighted == pytest.approx([2.0, 2.0])
    assert weighted == pytest.approx([2.5, 2.5])


def factors_of_uneven_micro_steps() -> list[float]:
    return loss_factors([2, 0] if dist.get_rank() == 0 else [1, 5], CPU)


def test_factors_add_up_to_the_world_size_over_all_ranks_and_micro_steps(gloo_pair: GlooPair) -> None:
    assert gloo_pair.run(factors_of_uneven_micro_steps) == [[0.5, 0.0], [0.25, 1.25]]


def factors_without_tokens() -> list[float]:
    return loss_factors([0, 0], CPU)


def test_no_token_anywhere_is_no_division_by_zero(gloo_pair: GlooPair) -> None:
    assert gloo_pair.run(factors_without_tokens) == [[0.0, 0.0]] * 2


def parameter_with_gradient(value: float) -> tuple[nn.Parameter, torch.optim.Optimizer]:
    parameter = nn.Parameter(torch.zeros(4))
    parameter.grad = torch.full((4,), value)
    return parameter, torch.optim.SGD([parameter], lr=1.0)


def test_clipping_sees_the_unscaled_norm() -> None:
    # Four entries of 3 have the norm 6; scaled by 8 they would be clipped to another direction's length.
    parameter, optimizer = parameter_with_gradient(3.0 * 8)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.zeros(()))  # the scale exists from the first loss on
    finish_step(optimizer, [parameter], scaler, max_gradient_norm=1.0)
    assert (-parameter).tolist() == pytest.approx([0.5] * 4, rel=1e-4)
    assert parameter.grad is None


def test_a_small_gradient_is_not_clipped() -> None:
    parameter, optimizer = parameter_with_gradient(0.25)
    finish_step(optimizer, [parameter], torch.amp.GradScaler("cpu", enabled=False), max_gradient_norm=1.0)
    assert (-parameter).tolist() == pytest.approx([0.25] * 4)


def test_an_overflow_skips_the_step_and_halves_the_scale() -> None:
    parameter, optimizer = parameter_with_gradient(float("inf"))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.zeros(()))
    finish_step(optimizer, [parameter], scaler)
    assert parameter.tolist() == [0.0] * 4
    assert scaler.get_scale() == 4.0
