"""Comm hooks by name, for torch's wrapper and ours, and those torch lacks: bf16 and safe PowerSGD on gloo.

PowerSGD: a gradient matrix M (n × m) travels as P Qᵀ, with P = orthonormal(Σ M Q) (n × r) and Q = mean(Mᵀ P) (m × r)
over the ranks: (n + m) r elements instead of n m. Q is kept for the next step, and what P Qᵀ misses of M is added to
the next M.

torch's own hook waits for the second round inside a callback of the first, which blocks gloo's threads and lets ranks
order their collectives differently. Here the backward thread issues everything: the first round of a bucket when it
is ready, beside the ongoing backward; the second rounds, in order, when the last bucket is ready and nothing is left
to compute. NCCL needs none of this, so there torch's own hook is registered.

**Source**: Vogels, Karimireddy, Jaggi: PowerSGD, arXiv:1905.13727; `powerSGD_hook`, torch 2.13.
"""

# No `from __future__ import annotations`: torch compares a hook's annotations with classes, not with strings.
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks, powerSGD_hook
from torch.futures import Future

from advisor.errors import UsageError

MIN_COMPRESSION = 2
"""A matrix is compressed if that sends this many times fewer elements. **Source**: torch's default."""
MIN_START_STEP = 3
"""The first step in which the buckets are sure to stay as they are, with a static graph too."""


def register_named_hook(ddp: Any, name: str, *, powersgd_start_step: int = 10) -> None:
    """Registers the hook `name` on a `BucketedDDP` or a `DistributedDataParallel`.

    Args:
        ddp: The wrapper.
        name: `none`, `allreduce`, `fp16`, `bf16`, `powersgd:<rank>`, or `noop`, which averages nothing and shows
            how fast the step would be with free communication.
        powersgd_start_step: Steps of plain all-reduce before PowerSGD compresses. torch's default of 1000 is more
            than a profile sees.

    Raises:
        UsageError: There is no such hook, or PowerSGD would start before the buckets are settled.
    """
    group: dist.ProcessGroup = ddp.process_group
    hooks: dict[str, tuple[object, Callable[..., Future[Tensor]]]] = {
        "allreduce": (group, default_hooks.allreduce_hook),
        "fp16": (group, default_hooks.fp16_compress_hook),
        "bf16": (group, bf16_hook),
        "noop": (None, debugging_hooks.noop_hook),
    }
    kind, _, rank = name.partition(":")
    if kind == "powersgd" and rank.isdecimal() and int(rank) > 0:
        ddp.register_comm_hook(*_make_powersgd(int(rank), group, powersgd_start_step))
    elif name in hooks:
        ddp.register_comm_hook(*hooks[name])
    elif name != "none":
        raise UsageError(f"There is no comm hook {name!r}: choose none, {', '.join(hooks)} or powersgd:<rank>.")


def _make_powersgd(rank: int, group: dist.ProcessGroup, start_step: int) -> tuple[object, Callable[..., Any]]:
    """State and hook: ours, or torch's where that one is safe."""
    ours = PowerSGD(rank, group, start_step=start_step)
    if dist.get_backend(group) != dist.Backend.NCCL:
        return ours, powersgd_hook
    state = powerSGD_hook.PowerSGDState(
        group,
        matrix_approximation_rank=rank,
        start_powerSGD_iter=start_step,
        min_compression_rate=MIN_COMPRESSION,
    )
    return state, powerSGD_hook.powerSGD_hook


def bf16_hook(group: dist.ProcessGroup, bucket: GradBucket) -> Future[Tensor]:
    """Sends bfloat16; torch's own hook, which torch refuses by its name wherever there is no NCCL."""
    return default_hooks.bf16_compress_hook(group, bucket)


class PowerSGD:
    """State of `powersgd_hook` on one rank.

    Args:
        rank: r, the rank of the approximation.
        group: The ranks to average over.
        start_step: Synchronised steps of plain all-reduce before compression.

    Raises:
        UsageError: `start_step` lies before the buckets are settled.
    """

    def __init__(self, rank: int, group: dist.ProcessGroup, *, start_step: int) -> None:
        if start_step < MIN_START_STEP:
            raise UsageError(
                f"PowerSGD cannot start in step {start_step}: buckets are settled from {MIN_START_STEP} on."
            )
        self.matrix_approximation_rank = rank
        self.group = group
        self.start_step = start_step
        self.step = 0
        self.buckets: dict[int, _CompressedBucket] = {}


