"""A small transformer language model, its head tied to the embedding or not.

Shapes: B batch, T sequence, D width, H heads, V vocabulary.
"""

# ruff: noqa: N803, N806 (shapes as suffixes)

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import nn
from torch.nn import functional

from advisor.schema import Struct
from workloads.job import Job, JobContext, choose_preset, read_options
from workloads.models.blocks import run_blocks


@dataclass(frozen=True)
class Sizes:
    """The model's and the batch's dimensions."""

    num_layers: int
    width: int
    num_heads: int
    vocabulary: int
    sequence: int
    batch_size: int


PRESETS = {
    "tiny": Sizes(num_layers=2, width=32, num_heads=2, vocabulary=64, sequence=16, batch_size=2),
    "small": Sizes(num_layers=6, width=256, num_heads=4, vocabulary=4096, sequence=64, batch_size=4),
    "large": Sizes(num_layers=24, width=1024, num_heads=16, vocabulary=32768, sequence=1024, batch_size=8),
}


class Options(Struct, frozen=True, kw_only=True):
    """`head=tied` shares the embedding's weight, so its gradient is ready only at the very end of backward."""

    head: Literal["tied", "untied"] = "untied"


class Block(nn.Module):
    """Pre-norm causal self-attention and a GELU MLP of four times the width."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.num_heads = sizes.num_heads
        self.attention_norm = nn.LayerNorm(sizes.width)
        self.qkv = nn.Linear(sizes.width, 3 * sizes.width)
        self.projection = nn.Linear(sizes.width, sizes.width)
        self.mlp_norm = nn.LayerNorm(sizes.width)
        self.expand = nn.Linear(sizes.width, 4 * sizes.width)
        self.contract = nn.Linear(4 * sizes.width, sizes.width)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """The block's output, BTD."""
        x_BTD = x_BTD + self._attend(self.attention_norm(x_BTD))
        mlp_BTD: torch.Tensor = self.contract(functional.gelu(self.expand(self.mlp_norm(x_BTD))))
        return x_BTD + mlp_BTD

    def _attend(self, x_BTD: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(x_BTD).unflatten(-1, (3, self.num_heads, -1)).movedim(-3, 0).transpose(-2, -3)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        projected_BTD: torch.Tensor = self.projection(attended.transpose(-2, -3).flatten(-2))
        return projected_BTD


class GPT(nn.Module):
    """Embedding, blocks, norm and head."""

    def __init__(self, sizes: Sizes, options: Options, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(sizes.vocabulary, sizes.width)
        self.position_embedding = nn.Embedding(sizes.sequence, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.num_layers))
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        nn.init.normal_(self.token_embedding.weight, std=0.02)
        if options.head == "tied":
            self.head.weight = self.token_embedding.weight
        self.checkpointed = checkpointed

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        """The logits, BTV."""
        positions_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        x_BTD = self.token_embedding(tokens_BT) + self.position_embedding(positions_T)
        x_BTD = run_blocks(self.blocks, x_BTD, checkpointed=self.checkpointed)
        logits_BTV: torch.Tensor = self.head(self.norm(x_BTD))
        return logits_BTV


def loss(model: nn.Module, tokens_BT1: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of the next token, mean over all positions; the batch holds one token more than the model sees."""
    logits_BTV = model(tokens_BT1[:, :-1])
    return functional.cross_entropy(logits_BTV.flatten(0, 1).float(), tokens_BT1[:, 1:].flatten())


def build_job(context: JobContext) -> Job:
    """Random tokens, so the loss stays near log V while every gradient is real work."""
    sizes = choose_preset(PRESETS, context)

    def batches(rank: int, micro_step: int) -> torch.Tensor:
        return context.randint(sizes.vocabulary, sizes.batch_size, sizes.sequence + 1, keys=(rank, micro_step))

    checkpointed = context.spec.activation_checkpointing
    model = GPT(sizes, read_options(Options, context), checkpointed=checkpointed)
    return Job(model=model, loss=loss, batches=batches, optimizer=partial(torch.optim.AdamW, lr=3e-4, fused=True))
