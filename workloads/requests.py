"""What the launcher asks its training processes to do: one typed struct a task, written to a JSON file."""

from __future__ import annotations

from typing import Literal

from advisor.schema import DDPConfig, Struct
from workloads.job import JobSpec

DeviceChoice = Literal["auto", "cpu", "cuda"]
"""`auto` puts NCCL's tensors on the GPU and gloo's on the CPU."""


class RecordRequest(Struct, frozen=True, kw_only=True, tag="record"):
    """Train a job under the profiler and leave a run folder.

    `config.backend` may be `unknown`: the processes take what is there. `out` None means `runs/<workload>-<time>`.
    """

    job: JobSpec
    config: DDPConfig
    out: str | None = None
    num_steps: int = 16
    device: DeviceChoice = "auto"
    command: tuple[str, ...] = ()


Request = RecordRequest
