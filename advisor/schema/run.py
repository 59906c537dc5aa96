"""What ran: the settings and the manifest a recorder writes beside its traces."""

from __future__ import annotations

from advisor.schema.base import SCHEMA_VERSION, Backend, DeviceType, Struct, Wrapper


class DDPConfig(Struct, frozen=True, kw_only=True):
    """The settings of one DistributedDataParallel run, under torch's own names; `bucket_cap_mb` is in MiB as in DDP."""

    world_size: int
    backend: Backend
    wrapper: Wrapper
    bucket_cap_mb: float | None = None
    bucket_cap_mb_list: tuple[float, ...] | None = None
    comm_hook: str = "none"
    accumulation_steps: int = 1
    gradient_as_bucket_view: bool = False
    batched_grad_copy: bool = False
    static_graph: bool = False
    find_unused_parameters: bool = False
    skip_all_reduce_unused_params: bool = False
    forward_sync_buffers: bool = True
    caps_first_bucket: bool = True
    """Not an argument: False before torch 2.4, where an explicit cap left the first bucket at 1 MiB."""


NOT_WRAPPER_ARGUMENTS = frozenset(
    {"world_size", "backend", "wrapper", "comm_hook", "accumulation_steps", "caps_first_bucket"}
)
"""Fields of `DDPConfig` that are no arguments of DistributedDataParallel."""


class ParameterInfo(Struct, frozen=True, kw_only=True):
    """One trainable parameter, in registration order; `bucket` is its bucket after the rebuild."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    bucket: int | None = None


class BucketInfo(Struct, frozen=True, kw_only=True):
    """One bucket in launch order; the indices point into `RunManifest.parameters`."""

    index: int
    num_bytes: int
    dtype: str
    parameter_indices: tuple[int, ...]


class DeviceInfo(Struct, frozen=True, kw_only=True):
    """The device of one rank and the host it sits in."""

    rank: int
    host: str
    device: str
    device_type: DeviceType
    num_cores: int | None = None
    """Of the host, as its operating system counts them."""


class RunManifest(Struct, frozen=True, kw_only=True):
    """`manifest.json`: what ran, written beside the traces by the recorder."""

    schema_version: int = SCHEMA_VERSION
    tool_version: str
    created: str
    """ISO 8601 with the time zone."""
    workload: str
    preset: str | None = None
    command: tuple[str, ...] = ()
    ddp: DDPConfig
    parameters: tuple[ParameterInfo, ...]
    initial_buckets: tuple[BucketInfo, ...]
    buckets: tuple[BucketInfo, ...]
    ready_order: tuple[int, ...]
    """Parameter indices in the order rank 0 saw their gradients; empty where the wrapper does not tell."""
    versions: dict[str, str] = {}
    devices: tuple[DeviceInfo, ...] = ()
    environment: dict[str, str] = {}
