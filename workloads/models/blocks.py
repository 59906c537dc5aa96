"""What the reference models share: blocks run with or without activation checkpointing."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def run_blocks(blocks: Iterable[nn.Module], x: torch.Tensor, *, checkpointed: bool) -> torch.Tensor:
    """Runs `blocks` one after another; checkpointed ones compute their activations again in backward."""
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False) if checkpointed else block(x)
    return x
