"""What BucketedDDP refuses before training starts: at wrapping, and when a comm hook is registered."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn import Parameter
from torch.nn.parameter import UninitializedParameter

from advisor.errors import UsageError

HANG_ON_GLOO = ("powerSGD_hook", "batched_powerSGD_hook")
"""They wait for a second collective in the callback of a first, and so block gloo's two threads with two buckets."""
FAIL_ON_GLOO = ("quantization_pertensor_hook", "quantization_perchannel_hook")
"""They do so too, and fail there even with one."""

Description = tuple[str, tuple[int, ...], str, tuple[int, ...]]


def refuse_arguments(arguments: dict[str, object]) -> None:
    """Refuses what torch's wrapper takes and ours does not, if it was given.

    Raises:
        UsageError: One was given.
    """
    given = [name for name, value in arguments.items() if value]
    if given:
        raise UsageError(f"BucketedDDP does not support {', '.join(given)}: leave it out, or use torch's wrapper.")


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


def check_hook(hook: Callable[..., object], backend: str, *, is_one_bucket: bool) -> None:
    """Refuses what is no hook, and what would hang.

    Raises:
        UsageError: The hook's annotations contradict the contract, or it cannot run on this backend.
    """
    if not callable(hook):
        raise UsageError(f"A comm hook must be callable, {hook!r} is not.")
    signature = inspect.signature(hook)
    taken, returned = getattr(signature.parameters.get("bucket"), "annotation", None), signature.return_annotation
    if inspect.isclass(taken) and taken is not inspect.Parameter.empty and taken.__name__ != "GradBucket":
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
