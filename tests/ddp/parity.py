"""Training under our wrapper, under torch's and in one process, on the same data, and what came out."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_flatten

from tests.ddp.models import WIDTH, Output
from workloads.ddp import BucketedDDP

NUM_STEPS = 5
BATCH = 6


@dataclass
class Outcome:
    """Largest differences of the parameters after training, and the buckets of both wrappers."""

    to_torch: float
    to_one_process: float
    between_ranks: float
    initial_bytes: tuple[list[int], list[int]]
    rebuilt: tuple[list[list[int]], list[list[int]]]


def train_three_ways(
    build: Callable[[], nn.Module],
    settings: dict[str, Any],
    *,
    num_micro_steps: int = 1,
    set_to_none: bool = True,
    prepare: Callable[[Any], None] | None = None,
) -> Outcome:
    """Trains five steps; `prepare` is called on either wrapper first."""
    torch.manual_seed(0)
    model = build()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch tells static_graph users to leave find_unused_parameters out
        theirs = DistributedDataParallel(copy.deepcopy(model), **settings)
    ours = BucketedDDP(copy.deepcopy(model), **settings)
    initial_bytes = ([bucket.buffer.nbytes for bucket in ours.reducer.buckets], _told(theirs, "bucket_sizes"))
    for wrapped in (ours, theirs):
        if prepare is not None:
            prepare(wrapped)
        train(wrapped, dist.get_rank(), num_micro_steps, set_to_none)
    train_alone(model, num_micro_steps)
    return Outcome(
        to_torch=difference(ours.module, theirs.module),
        to_one_process=difference(ours.module, model),
        between_ranks=spread(ours.module),
        initial_bytes=initial_bytes,
        rebuilt=(ours.bucket_layout(), torch_layout(theirs) or ours.initial_bucket_layout()),
    )


def train(wrapped: Any, rank: int, num_micro_steps: int, set_to_none: bool = True) -> None:
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05)
    for step in range(NUM_STEPS):
        optimizer.zero_grad(set_to_none)
        for micro_step in range(num_micro_steps):
            is_last = micro_step == num_micro_steps - 1
            with nullcontext() if is_last else wrapped.no_sync():
                output = wrapped(inputs(step * num_micro_steps + micro_step, rank), rank)
                (loss_of(output) / num_micro_steps).backward()
        optimizer.step()


def train_alone(model: nn.Module, num_micro_steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    parts = dist.get_world_size() * num_micro_steps
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        for micro_step in range(num_micro_steps):
            for rank in range(dist.get_world_size()):
                output = model(inputs(step * num_micro_steps + micro_step, rank), rank)
                (loss_of(output) / parts).backward()
        optimizer.step()


def inputs(seed: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + seed)
    return torch.randn(BATCH, WIDTH, generator=generator)


def loss_of(output: Any) -> Tensor:
    """Mean squares of all tensors, except those under the key "ignored"."""
    if isinstance(output, dict):
        output = {key: value for key, value in output.items() if key != "ignored"}
    leaves = tree_flatten(output)[0]
    leaves += [tensor for leaf in leaves if isinstance(leaf, Output) for tensor in (leaf.left, *leaf.right)]
    return torch.stack([leaf.float().square().mean() for leaf in leaves if isinstance(leaf, Tensor)]).sum()


def difference(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max((p.double() - q.double()).abs().max().item() for p, q in pairs)


def spread(model: nn.Module) -> float:
    flat = torch.cat([p.detach().double().flatten() for p in model.parameters()])
    parts = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, flat)
    return max((part - flat).abs().max().item() for part in parts)


def torch_layout(wrapped: DistributedDataParallel) -> list[list[int]]:
    """The rebuilt buckets of torch's wrapper; empty before a rebuild."""
    told = wrapped._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", "")
    return [[int(index) for index in bucket.split()] for bucket in told.split(",") if bucket]


def _told(wrapped: DistributedDataParallel, key: str) -> list[int]:
    return [int(word) for word in wrapped._get_ddp_logging_data()[key].split(",")]
