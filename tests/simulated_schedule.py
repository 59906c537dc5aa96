"""When everything happens in a simulated run: the schedule, worked out from what a scenario says.

A step loads data, runs its micro-steps, reduces the buckets of the last one, and updates. A bucket's transfer starts
when the last rank has taken it up and is `alpha + beta · bytes` of work for the link. NCCL runs one collective at a
time on a stream of its own; gloo's two workers a rank take up buckets first in first out, and transfers under way at
once share the link evenly. On a GPU the optimizer's kernel waits for the last bucket; on a CPU the backward thread
waits for bucket after bucket and copies each one back. A hook casts a bucket where backward computes, before it is
launched, and once more when it has ended, beside whatever else goes on.

PowerSGD's chains of transfers are played in `simulated_powersgd.py`.

Nothing here comes from the analysis, so that neither can hide a mistake of the other.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

from advisor.schema import Phase

MS, US = 1_000_000, 1_000
NUM_WORKERS = 2
WIRE_SHARES = {"none": 1.0, "allreduce": 1.0, "fp16": 0.5, "bf16": 0.5, "noop": 0.0}
"""By hook, bytes on the wire over bytes of float32 gradients."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What happens, in round numbers; the same in every step but for the noise."""

    backend: Literal["nccl", "gloo"] = "nccl"
    num_ranks: int = 2
    num_steps: int = 4
    gradients: tuple[tuple[float, int], ...]
    """(ready in ms from the start of backward, elements), in ready order."""
    buckets: tuple[int, ...]
    """How many gradients each bucket holds."""
    data_ms: float = 1.0
    forward_ms: float = 10.0
    backward_ms: float
    copy_ms: float = 0.1
    """Copying one bucket back, on a CPU."""
    copy_ns_per_byte: float = 0.0
    """And for each of its bytes."""
    optimizer_ms: float = 2.0
    segments: tuple[tuple[int, float, float], ...]
    """(from bytes, alpha in µs, beta in ns a byte), by size."""
    late_rank: int | None = None
    late_phase: Phase = "backward"
    late_ms: float = 0.0
    clock_offsets_ms: tuple[float, ...] = ()
    drifts: tuple[float, ...] = ()
    """What a rank's clock gains a ns."""
    noise: float = 0.0
    """Standard deviation of every compute and transfer time, relative."""
    jitter_us: float = 0.0
    """Standard deviation of when a rank sees the end of a collective."""
    seed: int = 0
    num_pieces: int = 1
    """Operators that share the forward; on a GPU each of them launches a kernel."""

    comm_hook: str = "none"
    cast_ns_per_byte: float = 0.0
    """What the hook's casts cost a byte of gradients: half of it before the all-reduce, half after."""
    micro_steps: int = 1
    """Forwards and backwards of a step, of which the last one synchronises; a rank is late in each of them."""

    def count_bytes(self) -> list[int]:
        """The bytes of each bucket."""
        sizes = [elements for _, elements in self.gradients]
        places = [sum(self.buckets[:n]) for n in range(len(self.buckets) + 1)]
        return [4 * sum(sizes[a:b]) for a, b in pairwise(places)]

    def count_casts_ns(self) -> list[float]:
        """What casting each bucket costs, once."""
        return [self.cast_ns_per_byte / 2 * num_bytes for num_bytes in self.count_bytes()]

    def transfer_ns(self, num_bytes: int) -> float:
        """What the link needs for one all-reduce of gradients of so many bytes alone."""
        if self.comm_hook == "noop":
            return 0.0
        return self.send_ns(num_bytes * WIRE_SHARES[self.comm_hook])

    def send_ns(self, num_bytes: float) -> float:
        """What the link needs for one all-reduce of so many bytes alone."""
        _, alpha, beta = [segment for segment in self.segments if segment[0] <= num_bytes][-1]
        return alpha * US + beta * num_bytes


@dataclass
class Exchange:
    """One step's exchange: per rank and bucket the start, and by bucket the transfer's start and end."""

    starts: list[list[float]]
    workers: list[list[int]]
    transfer_starts: list[float]
    ends: list[float]


def disturb(noise: random.Random, spread: float, value: float) -> float:
    return value * max(0.2, noise.gauss(1.0, spread)) if spread else value


