"""The manifest of a run: parameters, buckets before and after the rebuild, versions, devices and environment.

Works on our `BucketedDDP`, which tells its layout, and on torch's DDP, which tells its own through a private logging
call (`_get_ddp_logging_data`, torch 2.13); where that call is missing, the layout stays empty instead of being guessed.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from advisor.bucketing import MIB, UNLIMITED, assign_buckets, bucket_limits
from advisor.schema import BucketInfo, DDPConfig, DeviceInfo, ParameterInfo, RunManifest

ENVIRONMENT_PREFIXES = ("NCCL_", "TORCH_NCCL_", "GLOO_", "TORCH_DISTRIBUTED_DEBUG")
ENVIRONMENT_NAMES = ("CUDA_DEVICE_MAX_CONNECTIONS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_LAUNCH_BLOCKING")

HOOK_NAMES = {
    "allreduce_hook": "allreduce",
    "fp16_compress_hook": "fp16",
    "bf16_compress_hook": "bf16",
    "noop_hook": "noop",
    "bf16_hook": "bf16",
}
"""torch's and our comm hooks under the names of `DDPConfig.comm_hook`."""


@dataclass(frozen=True)
class Layout:
    """Parameter indices by bucket in launch order, before and after the rebuild, and in the order they became ready."""

    initial: Sequence[Sequence[int]] = ()
    rebuilt: Sequence[Sequence[int]] = ()
    ready_order: Sequence[int] = ()


def build_manifest(model: nn.Module, config: DDPConfig, devices: Sequence[DeviceInfo], label: RunLabel) -> RunManifest:
    """Describes a wrapped model after some steps, in this process's environment."""
    parameters = trainable_parameters(model)
    layout = read_layout(model, config)
    bucket_of = {index: bucket for bucket, indices in enumerate(layout.rebuilt) for index in indices}
    return RunManifest(
        tool_version=read_tool_version(),
        created=datetime.now().astimezone().isoformat(timespec="seconds"),
        workload=label.workload,
        preset=label.preset,
        command=label.command,
        ddp=config,
        parameters=tuple(
            ParameterInfo(
                name=name,
                shape=tuple(parameter.shape),
                dtype=str(parameter.dtype).removeprefix("torch."),
                num_bytes=parameter.numel() * parameter.element_size(),
                bucket=bucket_of.get(index),
            )
            for index, (name, parameter) in enumerate(parameters)
        ),
        initial_buckets=_describe_buckets(layout.initial, parameters),
        buckets=_describe_buckets(layout.rebuilt, parameters),
        ready_order=tuple(layout.ready_order),
        versions=read_versions(),
        devices=tuple(devices),
        environment=read_environment(),
    )


@dataclass(frozen=True)
class RunLabel:
    """What a person called the run."""

    workload: str
    preset: str | None = None
    command: tuple[str, ...] = ()


