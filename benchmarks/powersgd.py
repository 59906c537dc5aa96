"""What PowerSGD computes, beside what it sends: our hook's operators on one thread, without its all-reduces.

A bucket of one large matrix tells the time a byte, over that of copying the same bytes once, as replay assumes it from
the copies of a profile. A bucket of many tiny ones tells the time a matrix. Times are those of the processor.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor

from advisor.statistics import median_estimate
from benchmarks.result import Measurement, write_result
from workloads import comm_hooks
from workloads.comm_hooks import PowerSGD

NUM_SAMPLES = 15
RANKS = (1, 2, 4, 16, 32)
LARGE = ((512, 2048), (1024, 1024), (4096, 256), (2048, 2048))
NUM_TINY = 32


class _OneRank:
    """A group that sends nothing."""

    def size(self) -> int:
        return 1


class _Bucket:
    """As much of a `GradBucket` as the hook asks for."""

    def __init__(self, shapes: list[tuple[int, int]]) -> None:
        self._buffer = torch.randn(sum(n * m for n, m in shapes))
        self._gradients = comm_hooks._cut(self._buffer, shapes)

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True

    def buffer(self) -> Tensor:
        return self._buffer

    def gradients(self) -> list[Tensor]:
        return self._gradients


def run() -> None:
    """Measures each rank in turn."""
    load_before = os.getloadavg()[0]
    torch.set_num_threads(1)
    with patch.object(comm_hooks._CompressedBucket, "_start_sums", return_value=[]):
        rows = list(_measure())
    write_result("powersgd", load_before, ("ddp-advisor", "torch"), rows)


def _measure() -> Iterator[Measurement]:
    for rank in RANKS:
        for shape in LARGE:
            bucket = _Bucket([shape])
            spare = torch.empty_like(bucket.buffer())
            stages = _time_stages(bucket, rank)
            copying = [_time(partial(spare.copy_, bucket.buffer())) for _ in stages]
            name = f"rank {rank}, {shape[0]} × {shape[1]}"
            yield _tell(f"{name}, over a copy", [sum(each) / copy for each, copy in zip(stages, copying, strict=True)])
            yield _tell(
                f"{name}, of it before P is sent", [before / sum(each) for each in stages for before in each[:1]]
            )
            yield _tell(
                f"{name}, of it between P and Q", [between / sum(each) for each in stages for between in each[1:2]]
            )
        side = max(40, 5 * rank)
        stages = _time_stages(_Bucket([(side, side)] * NUM_TINY), rank)
        yield _tell(f"rank {rank}, {side} × {side}, a matrix", [sum(each) / NUM_TINY / 1e3 for each in stages], "µs")


def _tell(name: str, samples: list[float], unit: str = "") -> Measurement:
    return Measurement(name=name, unit=unit, estimate=median_estimate(samples), num_samples=NUM_SAMPLES)


def _time_stages(bucket: _Bucket, rank: int) -> list[list[float]]:
    """Times of what comes before P is sent, between P and Q, and after Q; a row a sample."""
    state = PowerSGD(rank, cast(Any, _OneRank()), start_step=3)
    compressed = comm_hooks._CompressedBucket(cast(Any, bucket), state)
    stages = (
        partial(compressed.start_first_round, cast(Any, bucket)),
        compressed.start_second_round,
        compressed.finish,
    )
    samples = [[_time(stage) for stage in stages] for _ in range(NUM_SAMPLES + 1)]
    return samples[1:]


def _time(work: Callable[[], object]) -> float:
    started = time.process_time_ns()
    work()
    return float(time.process_time_ns() - started)
