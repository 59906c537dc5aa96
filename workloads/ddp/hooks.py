"""Communication hooks: torch's contract, and a bucket that satisfies torch's own hooks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket as TorchGradBucket
from torch.futures import Future
from torch.nn import Parameter

from advisor.errors import UsageError
from workloads.comm_hooks import register_named_hook as register_named_hook
from workloads.ddp.buckets import Bucket, Reduction

CommHook = Callable[[Any, Any], Future[Tensor]]
"""`hook(state, bucket)` starts the communication of one bucket and returns a future of its averaged buffer."""

HANG_ON_GLOO = ("powerSGD_hook", "batched_powerSGD_hook")
"""They wait for a second collective in the callback of a first, and so block gloo's two threads with two buckets."""
FAIL_ON_GLOO = ("quantization_pertensor_hook", "quantization_perchannel_hook")
"""They do so too, and fail there even with one."""


class GradBucket:
    """What a hook sees of a bucket: the methods of `torch.distributed.GradBucket`, which has no Python constructor."""

    def __init__(self, bucket: Bucket, buffer: Tensor, *, is_last: bool) -> None:
        self._bucket = bucket
        self._buffer = buffer
        self._is_last = is_last

    def index(self) -> int:
        """The bucket's place in launch order."""
        return self._bucket.index

    def is_last(self) -> bool:
        """Whether it is the last one launched in this backward."""
        return self._is_last

    def buffer(self) -> Tensor:
        """All gradients in one flat tensor, not yet divided by the number of ranks."""
        return self._buffer

    def set_buffer(self, tensor: Tensor) -> None:
        """Replaces the flat tensor for whoever asks this object; the wrapper keeps its own."""
        self._buffer = tensor

    def gradients(self) -> list[Tensor]:
        """One view of the flat tensor a parameter."""
        pieces = torch.split(self._buffer, [parameter.numel() for parameter in self._bucket.parameters])
        return [piece.view(p.shape) for piece, p in zip(pieces, self._bucket.parameters, strict=True)]

    def parameters(self) -> list[Parameter]:
        """The parameters, in the order of their gradients in the flat tensor."""
        return list(self._bucket.parameters)


def wait_for(reduction: Reduction, buffer: Tensor) -> Tensor:
    """Waits for the averages of a bucket: in `buffer` itself without a hook, else what the hook's future holds."""
    result: bool | Tensor | list[Tensor] = reduction.wait()
    if isinstance(result, bool):
        return buffer
    return result[0] if isinstance(result, list) else result


def check_hook(hook: CommHook, backend: str, *, is_one_bucket: bool) -> None:
    """Refuses what is no hook, and what would hang.

    Raises:
        UsageError: The hook's annotations contradict the contract, or it cannot run on this backend.
    """
    if not callable(hook):
        raise UsageError(f"A comm hook must be callable, {hook!r} is not.")
    signature = inspect.signature(hook)
    taken, returned = getattr(signature.parameters.get("bucket"), "annotation", None), signature.return_annotation
    if not isinstance(taken, str) and taken not in (inspect.Parameter.empty, TorchGradBucket, GradBucket):
        raise UsageError(f"{hook.__name__} must be hook(state, bucket: dist.GradBucket).")
    if not isinstance(returned, str) and returned not in (inspect.Signature.empty, Future[Tensor]):
        raise UsageError(f"{hook.__name__} must return a torch.futures.Future[torch.Tensor], not {returned}.")
    # The wrappers fp16_compress_wrapper(hook) and bf16_compress_wrapper(hook) keep the hook in their closure.
    inner = inspect.getclosurevars(hook).nonlocals.get("hook", hook) if inspect.isfunction(hook) else hook
    name = getattr(inner, "__name__", "")
    if backend == "gloo" and (name in FAIL_ON_GLOO or (name in HANG_ON_GLOO and not is_one_bucket)):
        raise UsageError(
            f"{name} fails or hangs on gloo: register powersgd:<rank>, bf16 or fp16 by name instead "
            "(workloads.comm_hooks.register_named_hook)."
        )
