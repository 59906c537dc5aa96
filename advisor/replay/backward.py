"""One synchronising backward and its exchange, through piecewise-constant rates.

Computation advances at 1, or at 1 / s while a collective runs. One collective in flight advances at 1, two at 1 / t
each, n at 1 / (1 + (n - 1) (t - 1)) each, and all of them at 1 / c of that while computation runs beside them (s and c
are the calibrated slow-downs, t is 2 where collectives share the link). A bucket is launched when its last gradient is
ready, in bucket order, after the hook has cast it; launching and casting cost the backward thread (a GPU's compute
stream) their time. At most `concurrency` collectives run, the others wait in order.

A host that is late holds computation up: a segment between two buckets does not begin before the host got there,
however long communication made the one before. So what communication costs is lost in the gaps of a slow host.

A hook may send a bucket in several transfers with computation between them. Such a transfer, or what is computed before
it, may have to await the end of others; meanwhile nothing is computed, and that blocks.

After the last gradient each bucket in turn is waited for, cast back and copied out.

    buckets ready at 2, 4, 6, 8 ms, 3 ms each, one in flight: they end at 5, 8, 11, 14 ms, so 6 ms block
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate
from math import inf
from typing import NamedTuple

import numpy as np

from advisor.replay.scenarios import Floats, Scenario

CAST_BEFORE = 0.5
"""The share of a hook's casts before the collective; the rest casts the average back."""


class Chains(NamedTuple):
    """What a hook makes of buckets that it sends in several transfers; all but the last by transfer."""

    buckets: Sequence[int]
    """The bucket that it belongs to; -1 for none."""
    awaits: Sequence[int]
    """How many of the transfers must have ended before the computation towards it may begin."""
    hook_bytes: Sequence[float]
    """Bytes of gradients that the hook works through before it."""
    hook_matrices: Sequence[float]
    """And matrices."""


@dataclass(frozen=True)
class Backward:
    """What one setting makes of a synchronising backward; times in ns from its start, without communication.

    A bucket is one transfer, unless there are `chains`: then one without bytes is computation alone.
    """

    work: Sequence[float]
    """Computation of backward after which each bucket is ready, ascending."""
    sizes: Sequence[float]
    """Bytes of each bucket on the wire."""
    backward_ns: float
    """Computation of the whole backward."""
    concurrency: int
    """Collectives in flight at most."""
    not_before: Sequence[float] = ()
    """When the host lets computation towards each bucket, and after the last one, begin; empty for at once."""
    gradient_bytes: Sequence[float] = ()
    """Bytes of each bucket that are copied out and cast; empty where they are those on the wire."""
    copies_out: bool = True
    """False where gradients are views of the buckets."""
    hook: str = "none"
    casts_before: bool = True
    """False where the computation above holds the hook's casts before the collective already."""
    chains: Chains | None = None

    def time_alone(self, scenario: Scenario) -> Floats:
        """The time of each transfer that has the link for itself; none for what sends nothing."""
        sizes = np.asarray(self.sizes, dtype=np.float64)
        times = scenario.transfer_ns(sizes)
        return times if self.chains is None else np.where(sizes > 0, times, 0.0)

    def time_hook(self, scenario: Scenario) -> list[float]:
        """What the hook computes before each transfer; empty for nothing."""
        per_byte, per_matrix = scenario.cost_hook(self.hook)
        if self.chains is not None:
            weights = zip(self.chains.hook_bytes, self.chains.hook_matrices, strict=True)
            return [per_byte * size + per_matrix * matrices for size, matrices in weights]
        if per_byte == 0 or not self.casts_before:
            return []
        return [CAST_BEFORE * per_byte * size for size in self.gradient_bytes or self.sizes]


class Replayed(NamedTuple):
    """One replayed synchronising backward; ns from its start."""

    starts: list[float]
    ends: list[float]
    readies: list[float]
    compute_end: float
    finish_end: float
    blocking: float
    exposed: float


