"""Equal linear layers: every gradient has the same size and they become ready at a steady pace."""

# ruff: noqa: N803, N806 (shapes as suffixes)

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from workloads.job import Job, JobContext, choose_preset
from workloads.models.blocks import run_blocks


@dataclass(frozen=True)
class Sizes:
    """B = batch_size, D = width."""

    num_layers: int
    width: int
    batch_size: int


PRESETS = {
    "tiny": Sizes(num_layers=4, width=64, batch_size=8),
    "small": Sizes(num_layers=24, width=512, batch_size=256),
    "large": Sizes(num_layers=32, width=4096, batch_size=1024),
}


class Layer(nn.Linear):
    """Linear(D, D) and ReLU."""

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        """The activations, BD."""
        return functional.relu(super().forward(x_BD))


class MLP(nn.Module):
    """`num_layers` equal layers."""

    def __init__(self, sizes: Sizes, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(sizes.width, sizes.width) for _ in range(sizes.num_layers))
        self.checkpointed = checkpointed

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        """The last layer's activations, BD."""
        return run_blocks(self.layers, x_BD, checkpointed=self.checkpointed)


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Mean squared error."""
    x_BD, target_BD = batch
    return functional.mse_loss(model(x_BD), target_BD)


def build_job(context: JobContext) -> Job:
    """A regression of noise on noise."""
    sizes = choose_preset(PRESETS, context)

    def batches(rank: int, micro_step: int) -> tuple[torch.Tensor, torch.Tensor]:
        x_BD, target_BD = context.randn(2, sizes.batch_size, sizes.width, keys=(rank, micro_step))
        return x_BD, target_BD

    model = MLP(sizes, checkpointed=context.spec.activation_checkpointing)
    return Job(model=model, loss=loss, batches=batches, optimizer=partial(torch.optim.SGD, lr=0.01))
