"""What HolisticTraceAnalysis says of the same events, as plain tables beside our own numbers."""

from __future__ import annotations

from typing import Literal

from advisor.schema.base import Struct

KernelKind = Literal["communication", "computation", "memory"]


class OverlapCheck(Struct, frozen=True, kw_only=True):
    """The share of communication with computation beside it, over the same kernels: ours and HTA's."""

    ours_fraction: float
    hta_fraction: float | None
    """None where HTA takes no kernel for communication."""
    tolerance_fraction: float
    """Half of the last digit that HTA gives."""
    misread: tuple[str, ...] = ()
    """Kernels whose kind HTA does not tell by their name as we do."""

    @property
    def agrees(self) -> bool:
        """Whether the two differ by no more than HTA's rounding."""
        if self.hta_fraction is None:
            return False
        return abs(self.ours_fraction - self.hta_fraction) <= self.tolerance_fraction + 1e-9


class DeviceTime(Struct, frozen=True, kw_only=True):
    """HTA's temporal breakdown: idle + computation + other = span, from the first kernel to the last."""

    span_ns: int
    idle_ns: int
    computation_ns: int
    other_ns: int
    """Communication or copying with no computation beside it."""


class StreamIdle(Struct, frozen=True, kw_only=True):
    """HTA's idle-time breakdown of one stream: why nothing ran between two kernels."""

    stream: int
    host_wait_ns: int
    """The next kernel was launched too late."""
    kernel_wait_ns: int
    """Gaps too short to mean anything."""
    other_ns: int
    """Launched in time and still not running, as when it waits for another stream."""


class StreamQueue(Struct, frozen=True, kw_only=True):
    """HTA's queue length of one stream: launched and not yet started, over the moments at which it changes."""

    stream: int
    mean_length: float
    median_length: float
    max_length: int


class KindTime(Struct, frozen=True, kw_only=True):
    """HTA's kernel-type breakdown: how long kernels of exactly these kinds ran at the same time."""

    kinds: tuple[KernelKind, ...]
    total_ns: int


class KernelTime(Struct, frozen=True, kw_only=True):
    """HTA's kernel breakdown: all calls of one kernel."""

    name: str
    kind: KernelKind
    num_calls: int
    total_ns: int
    mean_ns: float
    min_ns: int
    max_ns: int
    stddev_ns: float


class CriticalPath(Struct, frozen=True, kw_only=True):
    """HTA's critical path through one step, by what bounds it, as far as it can be seen without synchronisation."""

    step: int
    host_ns: int
    computation_ns: int
    communication_ns: int
    launch_ns: int
    """From a launch to its kernel."""
    gap_ns: int
    """Between two kernels of a stream."""


class HolisticRank(Struct, frozen=True, kw_only=True):
    """HTA's answers for one rank, over the kernels launched up to the end of its last step."""

    rank: int
    num_kernels: int
    """Handed over; copies included."""
    num_recorded_kernels: int
    overlap: OverlapCheck | None
    """None where nothing communicates."""
    device_time: DeviceTime
    idle: tuple[StreamIdle, ...]
    queues: tuple[StreamQueue, ...]
    kinds: tuple[KindTime, ...]
    kernels: tuple[KernelTime, ...]
    """The longest in sum."""
    critical_path: CriticalPath | None = None


class Holistic(Struct, frozen=True, kw_only=True):
    """HolisticTraceAnalysis beside our own analysis, or why it is not."""

    messages: tuple[str, ...] = ()
    """What it was not asked, or could not answer, and why."""
    hta_version: str | None = None
    ranks: tuple[HolisticRank, ...] = ()
    elapsed_ns: int = 0
    """What asking it added to the analysis, loading it included."""

    @property
    def disagreements(self) -> tuple[HolisticRank, ...]:
        """The ranks on which the two see a different overlap."""
        return tuple(rank for rank in self.ranks if rank.overlap is not None and not rank.overlap.agrees)
