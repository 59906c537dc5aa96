"""The equal layers of `mlp` with one rank that is late in every backward: all ranks wait, none looks guilty."""

# ruff: noqa: N803, N806 (shapes as suffixes)

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import torch

from advisor.errors import UsageError
from advisor.schema import Struct
from workloads.job import Job, JobContext, choose_preset, read_options
from workloads.models import mlp
from workloads.models.blocks import run_blocks

PRESETS = mlp.PRESETS


class Options(Struct, frozen=True, kw_only=True):
    """`rank` sleeps for `delay_ms` in the middle of its backward."""

    rank: int = 1
    delay_ms: float = 150.0


class SleepInBackward(torch.autograd.Function):
    """Leaves the activations as they are and makes the host sleep when their gradient passes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, delay_s: float) -> torch.Tensor:
        """The input."""
        ctx.delay_s = delay_s
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The gradient, late."""
        time.sleep(ctx.delay_s)
        return gradients[0], None


class LateMLP(mlp.MLP):
    """An MLP whose backward pauses halfway."""

    def __init__(self, sizes: mlp.Sizes, delay_s: float, *, checkpointed: bool) -> None:
        super().__init__(sizes, checkpointed=checkpointed)
        self.delay_s = delay_s

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        """The last layer's activations, BD."""
        half = len(self.layers) // 2
        x_BD = run_blocks(self.layers[:half], x_BD, checkpointed=self.checkpointed)
        x_BD = SleepInBackward.apply(x_BD, self.delay_s)  # type: ignore[no-untyped-call]
        return run_blocks(self.layers[half:], x_BD, checkpointed=self.checkpointed)


def build_job(context: JobContext) -> Job:
    """The job of `mlp`, slowed on one rank.

    Raises:
        UsageError: The chosen rank does not exist.
    """
    options = read_options(Options, context)
    if not 0 <= options.rank < context.world_size:
        raise UsageError(f"There is no rank {options.rank} to slow down: choose one below {context.world_size}.")
    delay_s = options.delay_ms / 1000 if context.rank == options.rank else 0.0
    checkpointed = context.spec.activation_checkpointing
    model = LateMLP(choose_preset(PRESETS, context), delay_s, checkpointed=checkpointed)
    return replace(mlp.build_job(context), model=model)
