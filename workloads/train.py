"""One training loop for every job: the wrapper, the process group and the optimizer step with accumulation."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from itertools import count, islice
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from advisor.bucketing import DEFAULT_FIRST_BUCKET_MB
from advisor.errors import UsageError
from advisor.schema import Backend, DDPConfig
from workloads.ddp import BucketedDDP
from workloads.ddp.hooks import register_named_hook
from workloads.gradients import finish_step, loss_factors
from workloads.job import Job
from workloads.requests import DeviceChoice

NOT_CONSTRUCTOR_ARGUMENTS = frozenset({"world_size", "backend", "wrapper", "comm_hook", "accumulation_steps"})
"""Fields of DDPConfig that the training loop or the process group act on; all others are arguments of the wrapper."""

SETTLING_STEPS = 3
"""DDP's first step, the first one with rebuilt buckets, and one in which allocators have seen these."""


@dataclass(frozen=True)
class Place:
    """Where this process stands in the run."""

    rank: int
    world_size: int
    device: torch.device
    backend: Backend


@contextmanager
def process_group(
    backend: Backend = "unknown", device: DeviceChoice = "auto", timeout_s: float = 120.0
) -> Iterator[Place]:
    """Joins the process group that torchrun's environment describes, and leaves it when all went well.

    Args:
        backend: `unknown` takes NCCL where every rank of this host has a GPU, else gloo.
        device: `auto` puts NCCL's tensors on the GPU and gloo's on the CPU.
        timeout_s: How long a collective may wait for a peer before it fails.

    Raises:
        UsageError: The backend or the device is not there.
    """
    local_rank, num_local = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if backend == "unknown":
        backend = "nccl" if num_gpus >= num_local and device != "cpu" else "gloo"
    wants_gpu = backend == "nccl" or device == "cuda"
    if wants_gpu and num_gpus == 0:
        raise UsageError(f"There is no GPU here for {backend} on {device}: choose the backend gloo and the device cpu.")
    place = torch.device("cuda", local_rank % num_gpus) if wants_gpu else torch.device("cpu")
    if place.type == "cuda":
        torch.cuda.set_device(place)
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    yield Place(dist.get_rank(), dist.get_world_size(), place, backend)
    # After an error a peer may never answer: then the process ends without taking leave.
    dist.destroy_process_group()


def settle_config(config: DDPConfig, place: Place) -> DDPConfig:
    """The settings with what the processes found: the real world size and backend."""
    return msgspec.structs.replace(config, world_size=place.world_size, backend=place.backend)


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
        if name not in NOT_CONSTRUCTOR_ARGUMENTS and value != getattr(defaults, name)
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


class Training:
    """A job under a wrapper, one optimizer step at a time.

    Attributes:
        model: The wrapped model.
        optimizer: Over the wrapped model's parameters.
        num_steps: Optimizer steps done.
    """

    def __init__(self, job: Job, config: DDPConfig, place: Place) -> None:
        _check_unused(job, config)
        self.job = job
        self.config = config
        self.model = wrap(job.model, config, place.device)
        self.optimizer = job.optimizer(self.model.parameters())
        self.num_steps = 0
        self._device = place.device
        self._scaler = torch.amp.GradScaler(place.device.type, enabled=job.scales_loss)
        self._batches = iterate_batches(job, place.rank)
        if job.compiles:
            compile_in_place(self.model, config)

    def step(self) -> torch.Tensor:
        """One optimizer step over `accumulation_steps` batches; returns this rank's loss, weighted, detached."""
        batches, factors = self._weigh(islice(self._batches, self.config.accumulation_steps))
        losses = [
            self._backward(batch, factor, synchronises=self._synchronises(micro_step))
            for micro_step, (batch, factor) in enumerate(zip(batches, factors, strict=True))
        ]
        finish_step(self.optimizer, self.model.parameters(), self._scaler, self.job.max_gradient_norm)
        self.num_steps += 1
        return torch.stack(losses).sum()

    def _weigh(self, batches: Iterable[Any]) -> tuple[Iterable[Any], list[float]]:
        """The micro-steps' batches, and what to multiply their losses by; weights need all batches beforehand."""
        if self.job.weight is None:
            return batches, [1 / self.config.accumulation_steps] * self.config.accumulation_steps
        batches = list(batches)
        return batches, loss_factors([self.job.weight(batch) for batch in batches], self._device)

    def _backward(self, batch: Any, factor: float, *, synchronises: bool) -> torch.Tensor:
        # no_sync is decided at forward, so it goes around forward and backward.
        with nullcontext() if synchronises else self.model.no_sync():  # type: ignore[operator]
            loss = self.job.loss(self.model, batch) * factor
            torch.autograd.backward(self._scaler.scale(loss))
        return loss.detach()

    def _synchronises(self, micro_step: int) -> bool:
        is_last = micro_step == self.config.accumulation_steps - 1
        # torch fails when a static graph's very first backward does not synchronise (pytorch#143580); synchronising a
        # micro-step too many leaves the sum of averages as it is.
        return is_last or (self.config.static_graph and self.num_steps == 0)


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


def _check_unused(job: Job, config: DDPConfig) -> None:
    if job.leaves_parameters_unused and not config.find_unused_parameters:
        raise UsageError(
            "This job leaves parameters without a gradient on some steps, which DDP waits for in vain: "
            "set find_unused_parameters."
        )


def iterate_batches(job: Job, rank: int) -> Iterator[Any]:
    """This rank's batches without end.

    Raises:
        UsageError: The job's iterable of batches is empty.
    """
    if callable(job.batches):
        for micro_step in count():
            yield job.batches(rank, micro_step)
    yield from _repeat(job.batches)


def _repeat(batches: Any) -> Iterator[Any]:
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            raise UsageError(
                "The job's batches are used up: give it a list, a DataLoader or batches(rank, micro_step)."
            )
