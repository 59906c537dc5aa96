"""Collectives timed on purpose, alone and two in flight, idle and beside computation: what every rank of a probe does.

A visit times one condition a few times in a row, each time from a barrier on; its first repetition is discarded. As in
a trace, a repetition's time is the shortest over the ranks: the last rank to arrive does not wait. Times are the
caller's, from the call to the end of waiting, so they hold what handing over to the library costs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from advisor.schema import DeviceInfo, Ladder, write_json
from workloads.exchange import Reporter
from workloads.manifest import describe_device, read_environment, read_tool_version, read_versions
from workloads.place import Place, agree
from workloads.probe_plan import Condition, Plan, Visit, rank_conditions
from workloads.requests import ProbeRequest

DTYPES = ("float32", "bfloat16", "float16")
REPETITIONS = 5
UNIT_ROWS = {"cpu": 192, "cuda": 4096}
"""Of the square matrices whose product is the unit of the compute loop: a fraction of a millisecond."""
FEWEST_UNITS = 8
"""Units on either side of a comparison of computing speeds."""
POLL_S = 0.001


def probe_machine(request: ProbeRequest, place: Place, reporter: Reporter) -> None:
    """Measures until the budget is used or everything is known, and writes the ladder, on rank 0, to `request.out`."""
    started = time.monotonic()
    dtypes, refused = choose_dtypes(place)
    plan = Plan(rank_conditions(dtypes))
    compute = ComputeLoop(place.device)

    def remaining_s() -> float:
        return request.budget_s - (time.monotonic() - started)

    while (condition := agree(plan.choose(remaining_s()))) is not None:
        seen = visit(condition, compute, place)
        if place.rank == 0:
            plan.add(condition, seen)
        reporter.report(round(request.budget_s - max(0.0, remaining_s())), round(request.budget_s), str(condition))
    devices: list[DeviceInfo] = [describe_device(place.rank, place.device)] * place.world_size
    dist.all_gather_object(devices, describe_device(place.rank, place.device))
    if place.rank == 0:
        ladder = Ladder(
            tool_version=read_tool_version(),
            created=datetime.now().astimezone().isoformat(timespec="seconds"),
            world_size=place.world_size,
            backend=place.backend,
            points=plan.list_points(),
            budget_s=request.budget_s,
            elapsed_s=round(time.monotonic() - started, 3),
            left_out=(*refused, *plan.list_left_out()),
            devices=tuple(devices),
            versions=read_versions(),
            environment=read_environment(),
        )
        write_json(ladder, Path(request.out))


def choose_dtypes(place: Place) -> tuple[list[str], list[str]]:
    """The dtypes that the backend takes, and a sentence for each that it refuses."""
    taken, refused = [], []
    for name in DTYPES:
        try:
            dist.all_reduce(torch.zeros(1, dtype=getattr(torch, name), device=place.device))
            taken.append(name)
        except (RuntimeError, TypeError):  # every rank refuses alike, before anything is sent
            refused.append(f"{name} not measured: {place.backend} does not reduce it.")
    return taken, refused


def visit(condition: Condition, compute: ComputeLoop, place: Place) -> Visit:
    """Times one condition; the same on every rank."""
    started = time.monotonic()
    dtype: torch.dtype = getattr(torch, condition.dtype)
    num_elements = max(1, condition.num_bytes // dtype.itemsize)
    buffers = [torch.zeros(num_elements, dtype=dtype, device=place.device) for _ in range(condition.in_flight)]
    if condition.under_compute:
        with compute.running() as clean_ns:
            spans = [time_once(buffers, place) for _ in range(1 + REPETITIONS)][1:]
        slowdown = compute.measure_slowdown(spans, clean_ns)
    else:
        spans, slowdown = [time_once(buffers, place) for _ in range(1 + REPETITIONS)][1:], 0.0
    mine = torch.tensor([*(end - start for start, end in spans), 1e6 * slowdown], dtype=torch.float64)
    every = gather(mine, place)
    shortest = every[:, :-1].min(dim=0).values.tolist()
    slowest = float(every[:, -1].max()) / 1e6
    seconds = time.monotonic() - started
    return Visit(tuple(round(ns) for ns in shortest), slowest or None, seconds)


def time_once(buffers: Sequence[torch.Tensor], place: Place) -> tuple[int, int]:
    """When this rank started to reduce the buffers, all at once, and when the last one was there."""
    dist.barrier()
    started_ns = time.perf_counter_ns()
    works = [dist.all_reduce(buffer, async_op=True) for buffer in buffers]
    for work in works:
        work.wait()
    if place.device.type == "cuda":
        torch.cuda.current_stream(place.device).synchronize()
    return started_ns, time.perf_counter_ns()


def gather(mine: torch.Tensor, place: Place) -> torch.Tensor:
    """Every rank's row."""
    mine = mine.to(place.device if place.backend == "nccl" else "cpu")
    every = [torch.empty_like(mine) for _ in range(place.world_size)]
    dist.all_gather(every, mine)
    return torch.stack(every).cpu()


class ComputeLoop:
    """Matrix products in a thread of their own, which note when each one ended."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        num_rows = UNIT_ROWS[device.type]
        self._matrix = torch.full((num_rows, num_rows), 1 / num_rows, device=device)
        self._ends_ns: list[int] = []

    @contextmanager
    def running(self) -> Iterator[float]:
        """Computes until the block ends; yields what one product takes before the block begins, in ns."""
        self._ends_ns = []
        stop = threading.Event()
        thread = threading.Thread(target=self._multiply, args=(stop,), daemon=True)
        thread.start()
        try:
            while len(self._ends_ns) <= 2 * FEWEST_UNITS:
                time.sleep(POLL_S)
            first, last = self._ends_ns[-1 - FEWEST_UNITS], self._ends_ns[-1]
            yield (last - first) / FEWEST_UNITS
        finally:
            stop.set()
            thread.join()

    def measure_slowdown(self, spans: Sequence[tuple[int, int]], clean_ns: float) -> float:
        """What one product took during the spans over what it took before; 0 where they are too short to tell."""
        total_ns = sum(end - start for start, end in spans)
        if total_ns < FEWEST_UNITS * clean_ns:
            return 0.0
        done = np.interp(np.array(spans), self._ends_ns, np.arange(len(self._ends_ns)))
        return total_ns / max(1e-3, float(np.sum(done[:, 1] - done[:, 0]))) / clean_ns

    def _multiply(self, stop: threading.Event) -> None:
        product = torch.empty_like(self._matrix)
        with torch.cuda.stream(self._stream) if self._stream else nullcontext():
            while not stop.is_set():
                torch.mm(self._matrix, self._matrix, out=product)
                if self._stream:
                    self._stream.synchronize()
                self._ends_ns.append(time.perf_counter_ns())
