"""Traces of several ranks from a schedule that is known: what the analysis should find in them is written down first.

The schedule is that of `simulated_schedule.py`; on a GPU the host runs ahead of it. Written are runs of one micro-step
and without a hook. Nothing here comes from the analysis, so that neither can hide a mistake of the other.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from tests.simulated_schedule import MS, US, Exchange, Plan, Scenario, play_steps

EPOCH_NS = 1_700_000_000_123_456_789
FIRST_STEP = 3
HOST_SHARE = 0.5
"""The host's time for launching over the device's time for running it."""
LAUNCH_NS = 5 * US
NODE = "autograd::engine::evaluate_function: "
MAIN, WORKERS, COMPUTE, NCCL = 1, (101, 102), 7, 20


@dataclass(frozen=True)
class TrueBucket:
    """One bucket's all-reduce on one rank; ns of the true time."""

    rank: int
    step: int
    bucket: int
    ready_ns: float
    start_ns: float
    transfer_start_ns: float
    end_ns: float
    blocking_ns: float


@dataclass
class Simulation:
    """The traces, by rank, and what is true of them."""

    traces: list[bytes]
    buckets: list[TrueBucket] = field(default_factory=list)
    end_ns: float = 0.0
    """When the last rank was done."""


def simulate(scenario: Scenario) -> Simulation:
    """Runs a scenario and writes each rank's trace as Kineto JSON."""
    assert (scenario.micro_steps, scenario.comm_hook) == (1, "none"), "only such runs are written"
    noise = random.Random(scenario.seed)
    writers = [_Writer(scenario, rank, noise) for rank in range(scenario.num_ranks)]
    simulation = Simulation([])
    for number, step in enumerate(play_steps(scenario, noise), FIRST_STEP):
        for rank, (plan, writer) in enumerate(zip(step.plans, writers, strict=True)):
            simulation.buckets += _charge(rank, number, plan.ready, step.exchange, step.waits[rank])
            spans = (step.exchange.starts[rank], step.exchange.workers[rank], step.exchange.ends)
            writer.write_step(number, plan, spans, step.ends[rank])
        simulation.end_ns = max(step.ends)
    simulation.traces = [writer.to_json() for writer in writers]
    return simulation


def draw_scenario(seed: int, backend: Literal["nccl", "gloo"]) -> Scenario:
    """A scenario with one late rank on clocks that differ, drift and jitter; the same one for the same seed."""
    draw = random.Random(seed)
    num_ranks, num_gradients, num_buckets = draw.randint(2, 4), draw.randint(8, 16), draw.randint(3, 5)
    backward_ms = draw.uniform(20, 60)
    gaps = [draw.uniform(0.5, 1.5) for _ in range(num_gradients)]
    ready = [backward_ms * sum(gaps[: n + 1]) / (sum(gaps) * 1.02) for n in range(num_gradients)]
    cuts = [0, *sorted(draw.sample(range(1, num_gradients), num_buckets - 1)), num_gradients]
    return Scenario(
        backend=backend,
        num_ranks=num_ranks,
        num_steps=5,
        gradients=tuple((at, round(10 ** draw.uniform(4.5, 6.2))) for at in ready),
        buckets=tuple(b - a for a, b in pairwise(cuts)),
        backward_ms=backward_ms,
        forward_ms=backward_ms / 2,
        segments=((0, draw.uniform(100, 500), draw.uniform(0.5, 2.0)),),
        late_rank=draw.randrange(num_ranks),
        late_phase=draw.choice(("data", "forward", "backward")),
        late_ms=backward_ms * draw.uniform(0.15, 0.4),
        clock_offsets_ms=tuple(draw.uniform(-10, 10) for _ in range(num_ranks)),
        drifts=tuple(draw.uniform(-2e-5, 2e-5) for _ in range(num_ranks)),
        noise=0.02,
        jitter_us=3.0,
        seed=seed,
    )


