"""Small synthetic Kineto traces of gloo on CPU and NCCL on a GPU, written event by event in round microseconds.

A `RankTrace` collects the events of one rank and writes them as JSON text; `lay_out` takes such ranks through the front
half of the analysis. Every host event lies on the main thread unless told otherwise; gloo's two workers and the GPU's
streams have threads of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from advisor.collectives import MatchedCollective, match_collectives
from advisor.observation import RankObservation, RunObservation, observe_rank
from advisor.readers.chrome import read_chrome_trace
from advisor.schedule import StepSchedule, build_schedules
from advisor.schema import RunManifest
from advisor.stragglers import find_waiting
from advisor.summaries import summarize_steps
from advisor.tables import Trace
from advisor.timeline import RankTimeline, build_timeline
from advisor.verdict import Analysis

MAIN_THREAD = 1
GLOO_THREADS = (101, 102)
COMPUTE_STREAM = 7
NCCL_STREAM = 20
GPU_PROCESS = 0
HOST_PROCESS = 4000

NODE = "autograd::engine::evaluate_function: "
GEMM = "ampere_sgemm_128x64_nn"
ALL_REDUCE_KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
C10D_OPERATORS = {"all_reduce": "c10d::allreduce_", "broadcast": "c10d::broadcast_"}
COLLECTIVE_NAMES = {"all_reduce": "allreduce", "broadcast": "broadcast"}


@dataclass
class RankTrace:
    """One rank's events, with `clock_us` added to every time as another machine's clock would."""

    rank: int = 0
    world_size: int = 2
    backend: str = "gloo"
    clock_us: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    _correlations: Iterator[int] = field(default_factory=lambda: count(1))

    def add(self, category: str, name: str, start: float, end: float, **fields: Any) -> None:
        """Any event; `tid` defaults to the main thread, everything else that is no field of its own goes to `args`."""
        place = {"pid": fields.pop("pid", HOST_PROCESS), "tid": fields.pop("tid", MAIN_THREAD)}
        times = {"ts": start + self.clock_us, "dur": end - start}
        self.events.append({"ph": "X", "cat": category, "name": name, **place, **times, "args": fields.pop("args", {})})

    # What the training loop and DDP write on the host.

    def step(self, number: int, start: float, end: float) -> None:
        self.add("user_annotation", f"ProfilerStep#{number}", start, end)

    def forward(self, start: float, end: float) -> None:
        self.add("user_annotation", "DistributedDataParallel.forward", start, end)

    def operator(self, name: str, start: float, end: float, *, tid: int = MAIN_THREAD) -> None:
        self.add("cpu_op", name, start, end, tid=tid)

    def node(self, start: float, end: float, name: str = "AddmmBackward0") -> None:
        """One autograd node of backward."""
        self.operator(NODE + name, start, end)

    def gradient(self, start: float, end: float, elements: int, dtype: str = "float") -> None:
        """A gradient: its AccumulateGrad node, which holds the launch of the bucket it completes, if any."""
        self.node(start, end, "torch::autograd::AccumulateGrad")
        shapes = {"Input Dims": [[elements]], "Input type": [dtype]}
        self.add("cpu_op", "torch::autograd::AccumulateGrad", start, start + 1, args=shapes)

    def copy_back(self, start: float, end: float) -> None:
        self.operator("torch.distributed.ddp.reducer::copy_bucket_to_grad", start, end)

    def optimizer(self, start: float, end: float) -> None:
        self.add("user_annotation", "Optimizer.step#SGD.step", start, end)

    # Communication of CPU ranks.

    def gloo(
        self, launch: float, start: float, end: float, elements: int, *, kind: str = "all_reduce", dtype: str = "float",
        worker: int = 0,
    ) -> None:  # fmt: skip
        """A collective: launched for 1 µs on the main thread, executed on a worker's."""
        dims = {"Input Dims": [[[elements]], []], "Input type": ["TensorList", ""]}
        self.add("cpu_op", C10D_OPERATORS[kind], launch, launch + 1, args=dims)
        span = {"Input Dims": [[elements]], "Input type": [dtype]}
        self.add("user_annotation", f"gloo:{kind}", start, end, tid=GLOO_THREADS[worker], args=span)

    # Kernels, and communication of GPU ranks.

    def kernel(
        self, launch: float | None, start: float, end: float, name: str = GEMM, *, stream: int = COMPUTE_STREAM,
        args: dict[str, Any] | None = None,
    ) -> int:  # fmt: skip
        """A kernel with its launch on the host (None: launched before the recording); returns their correlation."""
        correlation = next(self._correlations)
        if launch is not None:
            self.add("cuda_runtime", "cudaLaunchKernel", launch, launch + 1, args={"correlation": correlation})
        fields = {"stream": stream, "correlation": correlation, **(args or {})}
        self.add("kernel", name, start, end, pid=GPU_PROCESS, tid=stream, args=fields)
        return correlation

    def nccl(
        self, launch: float, start: float, end: float, elements: int, *, kind: str = "all_reduce", dtype: str = "Float",
        group: str = "0", sequence: int | None = None,
    ) -> None:  # fmt: skip
        """A collective kernel that carries its own arguments, as torch 2.2 and newer write them, and its operator."""
        self.operator(C10D_OPERATORS[kind], launch, launch + 2)
        args = describe_collective(elements, kind=kind, dtype=dtype, group=group)
        self.kernel(
            launch, start, end, ALL_REDUCE_KERNEL, stream=NCCL_STREAM,
            args=args if sequence is None else {**args, "Seq": sequence},
        )  # fmt: skip

    # What becomes of it.

    def to_json(self, **document: Any) -> bytes:
        info = {"backend": self.backend, "rank": self.rank, "world_size": self.world_size}
        return json.dumps({"distributedInfo": info, "traceEvents": self.events, **document}).encode()

    def read(self) -> Trace:
        return read_chrome_trace(self.to_json(), f"rank{self.rank}.json")

    def lay_out(self) -> RankTimeline:
        return build_timeline(self.read())


def describe_collective(
    elements: int, *, kind: str = "all_reduce", dtype: str = "Float", group: str = "0"
) -> dict[str, Any]:
    """The arguments that torch writes on `record_param_comms` and on the kernels it launches."""
    return {
        "Collective name": COLLECTIVE_NAMES[kind],
        "In msg nelems": elements,
        "dtype": dtype,
        "Process Group Name": group,
    }


@dataclass(frozen=True)
class Front:
    """The front half of the analysis of some ranks."""

    observations: list[RankObservation]
    matched: list[MatchedCollective]
    schedules: list[StepSchedule]


def lay_out(*ranks: RankTrace) -> Front:
    observations = [observe_rank(rank.read()) for rank in ranks]
    matched = match_collectives([observation.collectives for observation in observations], ranks[0].world_size)
    return Front(observations, matched, build_schedules(observations, matched))


def build_analysis(observed: Sequence[RankObservation], manifest: RunManifest | None = None) -> Analysis:
    """What alarms read of a run, without the models and predictions that they do not."""
    run = RunObservation(source="run", ranks=tuple(observed), manifest=manifest, notes=())
    matched = match_collectives([rank.collectives for rank in observed], run.world_size)
    schedules = build_schedules(observed, matched)
    return Analysis(
        config=manifest.ddp if manifest else None,
        parallelism=run.parallelism,
        world_size=run.world_size,
        steps=summarize_steps(observed, schedules, find_waiting(observed, matched)),
        buckets=tuple(bucket for schedule in schedules for bucket in schedule.buckets),
        comm_model=None,
        job=None,
        baseline=None,
        run=run,
    )
