"""The collectives that a probe times: which the backend takes, their tensors, and one go from a barrier to the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from workloads.place import Place
from workloads.requests import ProbedKind

DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Operands:
    """The array that every rank ends up with or starts from whole, and this rank's share of it."""

    whole: torch.Tensor
    part: torch.Tensor


# By their names of before torch 2.13 where it is older.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
STARTS: Mapping[ProbedKind, Callable[[Operands], dist.Work]] = {
    "all_reduce": lambda operands: dist.all_reduce(operands.whole, async_op=True),
    "broadcast": lambda operands: dist.broadcast(operands.whole, src=0, async_op=True),
    "all_gather": lambda operands: _all_gather(operands.whole, operands.part, async_op=True),
    "reduce_scatter": lambda operands: _reduce_scatter(operands.part, operands.whole, async_op=True),
}


def choose_dtypes(kinds: Sequence[ProbedKind], place: Place) -> tuple[dict[ProbedKind, list[str]], list[str]]:
    """By kind, the dtypes that the backend takes, and a sentence for each that it refuses.

    The first use of a communicator, which builds it, falls in here too.
    """
    taken: dict[ProbedKind, list[str]] = {kind: [] for kind in kinds}
    refused = []
    for kind in kinds:
        for dtype in DTYPES:
            operands = build_operands(kind, dtype, 1, place)
            wait_for_all(place)
            try:
                STARTS[kind](operands).wait()
                taken[kind].append(dtype)
            except (RuntimeError, TypeError):  # every rank refuses alike, before anything is sent
                refused.append(f"{kind} of {dtype} not measured: {place.backend} refuses it.")
    return taken, refused


def build_operands(kind: ProbedKind, dtype: str, num_bytes: int, place: Place) -> Operands:
    """Zeros for one collective whose input is `num_bytes` on each rank, or the least that can be shared out."""
    element: torch.dtype = getattr(torch, dtype)
    num_inputs = num_bytes // element.itemsize
    num_parts = max(1, num_inputs if kind == "all_gather" else num_inputs // place.world_size)
    shared = kind in ("all_gather", "reduce_scatter")
    num_whole = num_parts * place.world_size if shared else max(1, num_inputs)
    return Operands(
        whole=torch.zeros(num_whole, dtype=element, device=place.device),
        part=torch.zeros(num_parts if shared else 0, dtype=element, device=place.device),
    )


def time_once(kind: ProbedKind, operands: Sequence[Operands], place: Place) -> tuple[int, int]:
    """When this rank started one collective on each of `operands`, all at once, and when the last one was done."""
    start = STARTS[kind]
    wait_for_all(place)
    started_ns = time.perf_counter_ns()
    works = [start(each) for each in operands]
    for work in works:
        work.wait()
    if place.device.type == "cuda":  # there, waiting only tells the stream to wait
        torch.cuda.current_stream(place.device).synchronize()
    return started_ns, time.perf_counter_ns()


def wait_for_all(place: Place) -> None:
    """A barrier that the host waits for; NCCL's own guess at the device for it need not be this rank's."""
    dist.barrier(device_ids=[place.device.index] if place.backend == "nccl" else None)