def draw_ladder(seed: int, backend: Literal["nccl", "gloo"], *, has_kink: bool = False) -> Scenario:
    """A scenario whose buckets span 4 KiB to 16 MiB, most of them reduced after backward; no rank is late.

    With a kink the link's slope changes by a factor of 2 to 4, at one of the middle sizes.
    """
    draw = random.Random(seed)
    num_buckets = 12
    sizes = [round(2 ** (12 + 12 * (n + draw.random()) / num_buckets) / 4) for n in range(num_buckets)]
    draw.shuffle(sizes)
    backward_ms = draw.uniform(5, 15)
    num_ranks, alpha, beta = draw.randint(2, 4), draw.uniform(100, 500), draw.uniform(0.5, 2.0)
    segments: tuple[tuple[int, float, float], ...] = ((0, alpha, beta),)
    if has_kink:
        kink = round(2 ** draw.uniform(18, 21))
        slope = beta * draw.uniform(2, 4) ** draw.choice((-1, 1))
        segments = (*segments, (kink, alpha + (beta - slope) * kink / US, slope))
    return Scenario(
        backend=backend,
        num_ranks=num_ranks,
        num_steps=5,
        gradients=tuple((backward_ms * (n + 1) / (num_buckets + 1), size) for n, size in enumerate(sizes)),
        buckets=(1,) * num_buckets,
        backward_ms=backward_ms,
        segments=segments,
        noise=0.005,
        jitter_us=1.0,
        seed=seed,
    )


def _charge(
    rank: int, step: int, ready: Sequence[float], exchange: Exchange, waits: Sequence[tuple[float, float]]
) -> list[TrueBucket]:
    """Charges each instant of waiting to a bucket in transfer, else to one waiting for peers, else to the next."""
    starts, begins, ends = exchange.starts[rank], exchange.transfer_starts, exchange.ends
    buckets = range(len(ends))
    cuts = sorted({t for wait in waits for t in wait} | {*starts, *begins, *ends, *ready})
    blocking = [0.0] * len(ends)
    for a, b in pairwise(cuts):
        if any(low <= a and b <= high for low, high in waits):
            orders = (
                (n for n in buckets if begins[n] <= a and b <= ends[n]),
                (n for n in buckets if starts[n] <= a and b <= begins[n]),
                (n for n in buckets if a < ends[n]),
            )
            blocking[next(n for order in orders for n in order)] += b - a
    return [TrueBucket(rank, step, n, ready[n], starts[n], begins[n], ends[n], blocking[n]) for n in buckets]


# --------------------------------------------------------------------------------------------------------- writing


