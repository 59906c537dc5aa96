"""What the launcher asks its training processes to do: one typed struct a task, written to a JSON file."""

from __future__ import annotations

from typing import Literal, get_args

from advisor.schema import DDPConfig, Estimate, Struct
from workloads.job import JobSpec

DeviceChoice = Literal["auto", "cpu", "cuda"]
"""`auto` puts NCCL's tensors on the GPU and gloo's on the CPU."""

ProbedKind = Literal["all_reduce", "broadcast", "all_gather", "reduce_scatter"]
"""The collectives of data-parallel training: gradients; buffers and initial state; the two of sharded optimizers."""
PROBED_KINDS: tuple[ProbedKind, ...] = get_args(ProbedKind)

COMPILATION_S = 300.0
"""What compiling a model may take, on all ranks at once."""


class RecordRequest(Struct, frozen=True, kw_only=True, tag="record"):
    """Train a job under the profiler and leave a run folder.

    `config.backend` may be `unknown`: the processes take what is there. `out` None means `runs/<workload>-<time>`.
    """

    job: JobSpec
    config: DDPConfig
    out: str | None = None
    num_steps: int = 16
    device: DeviceChoice = "auto"
    collective_timeout_s: float = 300.0
    command: tuple[str, ...] = ()


class Arm(Struct, frozen=True, kw_only=True):
    """One setting to measure, with what was predicted for its step."""

    name: str
    config: DDPConfig
    predicted_ns: Estimate | None = None


class SweepRequest(Struct, frozen=True, kw_only=True, tag="sweep"):
    """Measure arms against the first one, in turns, into the SQLite file `database`.

    `budget_s` bounds the time the processes spend, warm-up included; it decides how often every arm is visited.
    """

    job: JobSpec
    arms: tuple[Arm, ...]
    database: str
    budget_s: float = 60.0
    steps_per_visit: int = 5
    device: DeviceChoice = "auto"
    collective_timeout_s: float = 60.0

    @property
    def config(self) -> DDPConfig:
        """What all arms share of their settings: world size and backend."""
        return self.arms[0].config


class CheckRequest(Struct, frozen=True, kw_only=True, tag="check"):
    """Check that a job trains the same model on several ranks as on one; `out` takes the `CheckResults`."""

    job: JobSpec
    config: DDPConfig
    out: str = ""
    device: DeviceChoice = "auto"
    collective_timeout_s: float = 120.0


class ProbeRequest(Struct, frozen=True, kw_only=True, tag="probe"):
    """Time collectives on `config.world_size` processes for about `budget_s`; `out` takes the `Ladder`.

    Of `config` only world size and backend count. The budget is shared by the `kinds`.
    """

    config: DDPConfig
    kinds: tuple[ProbedKind, ...] = ("all_reduce",)
    out: str = ""
    budget_s: float = 60.0
    device: DeviceChoice = "auto"
    collective_timeout_s: float = 60.0


class CheckResult(Struct, frozen=True, kw_only=True):
    """One check: what should hold, whether it does, and what was seen."""

    name: str
    passed: bool
    message: str


class CheckResults(Struct, frozen=True, kw_only=True):
    """All checks of a job, in their order."""

    results: tuple[CheckResult, ...]


Request = RecordRequest | SweepRequest | CheckRequest | ProbeRequest


def silence_limit_s(request: Request) -> float:
    """How long ranks may wait for each other and nothing be heard of them; more where torch.compile is at work."""
    compiles = not isinstance(request, ProbeRequest) and request.job.compile
    return request.collective_timeout_s + (COMPILATION_S if compiles else 0.0)
