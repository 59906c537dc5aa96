"""From a DDPConfig to a wrapped model: every field under its own name, for torch's wrapper and ours."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from advisor.bucketing import DEFAULT_FIRST_BUCKET_MB
from advisor.errors import UsageError
from advisor.schema import DDPConfig
from advisor.schema.run import NOT_WRAPPER_ARGUMENTS
from workloads.comm_hooks import register_named_hook
from workloads.ddp import BucketedDDP

SETTLING_STEPS = 3
"""DDP's first step, the first one with rebuilt buckets, and one in which allocators have seen these."""


def wrap(module: nn.Module, config: DDPConfig, device: torch.device) -> nn.Module:
    """Moves `module` to `device` and wraps it as `config` says, every field under its own name.

    Raises:
        UsageError: The installed torch's DistributedDataParallel, or ours, lacks a setting.
    """
    module = module.to(device)
    constructor = wrapper_class(config)
    arguments = constructor_arguments(config, constructor)
    if device.type == "cuda" and constructor is DistributedDataParallel:
        arguments["device_ids"] = [device.index]
    wrapped = constructor(module, **arguments)
    register_named_hook(wrapped, config.comm_hook, powersgd_start_step=SETTLING_STEPS + config.static_graph)
    return wrapped


def num_settling_steps(config: DDPConfig) -> int:
    """Optimizer steps before DDP runs as it will run from then on.

    Its first step is one all-reduce of the whole model and buckets are rebuilt after it, a step later with a static
    graph; PowerSGD starts when that is over, and its own first step is another one to leave out.
    """
    return SETTLING_STEPS + config.static_graph + config.comm_hook.startswith("powersgd")


def wrapper_class(config: DDPConfig) -> Callable[..., nn.Module]:
    """The class that `config.wrapper` names."""
    return DistributedDataParallel if config.wrapper == "torch" else BucketedDDP


def constructor_arguments(config: DDPConfig, constructor: Callable[..., nn.Module]) -> dict[str, Any]:
    """The arguments that differ from DDP's defaults, so that an older torch only misses what is really asked for."""
    defaults = DDPConfig(world_size=config.world_size, backend=config.backend, wrapper=config.wrapper)
    arguments = {
        name: value
        for name, value in msgspec.structs.asdict(config).items()
        if name not in NOT_WRAPPER_ARGUMENTS and value != getattr(defaults, name)
    }
    known = inspect.signature(constructor).parameters
    if "forward_sync_buffers" in arguments and "forward_sync_buffers" not in known:
        arguments["broadcast_buffers"] = arguments.pop("forward_sync_buffers")
    missing = [name for name in arguments if name not in known]
    if missing:
        raise UsageError(
            f"{getattr(constructor, '__name__', constructor)} of torch {torch.__version__} has no argument "
            f"{missing[0]}: upgrade torch or leave it out."
        )
    if "bucket_cap_mb_list" in arguments:
        arguments["bucket_cap_mb_list"] = list(arguments["bucket_cap_mb_list"])
    return arguments


def compile_in_place(model: nn.Module, config: DDPConfig) -> None:
    """Runs a wrapped model through torch.compile.

    torch cuts its own wrapper's graph at bucket borders, so that buckets can start during backward. Ours stays outside
    the graph: all gradients come at the end of the compiled backward, and no communication is hidden.

    Raises:
        UsageError: torch cannot cut the graph for such small buckets.
    """
    caps = config.bucket_cap_mb_list or (() if config.bucket_cap_mb is None else (config.bucket_cap_mb,))
    if config.wrapper == "torch" and caps and max(caps) < DEFAULT_FIRST_BUCKET_MB:
        raise UsageError(
            f"torch.compile cuts the graph for a first bucket of {DEFAULT_FIRST_BUCKET_MB:g} MiB, so a bucket_cap_mb "
            f"of {max(caps):g} fails: set {DEFAULT_FIRST_BUCKET_MB:g} or more, or leave compilation out."
        )
    compiled = model if config.wrapper == "torch" else model.module
    assert isinstance(compiled, nn.Module)
    compiled.compile()