def powersgd_hook(state: PowerSGD, bucket: GradBucket) -> Future[Tensor]:
    """Averages a bucket approximately; a comm hook for torch's wrapper and ours."""
    is_plain = state.step < state.start_step
    state.step += bucket.is_last()
    if is_plain:
        return default_hooks.allreduce_hook(state.group, bucket)
    if bucket.index() not in state.buckets:
        state.buckets[bucket.index()] = _CompressedBucket(bucket, state)
    averaged = state.buckets[bucket.index()].start_first_round(bucket)
    if bucket.is_last():
        for compressed in state.buckets.values():
            compressed.start_second_round()
        for compressed in state.buckets.values():
            compressed.finish()
    return averaged


class _CompressedBucket:
    """The factors of a bucket's matrices, and what they missed in the last step."""

    def __init__(self, bucket: GradBucket, state: PowerSGD) -> None:
        rank, buffer = state.matrix_approximation_rank, bucket.buffer()
        self.group = state.group
        self.missed = torch.zeros_like(buffer)
        self.is_matrix = [_is_worth_compressing(gradient, rank) for gradient in bucket.gradients()]
        shapes = [
            g.flatten(1).shape for g, is_matrix in zip(bucket.gradients(), self.is_matrix, strict=True) if is_matrix
        ]
        ranks = [min(n, m, rank) for n, m in shapes]
        self.p = buffer.new_empty(sum(n * r for (n, _), r in zip(shapes, ranks, strict=True)))
        same_everywhere = torch.Generator().manual_seed(bucket.index())
        self.q = torch.randn(sum(m * r for (_, m), r in zip(shapes, ranks, strict=True)), generator=same_everywhere)
        self.q = self.q.to(buffer)
        self.ps = _cut(self.p, [(n, r) for (n, _), r in zip(shapes, ranks, strict=True)])
        self.qs = _cut(self.q, [(m, r) for (_, m), r in zip(shapes, ranks, strict=True)])

    def start_first_round(self, bucket: GradBucket) -> Future[Tensor]:
        """Starts Σ M Q, and the sums of what is too small to compress."""
        self.buffer = bucket.buffer()
        self.missed.copy_(self.buffer.add_(self.missed))
        pairs = list(zip(bucket.gradients(), self.is_matrix, strict=True))
        self.matrices = [gradient.flatten(1) for gradient, is_matrix in pairs if is_matrix]
        self.others = [gradient.flatten() for gradient, is_matrix in pairs if not is_matrix]
        self.sum_of_others = torch.cat(self.others) if self.others else self.buffer.new_empty(0)
        for matrix, p, q in zip(self.matrices, self.ps, self.qs, strict=True):
            torch.mm(matrix, q, out=p)
        self.works = self._start_sums(self.p, self.sum_of_others)
        self.averaged: Future[Tensor] = Future(devices=[self.buffer.device] if self.buffer.is_cuda else None)
        return self.averaged

    def start_second_round(self) -> None:
        """Starts mean(Mᵀ P)."""
        for work in self.works:
            work.wait()
        for matrix, p, q in zip(self.matrices, self.ps, self.qs, strict=True):
            p.copy_(torch.linalg.qr(p.float()).Q)
            torch.mm(matrix.t(), p, out=q)
        self.q.div_(self.group.size())
        self.works = self._start_sums(self.q)

    def finish(self) -> None:
        """Writes P Qᵀ and the averages of the others into the bucket."""
        for work in self.works:
            work.wait()
        for matrix, p, q in zip(self.matrices, self.ps, self.qs, strict=True):
            torch.mm(p, q.t(), out=matrix)
        averages = _cut(self.sum_of_others.div_(self.group.size()), [other.shape for other in self.others])
        if self.others:
            torch._foreach_copy_(self.others, averages)
        self.missed.sub_(self.buffer)
        self.averaged.set_result(self.buffer)

    def _start_sums(self, *tensors: Tensor) -> list[dist.Work]:
        return [dist.all_reduce(tensor, group=self.group, async_op=True) for tensor in tensors if tensor.numel()]


def _is_worth_compressing(gradient: Tensor, rank: int) -> bool:
    if gradient.dim() < 2:
        return False
    n, m = gradient.flatten(1).shape
    return (n + m) * min(n, m, rank) * MIN_COMPRESSION < n * m


def _cut(flat: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Consecutive views of a flat tensor."""
    views, offset = [], 0
    for shape in shapes:
        views.append(flat.narrow(0, offset, prod(shape)).view(*shape))
        offset += views[-1].numel()
    return views
