"""One synchronising backward and its exchange, through piecewise-constant rates.

Computation advances at 1, or at 1 / s while a collective runs. One collective in flight advances at 1, two at 1 / t
each, n at 1 / (1 + (n - 1) (t - 1)) each, and all of them at 1 / c of that while computation runs beside them (s and c
are the calibrated slow-downs, t is 2 where collectives share the link). A bucket is launched when its last gradient is
ready, in bucket order, after the hook has cast it; launching and casting cost the backward thread (a GPU's compute
stream) their time. At most `concurrency` collectives run, the others wait in order.

A host that is late holds computation up: a segment between two buckets does not begin before the host got there,
however long communication made the one before. So what communication costs is lost in the gaps of a slow host.

After the last gradient each bucket in turn is waited for, cast back and copied out.

    buckets ready at 2, 4, 6, 8 ms, 3 ms each, one in flight: they end at 5, 8, 11, 14 ms, so 6 ms block
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from advisor.replay.scenarios import Scenario

CAST_BEFORE = 0.5
"""The share of a hook's casts before the collective; the rest casts the average back."""


@dataclass(frozen=True)
class Backward:
    """What one setting makes of a synchronising backward; times in ns from its start, without communication."""

    work: Sequence[float]
    """Computation after which each bucket is ready, ascending."""
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
    cast = scenario.hook_ns_per_byte.get(backward.hook, 0.0)
    cast_before = CAST_BEFORE * cast * backward.casts_before
    before = [scenario.launch_ns + cast_before * size for size in held] if cast_before else [scenario.launch_ns] * num
    spent = [0.0, *accumulate(before)]
    launch_at = [ready + so_far for ready, so_far in zip(backward.work, spent, strict=False)]
    if cast_before:
        launch_at = [at + cast_before * size for at, size in zip(launch_at, held, strict=True)]
    compute_total = max(backward.backward_ns, backward.work[-1] if num else 0.0) + spent[-1]
    not_before = backward.not_before or [0.0] * (num + 1)
    alone = scenario.transfer_ns(np.asarray(backward.sizes, dtype=np.float64)).tolist()
    compute_pace = scenario.compute_slowdown
    paces = [1 + (flying - 1) * (scenario.two_in_flight - 1) for flying in range(concurrency + 1)]
    paces_beside = [pace * scenario.communication_slowdown for pace in paces]
    starts, ends, readies = [0.0] * num, [0.0] * num, [0.0] * num
    in_flight: list[tuple[float, int]] = []  # a heap: how far `served` is when a bucket ends, and the bucket
    now = done = served = 0.0
    launched = started = flying = 0
    targets = [*launch_at, compute_total]
    while done < compute_total:
        target = targets[launched]
        while target <= done:
            readies[launched] = now
            launched += 1
            target = targets[launched]
        while started < launched and flying < concurrency:
            starts[started] = now
            heappush(in_flight, (served + alone[started], started))
            started += 1
            flying += 1
        begin = not_before[launched]
        if not flying:
            now = (begin if begin > now else now) + target - done
            done = target
            continue
        served_next = in_flight[0][0]
        if now < begin:  # the host is late: nothing is computed
            pace = paces[flying]
            until_end = (served_next - served) * pace
            if begin - now < until_end:
                served += (begin - now) / pace
                now = begin
                continue
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
    exposed = now - compute_end
    copy_out_ns_per_byte = scenario.copy_out_ns_per_byte * backward.copies_out
    at, blocking = compute_end, 0.0
    for end, size in zip(ends, held, strict=True):
        through = end + (1 - CAST_BEFORE) * cast * size
        if through > at:
            blocking += through - at
            at = through
        at += copy_out_ns_per_byte * size
    return Replayed(starts, ends, readies, compute_end, at, blocking, exposed)
