"""Equal replicas: checked to be of one kind when wrapped, then filled with rank 0's values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.parameter import UninitializedParameter

from advisor.bucketing import MIB, assign_buckets
from advisor.errors import UsageError

BROADCAST_CHUNK_BYTES = 250 * MIB
"""Bounds the memory of a broadcast, which flattens what it sends. **Source**: DistributedDataParallel, torch 2.13."""

Description = tuple[str, tuple[int, ...], str, tuple[int, ...]]


def check_wrappable(module: nn.Module, parameters: Sequence[Parameter], device: torch.device | None) -> None:
    """Refuses what cannot be averaged.

    Raises:
        UsageError: No trainable, uninitialized or sparse parameters, several kinds of device, or inputs to be moved
            to a device although the model is not on it.
    """
    if not any(parameter.requires_grad for parameter in parameters):
        raise UsageError("BucketedDDP has nothing to average: no parameter of the module requires a gradient.")
    if any(isinstance(parameter, UninitializedParameter) for parameter in parameters):
        raise UsageError("The module has uninitialized parameters: run one forward through it before wrapping it.")
    devices = {parameter.device for parameter in parameters}
    if len({device.type for device in devices}) > 1 or (device is not None and devices != {device}):
        raise UsageError(
            f"The module's parameters are on {sorted(map(str, devices))}: move them to one kind of device, and give "
            "device_ids only for a module that is on that one GPU."
        )
    for name, child in module.named_modules():
        if isinstance(child, nn.Embedding | nn.EmbeddingBag) and child.sparse and child.weight.requires_grad:
            raise UsageError(
                f"{name or 'The module'} has sparse gradients, which BucketedDDP cannot average: use sparse=False."
            )


def check_same_parameters(parameters: dict[str, Parameter], group: dist.ProcessGroup) -> None:
    """Compares names, shapes, dtypes and strides of the trainable parameters with rank 0's.

    Raises:
        UsageError: A rank differs; every rank raises, and names the first difference, so none is left waiting.
    """
    ours: list[Description] = [(name, tuple(p.shape), str(p.dtype), p.stride()) for name, p in parameters.items()]
    from_rank_0: list[list[Description]] = [ours]
    dist.broadcast_object_list(from_rank_0, dist.get_global_rank(group, 0), group)
    differences: list[str | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(differences, _first_difference(ours, from_rank_0[0]), group)
    for rank, difference in enumerate(differences):
        if difference is not None:
            raise UsageError(
                f"Rank {rank} has another model than rank 0: {difference}. Build the same model on every rank."
            )


def _first_difference(ours: Sequence[Description], theirs: Sequence[Description]) -> str | None:
    for here, there in zip(ours, theirs, strict=False):
        if here != there:
            return f"{_describe(here)} instead of {_describe(there)}"
    if len(ours) != len(theirs):
        return f"{len(ours)} trainable parameters instead of {len(theirs)}"
    return None


def _describe(description: Description) -> str:
    name, shape, dtype, stride = description
    return f"{name} of shape {list(shape)}, {dtype} and stride {list(stride)}"


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
