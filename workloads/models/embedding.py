"""One large embedding before a few small layers: a gradient that cannot be split and is ready last of all.

`wide-embedding` looks up several rows of a wide table, as recommenders do. `tied-embedding` shares the table with the
head, as language models do: then its gradient is complete only when both uses have run. No bucket size helps either of
them. Shapes: B batch, F features a sample, D width, V rows of the table.
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


@dataclass(frozen=True)
class Sizes:
    """The table and the layers above it."""

    num_rows: int
    width: int
    num_layers: int
    num_features: int
    batch_size: int


PRESETS = {
    "tiny": Sizes(num_rows=200, width=16, num_layers=3, num_features=4, batch_size=8),
    "small": Sizes(num_rows=32_000, width=256, num_layers=12, num_features=8, batch_size=128),
    "large": Sizes(num_rows=1_000_000, width=512, num_layers=24, num_features=32, batch_size=2048),
}


class Embedding(nn.Module):
    """A table, the mean over a sample's features, layers, and a head of its own or the table again."""

    def __init__(self, sizes: Sizes, *, tied: bool, checkpointed: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(sizes.num_rows, sizes.width)
        self.layers = nn.ModuleList(Layer(sizes.width, sizes.width) for _ in range(sizes.num_layers))
        self.head = None if tied else nn.Linear(sizes.width, 1)
        self.checkpointed = checkpointed

    def forward(self, rows_BF: torch.Tensor) -> torch.Tensor:
        """A score a sample (B1), or with a tied head the logits of all rows (BV)."""
        x_BD = run_blocks(self.layers, self.table(rows_BF).mean(dim=1), checkpointed=self.checkpointed)
        scores: torch.Tensor = functional.linear(x_BD, self.table.weight) if self.head is None else self.head(x_BD)
        return scores


def score_loss(model: nn.Module, rows_BF: torch.Tensor) -> torch.Tensor:
    """Every sample should score 1."""
    scores_B1 = model(rows_BF).float()
    return functional.mse_loss(scores_B1, torch.ones_like(scores_B1))


def row_loss(model: nn.Module, rows_BF: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of the sample's first row."""
    return functional.cross_entropy(model(rows_BF).float(), rows_BF[:, 0])


def build_wide_job(context: JobContext) -> Job:
    """A regression on random rows."""
    return _build_job(context, tied=False)


def build_tied_job(context: JobContext) -> Job:
    """A prediction of random rows."""
    return _build_job(context, tied=True)


def _build_job(context: JobContext, *, tied: bool) -> Job:
    sizes = choose_preset(PRESETS, context)

    def batches(rank: int, micro_step: int) -> torch.Tensor:
        return context.randint(sizes.num_rows, sizes.batch_size, sizes.num_features, keys=(rank, micro_step))

    model = Embedding(sizes, tied=tied, checkpointed=context.spec.activation_checkpointing)
    loss = row_loss if tied else score_loss
    return Job(model=model, loss=loss, batches=batches, optimizer=partial(torch.optim.SGD, lr=0.01))