def trainable_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters DDP reduces, by name, in registration order; shared ones once."""
    module = model.module
    assert isinstance(module, nn.Module)
    ignored = frozenset(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
    named = module.named_parameters()
    return [(name, parameter) for name, parameter in named if parameter.requires_grad and name not in ignored]


def read_layout(model: nn.Module, config: DDPConfig) -> Layout:
    """The buckets of a wrapped model; empty where the wrapper does not tell."""
    told: Any = model
    if isinstance(model, DistributedDataParallel):
        return _read_torch_layout(told, config)
    return Layout(told.initial_bucket_layout(), told.bucket_layout(), told.ready_order())


def _read_torch_layout(model: Any, config: DDPConfig) -> Layout:
    initial = _initial_torch_layout([parameter for _, parameter in trainable_parameters(model)], config)
    if not hasattr(model, "_get_ddp_logging_data"):
        return Layout(initial)
    told: dict[str, Any] = model._get_ddp_logging_data()
    rebuilt = [_integers(bucket) for bucket in told.get("rebuilt_per_bucket_param_indices", "").split(",") if bucket]
    ready_order = _integers(told.get("prev_iteration_grad_ready_order_indices", "").replace(",", " "))
    return Layout(initial, rebuilt or initial, ready_order)


def _initial_torch_layout(parameters: Sequence[nn.Parameter], config: DDPConfig) -> list[list[int]]:
    limits = bucket_limits(config.bucket_cap_mb, config.bucket_cap_mb_list)
    if not config.bucket_cap_mb_list and (config.static_graph or not config.find_unused_parameters):
        limits = (UNLIMITED,)  # the order of the gradients is not known yet: one all-reduce at the end of backward
    num_bytes = [parameter.numel() * parameter.element_size() for parameter in parameters]
    keys = [(parameter.dtype, parameter.device) for parameter in parameters]
    return assign_buckets(num_bytes, keys, limits)[::-1]


def _integers(text: str) -> list[int]:
    return [int(word) for word in text.split()]


def _describe_buckets(
    layout: Sequence[Sequence[int]], parameters: Sequence[tuple[str, nn.Parameter]]
) -> tuple[BucketInfo, ...]:
    tensors = [parameter for _, parameter in parameters]
    return tuple(
        BucketInfo(
            index=index,
            num_bytes=sum(tensors[i].numel() * tensors[i].element_size() for i in members),
            dtype=str(tensors[members[0]].dtype).removeprefix("torch."),
            parameter_indices=tuple(members),
        )
        for index, members in enumerate(layout)
    )


def read_config(model: nn.Module, accumulation_steps: int = 1) -> DDPConfig:
    """The settings a person gave to their wrapper, as far as the wrapped model remembers them."""
    told: Any = model
    if not isinstance(model, DistributedDataParallel):
        config: DDPConfig = told.config
        hook = _name_hook(told.reducer.hook)
        return msgspec.structs.replace(config, comm_hook=hook, accumulation_steps=accumulation_steps)
    hook = _name_hook(next(iter(getattr(model, "_comm_hooks", ())), None))
    limits = tuple(cap / MIB for cap in getattr(model, "bucket_bytes_cap_list", ()))
    is_unset = getattr(model, "bucket_bytes_cap_default", False)
    return DDPConfig(
        world_size=dist.get_world_size(told.process_group),
        backend="nccl" if "nccl" in dist.get_backend(told.process_group) else "gloo",
        wrapper="torch",
        bucket_cap_mb=None if is_unset or limits else told.bucket_bytes_cap / MIB,
        bucket_cap_mb_list=limits or None,
        comm_hook=hook,
        accumulation_steps=accumulation_steps,
        gradient_as_bucket_view=told.gradient_as_bucket_view,
        batched_grad_copy=getattr(model, "batched_grad_copy", False),
        static_graph=told.static_graph,
        find_unused_parameters=told.find_unused_parameters,
        skip_all_reduce_unused_params=getattr(model, "skip_all_reduce_unused_params", False),
        forward_sync_buffers=getattr(model, "forward_sync_buffers", getattr(model, "broadcast_buffers", True)),
    )


def _name_hook(registered: tuple[Any, Any] | None) -> str:
    if registered is None:
        return "none"
    hook, state = registered
    name: str = hook.__name__
    is_powersgd = name in ("powerSGD_hook", "powersgd_hook")
    return f"powersgd:{state.matrix_approximation_rank}" if is_powersgd else HOOK_NAMES.get(name, name)


def read_tool_version() -> str:
    """The installed version of ddp-advisor."""
    try:
        return importlib.metadata.version("ddp-advisor")
    except importlib.metadata.PackageNotFoundError:  # a checkout that was never installed
        return "unknown"


def read_versions() -> dict[str, str]:
    """The versions that decide how a run behaves."""
    versions = {"python": platform.python_version(), "torch": str(torch.__version__), "system": platform.platform()}
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    if torch.cuda.is_available() and dist.is_nccl_available():
        nccl: Any = torch.cuda.nccl
        versions["nccl"] = ".".join(map(str, nccl.version()))
    return versions


def read_environment() -> dict[str, str]:
    """The environment variables that change how communication or computation run."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(ENVIRONMENT_PREFIXES) or name in ENVIRONMENT_NAMES
    }


def describe_device(rank: int, device: torch.device) -> DeviceInfo:
    """This rank's device."""
    is_gpu = device.type == "cuda"
    return DeviceInfo(
        rank=rank,
        host=socket.gethostname(),
        device=torch.cuda.get_device_name(device) if is_gpu else _cpu_name(),
        device_type="cuda" if is_gpu else "cpu",
        num_cores=os.cpu_count(),
    )


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()} ({os.cpu_count()} cores)"