class _Writer:
    """One rank's events, on its own clock."""

    def __init__(self, scenario: Scenario, rank: int, noise: random.Random) -> None:
        self.scenario, self.rank, self.noise = scenario, rank, noise
        self.offset = scenario.clock_offsets_ms[rank] * MS if scenario.clock_offsets_ms else 0.0
        self.drift = scenario.drifts[rank] if scenario.drifts else 0.0
        self.events: list[str] = []
        self.correlation = 0

    def to_json(self) -> bytes:
        info = {"backend": self.scenario.backend, "rank": self.rank, "world_size": self.scenario.num_ranks}
        return f'{{"distributedInfo": {json.dumps(info)}, "traceEvents": [{",".join(self.events)}]}}'.encode()

    def add(self, category: str, name: str, span: tuple[float, float], thread: int = MAIN, **args: Any) -> None:
        start, end = (EPOCH_NS + round(t * (1 + self.drift) + self.offset) for t in span)
        words = f'"cat": "{category}", "name": "{name}", "pid": {0 if category == "kernel" else 1}, "tid": {thread}'
        times = f'"ts": {start // US}.{start % US:03d}, "dur": {(end - start) // US}.{(end - start) % US:03d}'
        self.events.append(f'{{"ph": "X", {words}, {times}, "args": {json.dumps(args)}}}')

    def write_step(
        self, number: int, plan: Plan, exchange: tuple[Sequence[float], Sequence[int], Sequence[float]], end: float
    ) -> None:
        self.add("user_annotation", f"ProfilerStep#{number}", (plan.start, end))
        if self.scenario.backend == "nccl":
            self._write_gpu(plan, exchange, end)
        else:
            self._write_cpu(plan, exchange, end)

    def _write_cpu(
        self, plan: Plan, exchange: tuple[Sequence[float], Sequence[int], Sequence[float]], end: float
    ) -> None:
        self.add("user_annotation", "DistributedDataParallel.forward", (plan.forward, plan.backward))
        for span in self._cut(plan.forward, plan.backward):
            self._write_product(*span)
        sizes = dict(zip(plan.ready, self.scenario.count_bytes(), strict=True))
        for before, at, elements in self._list_gradients(plan):
            self.add("cpu_op", f"{NODE}AddmmBackward0", (before, at - 4 * US))
            self._write_product(before, at - 4 * US)
            self._write_gradient((at - 4 * US, at), elements)
            if at in sizes:
                dims = {"Input Dims": [[[sizes[at] // 4]], []]}
                self.add("cpu_op", "c10d::allreduce_", (at - US, at), **dims)
        self._write_tail((plan.gradients[-1], plan.backward_end))
        for starts, worker, ends, num_bytes in zip(*exchange, self.scenario.count_bytes(), strict=True):
            args = {"Input Dims": [[num_bytes // 4]], "Input type": ["float"]}
            self.add("user_annotation", "gloo:all_reduce", (starts, self._see(starts, ends)), WORKERS[worker], **args)
        for copy in plan.copies:
            self.add("cpu_op", "torch.distributed.ddp.reducer::copy_bucket_to_grad", copy)
        self.add("user_annotation", "Optimizer.step#SGD.step", (plan.optimizer, end))

    def _write_gpu(
        self, plan: Plan, exchange: tuple[Sequence[float], Sequence[int], Sequence[float]], end: float
    ) -> None:
        """The host starts with the step and launches in a share of the time that the device takes."""

        def on_host(at: float) -> float:
            return plan.forward - LAUNCH_NS + (at - plan.forward) * HOST_SHARE

        self.add("user_annotation", "DistributedDataParallel.forward", (on_host(plan.forward), on_host(plan.backward)))
        for start, stop in self._cut(plan.forward, plan.backward):
            self._write_product(on_host(start), on_host(stop))
            self._write_kernel("gemm", on_host(start), (start, stop))
        sizes = dict(zip(plan.ready, self.scenario.count_bytes(), strict=True))
        spans = dict(zip(plan.ready, zip(exchange[0], exchange[2], strict=True), strict=True))
        for before, at, elements in self._list_gradients(plan):
            self.add("cpu_op", f"{NODE}AddmmBackward0", (on_host(before), on_host(at) - 4 * US))
            self._write_kernel("gemm", on_host(before), (before, at))
            self._write_gradient((on_host(at) - 4 * US, on_host(at)), elements)
            if at in sizes:
                self.add("cpu_op", "c10d::allreduce_", (on_host(at) - US, on_host(at)))
                name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
                start, stop = spans[at]
                args = {"Collective name": "allreduce", "In msg nelems": sizes[at] // 4, "dtype": "Float"}
                args |= {"Process Group Name": "0", "Group size": self.scenario.num_ranks}
                self._write_kernel(name, on_host(at) - US, (start, self._see(start, stop)), NCCL, **args)
        tail = (plan.gradients[-1], plan.backward_end)
        self._write_tail((on_host(tail[0]), on_host(tail[1])))
        if tail[0] < tail[1]:
            self._write_kernel("gemm", on_host(tail[0]), tail)
        launch = on_host(plan.backward_end) + 20 * US
        self.add("user_annotation", "Optimizer.step#SGD.step", (launch, launch + 100 * US))
        self._write_kernel("update", launch + US, (plan.optimizer, end))

    def _cut(self, start: float, end: float) -> list[tuple[float, float]]:
        length = (end - start) / self.scenario.num_pieces
        return [(start + length * n, start + length * (n + 1)) for n in range(self.scenario.num_pieces)]

    def _list_gradients(self, plan: Plan) -> Iterable[tuple[float, float, int]]:
        """(ready of the one before, ready, elements) of each gradient."""
        befores = [plan.backward, *plan.gradients]
        elements = [elements for _, elements in self.scenario.gradients]
        return zip(befores, plan.gradients, elements, strict=False)

    def _write_product(self, start: float, end: float) -> None:
        self.add("cpu_op", "aten::mm", (start, end), **{"Input Dims": [[64, 64], [64, 64]]})

    def _write_gradient(self, span: tuple[float, float], elements: int) -> None:
        self.add("cpu_op", f"{NODE}torch::autograd::AccumulateGrad", span)
        shapes = {"Input Dims": [[elements]], "Input type": ["float"]}
        self.add("cpu_op", "torch::autograd::AccumulateGrad", (span[0], span[0] + US), **shapes)

    def _write_tail(self, span: tuple[float, float]) -> None:
        """What backward does after its last gradient."""
        if span[0] < span[1]:
            self.add("cpu_op", f"{NODE}EmbeddingBackward0", span)

    def _write_kernel(
        self, name: str, launch: float, span: tuple[float, float], stream: int = COMPUTE, **args: Any
    ) -> None:
        self.correlation += 1
        link = {"correlation": self.correlation}
        self.add("cuda_runtime", "cudaLaunchKernel", (launch, launch + US / 2), **link)
        self.add("kernel", name, span, stream, stream=stream, **link, **args)

    def _see(self, start: float, end: float) -> float:
        """When this rank sees a collective end."""
        return max(start, end + self.noise.gauss(0, self.scenario.jitter_us * US)) if self.scenario.jitter_us else end
