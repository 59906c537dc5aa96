"""Collectives timed on purpose, alone and two in flight, idle and beside computation: what every rank of a probe does.

A visit times one condition a few times in a row, each time from a barrier on; its first repetition is discarded. As in
a trace, a repetition's time is the shortest over the ranks: the last rank to arrive does not wait. Times are the
caller's, from the call to the end of waiting, so they hold what handing over to the library costs.
"""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

import torch
import torch.distributed as dist

from advisor.errors import RunError
from advisor.schema import DeviceInfo, Ladder, write_json
from workloads.exchange import Reporter
from workloads.manifest import describe_device, read_environment, read_tool_version, read_versions
from workloads.place import Place, agree
from workloads.probe_collectives import build_operands, choose_dtypes, time_once
from workloads.probe_load import ComputeLoop
from workloads.probe_plan import Condition, Plan, Visit, rank_conditions
from workloads.requests import ProbeRequest

REPETITIONS = 5
ONE_AFTER_THE_OTHER = "Two in flight not measured: NCCL runs the collectives of a process group one after the other."
"""And torch's documentation of `new_group` warns of two groups of NCCL at once."""


def probe_machine(request: ProbeRequest, place: Place, reporter: Reporter) -> None:
    """Measures until the budget is used or everything is known, and writes the ladder, on rank 0, to `request.out`.

    Raises:
        RunError: The backend refuses every collective that was asked for.
    """
    started = time.monotonic()
    dtypes, left_out = choose_dtypes(request.kinds, place)
    if not any(dtypes.values()):
        raise RunError(
            f"{place.backend} on {place.device.type} refuses {', '.join(dtypes)}: ask for other collectives."
        )
    if place.backend == "nccl":
        left_out.append(ONE_AFTER_THE_OTHER)
    plan = Plan(rank_conditions(dtypes, place.world_size, most_in_flight=1 if place.backend == "nccl" else 2))
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
            left_out=(*left_out, *plan.list_left_out()),
            devices=tuple(devices),
            versions=read_versions(),
            environment=read_environment(),
        )
        write_json(ladder, Path(request.out))


def visit(condition: Condition, compute: ComputeLoop, place: Place) -> Visit:
    """Times one condition; the same on every rank."""
    started = time.monotonic()
    kind = condition.kind
    operands = [build_operands(kind, condition.dtype, condition.num_bytes, place) for _ in range(condition.in_flight)]

    def repeat() -> list[tuple[int, int]]:
        return [time_once(kind, operands, place) for _ in range(1 + REPETITIONS)][1:]

    if condition.under_compute:
        with compute.running() as clean_ns:
            spans = repeat()
        slowdown = compute.measure_slowdown(spans, clean_ns)
    else:
        spans, slowdown = repeat(), 0.0
    mine = torch.tensor([*(end - start for start, end in spans), 1e6 * slowdown], dtype=torch.float64)
    every = gather(mine, place)
    shortest = every[:, :-1].min(dim=0).values.tolist()
    slowest = float(every[:, -1].max()) / 1e6
    seconds = time.monotonic() - started
    return Visit(tuple(round(ns) for ns in shortest), slowest or None, seconds)


def gather(mine: torch.Tensor, place: Place) -> torch.Tensor:
    """Every rank's row."""
    mine = mine.to(place.device if place.backend == "nccl" else "cpu")
    every = [torch.empty_like(mine) for _ in range(place.world_size)]
    dist.all_gather(every, mine)
    return torch.stack(every).cpu()
