"""Communication hooks: torch's contract, and a bucket that satisfies torch's own hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.futures import Future
from torch.nn import Parameter

from workloads.ddp.buckets import Bucket, Reduction

CommHook = Callable[[Any, Any], Future[Tensor]]
"""`hook(state, bucket)` starts the communication of one bucket and returns a future of its averaged buffer."""


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
