"""ResNet with basic blocks: convolutions of growing width, and BatchNorm buffers that DDP broadcasts in forward.

Shapes: B batch, C channels, H and W image.

**Source**: He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, arXiv:1512.03385; the small stem is the
one that the paper uses for 32 × 32 images.
"""

# ruff: noqa: N803, N806 (shapes as suffixes)

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from workloads.job import Job, JobContext, choose_preset
from workloads.models.blocks import run_blocks


@dataclass(frozen=True)
class Sizes:
    """`depths` is the number of blocks a stage; each stage halves the image and doubles the width."""

    depths: tuple[int, ...]
    width: int
    num_classes: int
    image_size: int
    batch_size: int


PRESETS = {
    "tiny": Sizes(depths=(1, 1), width=8, num_classes=10, image_size=8, batch_size=4),
    "small": Sizes(depths=(2, 2, 2, 2), width=64, num_classes=100, image_size=32, batch_size=2),
    "large": Sizes(depths=(3, 4, 6, 3), width=64, num_classes=1000, image_size=224, batch_size=128),
}


class Block(nn.Module):
    """Two 3 × 3 convolutions beside a shortcut, which is projected where the shape changes."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_channels != out_channels:
            projection = nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(out_channels))

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """The block's output, BCHW with its own C, H and W."""
        inner = functional.relu(self.norm1(self.conv1(x_BCHW)))
        return functional.relu(self.norm2(self.conv2(inner)) + self.shortcut(x_BCHW))


class ResNet(nn.Module):
    """Stem, stages of blocks, average pool and classifier."""

    def __init__(self, sizes: Sizes, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, sizes.width, 3, padding=1, bias=False), nn.BatchNorm2d(sizes.width), nn.ReLU()
        )
        widths = [sizes.width, *(sizes.width * 2**stage for stage in range(len(sizes.depths)))]
        blocks: list[Block] = []
        for stage, (depth, (before, width)) in enumerate(zip(sizes.depths, pairwise(widths), strict=True)):
            blocks.append(Block(before, width, stride=1 if stage == 0 else 2))
            blocks.extend(Block(width, width, stride=1) for _ in range(depth - 1))
        self.blocks = nn.ModuleList(blocks)
        self.classifier = nn.Linear(widths[-1], sizes.num_classes)
        self.checkpointed = checkpointed

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """The logits, one row an image."""
        x_BCHW = run_blocks(self.blocks, self.stem(images_BCHW), checkpointed=self.checkpointed)
        logits: torch.Tensor = self.classifier(x_BCHW.mean(dim=(2, 3)))
        return logits


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Cross-entropy."""
    images_BCHW, labels_B = batch
    return functional.cross_entropy(model(images_BCHW).float(), labels_B)


def build_job(context: JobContext) -> Job:
    """Random images with random labels."""
    sizes = choose_preset(PRESETS, context)

    def batches(rank: int, micro_step: int) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (sizes.batch_size, 3, sizes.image_size, sizes.image_size)
        images_BCHW = context.randn(*shape, keys=(rank, micro_step))
        return images_BCHW, context.randint(sizes.num_classes, sizes.batch_size, keys=(rank, micro_step))

    model = ResNet(sizes, checkpointed=context.spec.activation_checkpointing)
    return Job(model=model, loss=loss, batches=batches, optimizer=partial(torch.optim.SGD, lr=0.01, momentum=0.9))
