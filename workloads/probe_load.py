"""Computation beside which a probe times collectives: it lasts, and tells how much slower they made it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from threading import Event

import numpy as np
import torch

UNITS: dict[str, tuple[int, torch.dtype]] = {"cpu": (192, torch.float32), "cuda": (2048, torch.float16)}
"""By device, rows and dtype of the square matrices whose product is the unit of the load: a fraction of a millisecond,
and enough to fill a GPU."""
QUEUED_UNITS = 4
"""On a GPU: launched before the oldest one has ended, so that it never idles between two."""
FEWEST_UNITS = 8
"""Units on either side of a comparison of computing speeds."""
POLL_S = 0.001


class ComputeLoop:
    """Matrix products in a thread (and on a GPU a stream) of their own, which note when each one ended."""

    def __init__(self, device: torch.device) -> None:
        num_rows, dtype = UNITS[device.type]
        self._matrix = torch.full((num_rows, num_rows), 1 / num_rows, dtype=dtype, device=device)
        self._product = torch.empty_like(self._matrix)
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._stream.wait_stream(torch.cuda.current_stream(device))
        self._ends_ns: list[int] = []

    @contextmanager
    def running(self) -> Iterator[float]:
        """Computes until the block ends; yields what one product takes before the block begins, in ns.

        Whatever ends the computation early is raised here.
        """
        self._ends_ns = []
        stop = Event()
        with ThreadPoolExecutor(1) as executor:
            loop = executor.submit(self._multiply, stop)
            try:
                yield self._measure_alone(loop)
            finally:
                stop.set()
            loop.result()

    def measure_slowdown(self, spans: Sequence[tuple[int, int]], clean_ns: float) -> float:
        """What one product took during the spans over what it took before; 0 where they are too short to tell."""
        total_ns = sum(end - start for start, end in spans)
        if total_ns < FEWEST_UNITS * clean_ns:
            return 0.0
        done = np.interp(np.array(spans), self._ends_ns, np.arange(len(self._ends_ns)))
        return total_ns / max(1e-3, float(np.sum(done[:, 1] - done[:, 0]))) / clean_ns

    def _measure_alone(self, loop: Future[None]) -> float:
        while len(self._ends_ns) <= 2 * FEWEST_UNITS:
            if loop.done():
                loop.result()
            time.sleep(POLL_S)
        first, last = self._ends_ns[-1 - FEWEST_UNITS], self._ends_ns[-1]
        return (last - first) / FEWEST_UNITS

    def _multiply(self, stop: Event) -> None:
        launched: deque[torch.cuda.Event] = deque()
        if self._stream:
            torch.cuda.set_device(self._stream.device)  # every thread starts on the first GPU
        with torch.cuda.stream(self._stream) if self._stream else nullcontext():
            while not stop.is_set():
                torch.mm(self._matrix, self._matrix, out=self._product)
                if self._stream:
                    launched.append(self._stream.record_event())
                    if len(launched) < QUEUED_UNITS:
                        continue
                    launched.popleft().synchronize()
                self._ends_ns.append(time.perf_counter_ns())
        if self._stream:
            self._stream.synchronize()
