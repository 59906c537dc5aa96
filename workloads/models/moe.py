"""Experts of which a step uses only some: parameters without a gradient, other ones on every rank and step.

Needs `find_unused_parameters=True`, which keeps DDP from ever rebuilding its buckets. Shapes: B batch, D width.
"""

# ruff: noqa: N803, N806 (shapes as suffixes)

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from workloads.job import Job, JobContext, choose_preset
from workloads.models.blocks import run_blocks
from workloads.models.mlp import Layer

Batch = tuple[torch.Tensor, int]
"""The samples, and the first of the experts they are sent to."""


@dataclass(frozen=True)
class Sizes:
    """`num_active` of `num_experts` run in a step, between a shared stem and a shared head of `num_layers` each."""

    num_experts: int
    num_active: int
    num_layers: int
    width: int
    batch_size: int


PRESETS = {
    "tiny": Sizes(num_experts=4, num_active=2, num_layers=1, width=16, batch_size=8),
    "small": Sizes(num_experts=16, num_active=4, num_layers=6, width=512, batch_size=256),
    "large": Sizes(num_experts=32, num_active=8, num_layers=8, width=4096, batch_size=1024),
}


class MixtureOfExperts(nn.Module):
    """A stem, the mean over the active experts, and a head."""

    def __init__(self, sizes: Sizes, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.stem = nn.ModuleList(Layer(sizes.width, sizes.width) for _ in range(sizes.num_layers))
        self.experts = nn.ModuleList(Layer(sizes.width, sizes.width) for _ in range(sizes.num_experts))
        self.head = nn.ModuleList(Layer(sizes.width, sizes.width) for _ in range(sizes.num_layers))
        self.num_active = sizes.num_active
        self.checkpointed = checkpointed

    def forward(self, x_BD: torch.Tensor, first_expert: int) -> torch.Tensor:
        """The head's activations, BD; experts `first_expert` and those after it, in a circle, are active."""
        x_BD = run_blocks(self.stem, x_BD, checkpointed=self.checkpointed)
        active = [self.experts[(first_expert + i) % len(self.experts)] for i in range(self.num_active)]
        x_BD = torch.stack([run_blocks([expert], x_BD, checkpointed=self.checkpointed) for expert in active]).mean(0)
        return run_blocks(self.head, x_BD, checkpointed=self.checkpointed)


def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Mean squared distance from 1."""
    x_BD, first_expert = batch
    return functional.mse_loss(model(x_BD, first_expert), torch.ones_like(x_BD))


def build_job(context: JobContext) -> Job:
    """Noise, sent to experts that move on with every step and differ between ranks."""
    sizes = choose_preset(PRESETS, context)

    def batches(rank: int, micro_step: int) -> Batch:
        first_expert = rank * sizes.num_active + micro_step
        return context.randn(sizes.batch_size, sizes.width, keys=(rank, micro_step)), first_expert

    return Job(
        model=MixtureOfExperts(sizes, checkpointed=context.spec.activation_checkpointing),
        loss=loss,
        batches=batches,
        optimizer=partial(torch.optim.SGD, lr=0.01),
        leaves_parameters_unused=True,
    )
