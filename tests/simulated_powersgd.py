"""When everything happens in a simulated step under PowerSGD: what each rank's thread does, in order, and the link.

On NCCL torch's own hook runs a bucket from end to end: it reduces what is not compressed, then P, then Q, waits for
each and computes in between, and only then does backward go on. On gloo our hook starts the sums of P and of the rest
of a bucket beside backward; when the last bucket is ready it waits for those of each, computes and starts its Q; at
last it waits for each Q and computes the averages. Backward's end comes after that.

Nothing here comes from the analysis, so that neither can hide a mistake of the other.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, NamedTuple

from tests.simulated_schedule import MS, NUM_WORKERS, US, Plan, Scenario

Message = tuple[Literal["p", "q", "rest"], int]
"""One all-reduce of a bucket."""


@dataclass(frozen=True, kw_only=True)
class Compression:
    """What PowerSGD makes of the gradients."""

    rank: int
    shapes: tuple[tuple[int, ...], ...]
    """Of the scenario's gradients, with as many elements as these."""
    ns_per_byte: float
    us_per_matrix: float
    others_weight: float
    """What a byte that is not compressed takes of `ns_per_byte`."""
    shares: tuple[float, float, float]
    """Of that computation before P is sent, between P and Q, and after Q."""


class Compute(NamedTuple):
    ns: float


class Send(NamedTuple):
    message: Message


class Wait(NamedTuple):
    message: Message


Act = Compute | Send | Wait


@dataclass
class _Thread:
    """One rank: what it has yet to do, what it sent, and what its workers have taken up of that."""

    acts: list[Act]
    until: float = 0.0
    sent: list[Message] = field(default_factory=list)
    taken: list[Message] = field(default_factory=list)


def play_powersgd(scenario: Scenario, compression: Compression) -> tuple[list[float], list[float]]:
    """One step without noise: when each bucket's last all-reduce ended, and when each rank was done."""
    plans = [Plan(scenario, rank, 0.0, random.Random(0)) for rank in range(scenario.num_ranks)]
    messages = measure_messages(scenario, compression)
    write = write_torchs if scenario.backend == "nccl" else write_ours
    threads = [
        _Thread([Compute(plan.backward), *write(plan, list_costs(scenario, compression), messages)]) for plan in plans
    ]
    times = {message: scenario.send_ns(num_bytes) for message, num_bytes in messages.items()}
    ends = run_threads(threads, times, NUM_WORKERS if scenario.backend == "gloo" else 1)
    last = [max(at for (_, of), at in ends.items() if of == bucket) for bucket in range(len(scenario.buckets))]
    copies = sum(scenario.copy_ms * MS + scenario.copy_ns_per_byte * size for size in scenario.count_bytes())
    after = scenario.optimizer_ms * MS + (copies if scenario.backend == "gloo" else 0.0)
    return last, [thread.until + after for thread in threads]


# ------------------------------------------------------------------------------------------------ what is sent


def measure_messages(scenario: Scenario, compression: Compression) -> dict[Message, int]:
    """The bytes of every all-reduce that has some."""
    sizes: dict[Message, int] = {}
    borders = [0, *accumulate(scenario.buckets)]
    for bucket in range(len(scenario.buckets)):
        p = q = rest = 0
        for shape in compression.shapes[borders[bucket] : borders[bucket + 1]]:
            n, m, r = factor(shape, compression.rank)
            p, q, rest = p + 4 * n * r, q + 4 * m * r, rest + (0 if r else 4 * n * m)
        sizes |= {("p", bucket): p, ("q", bucket): q, ("rest", bucket): rest}
    return {message: size for message, size in sizes.items() if size}


def factor(shape: tuple[int, ...], rank: int) -> tuple[int, int, int]:
    """Rows, columns and the rank of the approximation: 0 where it would not halve what is sent."""
    n, m = shape[0], 1
    for size in shape[1:]:
        m *= size
    r = min(rank, n, m)
    return n, m, r if 2 * r * (n + m) < n * m else 0