class Plan:
    """One rank's step without its exchange."""

    def __init__(self, scenario: Scenario, rank: int, start: float, noise: random.Random) -> None:
        late = {scenario.late_phase: scenario.late_ms * MS} if rank == scenario.late_rank else {}
        length = scenario.backward_ms * MS
        computing = scenario.forward_ms * MS + late.get("forward", 0) + length + late.get("backward", 0)
        silent = (scenario.micro_steps - 1) * computing
        self.scenario, self.start = scenario, start
        self.forward = start + disturb(noise, scenario.noise, scenario.data_ms * MS) + late.get("data", 0) + silent
        self.backward = self.forward + disturb(noise, scenario.noise, scenario.forward_ms * MS) + late.get("forward", 0)
        stretch = (disturb(noise, scenario.noise, length) + late.get("backward", 0)) / length
        casts = dict(zip(accumulate(scenario.buckets), scenario.count_casts_ns(), strict=True))
        self.gradients: list[float] = []
        self.ready: list[float] = []
        cast = 0.0
        for count, (at, _) in enumerate(scenario.gradients, 1):
            self.gradients.append(self.backward + at * MS * stretch + cast)
            if count in casts:
                cast += casts[count]
                self.ready.append(self.gradients[-1] + casts[count])
        self.backward_end = self.backward + length * stretch + cast
        self.copies: list[tuple[float, float]] = []
        self.optimizer = 0.0

    def finish(self, ends: Sequence[float]) -> tuple[list[tuple[float, float]], float]:
        """When the step waited for its exchange, and when it ended."""
        now, waits = self.backward_end, []
        scenario = self.scenario
        through = [end + cast for end, cast in zip(ends, scenario.count_casts_ns(), strict=True)]
        if scenario.backend == "nccl":
            waits, now = [(now, max(through))], max(now, *through)
        else:
            for end, num_bytes in zip(through, scenario.count_bytes(), strict=True):
                waits.append((now, end))
                now = max(now, end)
                copy = scenario.copy_ms * MS + scenario.copy_ns_per_byte * num_bytes
                self.copies.append((now, now + copy))
                now += copy
        self.optimizer = now
        return [(a, b) for a, b in waits if a < b], now + scenario.optimizer_ms * MS


@dataclass(frozen=True)
class Step:
    """One step on all ranks."""

    plans: list[Plan]
    exchange: Exchange
    waits: list[list[tuple[float, float]]]
    """By rank, when it waited for its exchange."""
    ends: list[float]
    """By rank, when it was done."""


def play_steps(scenario: Scenario, noise: random.Random) -> Iterator[Step]:
    """The steps of a scenario, one after the other."""
    starts = [0.0] * scenario.num_ranks
    run = run_nccl if scenario.backend == "nccl" else run_gloo
    for _ in range(scenario.num_steps):
        plans = [Plan(scenario, rank, start, noise) for rank, start in enumerate(starts)]
        work = [disturb(noise, scenario.noise, scenario.transfer_ns(n)) for n in scenario.count_bytes()]
        exchange = run([plan.ready for plan in plans], work)
        waits, ends = zip(*(plan.finish(exchange.ends) for plan in plans), strict=True)
        yield Step(plans, exchange, list(waits), list(ends))
        starts = list(ends)


# -------------------------------------------------------------------------------------------------------- queueing


def run_nccl(ready: Sequence[Sequence[float]], work: Sequence[float]) -> Exchange:
    """One collective after the other: a rank takes up the next one when it is ready and the one before is over."""
    starts: list[list[float]] = [[] for _ in ready]
    transfer_starts: list[float] = []
    ends: list[float] = []
    for bucket, needed in enumerate(work):
        over = ends[-1] if ends else 0.0
        for rank, own in enumerate(ready):
            starts[rank].append(max(own[bucket], over))
        transfer_starts.append(max(of_rank[bucket] for of_rank in starts))
        ends.append(transfer_starts[-1] + needed)
    return Exchange(starts, [[0] * len(work) for _ in ready], transfer_starts, ends)


def run_gloo(ready: Sequence[Sequence[float]], work: Sequence[float]) -> Exchange:
    """Two workers a rank take up buckets in order; transfers that all ranks have taken up share the link evenly."""
    num_buckets = len(work)
    starts: list[list[float]] = [[] for _ in ready]
    workers: list[list[int]] = [[] for _ in ready]
    transfer_starts, ends, left = [0.0] * num_buckets, [0.0] * num_buckets, list(work)
    running: list[int] = []
    done = [False] * num_buckets
    now = min(own[0] for own in ready)
    while not all(done):
        for rank, own in enumerate(ready):
            busy = {workers[rank][b] for b in range(len(starts[rank])) if not done[b]}
            while (bucket := len(starts[rank])) < num_buckets and own[bucket] <= now and len(busy) < NUM_WORKERS:
                worker = min(set(range(NUM_WORKERS)) - busy)
                starts[rank].append(now)
                workers[rank].append(worker)
                busy.add(worker)
        for bucket in range(num_buckets):
            if bucket not in running and not done[bucket] and all(len(own) > bucket for own in starts):
                running.append(bucket)
                transfer_starts[bucket] = now
        launches = [own[b] for own, taken in zip(ready, starts, strict=True) for b in range(len(taken), num_buckets)]
        events = [at for at in launches if at > now]
        events += [now + min(left[bucket] for bucket in running) * len(running)] if running else []
        then = min(events)
        for bucket in running:
            left[bucket] -= (then - now) / len(running)
        now = then
        for bucket in [b for b in running if left[b] <= 1e-3]:
            ends[bucket], done[bucket] = now, True
            running.remove(bucket)
    return Exchange(starts, workers, transfer_starts, ends)
