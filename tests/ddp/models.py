"""Small models, each with one thing that a data-parallel wrapper must get right."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WIDTH = 24
"""Of the inputs: every model takes `(x, rank)` with x of shape (batch, WIDTH)."""


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = [WIDTH, 64, 40, 96, 8]
        self.layers = nn.ModuleList(nn.Linear(n, m) for n, m in pairwise(sizes))

    def forward(self, x: Tensor, rank: int) -> Any:
        for layer in self.layers:
            x = layer(x).tanh()
        return x


class DeclaredInReverse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(48, 8)
        self.middle = nn.Linear(64, 48)
        self.first = nn.Linear(WIDTH, 64)

    def forward(self, x: Tensor, rank: int) -> Any:
        return self.last(self.middle(self.first(x).tanh()).tanh())


class MixedDtypes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 32)
        self.middle = nn.Linear(32, 32, dtype=torch.bfloat16)
        self.more = nn.Linear(32, 32, dtype=torch.float64)
        self.last = nn.Linear(32, 8)

    def forward(self, x: Tensor, rank: int) -> Any:
        x = self.middle(self.first(x).tanh().bfloat16()).tanh()
        return self.last(self.more(x.double()).tanh().float())


class FrozenTiedShared(nn.Module):
    """A frozen layer, a weight tied between two layers, a layer used twice, a scalar parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.enter = nn.Linear(WIDTH, 16, bias=False)
        self.shared = nn.Linear(16, 16)
        self.leave = nn.Linear(16, WIDTH, bias=False)
        self.leave.weight = nn.Parameter(self.enter.weight.t().contiguous())
        self.back = nn.Linear(WIDTH, 16, bias=False)
        self.back.weight = self.enter.weight
        self.scale = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor, rank: int) -> Any:
        x = self.shared(self.shared(self.enter(self.frozen(x))).tanh()) * self.scale
        return self.back(self.leave(x))


class ChannelsLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolve = nn.Conv2d(2, 6, 3).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(6)
        self.head = nn.Linear(6 * 2, 4)

    def forward(self, x: Tensor, rank: int) -> Any:
        image = x.view(-1, 2, 3, 4).to(memory_format=torch.channels_last)
        return self.head(self.norm(self.convolve(image)).flatten(1))


@dataclass
class Output:
    left: Tensor
    right: list[Tensor]


class NestedOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(WIDTH, 4) for _ in range(4))

    def forward(self, x: Tensor, rank: int) -> Any:
        a, b, c, d = (head(x) for head in self.heads)
        return {"pair": (a, [b]), "none": None, "number": 3, "object": Output(c, [d])}


class Checkpointed(nn.Module):
    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.enter = nn.Linear(WIDTH, 32)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(3))
        self.leave = nn.Linear(32, 4)
        self.use_reentrant = use_reentrant

    def forward(self, x: Tensor, rank: int) -> Any:
        x = self.enter(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.use_reentrant)
        return self.leave(x)


class CheckpointedTwice(nn.Module):
    """One block runs in two re-entrant checkpoints, with or without a layer before them."""

    def __init__(self, *, from_the_start: bool) -> None:
        super().__init__()
        self.enter = nn.Identity() if from_the_start else nn.Linear(WIDTH, WIDTH)
        self.block = nn.Linear(WIDTH, WIDTH)
        self.leave = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor, rank: int) -> Any:
        x = self.enter(x.clone().requires_grad_())
        x = checkpoint(self.block, x, use_reentrant=True).tanh()
        return self.leave(checkpoint(self.block, x, use_reentrant=True))


class Experts(nn.Module):
    """One expert a rank, one that nobody uses, and an output that the loss ignores."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(WIDTH, 32)
        self.experts = nn.ModuleList(nn.Linear(32, 16) for _ in range(3))
        self.ignored = nn.Linear(32, 2)
        self.leave = nn.Linear(16, 4)

    def forward(self, x: Tensor, rank: int) -> Any:
        x = self.enter(x).tanh()
        return {"used": self.leave(self.experts[rank](x)), "ignored": self.ignored(x)}


class ExpertsAlone(Experts):
    def forward(self, x: Tensor, rank: int) -> Any:
        return super().forward(x, rank)["used"]


class UnusedOnAllRanks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(WIDTH, 16)
        self.unused = nn.Linear(400, 40)
        self.last = nn.Linear(16, 4)

    def forward(self, x: Tensor, rank: int) -> Any:
        return self.last(self.used(x))
