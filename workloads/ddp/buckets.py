"""A bucket: one flat buffer that carries several gradients through one collective."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.nn import Parameter

Reduction = dist.Work | Future[Tensor]
"""A collective under way, or the future of a comm hook."""


class Bucket:
    """Gradients of one dtype and device, side by side in `buffer`.

    `views[i]` is the part of the buffer that belongs to `parameters[i]`, in that parameter's own shape and strides, so
    copying a gradient in or out is one pass over memory.
    """

    def __init__(self, index: int, members: Sequence[int], parameters: Sequence[Parameter]) -> None:
        self.index = index
        self.members = tuple(members)
        self.parameters = tuple(parameters)
        first = parameters[0]
        self.buffer = torch.empty(sum(p.numel() for p in parameters), dtype=first.dtype, device=first.device)
        self.views = views_of(self.buffer, parameters)
        self.num_pending = len(members)
        self.reduction: Reduction | None = None

    def take_in(self, position: int, scale: float | None, *, as_view: bool) -> None:
        """Copies one gradient into the buffer, times `scale` if there is one; a missing gradient counts as zero.

        With `as_view` the gradient then *is* its part of the buffer: what backward accumulates next lands there.
        """
        parameter, view = self.parameters[position], self.views[position]
        gradient = parameter.grad
        if gradient is None:
            view.zero_()
        elif gradient is not view:
            # Scaling while copying saves one pass over the gradient.
            torch.mul(gradient, scale, out=view) if scale is not None else view.copy_(gradient)
            if as_view:
                parameter.grad = view
        elif scale is not None:
            view.mul_(scale)

    def take_in_all(self, scale: float | None, *, as_view: bool) -> None:
        """Copies every gradient in at once (`batched_grad_copy`): few kernels instead of one a parameter."""
        views: list[Tensor] = []
        gradients: list[Tensor] = []
        for parameter, view in zip(self.parameters, self.views, strict=True):
            if parameter.grad is None:
                view.zero_()
            elif parameter.grad is not view:
                views.append(view)
                gradients.append(parameter.grad)
                if as_view:
                    parameter.grad = view
        if views:
            torch._foreach_copy_(views, gradients)
        if scale is not None:
            self.buffer.mul_(scale)

    def give_back(self, result: Tensor, used: Sequence[bool] | None, *, as_view: bool) -> None:
        """Puts the averages into the gradients of the parameters that some rank used; the others stay untouched.

        Args:
            result: The reduced buffer, or what a comm hook made of it.
            used: Whether any rank used the parameter, by position; None means all.
            as_view: Whether gradients are parts of the buffer.
        """
        in_place = result.dtype == self.buffer.dtype and result.data_ptr() == self.buffer.data_ptr()
        if as_view and not in_place:
            self.buffer.copy_(result)
        averages = self.views if in_place or as_view else views_of(result, self.parameters)
        targets: list[Tensor] = []
        sources: list[Tensor] = []
        for position, (parameter, average) in enumerate(zip(self.parameters, averages, strict=True)):
            if parameter.grad is average or (used is not None and not used[position]):
                continue
            if as_view:
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
