"""Parameters that a step does not use: which they are on this rank, and whether any rank used them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils._pytree import tree_flatten, tree_unflatten


class UsedParameters:
    """Which parameters got a gradient here since the last synchronisation, and the collective that merges the ranks."""

    def __init__(self, num_parameters: int, device: torch.device) -> None:
        self._device = device
        self.here = [False] * num_parameters
        self._anywhere: list[bool] | None = None

    def launch(self, group: dist.ProcessGroup) -> None:
        """Starts the one small all-reduce, an integer a parameter, that `find_unused_parameters` costs."""
        self._counts = torch.tensor(self.here, dtype=torch.int32, device=self._device)
        self._work = dist.all_reduce(self._counts, group=group, async_op=True)
        self._anywhere = None

    def among(self, members: Sequence[int]) -> list[bool] | None:
        """Whether any rank used each of `members`; None, without waiting for the other ranks, if this one used all."""
        if all(self.here[index] for index in members):
            return None
        if self._anywhere is None:
            self.wait()
            self._anywhere = [count > 0 for count in self._counts.tolist()]
        return [self._anywhere[index] for index in members]

    def wait(self) -> None:
        """Waits for the all-reduce, so that the next one does not overtake it."""
        self._work.wait()

    def forget(self) -> None:
        """Starts counting anew."""
        self.here = [False] * len(self.here)


def find_unused(output: object, nodes: Sequence[Node]) -> list[int]:
    """Walks the autograd graph back from `output`; returns the indices of the gradient nodes that it never meets."""
    seen: set[Node] = set()
    waiting = [tensor.grad_fn for tensor in _tensors_of(output) if tensor.grad_fn is not None]
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is not None and node not in seen:
                seen.add(node)
                waiting.append(node)
    return [index for index, node in enumerate(nodes) if node not in seen]


def _tensors_of(output: object) -> Iterator[Tensor]:
    for leaf in tree_flatten(output)[0]:
        if isinstance(leaf, Tensor):
            yield leaf
        elif is_dataclass(leaf) and not isinstance(leaf, type):
            for field in fields(leaf):
                yield from _tensors_of(getattr(leaf, field.name))


def call_at_backward_start(output: object, function: Callable[[], None]) -> object:
    """Sends the output's tensors through one identity node, whose backward runs before all others.

    All of them pass through the same node, so backward also visits what only an output that the loss ignores depends
    on: those parameters report a gradient that stays undefined, instead of never reporting.

    Returns:
        The output to hand on in place of `output`; `output` itself if it holds no tensor with a gradient.
    """
    leaves, structure = tree_flatten(output)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.grad_fn is not None]
    if not places:
        return output
    sent = _BackwardStart.apply(function, *(leaves[i] for i in places))  # type: ignore[no-untyped-call]
    for place, tensor in zip(places, sent, strict=True):
        leaves[place] = tensor
    return tree_unflatten(leaves, structure)


class _BackwardStart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[[], None], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.function = function
        ctx.set_materialize_grads(False)
        # Clones, so that the loss may change its inputs in place.
        return tuple(tensor.clone() for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.function()
        return (None, *gradients)