def replay_backward(backward: Backward, scenario: Scenario) -> Replayed:
    """Replays one synchronising backward with the scenario's numbers."""
    num, concurrency = len(backward.work), backward.concurrency
    held = backward.gradient_bytes or backward.sizes
    computing = backward.time_hook(scenario)
    launch_ns, chains = scenario.launch_ns, backward.chains
    before = [launch_ns * (size > 0) for size in backward.sizes] if chains else [launch_ns] * num
    awaits = [*chains.awaits, 0] if chains else [0] * (num + 1)
    if computing:
        before = [launching + hook for launching, hook in zip(before, computing, strict=True)]
    spent = [0.0, *accumulate(before)]
    launch_at = [ready + so_far for ready, so_far in zip(backward.work, spent, strict=False)]
    if computing:
        launch_at = [at + hook for at, hook in zip(launch_at, computing, strict=True)]
    compute_total = max(backward.backward_ns, backward.work[-1] if num else 0.0) + spent[-1]
    compute_total = max([compute_total, *launch_at[-1:]])  # which rounding may have put behind it
    not_before = backward.not_before or [0.0] * (num + 1)
    alone = backward.time_alone(scenario).tolist()
    compute_pace = scenario.compute_slowdown
    paces = [1 + (flying - 1) * (scenario.two_in_flight - 1) for flying in range(concurrency + 1)]
    paces_beside = [pace * scenario.communication_slowdown for pace in paces]
    starts, ends, readies = [0.0] * num, [0.0] * num, [0.0] * num
    in_flight: list[tuple[float, int]] = []  # a heap: how far `served` is when a bucket ends, and the bucket
    now = done = served = blocking = 0.0
    launched = started = flying = passed = 0  # passed: how many have ended with none before them left
    targets = [*launch_at, compute_total]
    while done < compute_total or (chains and launched < num):
        target = targets[launched]
        while target <= done and launched < num and awaits[launched] <= passed:
            readies[launched] = now
            launched += 1
            target = targets[launched]
        while started < launched and flying < concurrency:
            starts[started] = now
            heappush(in_flight, (served + alone[started], started))
            started += 1
            flying += 1
        begin = not_before[launched] if awaits[launched] <= passed else inf
        if not flying:
            now = (begin if begin > now else now) + target - done
            done = target
            continue
        served_next = in_flight[0][0]
        if now < begin:  # the host is late, or the hook waits: nothing is computed
            pace = paces[flying]
            until_end = (served_next - served) * pace
            if begin - now < until_end:
                served += (begin - now) / pace
                now = begin
                continue
            if begin == inf:
                blocking += until_end
        else:
            pace = paces_beside[flying]
            until_next, until_end = (target - done) * compute_pace, (served_next - served) * pace
            if until_next < until_end:
                served += until_next / pace
                now += until_next
                done = target
                continue
            done += until_end / compute_pace
        now += until_end
        served, bucket = heappop(in_flight)
        ends[bucket] = now
        flying -= 1
        if chains:
            passed = min([transfer for _, transfer in in_flight]) if flying else started
    compute_end = now
    readies[launched:] = [now] * (num - launched)
    while started < num or in_flight:
        while started < num and len(in_flight) < concurrency:
            starts[started] = now
            heappush(in_flight, (served + alone[started], started))
            started += 1
        now += (in_flight[0][0] - served) * paces[len(in_flight)]
        served, bucket = heappop(in_flight)
        ends[bucket] = now
    exposed = blocking + now - compute_end
    copy_out_ns_per_byte = scenario.copy_out_ns_per_byte * backward.copies_out
    cast_back = 0.0 if chains else (1 - CAST_BEFORE) * scenario.cost_hook(backward.hook)[0]
    at = compute_end
    for end, size in zip(ends, held, strict=True):
        through = end + cast_back * size
        if through > at:
            blocking += through - at
            at = through
        at += copy_out_ns_per_byte * size
    return Replayed(starts, ends, readies, compute_end, at, blocking, exposed)
