"""The gradients that training on several ranks should have: computed without DDP, then averaged tensor by tensor."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from advisor.schema import DDPConfig
from workloads.gradients import loss_factors
from workloads.job import Job
from workloads.manifest import trainable_parameters
from workloads.place import Place


class Alone(nn.Module):
    """A model without DDP that looks as if it had one, for losses that reach into `model.module`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The module's output."""
        return self.module(*inputs, **kwargs)


def combine_gradients(fixed: Job, alone: Alone, config: DDPConfig, place: Place) -> list[torch.Tensor]:
    """The gradients of all ranks' first batches together: computed without DDP, then summed tensor by tensor."""
    assert isinstance(fixed.batches, list)
    batches = fixed.batches[: config.accumulation_steps]
    factors = [1 / len(batches)] * len(batches)
    if fixed.weight is not None:
        factors = loss_factors([fixed.weight(batch) for batch in batches], place.device)
    for batch, factor in zip(batches, factors, strict=True):
        torch.autograd.backward(fixed.loss(alone, batch) * factor)
    combined = []
    for _, parameter in trainable_parameters(alone):
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        dist.all_reduce(gradient)
        combined.append(gradient / place.world_size)
    return combined
