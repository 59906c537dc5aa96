"""A bucket: one flat buffer that carries several gradients through one collective."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.nn import Parameter

from workloads.ddp_failures import sparse_gradient

Reduction = dist.Work | Future[Tensor]
"""A collective under way, or the future of a comm hook."""


class Bucket:
    """Gradients of one dtype and device, side by side in `buffer`.

    `views[i]` is the part of the buffer that belongs to `parameters[i]`, in that parameter's own shape and strides, so
    copying a gradient in or out is one pass over memory.
    """

    def __init__(
        self, index: int, members: Sequence[int], parameters: Sequence[Parameter], *, as_view: bool = False
    ) -> None:
        self.index = index
        self.members = tuple(members)
        self.parameters = tuple(parameters)
        self.as_view = as_view
        first = parameters[0]
        self.buffer = torch.empty(sum(p.numel() for p in parameters), dtype=first.dtype, device=first.device)
        self.views = views_of(self.buffer, parameters)
        self.num_pending = 0
        self.reduction: Reduction | None = None
        self._divisor: int | None = None
        self._scale: Tensor | None = None
        if as_view:
            self.take_in_all()

    def expect_gradients(self, divisor: int | None) -> None:
        """Starts a step in which gradients are divided on their way in; None leaves them as they are."""
        self.num_pending = len(self.members)
        if divisor != self._divisor:
            self._divisor = divisor
            # A tensor of the right dtype is half as dear to multiply by as a number.
            self._scale = None if divisor is None else torch.tensor(1 / divisor, dtype=self.buffer.dtype)

    def take_in(self, position: int) -> None:
        """Copies one gradient into the buffer; a missing one counts as zero.

        With `as_view` the gradient then *is* its part of the buffer: what backward accumulates next lands there.
        """
        parameter, view = self.parameters[position], self.views[position]
        gradient = parameter.grad
        if gradient is None:
            view.zero_()
        elif gradient is view:
            if self._scale is not None:
                view.mul_(self._scale)
        else:
            # Detached, since with create_graph=True the gradient has a history of its own, which is not averaged.
            if gradient.requires_grad:
                gradient = gradient.detach()
            if gradient.is_sparse:
                raise sparse_gradient(tuple(gradient.shape))
            if self._scale is None:
                view.copy_(gradient)
            else:
                torch.mul(gradient, self._scale, out=view)  # one pass over memory instead of two
            if self.as_view:
                parameter.grad = view

    def take_in_all(self) -> None:
        """Copies every gradient in at once (`batched_grad_copy`): few kernels instead of one a parameter."""
        views: list[Tensor] = []
        gradients: list[Tensor] = []
        for parameter, view in zip(self.parameters, self.views, strict=True):
            if parameter.grad is None:
                view.zero_()
            elif parameter.grad is not view:
                if parameter.grad.is_sparse:
                    raise sparse_gradient(tuple(parameter.shape))
                views.append(view)
                gradients.append(parameter.grad.detach())
                if self.as_view:
                    parameter.grad = view
        if views:
            torch._foreach_copy_(views, gradients)
        if self._scale is not None:
            self.buffer.mul_(self._scale)

    def give_back(self, result: Tensor, used: Sequence[bool] | None) -> None:
        """Puts the averages into the gradients of the parameters that some rank used; the others stay untouched.

        Args:
            result: The reduced buffer, or what a comm hook made of it.
            used: Whether any rank used the parameter, by position; None means all.
        """
        in_place = result.dtype == self.buffer.dtype and result.data_ptr() == self.buffer.data_ptr()
        if self.as_view and not in_place:
            self.buffer.copy_(result)
        averages = self.views if in_place or self.as_view else views_of(result, self.parameters)
        targets: list[Tensor] = []
        sources: list[Tensor] = []
        for position, (parameter, average) in enumerate(zip(self.parameters, averages, strict=True)):
            if parameter.grad is average or (used is not None and not used[position]):
                continue
            if self.as_view:
                parameter.grad = average
            elif parameter.grad is None:
                parameter.grad = average.to(parameter.dtype, copy=True)
            else:
                targets.append(parameter.grad)
                sources.append(average)
        if targets:
            torch._foreach_copy_(targets, sources)


def views_of(flat: Tensor, parameters: Sequence[Parameter]) -> list[Tensor]:
    """Cuts a flat tensor into one view a parameter, laid out as autograd lays out that parameter's gradient.

    **Source**: the gradient layout contract, torch/csrc/autograd/functions/accumulate_grad.h.
    """
    views: list[Tensor] = []
    offset = flat.storage_offset()
    for parameter in parameters:
        by_stride = sorted(range(parameter.dim()), key=parameter.stride, reverse=True)
        if parameter.permute(by_stride).is_contiguous():
            views.append(flat.as_strided(parameter.shape, parameter.stride(), offset))
        else:
            views.append(flat.as_strided((parameter.numel(),), (1,), offset).view(parameter.shape))
        offset += parameter.numel()
    return views
