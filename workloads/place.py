"""Where a rank stands: its process group, backend and device, chosen by what is there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import msgspec
import torch
import torch.distributed as dist

from advisor.errors import UsageError
from advisor.schema import Backend, DDPConfig
from workloads.requests import DeviceChoice

T = TypeVar("T")


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
    if backend == "nccl" and num_gpus < num_local:
        raise UsageError(
            f"NCCL needs a GPU for each of {num_local} ranks, and here are {num_gpus}: choose fewer ranks."
        )
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


def agree(value: T) -> T:
    """Rank 0's value, on every rank."""
    told = [value]
    dist.broadcast_object_list(told)
    return told[0]
