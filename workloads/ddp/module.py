"""BucketedDDP: the module that wraps a model and keeps its replicas equal."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from msgspec.structs import asdict
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.utils._pytree import tree_map_only

from advisor.errors import UsageError
from advisor.schema import Backend, DDPConfig, marks
from advisor.schema.run import NOT_WRAPPER_ARGUMENTS
from workloads.ddp.hooks import CommHook
from workloads.ddp.join import Shadow, agree_to_synchronize, count_training_ranks, find_source
from workloads.ddp.marks import mark
from workloads.ddp.reducer import Reducer
from workloads.ddp.replicas import broadcast_tensors
from workloads.ddp_failures import unfrozen
from workloads.ddp_guards import check_hook, check_same_parameters, check_wrappable, refuse_arguments


class BucketedDDP(nn.Module, Joinable):
    """DistributedDataParallel, reimplemented: every rank computes on its own data, gradients are averaged.

    Use it as torch's: wrap, then train as on one device. When `backward()` returns, every gradient is the average
    over the ranks. The arguments, their order and their meaning are torch 2.13's. A few it refuses: `check_reduction`,
    `delay_all_reduce_named_params`, `param_to_hook_all_reduce`, `mixed_precision`, `device_mesh`, any `dim` but 0.

    Attributes:
        config: The settings, as a manifest keeps them.
        record_gradient_marks: Whether to write a profiler mark for each gradient; off unless a recorder asks.

    Raises:
        UsageError: An argument that cannot be honoured, or a model that differs between ranks.
    """

    def __init__(  # noqa: PLR0913 (torch's signature)
        self,
        module: nn.Module,
        device_ids: list[int | torch.device] | None = None,
        output_device: int | torch.device | None = None,
        dim: int = 0,
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        delay_all_reduce_named_params: object = None,
        param_to_hook_all_reduce: object = None,
        mixed_precision: object = None,
        device_mesh: object = None,
        skip_all_reduce_unused_params: bool = False,
        bucket_cap_mb_list: list[float] | None = None,
        batched_grad_copy: bool = False,
        forward_sync_buffers: bool | None = None,
    ) -> None:
        nn.Module.__init__(self)
        Joinable.__init__(self)
        unsupported = {
            "dim": dim,
            "check_reduction": check_reduction,
            "delay_all_reduce_named_params": delay_all_reduce_named_params,
            "param_to_hook_all_reduce": param_to_hook_all_reduce,
            "mixed_precision": mixed_precision,
            "device_mesh": device_mesh,
            "several device_ids": len(device_ids or ()) > 1,
            "output_device without device_ids": output_device is not None and not device_ids,
        }
        refuse_arguments(unsupported)
        if broadcast_buffers is not None:
            warnings.warn("broadcast_buffers is deprecated: use forward_sync_buffers", FutureWarning, stacklevel=2)
        if forward_sync_buffers is None:
            syncs_buffers = syncs_buffers_now = broadcast_buffers is not False
        else:
            syncs_buffers, syncs_buffers_now = forward_sync_buffers, True

        self.module = module
        self.process_group = process_group or dist.distributed_c10d._get_default_group()
        self.record_gradient_marks = False
        self.require_backward_grad_sync = True
        self.divides_by_all_ranks = True
        self.may_sync_buffers = True
        first = device_ids[0] if device_ids else None
        self._device = torch.device("cuda", first) if isinstance(first, int) else first

        self._ignored = frozenset(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        named = {name: p for name, p in module.named_parameters() if name not in self._ignored}
        check_wrappable(module, list(named.values()), self._device)
        trainable = {name: p for name, p in named.items() if p.requires_grad}
        self._frozen = {name: p for name, p in named.items() if not p.requires_grad}
        buffers = self.buffers_to_sync()
        self._has_buffers = bool(buffers)
        if init_sync:
            check_same_parameters(trainable, self.process_group)
            broadcast_tensors([*named.values(), *(buffers if syncs_buffers_now else ())], 0, self.process_group)
        self.config = DDPConfig(
            world_size=dist.get_world_size(self.process_group),
            backend=_backend_of(self.process_group, next(iter(trainable.values())).device),
            wrapper="bucketed",
            bucket_cap_mb=bucket_cap_mb,
            bucket_cap_mb_list=tuple(bucket_cap_mb_list) if bucket_cap_mb_list else None,
            gradient_as_bucket_view=gradient_as_bucket_view,
            batched_grad_copy=batched_grad_copy,
            static_graph=static_graph,
            find_unused_parameters=find_unused_parameters,
            skip_all_reduce_unused_params=skip_all_reduce_unused_params,
            forward_sync_buffers=syncs_buffers,
        )
        self.reducer = Reducer(trainable, self.config, self.process_group)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Runs the module; whether the coming backward synchronises is decided here."""
        with mark(marks.FORWARD):
            synchronizes = torch.is_grad_enabled() and self.require_backward_grad_sync
            self.reducer.record_gradient_marks = self.record_gradient_marks
            self.reducer.divisor = count_training_ranks(self)
            if torch.is_grad_enabled():
                self._warn_of_unfrozen()
                self.reducer.prepare_forward()
            if self.will_sync_buffers():
                source = find_source(self, is_candidate=True) if self._join_config.enable else 0
                broadcast_tensors(self.buffers_to_sync(), source, self.process_group)
            if self._join_config.enable:
                agree_to_synchronize(self, wants=self.require_backward_grad_sync)
            if self._device is not None:
                inputs, kwargs = tree_map_only(Tensor, self._to_device, (inputs, kwargs))
            output = self.module(*inputs, **kwargs)
            # After a forward that only accumulates, the next one need not start from equal buffers either.
            self.may_sync_buffers = synchronizes
            return self.reducer.expect_backward(output) if synchronizes else output

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Forwards inside only accumulate; the next backward whose forward lies outside averages the whole sum."""
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def register_comm_hook(self, state: object, hook: CommHook) -> None:
        """Lets `hook(state, bucket)` communicate instead of the plain all-reduce; see `hooks`.

        Raises:
            UsageError: There is a hook already, it is no hook, or it would hang on this backend.
        """
        if self.reducer.hook is not None:
            raise UsageError("BucketedDDP has a comm hook already: one hook a wrapper, registered once.")
        check_hook(hook, self.config.backend, is_one_bucket=self.reducer.is_one_bucket())
        self.reducer.hook = (hook, state)

    # What a recorder asks: indices count the trainable parameters in registration order, buckets are in launch order.

    def initial_bucket_layout(self) -> list[list[int]]:
        """The parameters of each bucket before the rebuild."""
        return self.reducer.initial_layout

    def bucket_layout(self) -> list[list[int]]:
        """The parameters of each bucket now."""
        return [list(bucket.members) for bucket in self.reducer.buckets]

    def ready_order(self) -> list[int]:
        """The parameters in the order in which their gradients came in the last synchronising backward."""
        return self.reducer.ready_order

    # Uneven inputs, through torch's `Join`.

    def join(
        self, divide_by_initial_world_size: bool = True, enable: bool = True, throw_on_early_termination: bool = False
    ) -> Join:
        """A context in which ranks may have different numbers of batches; arguments as torch's."""
        weighting = {"divide_by_initial_world_size": divide_by_initial_world_size}
        return Join([self], enable, throw_on_early_termination, **weighting)

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """What this rank does while only others have data."""
        self.divides_by_all_ranks = kwargs.get("divide_by_initial_world_size", True)
        return Shadow(self)

    @property
    def join_device(self) -> torch.device:
        """Where the collectives of a join take place."""
        return self.reducer.parameters[0].device

    @property
    def join_process_group(self) -> dist.ProcessGroup:
        """The ranks of a join."""
        return self.process_group

    # Buffers, copies, and what changes after wrapping.

    def will_sync_buffers(self) -> bool:
        """Whether the next forward starts with rank 0's buffers."""
        return self._has_buffers and self.config.forward_sync_buffers and self.may_sync_buffers

    def buffers_to_sync(self) -> list[Tensor]:
        """The buffers that are kept equal; read anew, since modules may replace theirs."""
        return [buffer for name, buffer in self.module.named_buffers() if name not in self._ignored]

    def __getstate__(self) -> dict[str, Any]:
        if self.process_group is not dist.group.WORLD:
            raise UsageError("BucketedDDP can be copied and pickled only with the default process group.")
        return {"module": self.module, "device": self._device, "training": self.training, "config": self.config}

    def __setstate__(self, state: dict[str, Any]) -> None:
        fields = asdict(state["config"]).items()
        settings = {name: value for name, value in fields if name not in NOT_WRAPPER_ARGUMENTS}
        device_ids = None if state["device"] is None else [state["device"]]
        BucketedDDP.__init__(self, state["module"], device_ids, init_sync=False, **settings)
        self.training = state["training"]

    def _to_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._device, non_blocking=True)

    def _warn_of_unfrozen(self) -> None:
        names = [name for name, parameter in self._frozen.items() if parameter.requires_grad]
        if names:
            self._frozen = {name: p for name, p in self._frozen.items() if name not in names}
            warnings.warn(unfrozen(names), stacklevel=3)


def _backend_of(group: dist.ProcessGroup, device: torch.device) -> Backend:
    backends = dict(part.split(":") for part in dist.get_backend_config(group).split(","))
    names: dict[str | None, Backend] = {"gloo": "gloo", "nccl": "nccl"}
    return names.get(backends.get(device.type), "unknown")
