"""Equal replicas: tensors of one rank copied to all others."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from advisor.bucketing import MIB, assign_buckets

BROADCAST_CHUNK_BYTES = 250 * MIB
"""Bounds the memory of a broadcast, which flattens what it sends. **Source**: DistributedDataParallel, torch 2.13."""


@torch.no_grad()
def broadcast_tensors(tensors: Iterable[Tensor], source: int, group: dist.ProcessGroup) -> None:
    """Overwrites `tensors` with those of rank `source` of the group, flattened into one message a dtype and device."""
    # .data, since backward must not take a refilled buffer for one that the forward has changed behind its back.
    contents = [tensor.data for tensor in tensors]
    sizes, keys = [t.nbytes for t in contents], [(t.dtype, t.device) for t in contents]
    for members in assign_buckets(sizes, keys, (BROADCAST_CHUNK_BYTES,)):
        chunk = [contents[index] for index in members]
        flat = torch.cat([tensor.reshape(-1) for tensor in chunk])
        dist.broadcast(flat, dist.get_global_rank(group, source), group)
        pieces = torch.split(flat, [tensor.numel() for tensor in chunk])
        torch._foreach_copy_(chunk, [piece.view(t.shape) for piece, t in zip(pieces, chunk, strict=True)])