def list_costs(scenario: Scenario, compression: Compression) -> list[tuple[float, float, float]]:
    """By bucket, the ns of computation in each of its three stages."""
    costs = []
    borders = [0, *accumulate(scenario.buckets)]
    for bucket in range(len(scenario.buckets)):
        cost, num_matrices = 0.0, 0
        for shape in compression.shapes[borders[bucket] : borders[bucket + 1]]:
            n, m, r = factor(shape, compression.rank)
            cost += 4 * n * m * compression.ns_per_byte * (1 if r else compression.others_weight)
            cost += compression.us_per_matrix * US if r else 0
            num_matrices += r > 0
        before, between, after = (share * cost for share in compression.shares)
        # A bucket without P and Q has nothing between them.
        costs.append((before, between if num_matrices else 0.0, after))
    return costs


# ------------------------------------------------------------------------------------------- what a thread does


def write_torchs(
    plan: Plan, costs: Sequence[tuple[float, float, float]], messages: Mapping[Message, int]
) -> Iterator[Act]:
    """torch's hook on NCCL, in backward's way."""
    now = plan.backward
    for bucket, (ready, (before, between, after)) in enumerate(zip(plan.ready, costs, strict=True)):
        yield Compute(ready - now + before)
        now = ready
        for name in ("rest", "p", "q"):
            message: Message = (name, bucket)
            if name == "q":
                yield Compute(between)
            if message in messages:
                yield Send(message)
                yield Wait(message)
        yield Compute(after)
    yield Compute(plan.backward_end - now)


def write_ours(
    plan: Plan, costs: Sequence[tuple[float, float, float]], messages: Mapping[Message, int]
) -> Iterator[Act]:
    """Our hook on gloo: first rounds beside backward, all else behind the last of them."""
    now = plan.backward
    for bucket, (ready, (before, _, _)) in enumerate(zip(plan.ready, costs, strict=True)):
        yield Compute(ready - now + before)
        now = ready
        yield from (Send(message) for message in _list_firsts(bucket) if message in messages)
    for bucket, (_, between, _) in enumerate(costs):
        yield from (Wait(message) for message in _list_firsts(bucket) if message in messages)
        if ("q", bucket) in messages:
            yield Compute(between)
            yield Send(("q", bucket))
    for bucket, (_, _, after) in enumerate(costs):
        if ("q", bucket) in messages:
            yield Wait(("q", bucket))
        yield Compute(after)
    yield Compute(plan.backward_end - now)


def _list_firsts(bucket: int) -> tuple[Message, Message]:
    return ("p", bucket), ("rest", bucket)


# ------------------------------------------------------------------------------------------- who waits for whom


def run_threads(threads: Sequence[_Thread], times: Mapping[Message, float], num_workers: int) -> dict[Message, float]:
    """Runs all ranks to their ends; a rank's workers take up what it sent in order, and transfers share the link."""
    left = dict(times)
    ends: dict[Message, float] = {}
    now = 0.0
    while any(thread.acts for thread in threads):
        for thread in threads:
            _advance(thread, now, ends)
            busy = [message for message in thread.taken if message not in ends]
            waiting = thread.sent[len(thread.taken) :]
            thread.taken += waiting[: num_workers - len(busy)]
        running = [m for m in threads[0].taken if m not in ends and all(m in thread.taken for thread in threads)]
        events = [thread.until for thread in threads if thread.acts and thread.until > now]
        events += [now + min(left[message] for message in running) * len(running)] if running else []
        assert events or not any(thread.acts for thread in threads), "every rank waits"
        then = min(events, default=now)
        for message in running:
            left[message] -= (then - now) / len(running)
            if left[message] <= 1e-3:
                ends[message] = then
        now = then
    return ends


def _advance(thread: _Thread, now: float, ends: Mapping[Message, float]) -> None:
    """Does whatever the rank's thread can do by now; `until` is when its last computation ends."""
    while thread.acts and thread.until <= now:
        act = thread.acts[0]
        if isinstance(act, Wait) and act.message not in ends:
            return
        del thread.acts[0]
        if isinstance(act, Compute):
            thread.until = now + act.ns
        elif isinstance(act, Send):
            thread.sent.append(act.message)
